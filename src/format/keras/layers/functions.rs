//! Functions of `keras.ops` inside models.

use serde_json::Value as Json;

use super::activation::{apply_named, single};
use super::core::all_axes;
use super::entry::layers;
use super::promotion::{arithmetic, floating, numbers, promoted, summable};
use super::slicing::get_item;
use crate::format::keras::at::{At, dtype};
use crate::format::keras::config::{Read, int, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::for_training::ForTraining;
use crate::op::{Binary, Compare, Einsum, Formula, GeluForm, Reverse, Unary, converted};
use crate::types::invariant::int as narrow;
use crate::types::{DType, Dim, Shape, Tensor as Elements};

layers! {
    "Add" Dropped => |at, args| arithmetic_of(at, args, Binary::Add);
    "Subtract" Dropped => |at, args| arithmetic_of(at, args, Binary::Sub);
    "Multiply" Dropped => |at, args| arithmetic_of(at, args, Binary::Mul);
    "Divide" Dropped => |at, args| pair(at, args, divided);
    "TrueDivide" Dropped => |at, args| pair(at, args, divided);
    "Power" Dropped => |at, args| arithmetic_of(at, args, Binary::Pow);
    "Maximum" Dropped => |at, args| arithmetic_of(at, args, Binary::Max);
    "Minimum" Dropped => |at, args| arithmetic_of(at, args, Binary::Min);
    "Equal" Dropped => |at, args| pair(at, args, |at, a, b| at.equal(a, b));
    "NotEqual" Dropped => |at, args| pair(at, args, |at, a, b| {
        let equal = at.equal(a, b)?;
        at.not(equal)
    });
    "Greater" Dropped => |at, args| ordered(at, args, Compare::Greater);
    "GreaterEqual" Dropped => |at, args| ordered(at, args, Compare::GreaterOrEqual);
    "Less" Dropped => |at, args| ordered(at, args, Compare::Less);
    "LessEqual" Dropped => |at, args| ordered(at, args, Compare::LessOrEqual);
    "LogicalAnd" Dropped => |at, args| pair(at, args, |at, a, b| truths(at, a, b, true));
    "LogicalOr" Dropped => |at, args| pair(at, args, |at, a, b| truths(at, a, b, false));
    "LogicalNot" Dropped => |at, args| one(at, args, |at, x| {
        let x = at.cast(x, DType::Bool)?;
        at.not(x)
    });
    "Matmul" Dropped => |at, args| pair(at, args, |at, a, b| at.matmul(a, b));
    "Einsum" Dropped => einsum;
    "Where" Dropped => choose;
    "Negative" Dropped => |at, args| one(at, args, |at, x| at.neg(x));
    "Absolute" Dropped => |at, args| one(at, args, magnitude);
    "Abs" Dropped => |at, args| one(at, args, magnitude);
    "Sign" Dropped => |at, args| one(at, args, |at, x| at.sign(x));
    "Square" Dropped => |at, args| one(at, args, |at, x| {
        let x = numbers(at, x)?;
        at.square(x)
    });
    "Sqrt" Dropped => |at, args| float(at, args, |at, x| at.sqrt(x));
    "Rsqrt" Dropped => |at, args| float(at, args, |at, x| {
        let root = at.sqrt(x)?;
        at.op(Unary::Reciprocal, &[root])
    });
    "Reciprocal" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Reciprocal, &[x]));
    "Exp" Dropped => |at, args| float(at, args, |at, x| at.exp(x));
    "Log" Dropped => |at, args| float(at, args, |at, x| at.log(x));
    "Log1p" Dropped => |at, args| float(at, args, log_above_one);
    "Sin" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Sin, &[x]));
    "Cos" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Cos, &[x]));
    "Erf" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Erf, &[x]));
    "Floor" Dropped => |at, args| float(at, args, |at, x| at.floor(x));
    "Ceil" Dropped => |at, args| float(at, args, |at, x| at.ceil(x));
    "Round" Dropped => |at, args| {
        if at.config.int("decimals", 0)? != 0 {
            return Err(Fault::field("decimals", "is not 0"));
        }
        float(at, args, |at, x| at.op(Unary::Round, &[x]))
    };
    "Tanh" Dropped => |at, args| float(at, args, |at, x| at.tanh(x));
    "Relu" Dropped => |at, args| activation(at, args, "relu");
    "Relu6" Dropped => |at, args| activation(at, args, "relu6");
    "Sigmoid" Dropped => |at, args| activation(at, args, "sigmoid");
    "Silu" Dropped => |at, args| activation(at, args, "silu");
    "Selu" Dropped => |at, args| activation(at, args, "selu");
    "Softplus" Dropped => |at, args| activation(at, args, "softplus");
    "Softsign" Dropped => |at, args| activation(at, args, "softsign");
    "Mish" Dropped => |at, args| activation(at, args, "mish");
    "HardSigmoid" Dropped => |at, args| activation(at, args, "hard_sigmoid");
    "HardSilu" Dropped => |at, args| activation(at, args, "hard_silu");
    "HardTanh" Dropped => |at, args| activation(at, args, "hard_tanh");
    "LogSigmoid" Dropped => |at, args| activation(at, args, "log_sigmoid");
    "LeakyRelu" Dropped => |at, args| {
        let alpha = single(at.config.number("negative_slope", 0.2)?);
        float(at, args, |at, x| at.op(Unary::LeakyRelu { alpha }, &[x]))
    };
    "Elu" Dropped => |at, args| {
        let alpha = single(at.config.number("alpha", 1.0)?);
        float(at, args, |at, x| at.op(Unary::Elu { alpha }, &[x]))
    };
    "Gelu" Dropped => |at, args| {
        let is_tanh = at.config.flag("approximate", true)?;
        let approximate = if is_tanh { GeluForm::Tanh } else { GeluForm::Exact };
        float(at, args, |at, x| at.op(Unary::Gelu { approximate }, &[x]))
    };
    "Softmax" Dropped => |at, args| {
        let axis = at.config.axis()?;
        float(at, args, |at, x| at.softmax(x, axis))
    };
    "LogSoftmax" Dropped => |at, args| {
        let axis = at.config.axis()?;
        float(at, args, |at, x| at.log_softmax(x, axis))
    };
    "Clip" Dropped => clip;
    "Cast" Own => cast;
    "ConvertToTensor" Own => |at, args| {
        at.config.ignore(&["sparse", "ragged"]);
        if at.config.opt("dtype").is_some() { cast(at, args) } else { Ok(args.tensor()?.into()) }
    };
    "GetItem" Dropped => get_item;
    "Reshape" Dropped => reshape;
    "Transpose" Dropped => transpose;
    "Moveaxis" Dropped => move_axis;
    "ExpandDims" Dropped => expand_dims;
    "Squeeze" Dropped => squeeze;
    "Concatenate" Dropped => |at, args| join(at, args, false, -1);
    "Stack" Dropped => |at, args| join(at, args, true, 0);
    "Split" Dropped => split;
    "Flip" Dropped => flip;
    "Sum" Dropped => |at, args| reduce(at, args, |at, x, axes, k| {
        let x = summable(at, x)?;
        at.reduce_sum(x, axes, k)
    });
    "Mean" Dropped => |at, args| reduce(at, args, |at, x, axes, k| {
        let x = floating(at, x)?;
        at.reduce_mean(x, axes, k)
    });
    "Max" Dropped => |at, args| reduce(at, args, largest);
    "Min" Dropped => |at, args| reduce(at, args, smallest);
    "ZerosLike" Dropped => |at, args| alike(at, args, 0.0);
    "OnesLike" Dropped => |at, args| alike(at, args, 1.0);
    "Any" Dropped => |at, args| reduce(at, args, |at, x, axes, k| {
        let x = truth(at, x)?;
        let y = at.reduce_max(x, axes, k)?;
        at.cast(y, DType::Bool)
    });
    "All" Dropped => |at, args| reduce(at, args, |at, x, axes, k| {
        let x = truth(at, x)?;
        let y = at.reduce_min(x, axes, k)?;
        at.cast(y, DType::Bool)
    });
    "Var" Dropped => |at, args| reduce(at, args, variance);
    "Std" Dropped => |at, args| reduce(at, args, |at, x, axes, keeps| {
        let variance = variance(at, x, axes, keeps)?;
        at.sqrt(variance)
    });
    "Identity" Dropped => |at, args| one(at, args, |_, x| Ok(x));
    "StopGradient" Dropped => |at, args| {
        one(at, args, |at, x| {
            if !at.state.for_training {
                return Ok(x);
            }
            at.op(ForTraining::StopGradient, &[x])
        })
    };
}

