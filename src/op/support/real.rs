//! The real functions from which operators are built, for `f32` and `f64`.
//!
//! They are computed without the platform's mathematical library, so that a result has the same
//! bits on every machine. Those that occur in activations (`exp`, `exp_m1`, `tanh`, `erf`, `erfc`
//! of `f32`) have no branches and no tables: a loop over them is turned into vector code, whose
//! lanes and whose remainder give the same bits.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::ops::{Add, Div, Mul, Neg, Rem, Sub};

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
    /// `1 - erf(x)`, accurate where that is small.
    fn erfc(self) -> Self;

    /// `1 / (1 + e^-x)`, accurate on both sides.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let e = (-self.abs()).exp();
        let numerator = if self < Self::of(0.0) { e } else { Self::of(1.0) };
        numerator / (Self::of(1.0) + e)
    }

    /// True of a NaN.
    #[inline(always)]
    #[expect(clippy::eq_op, reason = "a NaN is what differs from itself")]
    fn is_nan(self) -> bool {
        self != self
    }
}

macro_rules! real {
    ($t:ident { $($name:ident = $f:expr),* $(,)? }) => {
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
            #[inline(always)]
            fn pow(self, y: Self) -> Self {
                power::$t(self, y)
            }
        }
    };
}

real!(f32 {
    abs = f32::abs, floor = f32::floor, ceil = f32::ceil, sqrt = f32::sqrt,
    round_ties_even = f32::round_ties_even,
    exp = exp_f32, exp_m1 = exp_m1_f32, ln = libm::logf, ln_1p = libm::log1pf,
    sin = libm::sinf, cos = libm::cosf, tan = libm::tanf,
    asin = libm::asinf, acos = libm::acosf, atan = libm::atanf,
    sinh = libm::sinhf, cosh = libm::coshf, tanh = tanh_f32,
    asinh = libm::asinhf, acosh = |x: f32| if x < 1.0 { f32::NAN } else { libm::acoshf(x) },
    atanh = libm::atanhf,
    erf = erf_f32, erfc = erfc_f32,
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
    erf = libm::erf, erfc = libm::erfc,
});

mod power {
    pub(in crate::op) use libm::{pow as f64, powf as f32};
}

/// `e^x = 2^n * (1 + p)` with an integer `n` in -150..=150 and `|p| < 0.42`, for `|x| <= 104`.
#[inline(always)]
fn reduce(x: f32) -> (i32, f32) {
    // Added and taken off again, it rounds to an integer, which is then in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    // ln 2 as a sum; a product of the first part with n is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -0.000_212_194_44;
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    // The Taylor series: its first term left out is below 6e-9 for |r| <= 0.35.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        p = p * r + c;
    }
    let p = p * r * r + r;
    (shifted.to_bits().wrapping_sub(SHIFT.to_bits()).cast_signed(), p)
}

/// `2^n` for `n` in -126..=127, anything for other `n`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127).cast_unsigned()) << 23)
}

/// `x` inside `-limit..=limit`; a NaN stays.
#[inline(always)]
fn clamp(x: f32, limit: f32) -> f32 {
    let x = if x > limit { limit } else { x };
    if x < -limit { -limit } else { x }
}

#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    let (n, p) = reduce(clamp(x, 104.0));
    // In two steps, since 2^n may be beyond the range where the result is not.
    let half = n >> 1;
    (1.0 + p) * power_of_two(half) * power_of_two(n - half)
}

#[inline(always)]
fn exp_m1_f32(x: f32) -> f32 {
    // Beyond -18 the result is -1; from 88 on it is exp(x).
    let (n, p) = reduce(clamp(x, 88.0));
    let n = if n < -60 { -60 } else { n };
    let scale = power_of_two(n);
    let small = scale * p + (scale - 1.0);
    let small = if x == 0.0 { x } else { small };
    if x > 87.0 { exp_f32(x) } else { small }
}

#[inline(always)]
fn tanh_f32(x: f32) -> f32 {
    let e = exp_m1_f32(2.0 * clamp(x.abs(), 10.0));
    (e / (e + 2.0)).copysign(x)
}

/// `c[0] + c[1] * x + …`.
#[inline(always)]
fn polynomial<const K: usize>(x: f32, c: [f32; K]) -> f32 {
    c.iter().rev().fold(0.0, |p, c| p * x + c)
}

