//! Functions of two operands, element by element.

use super::broadcast::{begin_at, broadcast};
use super::{ANY, Done, Export, Imports, Node, NodeError, Writer, Written, name};
use crate::op::{Binary, Identity};
use crate::types::Dim;

/// The functions of two operands without settings, in ONNX and here.
const PLAIN: [(&str, Binary); 5] = [
    ("Add", Binary::Add),
    ("Sub", Binary::Sub),
    ("Mul", Binary::Mul),
    ("Div", Binary::Div),
    ("Pow", Binary::Pow),
];

/// The functions that ONNX applies to any number of operands.
const CHAINS: [(&str, Binary); 2] = [("Max", Binary::Max), ("Min", Binary::Min)];

pub(super) fn imports(all: &mut Imports) {
    all.table(&PLAIN, 2, |n| {
        let op = n.row(&PLAIN)?;
        broadcast(n, op)
    });
    all.table(&CHAINS, ANY, |n| {
        let op = n.row(&CHAINS)?;
        chain(n, op)
    });
    all.add("Sum", ANY, |n| chain(n, Binary::Add));
    all.add("Mean", ANY, mean);
    all.add("Mod", 2, |n| {
        let fmod = n.flag("fmod", false)?;
        n.of_first(2, Binary::Mod { fmod })
    });
    all.add("PRelu", 2, prelu);
}

/// Before opset 7 a slope with one axis has an entry for each channel, axis 1.
fn prelu(n: &mut Node<'_, '_>) -> Done {
    let (x, mut slope) = (n.operand(0)?, n.operand(1)?);
    if n.opset < 7 && n.shape(slope).rank() == 1 && n.shape(slope).first() != Some(&Dim::ONE) {
        slope = begin_at(n, x, slope, Some(1))?;
    }
    n.result(Binary::Prelu, &[x, slope])
}

/// The operands joined pair by pair from the left.
fn chain(n: &mut Node<'_, '_>, op: Binary) -> Done {
    match &n.operands()?[..] {
        [] => Err(NodeError::Missing { operand: 0 }),
        [x] => n.result(Identity {}, &[*x]),
        [first, middle @ .., last] => {
            let mut sum = *first;
            for x in middle {
                sum = n.emit(op.clone(), &[sum, *x])?;
            }
            n.result(op, &[sum, *last])
        }
    }
}

fn mean(n: &mut Node<'_, '_>) -> Done {
    let operands = n.operands()?;
    let Some((first, rest)) = operands.split_first() else {
        return Err(NodeError::Missing { operand: 0 });
    };
    let mut sum = *first;
    for x in rest {
        sum = n.emit(Binary::Add, &[sum, *x])?;
    }
    let count = n.scalar(n.dtype(sum), operands.len() as f64)?;
    n.result(Binary::Div, &[sum, count])
}

impl Export for Binary {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        if let Self::Mod { fmod } = self {
            return w.same("Mod", &[("fmod", (*fmod).into())]);
        }
        let known = name(&PLAIN, self).or_else(|_| name(&CHAINS, self));
        w.same(known.or_else(|_| name(&[("PRelu", Self::Prelu)], self))?, &[])
    }
}
