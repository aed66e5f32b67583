//! The functions themselves: one definition for all floats, one for all integers, one for known
//! elements.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use super::{GeluForm, Unary};
use crate::op::ints;
use crate::op::real::Real;
use crate::types::{DType, Dim};

/// A closure that becomes part of the loop around it, and is compiled for the vectors of that loop.
/// It owns its parameters, so that a loop reads them once.
macro_rules! inlined {
    (|$x:ident| $f:expr) => {{
        #[inline(always)]
        move |$x: R| $f
    }};
}

/// Visitor that gets the chosen function: its loop is monomorphic, without a branch inside.
pub(crate) trait Apply<R> {
    /// The result of the visit.
    type Output;
    /// Does it with this function.
    fn apply(self, f: impl Fn(R) -> R) -> Self::Output;
}

impl Unary {
    /// The bounds of a function that is `clip` on `f32`.
    pub(crate) fn bounds(&self) -> Option<[f32; 2]> {
        let [low, high] = if let Self::Clip { min, max } = *self {
            // A bound that is absent changes nothing.
            [min.unwrap_or(f64::NEG_INFINITY), max.unwrap_or(f64::INFINITY)]
        } else {
            matches!(self, Self::Relu).then_some([0.0, f64::INFINITY])?
        };
        Some([f32::of(low), f32::of(high)])
    }

    /// Hands the function to `v`. This is the one definition for floats: the reference and every
    /// CPU kernel compute by it, so that they agree in bits.
    #[inline]
    pub(crate) fn visit<R: Real, V: Apply<R>>(&self, v: V) -> V::Output {
        let of = |parameter: f32| R::of(parameter.into());
        let bound = |bound: Option<f64>, none: f64| R::of(bound.unwrap_or(none));
        match *self {
            Self::Abs => v.apply(R::abs),
            Self::Neg => v.apply(|x| -x),
            Self::Sign => v.apply(sign),
            Self::Relu => v.apply(positive_part),
            Self::Clip { min, max } => {
                let (low, high) = (bound(min, f64::NEG_INFINITY), bound(max, f64::INFINITY));
                v.apply(inlined!(|x| clip(x, low, high)))
            }
            Self::Exp => v.apply(inlined!(|x| x.exp())),
            Self::Log => v.apply(inlined!(|x| x.ln())),
            Self::Sqrt => v.apply(inlined!(|x| x.sqrt())),
            Self::Reciprocal => v.apply(|x| R::of(1.0) / x),
            Self::Floor => v.apply(R::floor),
            Self::Ceil => v.apply(R::ceil),
            Self::Round => v.apply(R::round_ties_even),
            Self::Erf => v.apply(inlined!(|x| x.erf())),
            Self::Sin => v.apply(inlined!(|x| x.sin())),
            Self::Cos => v.apply(inlined!(|x| x.cos())),
            Self::Tan => v.apply(inlined!(|x| x.tan())),
            Self::Asin => v.apply(inlined!(|x| x.asin())),
            Self::Acos => v.apply(inlined!(|x| x.acos())),
            Self::Atan => v.apply(inlined!(|x| x.atan())),
            Self::Sinh => v.apply(inlined!(|x| x.sinh())),
            Self::Cosh => v.apply(inlined!(|x| x.cosh())),
            Self::Tanh => v.apply(inlined!(|x| x.tanh())),
            Self::Asinh => v.apply(inlined!(|x| x.asinh())),
            Self::Acosh => v.apply(inlined!(|x| x.acosh())),
            Self::Atanh => v.apply(inlined!(|x| x.atanh())),
            Self::Sigmoid => v.apply(inlined!(|x| x.sigmoid())),
            Self::HardSigmoid { alpha, beta } => {
                v.apply(inlined!(|x| ramp(x, of(alpha), of(beta))))
            }
            Self::Swish { alpha } => v.apply(inlined!(|x| x.times_sigmoid(of(alpha) * x))),
            Self::HardSwish => v.apply(|x| x * ramp(x, R::of(1.0 / 6.0), R::of(0.5))),
            Self::Mish => v.apply(inlined!(|x| x.mish())),
            Self::Gelu { approximate: GeluForm::Exact } => v.apply(inlined!(|x| x.gelu())),
            Self::Gelu { approximate: GeluForm::Tanh } => v.apply(inlined!(|x| x.gelu_tanh())),
            // `ln(1 + e^x)`: with the exponent `-|x|` no power overflows, and the logarithm keeps
            // what is small.
            Self::Softplus => v.apply(inlined!(|x| positive_part(x) + (-x.abs()).exp().ln_1p())),
            Self::Softsign => v.apply(|x| x / (R::of(1.0) + x.abs())),
            Self::LeakyRelu { alpha } => v.apply(inlined!(|x| below_zero(x, |x| of(alpha) * x))),
            Self::ThresholdedRelu { alpha } => v.apply(inlined!(|x| threshold(x, of(alpha)))),
            Self::Shrink { bias, lambd } => v.apply(inlined!(|x| shrink(x, of(lambd), of(bias)))),
            // `e^x - 1` by one function: near 0 the difference would lose its digits.
            Self::Elu { alpha } => v.apply(inlined!(|x| below_zero(x, |x| of(alpha) * x.exp_m1()))),
            Self::Selu { alpha, gamma } => {
                v.apply(inlined!(|x| of(gamma) * below_zero(x, |x| of(alpha) * x.exp_m1())))
            }
            Self::Celu { alpha } => {
                v.apply(inlined!(|x| below_zero(x, |x| of(alpha) * (x / of(alpha)).exp_m1())))
            }
        }
    }