/// The tensor of a call with its axes in Keras' order.
pub(super) fn operand<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Value> {
    let x = args.tensor()?;
    at.natural(x)
}

pub(super) fn one<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    f: impl FnOnce(&mut At<'_, 'c>, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    let value = f(at, x.value)?;
    Ok(Tensor { value, mask: None, ..x }.into())
}

/// A function whose result is a float for integers, too.
pub(super) fn float<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    f: impl FnOnce(&mut At<'_, 'c>, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    let x = operand(at, args)?;
    let x = floating(at, x)?;
    Ok(f(at, x)?.into())
}

/// A tensor of this number with the shape of another one.
pub(super) fn alike<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, number: f64) -> Read<Arg<'c>> {
    at.config.ignore(&["dtype"]);
    let x = operand(at, args)?;
    let to = match at.config.opt_text("dtype")? {
        Some(name) => dtype(name).ok_or_else(|| Fault::field("dtype", "is not supported"))?,
        None => at.ty_of(x),
    };
    let wide = Elements::scalar(number).reshaped(&[1])?;
    let shape = at.shape(x).to_vec();
    Ok(at.filled(shape, converted(&wide, to)?)?.into())
}

fn activation<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, name: &str) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    Ok(apply_named(at, name, x)?.into())
}

/// A constant as an operand beside a tensor: a number takes the tensor's element type, unless it is
/// a float beside integers.
fn literal(at: &mut At<'_, '_>, value: &Json, beside: DType) -> Read<Value> {
    let mut list = Vec::new();
    let mut dims = Vec::new();
    flat(value, &mut list, &mut dims, 0)?;
    let is_float = list.iter().any(|(_, is_float)| *is_float);
    // Arrays say what they are; those of 64 bits are what Keras makes of them.
    let own = value.get("config").and_then(|config| config.get("dtype"));
    let own = own.and_then(Json::as_str).and_then(dtype).filter(|own| own.bytes() < 8);
    let to = own.unwrap_or(match beside {
        DType::Bool if !is_float => DType::I32,
        beside if beside.is_float() || !is_float => beside,
        _ => DType::F32,
    });
    let list: Vec<f64> = list.into_iter().map(|(x, _)| x).collect();
    let wide = Elements::new(&dims, &list)?;
    at.literal(converted(&wide, to)?)
}

