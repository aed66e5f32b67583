//! More functions of `keras.ops`: those of single numbers and of pairs of them.

use super::activation::single;
use super::entry::layers;
use super::functions::{arithmetic_of, divided, float, one, pair};
use super::promotion::{floating, numbers};
use crate::format::keras::at::At;
use crate::format::keras::config::{Read, number};
use crate::format::keras::value::{Arg, Args};
use crate::ir::Value;
use crate::op::{Binary, Classify, Formula, Logic, Unary};
use crate::types::DType;

layers! {
    "Tan" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Tan, &[x]));
    "Arcsin" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Asin, &[x]));
    "Arccos" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Acos, &[x]));
    "Arctan" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Atan, &[x]));
    "Sinh" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Sinh, &[x]));
    "Cosh" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Cosh, &[x]));
    "Arcsinh" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Asinh, &[x]));
    "Arccosh" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Acosh, &[x]));
    "Arctanh" Dropped => |at, args| float(at, args, |at, x| at.op(Unary::Atanh, &[x]));
    "Exp2" Dropped => |at, args| float(at, args, |at, x| {
        let two = at.number(x, 2.0)?;
        at.pow(two, x)
    });
    "Expm1" Dropped => |at, args| float(at, args, power_below_one);
    "Log2" Dropped => |at, args| float(at, args, |at, x| logarithm(at, x, 2.0));
    "Log10" Dropped => |at, args| float(at, args, |at, x| logarithm(at, x, 10.0));
    "Deg2rad" Dropped => |at, args| float(at, args, |at, x| at.scale(x, 1f64.to_radians()));
    "Rad2deg" Dropped => |at, args| float(at, args, |at, x| at.scale(x, 1f64.to_degrees()));
    "Trunc" Dropped => |at, args| one(at, args, |at, x| {
        if !at.ty_of(x).is_float() {
            return Ok(x);
        }
        let (sign, size) = (at.sign(x)?, at.abs(x)?);
        let size = at.floor(size)?;
        at.mul(sign, size)
    });
    "Isnan" Dropped => |at, args| float(at, args, |at, x| at.is_nan(x));
    "Isinf" Dropped => |at, args| float(at, args, |at, x| infinite(at, x, [true, true]));
    "Isposinf" Dropped => |at, args| float(at, args, |at, x| infinite(at, x, [false, true]));
    "Isneginf" Dropped => |at, args| float(at, args, |at, x| infinite(at, x, [true, false]));
    "Isfinite" Dropped => |at, args| float(at, args, |at, x| {
        let (nan, infinite) = (at.is_nan(x)?, infinite(at, x, [true, true])?);
        let either = at.or(nan, infinite)?;
        at.not(either)
    });
    "NanToNum" Dropped => nan_to_num;
    "Celu" Dropped => |at, args| {
        let alpha = single(at.config.number("alpha", 1.0)?);
        float(at, args, |at, x| at.op(Unary::Celu { alpha }, &[x]))
    };
    "HardShrink" Dropped => |at, args| {
        let lambd = single(at.config.number("threshold", 0.5)?);
        float(at, args, |at, x| at.op(Unary::Shrink { bias: 0.0, lambd }, &[x]))
    };
    "SoftShrink" Dropped => |at, args| {
        let lambd = single(at.config.number("threshold", 0.5)?);
        float(at, args, |at, x| at.op(Unary::Shrink { bias: lambd, lambd }, &[x]))
    };
    "Threshold" Dropped => |at, args| {
        let bound = number("threshold", at.config.needed("threshold")?)?;
        let other = number("default_value", at.config.needed("default_value")?)?;
        float(at, args, |at, x| {
            let is_above = at.is_above(x, bound)?;
            let other = at.number(x, other)?;
            at.choose(is_above, x, other)
        })
    };
    "LogicalXor" Dropped => |at, args| pair(at, args, |at, a, b| {
        let truths = [at.cast(a, DType::Bool)?, at.cast(b, DType::Bool)?];
        at.op(Logic::Xor, &truths)
    });
    "BitwiseAnd" Dropped => |at, args| bits(at, args, [Logic::BitwiseAnd, Logic::And]);
    "BitwiseOr" Dropped => |at, args| bits(at, args, [Logic::BitwiseOr, Logic::Or]);
    "BitwiseXor" Dropped => |at, args| bits(at, args, [Logic::BitwiseXor, Logic::Xor]);
    "Mod" Dropped => |at, args| pair(at, args, remainder);
    "FloorDivide" Dropped => |at, args| pair(at, args, floor_divided);
    "DivideNoNan" Dropped => |at, args| pair(at, args, |at, a, b| {
        let (a, b) = (floating(at, a)?, floating(at, b)?);
        let is_zero = at.is(b, 0.0)?;
        let (zero, quotient) = (at.number(a, 0.0)?, divided(at, a, b)?);
        at.choose(is_zero, zero, quotient)
    });
    "Logaddexp" Dropped => |at, args| pair(at, args, log_of_sum);
    "Hypot" Dropped => |at, args| pair(at, args, hypotenuse);
    "Arctan2" Dropped => |at, args| pair(at, args, angle);
    "Amax" Dropped => |at, args| super::functions::reduce(at, args, super::functions::largest);
    "Amin" Dropped => |at, args| super::functions::reduce(at, args, super::functions::smallest);
    "Copy" Dropped => |at, args| one(at, args, |_, x| Ok(x));
    "BitwiseInvert" Dropped => |at, args| one(at, args, inverted);
    "BitwiseNot" Dropped => |at, args| one(at, args, inverted);
    "Fmod" Dropped => |at, args| arithmetic_of(at, args, Binary::Mod { fmod: true });
}

