//! Running sums and products.

use super::{Done, Export, Imports, Node, NodeError, Refused, Writer, Written};
use crate::op::Scan;
use crate::types::Tensor;

pub(super) fn imports(all: &mut Imports) {
    all.add("CumSum", 2, |n| {
        scan(n, |axis, exclusive, reverse| Scan::Sum { axis, exclusive, reverse })
    });
    all.add("CumProd", 2, |n| {
        scan(n, |axis, exclusive, reverse| Scan::Prod { axis, exclusive, reverse })
    });
}

fn scan(n: &mut Node<'_, '_>, op: impl FnOnce(i64, bool, bool) -> Scan) -> Done {
    let axis = n.opt_single(1)?.ok_or(NodeError::Missing { operand: 1 })?;
    let (exclusive, reverse) = (n.flag("exclusive", false)?, n.flag("reverse", false)?);
    n.of_first(1, op(axis, exclusive, reverse))
}

impl Export for Scan {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let Self::Sum { axis, exclusive, reverse } = *self else { return Err(Refused::unknown()) };
        let axis = w.tensor(&Tensor::scalar(axis))?;
        let given = [("exclusive", exclusive.into()), ("reverse", reverse.into())];
        w.with("CumSum", [axis], &given)
    }
}
