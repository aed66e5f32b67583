//! More functions of `keras.ops` of single numbers and of pairs of them: those that few models use.

use super::activation::{apply_named, of_name};
use super::entry::layers;
use super::functions::{float, log_above_one, one, pair, value_of};
use super::numeric::{is_negative, log_of_sum};
use super::promotion::{arithmetic, floating, numbers, promoted};
use crate::format::keras::at::{At, dtype};
use crate::format::keras::config::{Read, number};
use crate::format::keras::error::Fault;
use crate::format::keras::value::{Arg, Args, Tensor};
use crate::ir::Value;
use crate::op::{Binary, BitCast, Formula, Logic, Scan, Sort, Unary};
use crate::types::{DType, Dim, Shape};

layers! {
    "Squareplus" Dropped => |at, args| {
        let curvature = at.config.number("b", 4.0)?;
        float(at, args, |at, x| {
            let square = at.square(x)?;
            let sum = at.shift(square, curvature)?;
            let root = at.sqrt(sum)?;
            let sum = at.add(x, root)?;
            at.scale(sum, 0.5)
        })
    };
    "TanhShrink" Dropped => |at, args| named(at, args, "tanh_shrink");
    "SparsePlus" Dropped => |at, args| named(at, args, "sparse_plus");
    "SparseSigmoid" Dropped => |at, args| named(at, args, "sparse_sigmoid");
    "Glu" Dropped => |at, args| {
        let axis = at.config.axis()?;
        float(at, args, |at, x| {
            let axis = at.axis(x, axis)?;
            of_name(at, "glu", x, axis)
        })
    };
    "Sparsemax" Dropped => |at, args| {
        let axis = at.config.axis()?;
        float(at, args, |at, x| sparsemax(at, x, axis))
    };
    "Fabs" Dropped => |at, args| float(at, args, |at, x| at.abs(x));
    "Cbrt" Dropped => |at, args| float(at, args, |at, x| {
        let (sign, size) = (at.sign(x)?, at.abs(x)?);
        let third = at.number(size, 1.0 / 3.0)?;
        let root = at.pow(size, third)?;
        at.mul(sign, root)
    });
    "Signbit" Dropped => |at, args| float(at, args, is_negative);
    "Sinc" Dropped => |at, args| float(at, args, |at, x| {
        let is_zero = at.is(x, 0.0)?;
        let angle = at.scale(x, std::f64::consts::PI)?;
        let one = at.number(x, 1.0)?;
        let divisor = at.choose(is_zero, one, angle)?;
        let sine = at.op(Unary::Sin, &[angle])?;
        let quotient = at.div(sine, divisor)?;
        at.choose(is_zero, one, quotient)
    });
    "Erfinv" Dropped => |at, args| float(at, args, inverse_of_erf);
    "Erfc" Dropped => |at, args| float(at, args, rest_of_erf);
    "Heaviside" Dropped => |at, args| pair(at, args, heaviside);
    "Fmax" Dropped => |at, args| pair(at, args, |at, a, b| bound(at, a, b, Binary::Max));
    "Fmin" Dropped => |at, args| pair(at, args, |at, a, b| bound(at, a, b, Binary::Min));
    "Logaddexp2" Dropped => |at, args| pair(at, args, |at, a, b| {
        let (a, b) = (floating(at, a)?, floating(at, b)?);
        let log = std::f64::consts::LN_2;
        let (a, b) = (at.scale(a, log)?, at.scale(b, log)?);
        let sum = log_of_sum(at, a, b)?;
        at.scale(sum, 1.0 / log)
    });
    "Ldexp" Dropped => |at, args| {
        let x = args.tensor()?;
        let x = at.natural(x)?;
        let x = floating(at, x)?;
        let exponent = value_of(at, args, 1, "x2", at.ty_of(x))?;
        let exponent = exponent.ok_or_else(|| Fault::new("it is called without an exponent"))?;
        times_power_of_two(at, x, exponent)
    };
    "Isclose" Dropped => |at, args| {
        let bound = |position, name: &str, absent| match args.constant(position, name)? {
            None => Ok(absent),
            Some(value) => number(name, &value),
        };
        let (rtol, atol) = (bound(2, "rtol", 1e-5)?, bound(3, "atol", 1e-8)?);
        let equal_nan = at.config.flag("equal_nan", false)?;
        pair(at, args, |at, a, b| is_close(at, [a, b], [rtol, atol], equal_nan))
    };
    "BitwiseLeftShift" Dropped => |at, args| shifted(at, args, true);
    "LeftShift" Dropped => |at, args| shifted(at, args, true);
    "BitwiseRightShift" Dropped => |at, args| shifted(at, args, false);
    "RightShift" Dropped => |at, args| shifted(at, args, false);
    "View" Dropped => |at, args| {
        let name = at.config.opt_text("dtype")?;
        one(at, args, |at, x| {
            let from = at.ty_of(x);
            let to = name.map_or(Some(from), dtype);
            let to = to.ok_or_else(|| Fault::field("dtype", "is not supported"))?;
            if to.bytes() != from.bytes() {
                return Err(Fault::field("dtype", format!("has not the size of {from}")));
            }
            at.op(BitCast { to }, &[x])
        })
    };
    "Select" Dropped => select;
}

