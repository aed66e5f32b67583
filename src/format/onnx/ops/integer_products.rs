//! Products and convolutions of integers that stand for numbers.

use super::conv::conv_of;
use super::quantize::single;
use super::{Done, Imports, Node, NodeError};
use crate::ir::Value;
use crate::op::{Formula, OpError};
use crate::types::{DType, Dim, Tensor, TensorType};

pub(super) fn imports(all: &mut Imports) {
    all.add("MatMulInteger", 4, |n| {
        let (a, b) = (Source::of(n, 0, 2)?, Source::of(n, 1, 3)?);
        let (a, b) = (a.integers(n, DType::I32, 1)?, b.integers(n, DType::I32, 0)?);
        n.last(0).matmul(a, b)?;
        Ok(())
    });
    all.add("ConvInteger", 4, |n| {
        let (x, w) = (Source::of(n, 0, 2)?, Source::of(n, 1, 3)?);
        let sums = convolved(n, x, w, None)?;
        // A sum is an exact f64; beyond i32 it wraps, as the sums of MatMulInteger do.
        let wide = n.convert(sums, DType::I64)?;
        n.last(0).convert(wide, DType::I32)?;
        Ok(())
    });
    all.add("QLinearMatMul", 8, matmul);
    all.add("QLinearConv", 9, conv);
}

/// `value` with `behind` axes of size 1 behind its own, where it has one axis of other than one
/// element.
fn spread(n: &mut Node<'_, '_>, value: Value, behind: usize) -> Result<Value, NodeError> {
    let one_axis = n.shape(value).rank() == 1 && n.shape(value).first() != Some(&Dim::ONE);
    if !one_axis || behind == 0 {
        return Ok(value);
    }
    let axes = (1..).take(behind).collect();
    n.unsqueeze(value, axes)
}

/// An operand of a product of integers, and its zero point.
#[derive(Clone, Copy)]
struct Source {
    x: Value,
    /// The zero point and its place among the operands, unless it is known to be 0.
    zero: Option<(usize, Value)>,
}

impl Source {
    /// Operand `x` of the node with the zero point `zero`, which may be left out.
    fn of(n: &Node<'_, '_>, x: usize, zero: usize) -> Result<Self, NodeError> {
        let value = n.operand(x)?;
        let found = n.dtype(value);
        if !matches!(found, DType::U8 | DType::I8) {
            let expected = "u8 or i8".to_owned();
            return Err(OpError::DType { operand: x, expected, found }.into());
        }
        let nothing = |t: &Tensor| t.to_i64().is_some_and(|all| all.iter().all(|i| *i == 0));
        let Some(point) = n.optional(zero) else { return Ok(Self { x: value, zero: None }) };
        if n.dtype(point) != found {
            let (expected, found) = (found.to_string(), n.dtype(point));
            return Err(OpError::DType { operand: zero, expected, found }.into());
        }
        let one = n.shape(point).iter().all(|size| *size == Dim::ONE);
        let known = one && n.known(zero).is_some_and(nothing);
        Ok(Self { x: value, zero: (!known).then_some((zero, point)) })
    }

    /// What it stands for in units of its scale: the difference in the type `to`. A vector of zero
    /// points is along the axis that has `behind` others behind it.
    fn integers(self, n: &mut Node<'_, '_>, to: DType, behind: usize) -> Result<Value, NodeError> {
        let x = n.convert(self.x, to)?;
        let Some((operand, zero)) = self.zero else { return Ok(x) };
        let point = spread(n, zero, behind)?;
        let point = n.convert(point, to)?;
        let difference = n.sub(x, point)?;
        if n.shape(difference) != n.shape(x) {
            let expected = format!("it must fit what it is the zero point of, {}", n.ty(self.x));
            return Err(OpError::Shape { operand, found: n.ty(zero).clone(), expected }.into());
        }
        Ok(difference)
    }
}

