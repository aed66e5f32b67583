//! Random draws.

use super::{Done, Imports, Node, NodeError, tensor, wrong};
use crate::ir::Value;
use crate::op::{Formula, Random};
use crate::types::{DType, Dim};

pub(super) fn imports(all: &mut Imports) {
    all.add("RandomUniform", 0, |n| drawn(n, uniform));
    all.add("RandomNormal", 0, |n| drawn(n, normal));
    all.add("RandomUniformLike", 1, |n| drawn_like(n, uniform));
    all.add("RandomNormalLike", 1, |n| drawn_like(n, normal));
    all.add("Bernoulli", 1, bernoulli);
}

/// How a distribution is drawn: with the attributes of the node, elements of a type in a shape.
type Draw = fn(&mut Node<'_, '_>, DType, Vec<Dim>) -> Result<Random, NodeError>;

fn uniform(n: &mut Node<'_, '_>, dtype: DType, shape: Vec<Dim>) -> Result<Random, NodeError> {
    let (low, high, seed) = (n.float("low", 0.0)?, n.float("high", 1.0)?, seed(n)?);
    Ok(Random::uniform(dtype, low, high, seed, shape))
}

fn normal(n: &mut Node<'_, '_>, dtype: DType, shape: Vec<Dim>) -> Result<Random, NodeError> {
    let (mean, scale, seed) = (n.float("mean", 0.0)?, n.float("scale", 1.0)?, seed(n)?);
    Ok(Random::normal(dtype, mean, scale, seed, shape))
}

/// The bits of the attribute `seed`, a float, or the seed that the node's place decides.
fn seed(n: &mut Node<'_, '_>) -> Result<i64, NodeError> {
    let given = n.opt_float("seed")?;
    Ok(given.map_or_else(|| n.own_seed(), |seed| i64::from(seed.to_bits())))
}

/// The element type that the attribute `dtype` names.
fn dtype(n: &mut Node<'_, '_>) -> Result<Option<DType>, NodeError> {
    n.opt_int("dtype")?.map(|number| named("dtype", number)).transpose()
}

/// The element type that ONNX gives a number.
pub(super) fn named(attribute: &str, number: i64) -> Result<DType, NodeError> {
    let found = tensor::element(number);
    found.map_err(|reason| wrong(attribute, format!("is {number}: {reason}")))
}

fn drawn(n: &mut Node<'_, '_>, draw: Draw) -> Done {
    let shape = n.needed_ints("shape")?;
    // ONNX's default.
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
pub(super) fn fractions(
    n: &mut Node<'_, '_>,
    x: Value,
    dtype: DType,
    seed: i64,
) -> Result<Value, NodeError> {
    let shape = n.shape(x).to_vec();
    n.op(Random::uniform(dtype, 0.0, 1.0, seed, shape), &[])
}

/// 1 with the probability that an element of the operand is. Probabilities are compared in `f32` or
/// `f64`.
fn bernoulli(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let (own, seed) = (n.dtype(x), seed(n)?);
    let to = dtype(n)?.unwrap_or(own);
    let wide = if own == DType::F64 { DType::F64 } else { DType::F32 };
    let limit = if own == wide { x } else { n.convert(x, wide)? };
    let draws = fractions(n, x, wide, seed)?;
    let less = n.less(draws, limit)?;
    n.last(0).convert(less, to)?;
    Ok(())
}
