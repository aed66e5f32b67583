//! Hyperbolic sine and cosine, and the inverses of the hyperbolic functions.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use super::exponential::{Parts, scaled};
use super::lanes::{Bits, Lanes};
use super::logarithm::{ln_1p, more};
use super::polynomial;

/// `e^a / 2` for `a >= 0`, infinite from 89.5 on.
#[inline(always)]
fn half_exp<L: Lanes>(a: L) -> L {
    let parts = Parts::new(a.at_most(91.0), None);
    scaled(parts.digits(), parts.n.minus(parts.n.of(1)))
}

/// The hyperbolic sine.
#[inline(always)]
pub(crate) fn sinh<L: Lanes>(x: L) -> L {
    let a = x.abs();
    let e = half_exp(a);
    let far = e - x.of(0.25) / e;
    let z = a * a;
    let p = polynomial(z, [0.166_666_67, 0.008_333_310_5, 1.984_289_6e-4, 2.782_213_2e-6]);
    let near = a + a * (z * p);
    L::choose(a.below(1.0), near, far).copysign(x)
}

/// The hyperbolic cosine.
#[inline(always)]
pub(crate) fn cosh<L: Lanes>(x: L) -> L {
    let e = half_exp(x.abs());
    e + x.of(0.25) / e
}

/// The numbers from which on 1 beside them does not count.
const LARGE: f32 = 1e9;

/// `ln(1 + small)`, or `ln(2 * a)` for a large `a`.
#[inline(always)]
fn ln_either<L: Lanes>(a: L, small: L) -> L {
    let is_large = a.above(LARGE);
    let more_powers = L::choose(is_large, a.of(1.0), a.of(0.0));
    let y = more(L::choose(is_large, a, small), more_powers);
    L::choose(a.below(f32::INFINITY), y, a)
}

/// The inverse of the hyperbolic sine: `ln(1 + a + a^2 / (1 + sqrt(a^2 + 1)))`.
#[inline(always)]
pub(crate) fn asinh<L: Lanes>(x: L) -> L {
    let a = x.abs();
    let z = a * a;
    let y = ln_either(a, a + z / ((z + 1.0).sqrt() + 1.0));
    L::choose(a.below(1e-4), a, y).copysign(x)
}

/// The inverse of the hyperbolic cosine: `ln(1 + t + sqrt(2t + t^2))` with `t = x - 1`.
#[inline(always)]
pub(crate) fn acosh<L: Lanes>(x: L) -> L {
    let t = x - 1.0;
    let y = ln_either(x, t + (t * (t + 2.0)).sqrt());
    L::choose(x.below(1.0), x.of(f32::NAN), y)
}

/// The inverse of the hyperbolic tangent: `ln(1 + 2a / (1 - a)) / 2`.
#[inline(always)]
pub(crate) fn atanh<L: Lanes>(x: L) -> L {
    let a = x.abs();
    let y = ln_1p((a * 2.0) / (a.of(1.0) - a)) * 0.5;
    let y = L::choose(a.below(1e-4), a, y);
    L::choose(a.above(1.0), a.of(f32::NAN), y).copysign(x)
}