/// The convolution of the integers that `x` and `w` stand for, plus the integers `bias`: exact
/// sums, in `f64`.
///
/// Padding is with zeros, that is with the zero point of `x`.
fn convolved(
    n: &mut Node<'_, '_>,
    x: Source,
    w: Source,
    bias: Option<Value>,
) -> Result<Value, NodeError> {
    // A difference of two bytes lies in -255..=255, so a product is below 2^16 and an `f64` holds
    // sums of 2^37 of them exactly, in whatever order they are added.
    let conv = conv_of(n, x.x, w.x)?;
    let behind = n.shape(w.x).rank().saturating_sub(1);
    let mut operands = vec![x.integers(n, DType::F64, 0)?, w.integers(n, DType::F64, behind)?];
    if let Some(bias) = bias {
        operands.push(n.convert(bias, DType::F64)?);
    }
    n.op(conv, &operands)
}

/// `left * right / to`, the scales by which a sum of products is multiplied, in `f32`.
fn ratio(n: &mut Node<'_, '_>, [left, right, to]: [Value; 3]) -> Result<Value, NodeError> {
    let product = n.mul(left, right)?;
    n.div(product, to)
}

/// The node's result: the sums times their scales in `f32`, rounded, plus the zero point, operand
/// 7, whose type it has. Zero points in a vector are along the rows of matrices.
fn requantized(n: &mut Node<'_, '_>, sums: Value, scales: Value) -> Done {
    let sums = n.convert(sums, DType::F32)?;
    let scaled = n.mul(sums, scales)?;
    if n.shape(scaled) != n.shape(sums) {
        let text = format!("scales of type {} for {}", n.ty(scales), n.ty(sums));
        return Err(NodeError::Unsupported(text));
    }
    let zero = n.operand(7)?;
    let sizes = n.shape(zero).iter().map(|d| d.as_const().and_then(|d| usize::try_from(d).ok()));
    let rank = n.shape(zero).rank();
    let Some(sizes) = sizes.collect::<Option<Vec<usize>>>().filter(|_| rank <= 1) else {
        let expected = "a scalar or a vector of a known size is supported".to_owned();
        return Err(OpError::Shape { operand: 7, found: n.ty(zero).clone(), expected }.into());
    };
    // The sums are scaled already: the quantisation by ones that is left rounds, saturates and adds
    // the zero point.
    n.charge(&TensorType { dtype: DType::F32, shape: n.shape(zero).clone() })?;
    let mut value = Tensor::zeros(DType::F32, &sizes)?;
    value.as_mut_slice::<f32>().fill(1.0);
    let ones = n.literal(value)?;
    let to = n.dtype(zero);
    n.last(0).quantize(scaled, ones, zero, -2, to)?;
    Ok(())
}

fn matmul(n: &mut Node<'_, '_>) -> Done {
    let (a, b) = (Source::of(n, 0, 2)?, Source::of(n, 3, 5)?);
    let (left, right) = (single(n, 1, DType::F32)?, single(n, 4, DType::F32)?);
    let to = single(n, 6, DType::F32)?;
    let (left, to) = (spread(n, left, 1)?, spread(n, to, 1)?);
    let scales = ratio(n, [left, right, to])?;
    let (a, b) = (a.integers(n, DType::I32, 1)?, b.integers(n, DType::I32, 0)?);
    let sums = n.matmul(a, b)?;
    requantized(n, sums, scales)
}

fn conv(n: &mut Node<'_, '_>) -> Done {
    let (x, w) = (Source::of(n, 0, 2)?, Source::of(n, 3, 5)?);
    let bias = n.optional(8);
    if let Some(found) = bias.map(|bias| n.dtype(bias)).filter(|found| *found != DType::I32) {
        return Err(OpError::DType { operand: 8, expected: "i32".to_owned(), found }.into());
    }
    let (left, right) = (single(n, 1, DType::F32)?, single(n, 4, DType::F32)?);
    let to = single(n, 6, DType::F32)?;
    // Only the weights may have a scale for each channel: a channel of the result is a sum over
    // those of `x`, which needs one scale for all of them.
    for (operand, scale) in [(1, left), (6, to), (7, n.operand(7)?)] {
        if n.shape(scale).iter().any(|size| *size != Dim::ONE) {
            let expected = "it must have one element".to_owned();
            return Err(OpError::Shape { operand, found: n.ty(scale).clone(), expected }.into());
        }
    }
    let behind = n.shape(x.x).rank().saturating_sub(2);
    let right = spread(n, right, behind)?;
    let scales = ratio(n, [left, right, to])?;
    let sums = convolved(n, x, w, bias)?;
    requantized(n, sums, scales)
}