/// The numbers of a constant, and its sizes.
pub(super) fn flat(
    value: &Json,
    list: &mut Vec<(f64, bool)>,
    dims: &mut Vec<usize>,
    depth: usize,
) -> Read<()> {
    match value {
        Json::Array(parts) => {
            match dims.get(depth) {
                None => dims.push(parts.len()),
                Some(size) if *size == parts.len() => {}
                Some(_) => return Err(Fault::new("a constant has rows of unlike lengths")),
            }
            parts.iter().try_for_each(|part| flat(part, list, dims, depth + 1))
        }
        Json::Object(fields) => {
            let inner = fields.get("config").and_then(|config| config.get("value"));
            flat(inner.ok_or_else(|| Fault::new("a constant is no number"))?, list, dims, depth)
        }
        Json::Bool(truth) => {
            list.push((f64::from(u8::from(*truth)), false));
            Ok(())
        }
        value => {
            list.push((number("args", value)?, value.is_f64()));
            Ok(())
        }
    }
}

/// An operand that is a tensor or a constant, in Keras' order of axes; a constant has the element
/// type of what it stands beside, as far as that holds it.
pub(super) fn value_of<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    position: usize,
    name: &str,
    beside: DType,
) -> Read<Option<Value>> {
    match args.opt(position, name) {
        None => Ok(None),
        Some(Arg::Tensor(tensor)) => at.natural(*tensor).map(Some),
        Some(other) => {
            let other = crate::format::keras::value::json(name, other)?;
            literal(at, &other, beside).map(Some)
        }
    }
}