    /// The function on an integer, before it wraps; `None` where only floats have it.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others take floats only")]
    pub(super) fn int(&self, x: i128) -> Option<i128> {
        Some(match self {
            Self::Abs => x.abs(),
            Self::Neg => -x,
            Self::Sign => x.signum(),
            Self::Relu => x.max(0),
            Self::Clip { min, max } => {
                let x = min.map_or(x, |low| x.max(truncate(low)));
                max.map_or(x, |high| x.min(truncate(high)))
            }
            _ => return None,
        })
    }

    /// The function on a known element of an operand of type `dtype`, where the result is known.
    #[expect(clippy::wildcard_enum_match_arm, reason = "of the others no formula is known")]
    pub(super) fn known(&self, dtype: DType, x: &Dim) -> Option<Dim> {
        // Computed in 128 bits; `constant` gives nothing where the type would wrap.
        if let Some(c) = x.as_const() {
            return ints::constant(dtype, self.int(c.into())?);
        }
        let value = match self {
            Self::Neg => -x.clone(),
            Self::Abs if x.is_nonnegative() => x.clone(),
            Self::Relu => x.maximum(&Dim::ZERO),
            Self::Clip { min, max } => {
                let bound = |b: f64| i64::try_from(truncate(b)).ok().map(Dim::from);
                let low = min.map(bound);
                let x = low.map_or(Some(x.clone()), |low| low.map(|low| x.maximum(&low)))?;
                max.map(bound).map_or(Some(x.clone()), |high| high.map(|high| x.minimum(&high)))?
            }
            _ => return None,
        };
        ints::element(dtype, value)
    }
}

/// The integer that a bound stands for; beyond an `i128` the nearest.
#[expect(clippy::cast_possible_truncation, reason = "inference admits integers only")]
fn truncate(bound: f64) -> i128 {
    bound as i128
}

/// 1, -1 or 0 by the sign; a NaN stays.
#[inline(always)]
fn sign<R: Real>(x: R) -> R {
    let zero = R::of(0.0);
    let positive = if x > zero { R::of(1.0) } else { x };
    let any = if x < zero { R::of(-1.0) } else { positive };
    if x == zero { zero } else { any }
}

#[inline(always)]
fn positive_part<R: Real>(x: R) -> R {
    below_zero(x, |_| R::of(0.0))
}

/// `f(x)` where `x` is negative, else `x`.
#[inline(always)]
fn below_zero<R: Real>(x: R, f: impl Fn(R) -> R) -> R {
    if x < R::of(0.0) { f(x) } else { x }
}

#[inline(always)]
fn threshold<R: Real>(x: R, above: R) -> R {
    if x > above { x } else { R::of(0.0) }
}

#[inline(always)]
fn shrink<R: Real>(x: R, limit: R, bias: R) -> R {
    let above = if x > limit { x - bias } else { R::of(0.0) };
    if x < -limit { x + bias } else { above }
}

/// Bounds are compared so that a NaN stays, and the upper one wins where they cross.
#[inline(always)]
fn clip<R: Real>(x: R, low: R, high: R) -> R {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
fn ramp<R: Real>(x: R, slope: R, at_zero: R) -> R {
    clip(slope * x + at_zero, R::of(0.0), R::of(1.0))
}