fn inverted(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let is_truth = at.ty_of(x) == DType::Bool;
    at.op(if is_truth { Logic::Not } else { Logic::BitwiseNot }, &[x])
}

/// A function of the bits of integers, or of truth values.
fn bits<'c>(at: &mut At<'_, 'c>, args: &Args<'c>, [own, truth]: [Logic; 2]) -> Read<Arg<'c>> {
    pair(at, args, |at, a, b| {
        let is_truth = at.ty_of(a) == DType::Bool;
        at.op(if is_truth { truth } else { own }, &[a, b])
    })
}

fn logarithm(at: &mut At<'_, '_>, x: Value, base: f64) -> Read<Value> {
    let log = at.log(x)?;
    at.scale(log, 1.0 / base.ln())
}

fn infinite(at: &mut At<'_, '_>, x: Value, [negative, positive]: [bool; 2]) -> Read<Value> {
    at.op(Classify::IsInf { negative, positive }, &[x])
}

fn nan_to_num<'c>(at: &mut At<'_, 'c>, args: &Args<'c>) -> Read<Arg<'c>> {
    let nan = at.config.number("nan", 0.0)?;
    let (most, least) = (at.config.opt_number("posinf")?, at.config.opt_number("neginf")?);
    one(at, args, |at, x| {
        let dtype = at.ty_of(x);
        let largest = match dtype {
            DType::F16 => 65_504.0,
            DType::Bf16 => 3.389_531_389_251_535_5e38,
            DType::F32 => f64::from(f32::MAX),
            DType::F64 => f64::MAX,
            _ => return Ok(x),
        };
        // Without numbers of their own infinities become the largest ones.
        let (most, least) = (most.unwrap_or(largest), least.unwrap_or(-largest));
        let mut y = x;
        let above = infinite(at, x, [false, true])?;
        let below = infinite(at, x, [true, false])?;
        let none = at.is_nan(x)?;
        for (condition, value) in [(above, most), (below, least), (none, nan)] {
            let value = at.number(x, value)?;
            y = at.choose(condition, value, y)?;
        }
        Ok(y)
    })
}

/// `e^x - 1` without the rounding of `e^x`: `(u - 1) * x / ln(u)` for `u = e^x`, and `x` where `u`
/// is 1 (the method of Kahan).
fn power_below_one(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let power = at.exp(x)?;
    let (log, less) = (at.log(power)?, at.shift(power, -1.0)?);
    let is_one = at.is(power, 1.0)?;
    let size = at.abs(x)?;
    let is_far = at.is_above(size, 1.0)?;
    let one = at.number(x, 1.0)?;
    let either = at.or(is_one, is_far)?;
    let divisor = at.choose(either, one, log)?;
    let product = at.mul(less, x)?;
    let near = at.div(product, divisor)?;
    let y = at.choose(is_far, less, near)?;
    at.choose(is_one, x, y)
}

/// The remainder with the sign of `b`, as Python has it.
fn remainder(at: &mut At<'_, '_>, a: Value, b: Value) -> Read<Value> {
    let (a, b) = (numbers(at, a)?, numbers(at, b)?);
    if !at.ty_of(a).is_float() {
        return at.rem(a, b);
    }
    let rest = at.op(Binary::Mod { fmod: true }, &[a, b])?;
    let (own, other) = (at.sign(rest)?, at.sign(b)?);
    let product = at.mul(own, other)?;
    let is_unlike = at.is_below(product, 0.0)?;
    let moved = at.add(rest, b)?;
    at.choose(is_unlike, moved, rest)
}