fn named<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, name: &str) -> Read<Arg<'c>> {
    let x = args.tensor()?;
    Ok(apply_named(at, name, x)?.into())
}

/// The projection of Keras: its threshold takes the sum of running sums, not their last one.
fn sparsemax(at: &mut At<'_, '_>, x: Value, axis: i64) -> Read<Value> {
    let own = at.axis(x, axis)?;
    let (rank, size) = (at.rank(x), at.extent(x, own)?);
    let minus = at.neg(x)?;
    let sorted = at.op(Sort { axis, descending: false }, &[minus])?;
    let sorted = at.neg(sorted)?;
    let sums = at.op(Scan::Sum { axis, exclusive: false, reverse: false }, &[sorted])?;
    let counts = at.count_to(size.into(), DType::I64)?;
    let counts = at.cast(counts, at.ty_of(x))?;
    let counts = at.shift(counts, 1.0)?;
    let mut shape: Shape = std::iter::repeat_n(Dim::ONE, rank).collect();
    shape[own] = size.into();
    let counts = at.reshape(counts, &shape)?;
    let above = at.shift(sums, -1.0)?;
    let mean = at.div(above, counts)?;
    let supports = at.greater(sorted, mean)?;
    let ones = at.cast(supports, at.ty_of(x))?;
    let count = at.reduce_sum(ones, vec![axis], true)?;
    let kept = at.only(supports, sums)?;
    let sum = at.reduce_sum(kept, vec![axis], true)?;
    let less = at.shift(sum, -1.0)?;
    let threshold = at.div(less, count)?;
    let distance = at.sub(x, threshold)?;
    at.relu(distance)
}

/// `x * 2^exponent`, by thirds of the exponent: a power of its own may lie outside the type.
fn times_power_of_two<'c>(at: &mut At<'_, 'c>, x: Value, exponent: Value) -> Read<Arg<'c>> {
    let dtype = at.ty_of(x);
    // Beyond three times these the result is 0 or infinite.
    let most = match dtype {
        DType::F16 => 15.0,
        DType::F64 => 700.0,
        _ => 100.0,
    };
    let exponent = at.cast(exponent, dtype)?;
    let mut rest = at.clip(exponent, -3.0 * most, 3.0 * most)?;
    let (two, mut y) = (at.number(x, 2.0)?, x);
    for part in [3.0, 2.0, 1.0] {
        let third = at.scale(rest, 1.0 / part)?;
        let third = at.op(Unary::Round, &[third])?;
        let factor = at.pow(two, third)?;
        y = at.mul(y, factor)?;
        rest = at.sub(rest, third)?;
    }
    Ok(y.into())
}

