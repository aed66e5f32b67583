//! Operands that are broadcast to one another.

use super::{Done, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::{Formula, Op};

/// Reads a function of two operands. Before opset 7 they broadcast only where `broadcast` says so,
/// and the second then begins at `axis` of the first.
pub(super) fn broadcast(n: &mut Node<'_, '_>, op: impl Into<Op>) -> Done {
    let (a, mut b) = (n.operand(0)?, n.operand(1)?);
    if n.opset < 7 {
        let (broadcast, axis) = (n.flag("broadcast", false)?, n.opt_int("axis")?);
        if broadcast {
            b = begin_at(n, a, b, axis)?;
        } else if n.shape(a) != n.shape(b) {
            let (left, right) = (n.ty(a), n.ty(b));
            let text = format!("{left} with {right} without the attribute `broadcast`");
            return Err(NodeError::Unsupported(text));
        }
    }
    n.result(op, &[a, b])
}

/// `b` with axes of size 1 behind its own, so that its first is axis `axis` of `a`.
pub(super) fn begin_at(
    n: &mut Node<'_, '_>,
    a: Value,
    b: Value,
    axis: Option<i64>,
) -> Result<Value, NodeError> {
    let (to, own) = (n.shape(a).rank(), n.shape(b).rank());
    let Some(axis) = axis.filter(|axis| *axis != -1) else { return Ok(b) };
    let start = usize::try_from(axis).ok().filter(|start| start.saturating_add(own) <= to);
    let Some(start) = start else {
        let (left, right) = (n.ty(a), n.ty(b));
        return Err(wrong("axis", format!("is {axis}: {right} does not fit there into {left}")));
    };
    let behind = to - start - own;
    if behind == 0 {
        return Ok(b);
    }
    let axes = (0i64..).skip(own).take(behind).collect();
    n.unsqueeze(b, axes)
}
