//! Convolutions.

use super::alike::alike;
use super::windows::{Windows, constants, spatial};
use super::{Done, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::Conv;

alike! {
    Conv { "Conv" conv 3 => Conv { strides, dilations, pads, groups as "group" }, }
}

fn conv(n: &mut Node<'_, '_>) -> Done {
    let (x, w) = (n.operand(0)?, n.operand(1)?);
    let conv = conv_of(n, x, w)?;
    n.of_all(conv)
}

/// The convolution by steps of one, of a kernel that has no gaps, without padding.
pub(super) fn plain(groups: i64) -> Conv {
    Conv { strides: Vec::new(), dilations: Vec::new(), pads: Vec::new(), groups }
}

/// The convolution of `x` by `w` that the attributes of the node describe.
pub(super) fn conv_of(n: &mut Node<'_, '_>, x: Value, w: Value) -> Result<Conv, NodeError> {
    let taps = spatial(n.shape(w));
    let input = spatial(n.shape(x));
    let Some(kernel) = constants(&taps) else {
        return Err(NodeError::Unsupported("a kernel whose size depends on the batch".to_owned()));
    };
    if let Some(declared) = n.opt_ints("kernel_shape")?.filter(|k| *k != kernel) {
        let reason = format!("is {declared:?}, but the kernel is {}", n.ty(w));
        return Err(wrong("kernel_shape", reason));
    }
    let groups = n.int("group", 1)?;
    let Windows { strides, dilations, pads } = Windows::read(n, &input, &kernel)?;
    Ok(Conv { strides, dilations, pads, groups })
}