/// The quotient rounded down.
fn floor_divided(at: &mut At<'_, '_>, a: Value, b: Value) -> Read<Value> {
    let (a, b) = (numbers(at, a)?, numbers(at, b)?);
    if !at.ty_of(a).is_float() {
        let rest = remainder(at, a, b)?;
        let whole = at.sub(a, rest)?;
        return at.div(whole, b);
    }
    // Of 0 there is no rest; the quotients are infinite.
    let rest = at.op(Binary::Mod { fmod: true }, &[a, b])?;
    let (is_zero, whole) = (at.is(b, 0.0)?, at.sub(a, rest)?);
    let whole = at.choose(is_zero, a, whole)?;
    let quotient = at.div(whole, b)?;
    let (own, other) = (at.sign(rest)?, at.sign(b)?);
    let product = at.mul(own, other)?;
    let (is_unlike, less) = (at.is_below(product, 0.0)?, at.shift(quotient, -1.0)?);
    let quotient = at.choose(is_unlike, less, quotient)?;
    at.op(Unary::Round, &[quotient])
}

/// `ln(e^a + e^b)`.
pub(super) fn log_of_sum(at: &mut At<'_, '_>, a: Value, b: Value) -> Read<Value> {
    let (a, b) = (floating(at, a)?, floating(at, b)?);
    let most = at.max(a, b)?;
    // Of equal infinities there is no distance.
    let (is_same, distance) = (at.equal(a, b)?, at.sub(a, b)?);
    let distance = at.abs(distance)?;
    let zero = at.number(a, 0.0)?;
    let distance = at.choose(is_same, zero, distance)?;
    let minus = at.neg(distance)?;
    let more = at.softplus(minus)?;
    at.add(most, more)
}

/// The magnitudes of two values, the smaller one first, and their quotient, which is 0 for two
/// zeros and 1 for two infinities.
fn proportion(at: &mut At<'_, '_>, a: Value, b: Value) -> Read<[Value; 3]> {
    let (a, b) = (at.abs(a)?, at.abs(b)?);
    let (least, most) = (at.op(Binary::Min, &[a, b])?, at.max(a, b)?);
    let (is_zero, is_same) = (at.is(most, 0.0)?, at.equal(a, b)?);
    let one = at.number(most, 1.0)?;
    let either = at.or(is_zero, is_same)?;
    let divisor = at.choose(either, one, most)?;
    let quotient = at.div(least, divisor)?;
    let (zero, same) = (at.number(most, 0.0)?, at.choose(is_same, one, quotient)?);
    Ok([least, most, at.choose(is_zero, zero, same)?])
}

/// The root of the sum of two squares, which may be too large themselves.
fn hypotenuse(at: &mut At<'_, '_>, a: Value, b: Value) -> Read<Value> {
    let (a, b) = (floating(at, a)?, floating(at, b)?);
    let [_, most, quotient] = proportion(at, a, b)?;
    let square = at.square(quotient)?;
    let sum = at.shift(square, 1.0)?;
    let root = at.sqrt(sum)?;
    at.mul(most, root)
}

/// The angle of the point `(x, y)`, from minus to plus half a turn.
pub(super) fn angle(at: &mut At<'_, '_>, y: Value, x: Value) -> Read<Value> {
    use std::f64::consts::{FRAC_PI_2, PI};
    let (y, x) = (floating(at, y)?, floating(at, x)?);
    let [_, _, quotient] = proportion(at, y, x)?;
    let mut angle = at.op(Unary::Atan, &[quotient])?;
    let (height, width) = (at.abs(y)?, at.abs(x)?);
    let is_steep = at.greater(height, width)?;
    let (is_left, is_low) = (is_negative(at, x)?, is_negative(at, y)?);
    for (condition, from) in [(is_steep, FRAC_PI_2), (is_left, PI), (is_low, 0.0)] {
        let minus = at.neg(angle)?;
        let other = at.shift(minus, from)?;
        angle = at.choose(condition, other, angle)?;
    }
    Ok(angle)
}

/// Whether a float is below 0, or minus 0.
pub(super) fn is_negative(at: &mut At<'_, '_>, x: Value) -> Read<Value> {
    let inverse = at.op(Unary::Reciprocal, &[x])?;
    let (is_below, is_inverse) = (at.is_below(x, 0.0)?, at.is_below(inverse, 0.0)?);
    at.or(is_below, is_inverse)
}