/// Two operands of one element type and one order of axes.
fn operands<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    names: [&str; 2],
    first: usize,
) -> Read<(Value, Value, bool)> {
    let missing = || Fault::new("it is called with fewer than two operands");
    let a = args.opt(first, names[0]).ok_or_else(missing)?.clone();
    let b = args.opt(first + 1, names[1]).ok_or_else(missing)?.clone();
    match (&a, &b) {
        (Arg::Tensor(a), Arg::Tensor(b)) => {
            let alike = at.rank(a.value) == at.rank(b.value);
            let is_first = alike && (a.is_first || b.is_first);
            let (a, b) = (at.like(*a, is_first)?, at.like(*b, is_first)?);
            let mut both = [a, b];
            promoted(at, &mut both)?;
            Ok((both[0], both[1], is_first))
        }
        (Arg::Tensor(x), other) | (other, Arg::Tensor(x)) => {
            let other = crate::format::keras::value::json("x", other)?;
            let is_single = other.is_number() || other.is_boolean();
            let is_first = x.is_first && is_single;
            let value = at.like(*x, is_first)?;
            let other = literal(at, &other, at.ty_of(value))?;
            let mut both = [value, other];
            promoted(at, &mut both)?;
            let [value, other] = both;
            let is_left = matches!(a, Arg::Tensor(_));
            Ok(if is_left { (value, other, is_first) } else { (other, value, is_first) })
        }
        _ => Err(Fault::new("it is called without a tensor")),
    }
}

pub(super) fn pair<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    f: impl FnOnce(&mut At<'_, 'c>, Value, Value) -> Read<Value>,
) -> Read<Arg<'c>> {
    // TensorFlow has other names for the operands.
    let is_old = args.named("y").is_some();
    let names = if is_old { ["x", "y"] } else { ["x1", "x2"] };
    let (a, b, is_first) = operands(at, args, names, 0)?;
    let value = f(at, a, b)?;
    Ok(Tensor { value, is_first, mask: None }.into())
}

/// Arithmetic of the two operands of a call.
pub(super) fn arithmetic_of<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, op: Binary) -> Read<Arg<'c>> {
    pair(at, args, |at, a, b| arithmetic(at, op, a, b))
}

/// Which of two operands is the larger one; false is below true.
fn ordered<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, op: Compare) -> Read<Arg<'c>> {
    pair(at, args, |at, a, b| {
        let (a, b) = (numbers(at, a)?, numbers(at, b)?);
        at.op(op, &[a, b])
    })
}

fn magnitude(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    if at.ty_of(x) == DType::Bool { Ok(x) } else { at.abs(x) }
}

pub(super) fn divided(at: &mut At<'_, '_>, a: Value, b: Value) -> Read<Value> {
    let (a, b) = (floating(at, a)?, floating(at, b)?);
    at.div(a, b)
}

fn truths(at: &mut At<'_, '_>, a: Value, b: Value, is_and: bool) -> Read<Value> {
    let (a, b) = (at.cast(a, DType::Bool)?, at.cast(b, DType::Bool)?);
    if is_and { at.and(a, b) } else { at.or(a, b) }
}

fn einsum<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let equation = at.config.needed("subscripts")?;
    let equation = crate::format::keras::config::text("subscripts", equation)?.to_owned();
    let tensors: Vec<Tensor> = args.positional().iter().flat_map(Arg::tensors).collect();
    let values = tensors.into_iter().map(|x| at.natural(x)).collect::<Read<Vec<Value>>>()?;
    Ok(at.op(Einsum { equation }, &values)?.into())
}

