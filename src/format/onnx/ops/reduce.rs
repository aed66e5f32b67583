//! Reductions over axes.

use super::super::NodeError;
use super::super::node::Node;
use super::Line;
use crate::op::{Arg, OpError, Reduce};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "ReduceSum" => (2, |n| reduce(n, 13)),
        "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" | "ReduceL1" | "ReduceL2"
        | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceSumSquare" => (2, |n| reduce(n, 18)),
        "GlobalAveragePool" => (1, |n| global(n, |axes| Reduce::Mean { axes, keepdims: true })),
        "GlobalMaxPool" => (1, |n| global(n, |axes| Reduce::Max { axes, keepdims: true })),
        "ArgMax" => (1, |n| {
            let (axis, keepdims, select_last_index) = arg(n)?;
            let x = n.operand(0)?;
            n.result(Arg::Max { axis, keepdims, select_last_index }, &[x])
        }),
        "ArgMin" => (1, |n| {
            let (axis, keepdims, select_last_index) = arg(n)?;
            let x = n.operand(0)?;
            n.result(Arg::Min { axis, keepdims, select_last_index }, &[x])
        }),
        _ => return None,
    })
}

/// The axes are an operand from opset `since` on, before an attribute. Without them all axes are reduced, or
/// each element on its own.
fn reduce(n: &mut Node<'_, '_>, since: i64) -> Done {
    let x = n.operand(0)?;
    let given = n.list("axes", since, 1)?.unwrap_or_default();
    let keepdims = n.flag("keepdims", true)?;
    let each = n.opset >= since && n.flag("noop_with_empty_axes", false)?;
    let all = given.is_empty() && !each;
    let axes = if all { (0i64..).take(n.shape(x).rank()).collect() } else { given };
    let op = match n.op_type() {
        "ReduceSum" => Reduce::Sum { axes, keepdims },
        "ReduceMean" => Reduce::Mean { axes, keepdims },
        "ReduceMax" => Reduce::Max { axes, keepdims },
        "ReduceMin" => Reduce::Min { axes, keepdims },
        "ReduceProd" => Reduce::Prod { axes, keepdims },
        "ReduceL1" => Reduce::L1 { axes, keepdims },
        "ReduceL2" => Reduce::L2 { axes, keepdims },
        "ReduceLogSum" => Reduce::LogSum { axes, keepdims },
        "ReduceLogSumExp" => Reduce::LogSumExp { axes, keepdims },
        _ => Reduce::SumSquare { axes, keepdims },
    };
    n.result(op, &[x])
}

/// The axis, whether it stays, and whether the last of several counts.
fn arg(n: &mut Node<'_, '_>) -> Result<(i64, bool, bool), NodeError> {
    Ok((n.int("axis", 0)?, n.flag("keepdims", true)?, n.flag("select_last_index", false)?))
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