/// `1 - erf(x)`. Above 1 the difference would lose digits: there it is an exponential with a
/// polynomial in it (Numerical Recipes, `erfcc`), whose relative error is 1.2e-7 at most before
/// rounding: too much for `f64`.
fn rest_of_erf(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    const TERMS: [f64; 10] = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    if at.ty_of(x) == DType::F64 {
        return Err(Fault::new("it is called with a tensor of float64"));
    }
    let near = at.op(Unary::Erf, &[x])?;
    let near = at.complement(near)?;
    let half = at.scale(x, 0.5)?;
    let half = at.relu(half)?;
    let divisor = at.shift(half, 1.0)?;
    let t = at.op(Unary::Reciprocal, &[divisor])?;
    let mut sum = at.number(t, 0.0)?;
    for (i, term) in TERMS.into_iter().enumerate() {
        if i > 0 {
            sum = at.mul(sum, t)?;
        }
        sum = at.shift(sum, term)?;
    }
    let square = at.square(x)?;
    let exponent = at.sub(sum, square)?;
    let power = at.exp(exponent)?;
    let far = at.mul(t, power)?;
    let is_far = at.is_above(x, 1.0)?;
    at.choose(is_far, far, near)
}

/// The number of which a number is the `erf`, by the polynomials of M. Giles that Keras has on JAX:
/// one for the middle, one for the ends.
fn inverse_of_erf(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    const MIDDLE: [f64; 9] = [
        2.810_226_36e-8,
        3.432_739_39e-7,
        -3.523_387_7e-6,
        -4.391_506_54e-6,
        2.185_808_7e-4,
        -1.253_725_03e-3,
        -4.177_681_64e-3,
        0.246_640_727,
        1.501_409_41,
    ];
    const ENDS: [f64; 9] = [
        -2.002_142_57e-4,
        1.009_505_58e-4,
        1.349_343_22e-3,
        -3.673_428_44e-3,
        5.739_507_73e-3,
        -7.622_461_3e-3,
        9.438_870_47e-3,
        1.001_674_06,
        2.832_976_82,
    ];
    if at.ty_of(x) == DType::F64 {
        return Err(Fault::new("it is called with a tensor of float64"));
    }
    let square = at.square(x)?;
    let below = at.neg(square)?;
    let rest = log_above_one(at, below)?;
    let w = at.neg(rest)?;
    let root = at.sqrt(w)?;
    let (near, far) = (at.shift(w, -2.5)?, at.shift(root, -3.0)?);
    let mut factors = Vec::new();
    for (terms, t) in [(MIDDLE, near), (ENDS, far)] {
        let mut sum = at.number(t, terms[0])?;
        for term in &terms[1..] {
            sum = at.mul(sum, t)?;
            sum = at.shift(sum, *term)?;
        }
        factors.push(sum);
    }
    let is_near = at.is_below(w, 5.0)?;
    let factor = at.choose(is_near, factors[0], factors[1])?;
    let y = at.mul(x, factor)?;
    let (size, end) = (at.abs(x)?, at.scale(x, f64::INFINITY)?);
    let is_end = at.is(size, 1.0)?;
    at.choose(is_end, end, y)
}

/// 0 below 0, 1 above, and `b` at it.
fn heaviside(at: &mut At<'_, '_>, a: Value, b: Value) -> Read<Value> {
    let (a, b) = (floating(at, a)?, floating(at, b)?);
    let (is_zero, is_above, is_none) = (at.is(a, 0.0)?, at.is_above(a, 0.0)?, at.is_nan(a)?);
    let step = at.cast(is_above, at.ty_of(a))?;
    let step = at.choose(is_none, a, step)?;
    at.choose(is_zero, b, step)
}

/// The larger or smaller one; of NaN and a number the number.
fn bound(at: &mut At<'_, '_>, a: Value, b: Value, op: Binary) -> Read<Value> {
    let both = arithmetic(at, op, a, b)?;
    if !at.ty_of(a).is_float() {
        return Ok(both);
    }
    let (no_a, no_b) = (at.is_nan(a)?, at.is_nan(b)?);
    let rest = at.choose(no_b, a, both)?;
    at.choose(no_a, b, rest)
}