fn choose<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let condition = args.tensor()?;
    let condition = at.natural(condition)?;
    let condition = at.cast(condition, DType::Bool)?;
    let (a, b, is_first) = operands(at, args, ["x1", "x2"], 1)?;
    let natural = |at: &mut At<'_, '_>, value: Value| {
        at.natural(Tensor { value, is_first: is_first && at.rank(value) > 2, mask: None })
    };
    let (a, b) = (natural(at, a)?, natural(at, b)?);
    Ok(at.choose(condition, a, b)?.into())
}

fn clip<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (min, max) = (at.config.opt_number("x_min")?, at.config.opt_number("x_max")?);
    one(at, args, |at, x| {
        let x = numbers(at, x)?;
        at.op(Unary::Clip { min, max }, &[x])
    })
}

fn cast<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    // The field is taken as the policy of a layer before.
    let name = at.config.text("dtype", "float32")?;
    let to = dtype(name).ok_or_else(|| Fault::field("dtype", format!("is `{name}`")))?;
    let x = args.tensor()?;
    // A tensor that has the type already is the result itself, with its mask.
    let mask = x.mask.filter(|_| at.ty_of(x.value) == to);
    let value = at.cast(x.value, to)?;
    Ok(Tensor { value, mask, ..x }.into())
}

fn reshape<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let target = at.config.one_at_least("newshape")?;
    let x = operand(at, args)?;
    let shape = at.shape(x);
    let all = shape.elements();
    let mut known = target.iter().filter(|size| **size != -1);
    let known = known.try_fold(1i64, |product, size| product.checked_mul(*size));
    let wrong = || Fault::field("newshape", format!("is {target:?}, for {shape}"));
    let known = known.filter(|known| *known > 0);
    let rest = known.and_then(|known| all.exact_div(&Dim::from(known)));
    let dims = target.iter().map(|size| match size {
        -1 => rest.clone().ok_or_else(wrong),
        size => Ok(Dim::from(*size)),
    });
    let dims = dims.collect::<Read<Shape>>()?;
    Ok(at.reshape(x, &dims)?.into())
}

fn transpose<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let axes = at.config.opt_list("axes")?;
    let x = operand(at, args)?;
    let perm = match axes {
        Some(axes) => axes.iter().map(|axis| at.axis(x, *axis)).collect::<Read<_>>()?,
        None => (0..at.rank(x)).rev().collect(),
    };
    Ok(at.transpose(x, perm)?.into())
}

fn move_axis<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let (from, to) = (at.config.one_at_least("source")?, at.config.one_at_least("destination")?);
    let x = operand(at, args)?;
    let axes = |list: &[i64]| list.iter().map(|axis| at.axis(x, *axis)).collect::<Read<Vec<_>>>();
    let (from, to) = (axes(&from)?, axes(&to)?);
    let mut rest = (0..at.rank(x)).filter(|axis| !from.contains(axis));
    let perm: Option<Vec<usize>> = (0..at.rank(x))
        .map(|place| match to.iter().position(|axis| *axis == place) {
            Some(i) => from.get(i).copied(),
            None => rest.next(),
        })
        .collect();
    let perm = perm.ok_or_else(|| Fault::field("destination", "does not fit"))?;
    Ok(at.transpose(x, perm)?.into())
}

fn expand_dims<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let axes = at.config.one_at_least("axis")?;
    let x = operand(at, args)?;
    Ok(at.unsqueeze(x, axes)?.into())
}

fn squeeze<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let axes = at.config.one_or_more("axis")?;
    let x = operand(at, args)?;
    let shape = at.shape(x);
    let ones = || (0..shape.rank()).filter(|axis| shape[*axis] == Dim::ONE).map(narrow).collect();
    let axes = axes.unwrap_or_else(ones);
    Ok(at.squeeze(x, axes)?.into())
}

