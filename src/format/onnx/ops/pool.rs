//! Pools over windows, and over whole images.

use super::alike::alike;
use super::windows::{Windows, constants, spatial};
use super::{Done, Imports, Node, NodeError};
use crate::op::{OpError, Pool, Reduce};

alike! {
    Pool [global_pools] {
        "MaxPool" max_pool 1 => Pool::Max {
            kernel as "kernel_shape", strides, dilations, pads, ceil_mode,
            column_major as "storage_order"
        },
        "AveragePool" average_pool 1 => Pool::Average {
            kernel as "kernel_shape", strides, dilations, pads, ceil_mode, count_include_pad
        },
        "LpPool" lp_pool 1 => Pool::Lp {
            kernel as "kernel_shape", strides, dilations, pads, ceil_mode, p
        },
    }
}

fn global_pools(all: &mut Imports) {
    all.add("GlobalLpPool", 1, global_lp_pool);
    all.add("GlobalMaxPool", 1, |n| global(n, |axes| Reduce::Max { axes, keepdims: true }));
    all.add("GlobalAveragePool", 1, |n| global(n, |axes| Reduce::Mean { axes, keepdims: true }));
}

/// The kernel and the windows of a pool, and whether a partial last window counts.
fn pool(n: &mut Node<'_, '_>) -> Result<(Vec<i64>, Windows, bool), NodeError> {
    let x = n.operand(0)?;
    let input = spatial(n.shape(x));
    let kernel = n.needed_ints("kernel_shape")?;
    let windows = Windows::read(n, &input, &kernel)?;
    let ceil_mode = n.flag("ceil_mode", false)?;
    Ok((kernel, windows, ceil_mode))
}

fn max_pool(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (kernel, Windows { strides, dilations, pads }, ceil_mode) = pool(n)?;
    let (indices, column_major) = (n.wants(1), n.flag("storage_order", false)?);
    let column_major = column_major && indices;
    let op = Pool::Max { kernel, strides, dilations, pads, ceil_mode, indices, column_major };
    n.results(1 + usize::from(indices), op, &[x])
}

fn average_pool(n: &mut Node<'_, '_>) -> Done {
    let (kernel, Windows { strides, dilations, pads }, ceil_mode) = pool(n)?;
    let count_include_pad = n.flag("count_include_pad", false)?;
    let op = Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad };
    n.of_first(1, op)
}

fn lp_pool(n: &mut Node<'_, '_>) -> Done {
    let (kernel, Windows { strides, dilations, pads }, ceil_mode) = pool(n)?;
    let p = n.int("p", 2)?;
    n.of_first(1, Pool::Lp { kernel, strides, dilations, pads, ceil_mode, p })
}

fn global_lp_pool(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let p = n.int("p", 2)?;
    let Some(kernel) = constants(&spatial(n.shape(x))) else {
        let text = "a pool over an axis whose size depends on the batch".to_owned();
        return Err(NodeError::Unsupported(text));
    };
    let (strides, dilations, pads) = (Vec::new(), Vec::new(), Vec::new());
    n.result(Pool::Lp { kernel, strides, dilations, pads, ceil_mode: false, p }, &[x])
}

/// A pool over all axes behind the first two.
fn global(n: &mut Node<'_, '_>, op: impl FnOnce(Vec<i64>) -> Reduce) -> Done {
    let x = n.operand(0)?;
    let rank = n.shape(x).rank();
    if rank < 2 {
        let expected = "it must have a batch axis and a channel axis".to_owned();
        return Err(OpError::Shape { operand: 0, found: n.ty(x).clone(), expected }.into());
    }
    let axes = (2i64..).take(rank - 2).collect();
    n.result(op(axes), &[x])
}
