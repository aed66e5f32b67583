//! Normalisation of rows by their own statistics.

use super::alike::{float, setting};
use super::stash::stash;
use super::{Done, Export, Imports, Node, NodeError, Refused, Writer, Written, long};
use crate::ir::Value;
use crate::op::infer::axis as named_axis;
use crate::op::{Formula, LayerNorm};
use crate::types::DType;

pub(super) fn imports(all: &mut Imports) {
    all.add("LayerNormalization", 3, layer_norm);
    all.add("RMSNormalization", 2, rms_norm);
}

/// True of a scale or shift with the shape of a row of `x`.
fn is_row(n: &Node<'_, '_>, x: Value, axis: usize, other: Value) -> bool {
    n.shape(x).get(axis..) == Some(&n.shape(other)[..])
}

/// Multiplies `y` by a scale and adds a shift that broadcast to it, and makes that the node's first
/// result.
fn scale_shift(
    n: &mut Node<'_, '_>,
    y: Value,
    to: DType,
    scale: Option<Value>,
    shift: Option<Value>,
) -> Done {
    let shape = n.shape(y).clone();
    let y = n.cast(y, to)?;
    match (scale, shift) {
        (None, None) => n.last(0).identity(y)?,
        (Some(scale), None) => n.last(0).mul(y, scale)?,
        (None, Some(shift)) => n.last(0).add(y, shift)?,
        (Some(scale), Some(shift)) => {
            let scaled = n.mul(y, scale)?;
            n.last(0).add(scaled, shift)?
        }
    };
    // ONNX broadcasts scale and shift to the operand only. The products and sums used here
    // broadcast both ways, so more axes would give the result another shape.
    let fits = |other: Option<Value>| other.is_none_or(|v| n.shape(v).rank() <= shape.rank());
    if fits(scale) && fits(shift) {
        return Ok(());
    }
    Err(NodeError::Unsupported("a scale or shift with more axes than the operand".to_owned()))
}

fn layer_norm(n: &mut Node<'_, '_>) -> Done {
    let (x, scale, shift) = (n.operand(0)?, n.operand(1)?, n.optional(2));
    let axis = n.int("axis", -1)?;
    let (stash, compute) = stash(n, x)?;
    let epsilon = setting(n, "epsilon", 1e-5, compute)?;
    let first = named_axis("axis", axis, n.shape(x).rank())?;
    let statistics = n.wants(1) || n.wants(2);
    let op = LayerNorm::Layer { axis, epsilon, statistics };
    let own = n.dtype(x);
    // The operator takes scale and shift as rows of the operand's own type. In all other cases it
    // normalises alone, and what follows scales and shifts.
    let direct = compute == own
        && is_row(n, x, first, scale)
        && shift.is_none_or(|shift| is_row(n, x, first, shift));
    let operands: Vec<Value> = [x, scale].into_iter().chain(shift).collect();
    if direct && !statistics {
        return n.result(op, &operands);
    }
    let results = if direct {
        let results = n.ops(op, &operands)?;
        n.last(0).identity(results[0])?;
        results
    } else {
        let x = n.cast(x, compute)?;
        let results = n.ops(op, &[x])?;
        scale_shift(n, results[0], own, Some(scale), shift)?;
        results
    };
    // The mean and the inverse deviation have the type that `stash_type` names, not that of `x`.
    for (i, result) in results.iter().enumerate().skip(1) {
        if n.wants(i) {
            n.last(i).convert(*result, stash)?;
        }
    }
    Ok(())
}

fn rms_norm(n: &mut Node<'_, '_>) -> Done {
    let (x, scale) = (n.operand(0)?, n.operand(1)?);
    let axis = n.int("axis", -1)?;
    let (_, compute) = stash(n, x)?;
    let epsilon = setting(n, "epsilon", 1e-5, compute)?;
    let first = named_axis("axis", axis, n.shape(x).rank())?;
    let op = LayerNorm::Rms { axis, epsilon };
    // Unlike LayerNormalization, the result has the type of the scale.
    let own = n.dtype(scale);
    if compute == own && n.dtype(x) == own && is_row(n, x, first, scale) {
        return n.result(op, &[x, scale]);
    }
    let x = n.cast(x, compute)?;
    let y = n.op(op, &[x])?;
    scale_shift(n, y, own, Some(scale), None)
}

impl Export for LayerNorm {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let (ty, mut operands) = (w.ty(0)?, w.operands()?);
        let axis_of = |axis: i64| {
            let rank = ty.rank();
            let axis = named_axis("axis", axis, rank).map_err(|e| e.to_string())?;
            Ok::<_, Refused>((axis..rank, long(axis)?))
        };
        match *self {
            Self::Layer { axis, epsilon, statistics: _ } => {
                if operands.len() == 1 {
                    // ONNX needs a scale.
                    let (axes, _) = axis_of(axis)?;
                    let one = w.scalar(ty.dtype, 1.0)?;
                    let sizes = w.sizes(&ty.shape[axes])?;
                    operands.push(w.emit("Expand", &[&one, &sizes], &[])?);
                }
                let given = [("axis", axis.into()), ("epsilon", float(epsilon))];
                w.done("LayerNormalization", operands, &given)
            }
            // `x / sqrt(mean of squares + epsilon) * scale`; the operator of that name came later.
            Self::Rms { axis, epsilon } => {
                let (axes, first) = axis_of(axis)?;
                let axes: Vec<i64> = (first..).take(axes.len()).collect();
                let (x, axes) = (&operands[0], w.ints(&axes)?);
                let squares = w.emit("Mul", &[x, x], &[])?;
                let mean = w.emit("ReduceMean", &[&squares, &axes], &[])?;
                let epsilon = w.scalar(ty.dtype, epsilon)?;
                let sum = w.emit("Add", &[&mean, &epsilon], &[])?;
                let root = w.emit("Sqrt", &[&sum], &[])?;
                if let Some(scale) = operands.get(1) {
                    let normed = w.emit("Div", &[x, &root], &[])?;
                    return w.done("Mul", vec![normed, scale.clone()], &[]);
                }
                w.done("Div", vec![x.clone(), root], &[])
            }
        }
    }
}
