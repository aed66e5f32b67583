//! Integers of 8 and 16 bits that stand for numbers: a scale and a zero point for each tensor, axis
//! or block.

use super::random::named;
use super::{Done, Export, Imports, Node, NodeError, Refused, Writer, Written, wrong};
use crate::ir::Value;
use crate::op::{DynamicQuantize, Formula, OpError, Quantize};
use crate::types::{DType, Dim};

pub(super) fn imports(all: &mut Imports) {
    all.add("QuantizeLinear", 3, quantize);
    all.add("DequantizeLinear", 3, dequantize);
    all.add("DynamicQuantizeLinear", 1, |n| {
        let x = n.operand(0)?;
        n.results(3, DynamicQuantize::Quantize, &[x])
    });
}

/// The settings that both directions have from one opset on or another: the axis, and the entries
/// of a block.
fn layout(n: &mut Node<'_, '_>) -> Result<(i64, i64), NodeError> {
    let axis = if n.opset < 13 { 1 } else { n.int("axis", 1)? };
    Ok((axis, if n.opset < 21 { 0 } else { n.int("block_size", 0)? }))
}

/// An element type that an attribute names; 0 for none.
fn opt_dtype(n: &mut Node<'_, '_>, name: &str) -> Result<Option<DType>, NodeError> {
    let number = n.int(name, 0)?;
    if number == 0 { Ok(None) } else { named(name, number).map(Some) }
}

/// The zero point, operand 2, in the shape of the scales, which may be another one of a single
/// element.
fn zero_point(n: &mut Node<'_, '_>) -> Result<Option<Value>, NodeError> {
    let (scale, Some(zero)) = (n.operand(1)?, n.optional(2)) else { return Ok(None) };
    let (to, own) = (n.shape(scale).clone(), n.shape(zero).clone());
    let single = |sizes: &[Dim]| sizes.iter().all(|size| *size == Dim::ONE);
    if to != own && single(&to) && single(&own) {
        return n.view(zero, to.to_vec()).map(Some);
    }
    Ok(Some(zero))
}

fn quantize(n: &mut Node<'_, '_>) -> Done {
    let (x, scale, zero) = (n.operand(0)?, n.operand(1)?, zero_point(n)?);
    let (axis, block) = layout(n)?;
    // It is for results that are floats.
    n.flag("saturate", true)?;
    // `precision` may ask for a quotient of fewer bits, whose rounding the operator does not have.
    let computed = if n.dtype(x) == DType::F64 { DType::F64 } else { DType::F32 };
    if let Some(other) = opt_dtype(n, "precision")?.filter(|dtype| *dtype != computed) {
        return Err(wrong(
            "precision",
            format!("is {other}; the quotient is computed in {computed}"),
        ));
    }
    let of_zero = zero.map(|zero| n.dtype(zero));
    let to = match (opt_dtype(n, "output_dtype")?, of_zero) {
        (Some(to), Some(zero)) if to != zero => {
            return Err(wrong("output_dtype", format!("is {to}, but the zero point is {zero}")));
        }
        // ONNX's default.
        (to, zero) => zero.or(to).unwrap_or(DType::U8),
    };
    let operands: Vec<Value> = [x, scale].into_iter().chain(zero).collect();
    n.result(Quantize::Quantize { axis, block, to }, &operands)
}

/// With `output_dtype` the product is computed in `f32`, in `f64` where that is asked for.
fn dequantize(n: &mut Node<'_, '_>) -> Done {
    let (x, mut scale, zero) = (n.operand(0)?, n.operand(1)?, zero_point(n)?);
    let (axis, block) = layout(n)?;
    let to = opt_dtype(n, "output_dtype")?.filter(|to| *to != n.dtype(scale));
    if let Some(to) = to {
        if !to.is_float() {
            return Err(wrong("output_dtype", format!("is {to}; it must be a float")));
        }
        let wide = if to == DType::F64 { DType::F64 } else { DType::F32 };
        scale = single(n, 1, wide)?;
    }
    let operands: Vec<Value> = [x, scale].into_iter().chain(zero).collect();
    let op = Quantize::Dequantize { axis, block };
    match to {
        Some(to) if to != n.dtype(scale) => {
            let y = n.op(op, &operands)?;
            n.last(0).convert(y, to)?;
            Ok(())
        }
        _ => n.result(op, &operands),
    }
}

/// The scale that operand `i` is, in the type `to`.
pub(super) fn single(n: &mut Node<'_, '_>, i: usize, to: DType) -> Result<Value, NodeError> {
    let scale = n.operand(i)?;
    match n.dtype(scale) {
        found if !found.is_float() => {
            Err(OpError::DType { operand: i, expected: "a float".to_owned(), found }.into())
        }
        found if found == to => Ok(scale),
        _ => n.convert(scale, to),
    }
}

impl Export for Quantize {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        match *self {
            Self::Quantize { axis, block, to } => {
                let mut given = vec![("axis", axis.into()), ("block_size", block.into())];
                // With a zero point, its type is that of the result, and no attribute says it
                // again.
                if w.operands()?.len() < 3 {
                    given.push(("output_dtype", to.into()));
                }
                w.same("QuantizeLinear", &given)
            }
            Self::Dequantize { axis, block } => {
                let given = [("axis", axis.into()), ("block_size", block.into())];
                w.same("DequantizeLinear", &given)
            }
        }
    }
}

impl Export for DynamicQuantize {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        if let Self::Quantize = self {
            return w.same("DynamicQuantizeLinear", &[]);
        }
        Err(Refused::unknown())
    }
}
