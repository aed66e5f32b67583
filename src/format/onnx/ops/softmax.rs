//! Softmax and its kin.

use super::{Done, Export, Imports, Node, Writer, Written};
use crate::op::infer::axis as named_axis;
use crate::op::{Formula, Softmax};
use crate::types::Dim;

pub(super) fn imports(all: &mut Imports) {
    all.add("Softmax", 1, |n| softmax(n, |axis| Softmax::Softmax { axis }));
    all.add("LogSoftmax", 1, |n| softmax(n, |axis| Softmax::LogSoftmax { axis }));
    all.add("Hardmax", 1, |n| softmax(n, |axis| Softmax::Hardmax { axis }));
}

/// Before opset 13 all axes from `axis` on are taken together, as those of a matrix; that is the
/// axis itself where the others have one entry.
fn softmax(n: &mut Node<'_, '_>, op: impl FnOnce(i64) -> Softmax) -> Done {
    if n.opset >= 13 {
        let axis = n.int("axis", -1)?;
        return n.of_first(1, op(axis));
    }
    let (axis, x) = (n.int("axis", 1)?, n.operand(0)?);
    let shape = n.shape(x).clone();
    // The axis may also be one past the last: each element is alone then.
    let at = if usize::try_from(axis) == Ok(shape.rank()) {
        shape.rank()
    } else {
        named_axis("axis", axis, shape.rank())?
    };
    if at < shape.rank() && shape.iter().skip(at + 1).all(|d| *d == Dim::ONE) {
        return n.result(op(axis), &[x]);
    }
    let matrix = n.flatten(x, axis)?;
    let rows = n.op(op(1), &[matrix])?;
    n.last(0).view(rows, shape.to_vec())?;
    Ok(())
}

impl Export for Softmax {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let (name, axis) = match *self {
            Self::Softmax { axis } => ("Softmax", axis),
            Self::LogSoftmax { axis } => ("LogSoftmax", axis),
            Self::Hardmax { axis } => ("Hardmax", axis),
        };
        w.same(name, &[("axis", axis.into())])
    }
}
