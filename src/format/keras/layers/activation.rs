//! Functions of single numbers and of rows, as layers and as fields of layers.

use serde_json::Value as Json;

use super::entry::layers;
use super::promotion::{floating, numbers};
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, text};
use crate::format::keras::error::Fault;
use crate::format::keras::tree::Spec;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Binary, Formula, GeluForm, Op, Unary};
use crate::types::invariant::int;
use crate::types::{DType, Quoted};

layers! {
    "Activation" Kept => |at, args| {
        let x = args.tensor()?;
        let x = at.as_is(x)?;
        let name = function(at, "activation")?;
        Ok(apply(at, &name, x)?.into())
    };
    "ReLU" Kept => relu;
    "LeakyReLU" Kept => leaky_relu;
    "ELU" Kept => elu;
    "PReLU" Kept => prelu;
    "Softmax" Kept => softmax;
    "ThresholdedReLU" Kept => |at, args| {
        let theta = at.config.number("theta", 1.0)?;
        unary(at, args, Unary::ThresholdedRelu { alpha: single(theta) })
    };
}

/// A number as an attribute of operators has it.
#[expect(clippy::cast_possible_truncation, reason = "Keras computes with `float32`, too")]
pub(super) fn single(x: f64) -> f32 {
    x as f32
}

/// A function that a field names, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Function {
    pub(super) name: String,
    /// The layer that it is, where it is one.
    layer: Option<Json>,
}

impl Function {
    /// That which changes nothing.
    pub(super) fn linear() -> Self {
        Self { name: "linear".to_owned(), layer: None }
    }
}

/// The function of a field; linear if it is absent.
pub(super) fn function(at: &At<'_, '_>, field: &str) -> Read<Function> {
    match at.config.opt(field) {
        None => Ok(Function::linear()),
        Some(value) => named(field, value),
    }
}

/// The function that a value names.
fn named(field: &str, value: &Json) -> Read<Function> {
    if let Json::String(name) = value {
        return Ok(Function { name: name.clone(), layer: None });
    }
    let config = value.get("config");
    let name = match config {
        Some(Json::String(name)) => Some(name.as_str()),
        _ => None,
    };
    if let Some(name) = name {
        return Ok(Function { name: name.to_owned(), layer: None });
    }
    let class = value.get("class_name").map(|class| text(field, class)).transpose()?;
    let class = class.ok_or_else(|| Fault::field(field, "names no function"))?;
    Ok(Function { name: class.to_owned(), layer: config.cloned() })
}

/// A function of a tensor.
pub(super) fn apply(at: &mut At<'_, '_>, function: &Function, x: Tensor) -> Read<Tensor> {
    if let Some(config) = &function.layer {
        let spec = serde_json::json!({"class_name": function.name, "config": config});
        let spec = Spec::read(&spec)?;
        let found = at.inside("activation", &spec, &Args::of(x))?;
        let one = found.first().copied();
        return one.ok_or_else(|| Fault::field("activation", "gives no tensor"));
    }
    let last = at.axis_of(x, -1)?;
    let value = of_name(at, &function.name, x.value, last)?;
    Ok(Tensor { value, ..x })
}

/// The function with this name, of a tensor.
pub(super) fn apply_named(at: &mut At<'_, '_>, name: &str, x: Tensor) -> Read<Tensor> {
    apply(at, &Function { name: name.to_owned(), layer: None }, x)
}

/// A function of a value in Keras' order of axes.
pub(super) fn apply_to(at: &mut At<'_, '_>, function: &Function, x: Value) -> Read<Value> {
    Ok(apply(at, function, x.into())?.value)
}