fn is_close(
    at: &mut At<'_, '_>,
    [a, b]: [Value; 2],
    [rtol, atol]: [f64; 2],
    equal_nan: bool,
) -> Read<Value> {
    let (a, b) = (floating(at, a)?, floating(at, b)?);
    let (distance, size) = (at.sub(a, b)?, at.abs(b)?);
    let distance = at.abs(distance)?;
    let most = at.scale(size, rtol)?;
    let most = at.shift(most, atol)?;
    // Infinite bounds allow for nothing: infinities are close if they are equal.
    let is_finite = at.is_below(size, f64::INFINITY)?;
    let within = at.less_or_equal(distance, most)?;
    let within = at.and(within, is_finite)?;
    let equal = at.equal(a, b)?;
    let mut close = at.or(within, equal)?;
    if equal_nan {
        let none = [at.is_nan(a)?, at.is_nan(b)?];
        let none = at.and(none[0], none[1])?;
        close = at.or(close, none)?;
    }
    Ok(close)
}

/// Integers with their bits moved: to the right the sign comes after.
fn shifted<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, left: bool) -> Read<Arg<'c>> {
    const TYPES: [(DType, DType); 4] = [
        (DType::I8, DType::U8),
        (DType::I16, DType::U16),
        (DType::I32, DType::U32),
        (DType::I64, DType::U64),
    ];
    pair(at, args, |at, a, b| {
        let (a, b) = (numbers(at, a)?, numbers(at, b)?);
        let own = at.ty_of(a);
        let Some((_, bits)) = TYPES.iter().find(|(signed, _)| *signed == own) else {
            return at.op(Logic::BitShift { left }, &[a, b]);
        };
        let unsigned = |at: &mut At<'_, '_>, x: Value| at.op(BitCast { to: *bits }, &[x]);
        let count = unsigned(at, b)?;
        if left {
            let a = unsigned(at, a)?;
            let moved = at.op(Logic::BitShift { left }, &[a, count])?;
            return at.op(BitCast { to: own }, &[moved]);
        }
        // The bits of a negative number are those of a positive one, inverted.
        let is_below = at.is_below(a, 0.0)?;
        let inverted = at.op(Logic::BitwiseNot, &[a])?;
        let positive = at.choose(is_below, inverted, a)?;
        let positive = unsigned(at, positive)?;
        let moved = at.op(Logic::BitShift { left }, &[positive, count])?;
        let moved = at.op(BitCast { to: own }, &[moved])?;
        let inverted = at.op(Logic::BitwiseNot, &[moved])?;
        at.choose(is_below, inverted, moved)
    })
}

/// For each element the first choice whose condition holds, or the default.
fn select<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let missing = || Fault::new("it is called without conditions or choices");
    let list = |position, name: &str| match args.opt(position, name) {
        Some(Arg::List(list)) => Ok(list.clone()),
        _ => Err(missing()),
    };
    let (conditions, choices) = (list(0, "condlist")?, list(1, "choicelist")?);
    let tensors = |list: &[Arg<'c>]| list.iter().map(one_of).collect::<Read<Vec<Tensor>>>();
    let (conditions, choices) = (tensors(&conditions)?, tensors(&choices)?);
    if conditions.is_empty() || conditions.len() != choices.len() {
        return Err(Fault::new("it has not one choice for each condition"));
    }
    let mut values = choices.into_iter().map(|x| at.natural(x)).collect::<Read<Vec<Value>>>()?;
    let default = value_of(at, args, 2, "default", at.ty_of(values[0]))?;
    values.push(match default {
        Some(default) => default,
        None => at.number(values[0], 0.0)?,
    });
    promoted(at, &mut values)?;
    let count = conditions.len();
    let mut result = values[count];
    for (condition, value) in conditions.into_iter().zip(&values[..count]).rev() {
        let condition = at.natural(condition)?;
        let condition = at.cast(condition, DType::Bool)?;
        result = at.choose(condition, *value, result)?;
    }
    Ok(result.into())
}

fn one_of(arg: &Arg<'_>) -> Read<Tensor> {
    match arg {
        Arg::Tensor(tensor) => Ok(*tensor),
        _ => Err(Fault::new("one of its operands is no tensor")),
    }
}
