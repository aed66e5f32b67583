//! Functions of two operands, element by element.

use super::alike::alike;
use super::broadcast::begin_at;
use super::{ANY, Done, Imports, Node, NodeError, Writer, Written, name};
use crate::op::{Binary, Formula};
use crate::types::Dim;

alike! {
    Binary [others, write_others] {
        "Add" broadcast 2 => Binary::Add,
        "Sub" broadcast 2 => Binary::Sub,
        "Mul" broadcast 2 => Binary::Mul,
        "Div" broadcast 2 => Binary::Div,
        "Pow" broadcast 2 => Binary::Pow,
        "Mod" first 2 => Binary::Mod { fmod = false },
    }
}

/// Functions that ONNX applies to any number of operands, or to a slope.
fn others(all: &mut Imports) {
    all.add("Max", ANY, |n| chain(n, Binary::Max));
    all.add("Min", ANY, |n| chain(n, Binary::Min));
    all.add("Sum", ANY, |n| chain(n, Binary::Add));
    all.add("Mean", ANY, mean);
    all.add("PRelu", 2, prelu);
}

fn write_others(op: &Binary, w: &mut Writer<'_>) -> Written {
    let rows = [("Max", Binary::Max), ("Min", Binary::Min), ("PRelu", Binary::Prelu)];
    w.same(name(&rows, op)?, &[])
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
/// The order fixes how a sum of floats is rounded: from the left, as the node lists the operands.
fn chain(n: &mut Node<'_, '_>, op: Binary) -> Done {
    match &n.operands()?[..] {
        [] => Err(NodeError::Missing { operand: 0 }),
        [x] => {
            n.last(0).identity(*x)?;
            Ok(())
        }
        [first, middle @ .., last] => {
            let mut sum = *first;
            for x in middle {
                sum = n.op(op.clone(), &[sum, *x])?;
            }
            n.result(op, &[sum, *last])
        }
    }
}

/// The sum from the left, rounded in the operands' type, over their number.
fn mean(n: &mut Node<'_, '_>) -> Done {
    let operands = n.operands()?;
    let Some((first, rest)) = operands.split_first() else {
        return Err(NodeError::Missing { operand: 0 });
    };
    let mut sum = *first;
    for x in rest {
        sum = n.add(sum, *x)?;
    }
    let count = n.scalar(n.dtype(sum), operands.len() as f64)?;
    n.last(0).div(sum, count)?;
    Ok(())
}
