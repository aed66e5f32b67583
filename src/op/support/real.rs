//! The real functions from which operators are built, for `f32` and `f64`.
//!
//! They are computed without the platform's mathematical library, so that a result has the same
//! bits on every machine: those of `f32` by [`super::functions`], those of `f64` by `libm`.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::f64::consts;
use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

use super::functions;

/// A type in which operators compute: `f32` for `f32`, `f16` and `bf16`, `f64` for `f64`.
pub(crate) trait Real:
    Copy
    + PartialOrd
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Rem<Output = Self>
{
    /// The number nearest to `x`.
    fn of(x: f64) -> Self;
    /// The same number as an `f64`.
    fn to_f64(self) -> f64;
    /// `|x|`.
    fn abs(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// The largest integer not above.
    fn floor(self) -> Self;
    /// The smallest integer not below.
    fn ceil(self) -> Self;
    /// The nearest integer, the even one of two.
    fn round_ties_even(self) -> Self;
    /// The square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// `e^x`.
    fn exp(self) -> Self;
    /// `e^x - 1`, accurate near 0.
    fn exp_m1(self) -> Self;
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The natural logarithm of `1 + x`, accurate near 0.
    fn ln_1p(self) -> Self;
    /// `self` to the power `y`.
    fn pow(self, y: Self) -> Self;
    /// The sine.
    fn sin(self) -> Self;
    /// The cosine.
    fn cos(self) -> Self;
    /// The tangent.
    fn tan(self) -> Self;
    /// The inverse of the sine.
    fn asin(self) -> Self;
    /// The inverse of the cosine.
    fn acos(self) -> Self;
    /// The inverse of the tangent.
    fn atan(self) -> Self;
    /// The hyperbolic sine.
    fn sinh(self) -> Self;
    /// The hyperbolic cosine.
    fn cosh(self) -> Self;
    /// The hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The inverse of the hyperbolic sine.
    fn asinh(self) -> Self;
    /// The inverse of the hyperbolic cosine.
    fn acosh(self) -> Self;
    /// The inverse of the hyperbolic tangent.
    fn atanh(self) -> Self;
    /// The error function, `2/sqrt(pi)` times the integral of `e^(-t^2)` from 0 to `x`.
    fn erf(self) -> Self;

    /// `1 / (1 + e^-x)`, accurate on both sides.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let e = (-self.abs()).exp();
        let numerator = if self < Self::of(0.0) { e } else { Self::of(1.0) };
        numerator / (Self::of(1.0) + e)
    }

    /// `self * sigmoid(s)`.
    #[inline(always)]
    fn times_sigmoid(self, s: Self) -> Self {
        self * s.sigmoid()
    }

    /// `x * tanh(ln(1 + e^x))`: with `e = e^x` the hyperbolic tangent is that of `e * (e + 2)` to 2
    /// more, which rounds to 1 from `x = 20` on.
    #[inline(always)]
    fn mish(self) -> Self {
        let limit = Self::of(20.0);
        let e = (if self > limit { limit } else { self }).exp();
        let a = e * (e + Self::of(2.0));
        self * (a / (a + Self::of(2.0)))
    }

    /// `x / 2 * (1 + erf(x / sqrt(2)))`.
    fn gelu(self) -> Self;

    /// `x / 2 * (1 + tanh(u))` of a cubic polynomial `u`: `(1 + tanh(u)) / 2` is `sigmoid(2 * u)`;
    /// the scale is `2 * sqrt(2 / pi)`.
    #[inline(always)]
    fn gelu_tanh(self) -> Self {
        let u = self + Self::of(0.044_715) * self * self * self;
        self.times_sigmoid(Self::of(consts::FRAC_2_SQRT_PI * consts::SQRT_2) * u)
    }

    /// True of a NaN.
    #[inline(always)]
    #[expect(clippy::eq_op, reason = "a NaN is what differs from itself")]
    fn is_nan(self) -> bool {
        self != self
    }
}

macro_rules! real {
    ($t:ident {
        $($name:ident = $f:expr),*; $($of_two:ident = $g:expr),* $(,)?
    }) => {
        impl Real for $t {
            #[inline(always)]
            #[allow(clippy::cast_possible_truncation, reason = "rounding is meant")]
            fn of(x: f64) -> Self {
                x as Self
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn copysign(self, sign: Self) -> Self {
                $t::copysign(self, sign)
            }
            $(#[inline(always)]
            fn $name(self) -> Self {
                ($f)(self)
            })*
            $(#[inline(always)]
            fn $of_two(self, y: Self) -> Self {
                ($g)(self, y)
            })*
        }
    };
}

real!(f32 {
    abs = f32::abs, floor = f32::floor, ceil = f32::ceil, sqrt = f32::sqrt,
    round_ties_even = f32::round_ties_even,
    exp = functions::exp, exp_m1 = functions::exp_m1,
    ln = functions::ln, ln_1p = functions::ln_1p,
    sin = functions::sin, cos = functions::cos, tan = functions::tan,
    asin = functions::asin, acos = functions::acos, atan = functions::atan,
    sinh = functions::sinh, cosh = functions::cosh, tanh = functions::tanh,
    asinh = functions::asinh, acosh = functions::acosh, atanh = functions::atanh,
    erf = functions::erf,
    sigmoid = functions::sigmoid, mish = functions::mish,
    gelu = functions::gelu, gelu_tanh = functions::gelu_tanh;
    pow = functions::pow, times_sigmoid = functions::times_sigmoid,
});

real!(f64 {
    abs = f64::abs, floor = f64::floor, ceil = f64::ceil, sqrt = f64::sqrt,
    round_ties_even = f64::round_ties_even,
    exp = libm::exp, exp_m1 = libm::expm1, ln = libm::log, ln_1p = libm::log1p,
    sin = libm::sin, cos = libm::cos, tan = libm::tan,
    asin = libm::asin, acos = libm::acos, atan = libm::atan,
    sinh = libm::sinh, cosh = libm::cosh, tanh = libm::tanh,
    asinh = libm::asinh, acosh = |x: f64| if x < 1.0 { f64::NAN } else { libm::acosh(x) },
    atanh = libm::atanh,
    erf = libm::erf,
    // `1 + erf(u)` is `erfc(-u)`, which stays accurate where it is small.
    gelu = |x: f64| 0.5 * x * libm::erfc(-consts::FRAC_1_SQRT_2 * x);
    pow = libm::pow,
});

#[cfg(test)]
mod tests {
    use super::Real;

    #[test]
    fn both_types_agree() {
        for i in -40..=40 {
            let x = f64::from(i) / 8.0;
            for (a, b) in [
                (f32::of(x).sin(), x.sin()),
                (f32::of(x).atan(), x.atan()),
                (Real::asinh(f32::of(x)), Real::asinh(x)),
                (Real::cosh(f32::of(x)), Real::cosh(x)),
                (Real::pow(f32::of(1.5), f32::of(x)), Real::pow(1.5, x)),
                (Real::sigmoid(f32::of(x)), Real::sigmoid(x)),
            ] {
                assert!((f64::from(a) - b).abs() <= 3e-7 * b.abs().max(1.0), "{x}: {a} and {b}");
            }
        }
    }
}
