//! Random draws.

use super::super::NodeError;
use super::super::node::{Node, wrong};
use super::super::tensor::element;
use super::Line;
use super::attention::scalar;
use crate::ir::Value;
use crate::op::{Binary, Cast, Compare, Logic, Random, Where};
use crate::types::{DType, Dim};

type Done = Result<(), NodeError>;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "RandomUniform" => (0, |n| drawn(n, uniform)),
        "RandomNormal" => (0, |n| drawn(n, normal)),
        "RandomUniformLike" => (1, |n| drawn_like(n, uniform)),
        "RandomNormalLike" => (1, |n| drawn_like(n, normal)),
        "Bernoulli" => (1, bernoulli),
        _ => return None,
    })
}

/// How a distribution is drawn: with the attributes of the node, elements of a type in a shape.
type Draw = fn(&mut Node<'_, '_>, DType, Vec<Dim>) -> Result<Random, NodeError>;

fn uniform(n: &mut Node<'_, '_>, dtype: DType, shape: Vec<Dim>) -> Result<Random, NodeError> {
    let (low, high, seed) = (n.float("low", 0.0)?, n.float("high", 1.0)?, seed(n)?);
    Ok(Random::uniform(dtype, [low, high], seed, shape))
}

fn normal(n: &mut Node<'_, '_>, dtype: DType, shape: Vec<Dim>) -> Result<Random, NodeError> {
    let (mean, scale, seed) = (n.float("mean", 0.0)?, n.float("scale", 1.0)?, seed(n)?);
    Ok(Random::normal(dtype, [mean, scale], seed, shape))
}

/// The bits of the attribute `seed`, a float, or the seed that the node's place decides.
fn seed(n: &mut Node<'_, '_>) -> Result<i64, NodeError> {
    let given = n.opt_float("seed")?;
    Ok(given.map_or_else(|| n.own_seed(), |seed| i64::from(seed.to_bits())))
}

/// The element type that the attribute `dtype` names.
fn dtype(n: &mut Node<'_, '_>) -> Result<Option<DType>, NodeError> {
    let Some(number) = n.opt_int("dtype")? else { return Ok(None) };
    let found = i32::try_from(number).map_err(|_| "is no element type".to_owned());
    let found = found.and_then(element);
    found.map(Some).map_err(|reason| wrong("dtype", format!("is {number}: {reason}")))
}

fn drawn(n: &mut Node<'_, '_>, draw: Draw) -> Done {
    let shape = n.opt_ints("shape")?.ok_or_else(|| wrong("shape", "is missing"))?;
    let dtype = dtype(n)?.unwrap_or(DType::F32);
    let op = draw(n, dtype, shape.into_iter().map(Dim::from).collect())?;
    n.result(op, &[])
}

fn drawn_like(n: &mut Node<'_, '_>, draw: Draw) -> Done {
    let x = n.operand(0)?;
    let dtype = dtype(n)?.unwrap_or_else(|| n.dtype(x));
    let shape = n.shape(x).to_vec();
    let op = draw(n, dtype, shape)?;
    n.result(op, &[])
}

/// Draws from 0 to 1 for every element of `x`.
fn fractions(n: &mut Node<'_, '_>, x: Value, dtype: DType, seed: i64) -> Result<Value, NodeError> {
    let shape = n.shape(x).to_vec();
    n.emit(Random::uniform(dtype, [0.0, 1.0], seed, shape), &[])
}

/// 1 with the probability that an element of the operand is. Probabilities are compared in `f32` or `f64`.
fn bernoulli(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (own, seed) = (n.dtype(x), seed(n)?);
    let to = dtype(n)?.unwrap_or(own);
    let wide = if own == DType::F64 { DType::F64 } else { DType::F32 };
    let limit = if own == wide { x } else { n.emit(Cast { to: wide }, &[x])? };
    let draws = fractions(n, x, wide, seed)?;
    let less = n.emit(Compare::Less, &[draws, limit])?;
    n.result(Cast { to }, &[less])
}

/// Dropout in training: an element is 0 with the probability `ratio`, and else divided by `1 - ratio`. The second
/// result says which elements are kept, before opset 10 in the type of the operand.
pub(super) fn dropped(n: &mut Node<'_, '_>, x: Value, ratio: f64, seed: i64) -> Done {
    if !(0.0..1.0).contains(&ratio) {
        let text = format!("dropout of {ratio}, which is not from 0 to less than 1,");
        return Err(NodeError::Unsupported(text));
    }
    let own = n.dtype(x);
    let (zero, divisor) = (scalar(n, own, 0.0)?, scalar(n, own, 1.0 - ratio)?);
    let draws = fractions(n, x, DType::F32, seed)?;
    let limit = scalar(n, DType::F32, ratio)?;
    let dropped = n.emit(Compare::Less, &[draws, limit])?;
    let scaled = n.emit(Binary::Div, &[x, divisor])?;
    n.result(Where {}, &[dropped, zero, scaled])?;
    if !n.wants(1) {
        return Ok(());
    }
    if n.opset >= 10 {
        return n.result_at(1, Logic::Not, &[dropped]);
    }
    let kept = n.emit(Logic::Not, &[dropped])?;
    n.result_at(1, Cast { to: own }, &[kept])
}