/// Tensors joined along an axis, which may be a new one; `absent` is the axis if none is named.
pub(super) fn join<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    is_new: bool,
    absent: i64,
) -> Read<Arg<'c>> {
    let axis = at.config.int("axis", absent)?;
    let tensors = args.first()?.tensors();
    let mut values = tensors.into_iter().map(|x| at.natural(x)).collect::<Read<Vec<Value>>>()?;
    if values.is_empty() {
        return Err(Fault::new("it is called without tensors"));
    }
    promoted(at, &mut values)?;
    for value in values.iter_mut().filter(|_| is_new) {
        *value = at.unsqueeze(*value, vec![axis])?;
    }
    Ok(at.concat(&values, axis)?.into())
}

fn split<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let axis = at.config.int("axis", 0)?;
    let given = at.config.needed("indices_or_sections")?;
    let x = operand(at, args)?;
    let own = at.axis(x, axis)?;
    let size = at.extent(x, own)?;
    let sizes: Vec<i64> = if let Some(list) = given.as_array() {
        let ends = list.iter().map(|x| int("indices_or_sections", x));
        let mut ends = ends.collect::<Read<Vec<i64>>>()?;
        ends.push(size);
        let mut from = 0;
        ends.into_iter().map(|to| to - std::mem::replace(&mut from, to)).collect()
    } else {
        let count = int("indices_or_sections", given)?;
        let parts = usize::try_from(count).ok().filter(|n| (1..=1 << 16).contains(n));
        let wrong = || Fault::field("indices_or_sections", format!("is {count}"));
        let parts = parts.filter(|_| size % count == 0).ok_or_else(wrong)?;
        vec![size / count; parts]
    };
    let parts = at.split(x, narrow(own), sizes.into_iter().map(Dim::from).collect())?;
    Ok(Arg::List(parts.into_iter().map(Arg::from).collect()))
}

fn flip<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let axes = at.config.one_or_more("axis")?;
    let x = operand(at, args)?;
    let axes = axes.unwrap_or_else(|| all_axes(0, at.rank(x)));
    Ok(at.op(Reverse { axes }, &[x])?.into())
}

pub(super) fn reduce<'c>(
    at: &mut At<'_, 'c>,
    args: &Args<'c>,
    f: impl FnOnce(&mut At<'_, 'c>, Value, Vec<i64>, bool) -> Read<Value>,
) -> Read<Arg<'c>> {
    let axes = at.config.one_or_more("axis")?;
    let keeps = at.config.flag("keepdims", false)?;
    let x = operand(at, args)?;
    let axes = axes.unwrap_or_else(|| all_axes(0, at.rank(x)));
    Ok(f(at, x, axes, keeps)?.into())
}

pub(super) fn largest(at: &mut At<'_, '_>, x: Value, axes: Vec<i64>, keeps: bool) -> Read<Value> {
    at.reduce_max(x, axes, keeps)
}

pub(super) fn smallest(at: &mut At<'_, '_>, x: Value, axes: Vec<i64>, keeps: bool) -> Read<Value> {
    at.reduce_min(x, axes, keeps)
}

/// 1 where a tensor is not 0, else 0.
fn truth(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let x = at.cast(x, DType::Bool)?;
    at.cast(x, DType::I32)
}

/// `ln(1 + x)` without the rounding of `1 + x`: `ln(u) * x / (u - 1)` for `u = 1 + x`, and `x`
/// where `u` is 1 (the method of Kahan).
pub(super) fn log_above_one(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let above = at.shift(x, 1.0)?;
    let (log, moved) = (at.log(above)?, at.shift(above, -1.0)?);
    let (is_one, is_far) = (at.is(moved, 0.0)?, at.is_above(moved, 1e4)?);
    let one = at.number(x, 1.0)?;
    let divisor = at.choose(is_one, one, moved)?;
    let share = at.div(x, divisor)?;
    let share = at.choose(is_far, one, share)?;
    let y = at.mul(log, share)?;
    at.choose(is_one, x, y)
}

pub(super) fn variance(at: &mut At<'_, '_>, x: Value, axes: Vec<i64>, keeps: bool) -> Read<Value> {
    let x = floating(at, x)?;
    let mean = at.reduce_mean(x, axes.clone(), true)?;
    let distance = at.sub(x, mean)?;
    let squares = at.square(distance)?;
    at.reduce_mean(squares, axes, keeps)
}
