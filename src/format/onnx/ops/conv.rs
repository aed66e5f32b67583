//! Convolutions.

use super::windows::{Windows, constants, given, spatial};
use super::{Export, Imports, Node, NodeError, Writer, Written, wrong};
use crate::ir::Value;
use crate::op::Conv;

pub(super) fn imports(all: &mut Imports) {
    all.add("Conv", 3, |n| {
        let (x, w) = (n.operand(0)?, n.operand(1)?);
        let conv = conv_of(n, x, w)?;
        n.of_all(conv)
    });
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

impl Export for Conv {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let Self { strides, dilations, pads, groups } = self;
        let mut given = given([("strides", strides), ("dilations", dilations), ("pads", pads)]);
        given.push(("group", (*groups).into()));
        w.same("Conv", &given)
    }
}