/// `erfc(z) = t * e^(p(t) - z^2)` for `z >= 0` with `t = 1 / (1 + z/2)`. The polynomial is a fit of
/// `ln(erfc(z) / t) + z^2` at Chebyshev nodes over `0 <= z <= 10.2`, within 5e-8.
#[inline(always)]
fn erfc_f32(x: f32) -> f32 {
    let z = x.abs();
    // Beyond, the result is 0.
    let z = if z > 10.5 { 10.5 } else { z };
    let t = 1.0 / (1.0 + 0.5 * z);
    let p = polynomial(
        t,
        [
            -1.265_453,
            0.998_733,
            0.385_779_26,
            0.038_719_513,
            -0.010_834_08,
            -0.057_514_884,
            -0.723_754_1,
            1.177_376_3,
            -0.689_589_2,
            0.146_537_17,
        ],
    );
    // z^2 = square + rest exactly: products of the halves of z do not round.
    let square = z * z;
    let high = f32::from_bits(z.to_bits() & 0xffff_f000);
    let low = z - high;
    let rest = ((high * high - square) + 2.0 * high * low) + low * low;
    let tail = (t * exp_f32(p - rest)) * exp_f32(-square);
    if x < 0.0 { 2.0 - tail } else { tail }
}

/// Near 0 `x * q(x^2)`, where `q` is a fit of `erf(x) / x` at Chebyshev nodes, `1 - erfc(x)`
/// elsewhere.
#[inline(always)]
fn erf_f32(x: f32) -> f32 {
    let square = x * x;
    let q = polynomial(
        square,
        [
            std::f32::consts::FRAC_2_SQRT_PI,
            -0.376_125_3,
            0.112_822_12,
            -0.026_781_34,
            0.005_015_357,
            -0.000_610_698_9,
        ],
    );
    let far = (1.0 - erfc_f32(x.abs())).copysign(x);
    if x.abs() < 0.9 { x * q } else { far }
}

#[cfg(test)]
mod tests {
    use super::Real;

    /// The distance of `y` from `exact` in units of the last place of `exact`, as an `f32`.
    fn ulps(y: f32, exact: f64) -> f64 {
        let nearest = f32::of(exact);
        if nearest.is_nan() || nearest.is_infinite() || y.is_nan() || y.is_infinite() {
            let same = y.to_bits() == nearest.to_bits() || (y.is_nan() && nearest.is_nan());
            // The last values before the overflow may round to either side.
            let edge = exact.abs() > 3.402e38 && y.abs() > 3.402e38;
            return if same || edge { 0.0 } else { f64::INFINITY };
        }
        let magnitude = nearest.abs().max(f32::MIN_POSITIVE);
        let ulp = f64::from(magnitude) - f64::from(f32::from_bits(magnitude.to_bits() - 1));
        (f64::from(y) - exact).abs() / ulp
    }

    fn check(name: &str, bound: f64, f: impl Fn(f32) -> f32, exact: impl Fn(f64) -> f64) {
        let special =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-45, 1e-38, 0.5, 1.0];
        let all = (0..u32::MAX).step_by(20_011).map(f32::from_bits);
        let near = (-30_000i16..30_000).map(|i| f32::from(i) / 256.0);
        for x in special.into_iter().chain(all).chain(near) {
            let (y, exact) = (f(x), exact(f64::from(x)));
            assert!(ulps(y, exact) <= bound, "{name}({x:e}) is {y:e}, not {exact:e}");
            assert!(
                y != 0.0 || exact != 0.0 || y.to_bits() == f32::of(exact).to_bits(),
                "{name}({x})"
            );
        }
    }

    #[test]
    fn functions_of_f32_are_accurate_everywhere() {
        check("exp", 1.0, Real::exp, libm::exp);
        check("exp_m1", 2.5, Real::exp_m1, libm::expm1);
        check("tanh", 3.0, Real::tanh, libm::tanh);
        check("erf", 3.0, Real::erf, libm::erf);
        check("erfc", 9.0, Real::erfc, libm::erfc);
        check("sigmoid", 2.5, Real::sigmoid, |x| 1.0 / (1.0 + libm::exp(-x)));
        check("ln", 1.0, Real::ln, libm::log);
        check("ln_1p", 1.0, Real::ln_1p, libm::log1p);
    }

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
