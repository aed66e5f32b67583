//! Reductions over axes.

use super::{Done, Export, Imports, Node, Writer, Written, name};
use crate::op::Reduce;

/// A reduction of the axes, which stay where that is said.
type Make = fn(Vec<i64>, bool) -> Reduce;

/// The reductions whose axes became an operand in opset 18; those of a sum in 13.
const SINCE_18: [(&str, Make); 9] = [
    ("ReduceMean", |axes, keepdims| Reduce::Mean { axes, keepdims }),
    ("ReduceMax", |axes, keepdims| Reduce::Max { axes, keepdims }),
    ("ReduceMin", |axes, keepdims| Reduce::Min { axes, keepdims }),
    ("ReduceProd", |axes, keepdims| Reduce::Prod { axes, keepdims }),
    ("ReduceL1", |axes, keepdims| Reduce::L1 { axes, keepdims }),
    ("ReduceL2", |axes, keepdims| Reduce::L2 { axes, keepdims }),
    ("ReduceLogSum", |axes, keepdims| Reduce::LogSum { axes, keepdims }),
    ("ReduceLogSumExp", |axes, keepdims| Reduce::LogSumExp { axes, keepdims }),
    ("ReduceSumSquare", |axes, keepdims| Reduce::SumSquare { axes, keepdims }),
];
const SUM: Make = |axes, keepdims| Reduce::Sum { axes, keepdims };

pub(super) fn imports(all: &mut Imports) {
    all.add("ReduceSum", 2, |n| reduce(n, 13, SUM));
    all.table(&SINCE_18, 2, |n| {
        let make = n.row(&SINCE_18)?;
        reduce(n, 18, make)
    });
}

/// The axes are an operand from opset `since` on, before an attribute. Without them all axes are
/// reduced, or each element on its own.
fn reduce(n: &mut Node<'_, '_>, since: i64, make: Make) -> Done {
    let x = n.operand(0)?;
    // Absent axes and an empty list mean the same.
    let given = n.list("axes", since, 1)?.unwrap_or_default();
    let keepdims = n.flag("keepdims", true)?;
    let each = n.opset >= since && n.flag("noop_with_empty_axes", false)?;
    let all = given.is_empty() && !each;
    let axes = if all { (0i64..).take(n.shape(x).rank()).collect() } else { given };
    n.result(make(axes, keepdims), &[x])
}

impl Export for Reduce {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let (axes, keepdims) = match self {
            Self::Sum { axes, keepdims }
            | Self::Mean { axes, keepdims }
            | Self::Max { axes, keepdims }
            | Self::Min { axes, keepdims }
            | Self::Prod { axes, keepdims }
            | Self::L1 { axes, keepdims }
            | Self::L2 { axes, keepdims }
            | Self::LogSum { axes, keepdims }
            | Self::LogSumExp { axes, keepdims }
            | Self::SumSquare { axes, keepdims } => (axes, *keepdims),
            Self::WideSum { .. } | Self::WideProd { .. } => {
                return Err("ONNX has no sums before they are rounded".into());
            }
        };
        if axes.is_empty() {
            return alone(w, self);
        }
        let rows = [("ReduceSum", SUM)].into_iter().chain(SINCE_18);
        let rows: Vec<(&str, Self)> = rows.map(|(n, make)| (n, make(Vec::new(), true))).collect();
        let axes = w.ints(axes)?;
        w.with(name(&rows, self)?, [axes], &[("keepdims", keepdims.into())])
    }
}

/// The reduction of every element alone.
fn alone(w: &mut Writer<'_>, op: &Reduce) -> Written {
    match op {
        Reduce::L1 { .. } | Reduce::L2 { .. } => w.same("Abs", &[]),
        Reduce::LogSum { .. } => w.same("Log", &[]),
        Reduce::SumSquare { .. } => {
            let operands = w.operands()?;
            w.done("Mul", [operands.clone(), operands].concat(), &[])
        }
        Reduce::Sum { .. }
        | Reduce::Mean { .. }
        | Reduce::Max { .. }
        | Reduce::Min { .. }
        | Reduce::Prod { .. }
        | Reduce::WideSum { .. }
        | Reduce::WideProd { .. }
        | Reduce::LogSumExp { .. } => w.same("Identity", &[]),
    }
}
