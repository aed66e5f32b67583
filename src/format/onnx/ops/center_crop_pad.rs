//! The middle of a value, or a value in the middle of zeros.

use super::{Done, Imports, Node, NodeError, wrong};
use crate::op::infer::axis as named_axis;
use crate::op::{Formula, OpError, Slice};
use crate::types::Dim;

pub(super) fn imports(all: &mut Imports) {
    all.add("CenterCropPad", 2, center_crop_pad);
}

/// Of too large an axis the middle stays, too small a one gets zeros on both sides; of an odd
/// number the larger half comes after, and is cut off after.
fn center_crop_pad(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let shape = n.shape(x).clone();
    let axes = n.opt_ints("axes")?.unwrap_or_else(|| (0i64..).take(shape.rank()).collect());
    let targets = n.sizes(1)?;
    if axes.len() != targets.len() {
        let reason = format!("{} axes for {} sizes", axes.len(), targets.len());
        return Err(wrong("axes", reason));
    }
    let mut cut =
        Slice { axes: Vec::new(), starts: Vec::new(), ends: Vec::new(), steps: Vec::new() };
    let mut pads = vec![0; 2 * shape.rank()];
    let mut named: Vec<(usize, &Dim)> = Vec::new();
    for (axis, target) in axes.iter().zip(&targets) {
        named.push((named_axis("axes", *axis, shape.rank())?, target));
    }
    // The file names axes in any order, `Slice` in ascending order.
    named.sort_by_key(|(axis, _)| *axis);
    if named.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(wrong("axes", "names an axis twice"));
    }
    for (axis, target) in named {
        let size = &shape[axis];
        // An axis that keeps its size stays out of both operators: it may be open, as the batch is.
        if size == target {
            continue;
        }
        let (Some(size), Some(target)) = (size.as_const(), target.as_const()) else {
            let text = format!("{target} entries of the middle of {size}");
            return Err(NodeError::Unsupported(text));
        };
        if target < 0 {
            let reason = format!("the size {target} is negative");
            return Err(OpError::Value { operand: 1, reason }.into());
        }
        if target < size {
            let start = (size - target) / 2;
            cut.axes.push(axis);
            cut.starts.push(start.into());
            cut.ends.push((start + target).into());
            cut.steps.push(1);
        } else {
            let before = (target - size) / 2;
            (pads[axis], pads[axis + shape.rank()]) = (before, target - size - before);
        }
    }
    let mut y = x;
    if !cut.axes.is_empty() {
        y = n.op(cut, &[y])?;
    }
    if pads.iter().any(|p| *p != 0) {
        n.last(0).pad(y, pads, 0.0)?;
        Ok(())
    } else {
        n.last(0).identity(y)?;
        Ok(())
    }
}