/// The function with this name in Keras; rows lie along `axis`.
pub(super) fn of_name(at: &mut At<'_, '_>, name: &str, x: Value, axis: usize) -> Read<Value> {
    let axis = int(axis);
    // Of integers these few give integers; truth values are 0 and 1.
    let x = match name {
        "linear" => x,
        "relu" | "hard_tanh" => numbers(at, x)?,
        _ => floating(at, x)?,
    };
    if let Some(op) = unary_of(at, name) {
        return at.op(op, &[x]);
    }
    match name {
        "linear" => Ok(x),
        "softmax" => at.softmax(x, axis),
        "log_softmax" => at.log_softmax(x, axis),
        "log_sigmoid" => {
            let minus = at.neg(x)?;
            let positive = at.softplus(minus)?;
            at.neg(positive)
        }
        "tanh_shrink" => {
            let y = at.tanh(x)?;
            at.sub(x, y)
        }
        "squareplus" => {
            let square = at.square(x)?;
            let root = at.shift(square, 4.0)?;
            let root = at.sqrt(root)?;
            let sum = at.add(x, root)?;
            at.scale(sum, 0.5)
        }
        "sparse_plus" => {
            let (above, below) = (at.is_at_least(x, 1.0)?, at.is_at_most(x, -1.0)?);
            let middle = at.shift(x, 1.0)?;
            let middle = at.square(middle)?;
            let middle = at.scale(middle, 0.25)?;
            let zero = at.number(x, 0.0)?;
            let rest = at.choose(below, zero, middle)?;
            at.choose(above, x, rest)
        }
        "sparse_sigmoid" => {
            let y = at.shift(x, 1.0)?;
            let y = at.scale(y, 0.5)?;
            at.clip(y, 0.0, 1.0)
        }
        "threshold" => Err(Fault::new("the function `threshold` has no defaults")),
        "glu" => {
            let at_axis = usize::try_from(axis).map_err(|e| Fault::new(e.to_string()))?;
            let half = at.extent(x, at_axis)? / 2;
            let parts = at.split(x, axis, vec![half.into(), half.into()])?;
            let gate = at.sigmoid(parts[1])?;
            at.mul(parts[0], gate)
        }
        name => Err(Fault::new(format!("the function {} is not supported", Quoted(name)))),
    }
}

/// The operator that a function of single numbers is.
fn unary_of(at: &At<'_, '_>, name: &str) -> Option<Unary> {
    Some(match name {
        "relu" => Unary::Relu,
        "relu6" => Unary::Clip { min: Some(0.0), max: Some(6.0) },
        "leaky_relu" => Unary::LeakyRelu { alpha: 0.2 },
        "elu" => Unary::Elu { alpha: 1.0 },
        "selu" => Unary::Selu { alpha: 1.673_263_2, gamma: 1.050_701 },
        "celu" => Unary::Celu { alpha: 1.0 },
        "softplus" => Unary::Softplus,
        "softsign" => Unary::Softsign,
        "silu" | "swish" => Unary::Swish { alpha: 1.0 },
        "gelu" => Unary::Gelu { approximate: GeluForm::Exact },
        "tanh" => Unary::Tanh,
        "sigmoid" => Unary::Sigmoid,
        "exponential" => Unary::Exp,
        "hard_sigmoid" => hard_sigmoid(at.state.is_before_3),
        "hard_silu" | "hard_swish" => Unary::HardSwish,
        "hard_tanh" => Unary::Clip { min: Some(-1.0), max: Some(1.0) },
        "hard_shrink" => Unary::Shrink { bias: 0.0, lambd: 0.5 },
        "soft_shrink" => Unary::Shrink { bias: 0.5, lambd: 0.5 },
        "mish" => Unary::Mish,
        _ => return None,
    })
}

/// The function of Keras 3, or that of the versions before it.
pub(super) fn hard_sigmoid(is_before_3: bool) -> Unary {
    let alpha = if is_before_3 { 0.2 } else { 1.0 / 6.0 };
    Unary::HardSigmoid { alpha, beta: 0.5 }
}

/// An operator of the tensor that a layer is called with.
fn unary<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, op: impl Into<Op>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let x = at.as_is(x)?;
    let value = at.op(op, &[x.value])?;
    Ok(Tensor { value, ..x }.into())
}

fn relu<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let most = at.config.opt_number("max_value")?;
    let slope = at.config.opt_number("negative_slope")?.unwrap_or(0.0); // as in Keras
    let bound = at.config.opt_number("threshold")?.unwrap_or(0.0); // as in Keras
    let x = args.tensor()?;
    let x = at.as_is(x)?;
    let of = |value| Tensor { value, ..x };
    let (is_plain, is_level) = (slope == 0.0, bound == 0.0);
    if is_plain && is_level {
        let op = match most {
            None => Unary::Relu,
            most => Unary::Clip { min: Some(0.0), max: most },
        };
        // A bound is a float, and so is the result.
        let x = if most.is_some() { Tensor { value: floating(at, x.value)?, ..x } } else { x };
        return Ok(of(at.op(op, &[x.value])?).into());
    }
    // `x` up to the largest value where it is above the threshold, else its distance to it.
    let above = match most {
        Some(most) => at.op(Unary::Clip { min: Some(0.0), max: Some(most) }, &[x.value])?,
        None => x.value,
    };
    let below = at.shift(x.value, -bound)?;
    let below = at.scale(below, slope)?;
    let condition = at.is_above(x.value, bound)?;
    Ok(of(at.choose(condition, above, below)?).into())
}

fn leaky_relu<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    // Its name before Keras 3.
    let old = at.config.opt_number("alpha")?;
    let slope = at.config.opt_number("negative_slope")?.or(old).unwrap_or(0.3); // as in Keras
    unary(at, args, Unary::LeakyRelu { alpha: single(slope) })
}

fn elu<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let alpha = at.config.number("alpha", 1.0)?;
    unary(at, args, Unary::Elu { alpha: single(alpha) })
}

fn prelu<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let x = at.input(x)?;
    let shape = of_elements(at, x)?;
    let alpha = at.weight("alpha", &shape)?;
    Ok(at.op(Binary::Prelu, &[x, alpha])?.into())
}

/// The sizes of a variable that has a number for each element of a row, but for the axes that share
/// one.
pub(super) fn of_elements(at: &mut At<'_, '_>, x: Value) -> Read<Vec<i64>> {
    // Without shared axes each element has a number of its own.
    let shared = at.config.one_or_more("shared_axes")?.unwrap_or_default();
    let mut shape = at.sizes_or_one(x, 1, &shared)?;
    for axis in shared {
        let axis = at.axis(x, axis)?;
        if axis > 0 {
            shape[axis - 1] = 1;
        }
    }
    Ok(shape)
}

fn softmax<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let mut x = at.as_is(x)?;
    // Keras's default.
    let axes = at.config.one_or_more("axis")?.unwrap_or_else(|| vec![-1]);
    let mask = args.opt_tensor(1, "mask")?;
    if mask.is_some() {
        x = at.natural(x)?.into();
    }
    let mask = mask.map(|mask| at.natural(mask)).transpose()?;
    let axes = axes.iter().map(|axis| at.axis_of(x, *axis)).collect::<Read<Vec<usize>>>()?;
    let value = masked_softmax(at, x.value, mask, &axes)?;
    Ok(Tensor { value, ..x }.into())
}

/// The softmax over axes. What the mask leaves out gets no weight.
pub(super) fn masked_softmax(
    at: &mut At<'_, '_>,
    scores: Value,
    mask: Option<Value>,
    axes: &[usize],
) -> Read<Value> {
    let Some(mask) = mask else { return softmax_over(at, scores, axes) };
    let mask = match at.ty_of(mask) {
        DType::Bool => mask,
        dtype if dtype.is_float() => at.is_above(mask, 0.5)?,
        _ => at.cast(mask, DType::Bool)?,
    };
    // As Keras has it: finite, and too low for any weight.
    let low = if at.ty_of(scores) == DType::F16 { -3e4 } else { -1e9 };
    let low = at.number(scores, low)?;
    let scores = at.choose(mask, scores, low)?;
    let weights = softmax_over(at, scores, axes)?;
    at.only(mask, weights)
}

fn softmax_over(at: &mut At<'_, '_>, x: Value, axes: &[usize]) -> Read<Value> {
    if let [axis] = axes {
        return at.softmax(x, int(*axis));
    }
    let axes: Vec<i64> = axes.iter().copied().map(int).collect();
    let most = at.reduce_max(x, axes.clone(), true)?;
    let less = at.sub(x, most)?;
    let powers = at.exp(less)?;
    let sum = at.reduce_sum(powers, axes, true)?;
    at.div(powers, sum)
}
