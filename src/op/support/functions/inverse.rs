//! The inverses of sine, cosine and tangent.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::f32::consts::{FRAC_PI_2, PI};

use super::lanes::Lanes;
use super::polynomial;

/// What `FRAC_PI_2` and `PI` leave away.
const HALF_LOW: f32 = -4.371_139e-8;

/// `asin(x) - x` for `|x| <= 0.5`.
#[inline(always)]
fn beyond<L: Lanes>(x: L, square: L) -> L {
    let p = polynomial(
        square,
        [0.166_666_6, 0.075_005_22, 0.044_513_375, 0.031_839_095, 0.014_314_788, 0.037_697_017],
    );
    x * (square * p)
}

/// The root of `(1 - a) / 2` where `a` is above 1/2, else `a`, and its square.
#[inline(always)]
fn folded<L: Lanes>(a: L) -> [L; 2] {
    let is_far = a.above(0.5);
    let square = L::choose(is_far, (a.of(1.0) - a) * 0.5, a * a);
    [L::choose(is_far, square.sqrt(), a), square]
}

/// The inverse of the sine.
#[inline(always)]
pub(crate) fn asin<L: Lanes>(x: L) -> L {
    let a = x.abs();
    let [r, square] = folded(a);
    let more = beyond(r, square);
    // `asin(a) = pi / 2 - 2 * asin(sqrt((1 - a) / 2))`.
    let far = a.of(FRAC_PI_2) - ((r + more) * 2.0 - HALF_LOW);
    L::choose(a.above(0.5), far, r + more).copysign(x)
}

/// The inverse of the cosine.
#[inline(always)]
pub(crate) fn acos<L: Lanes>(x: L) -> L {
    let a = x.abs();
    let [r, square] = folded(a);
    let more = beyond(r, square);
    let twice = (r + more) * 2.0;
    let far = L::choose(x.below(0.0), x.of(PI) - (twice - 2.0 * HALF_LOW), twice);
    let near = x.of(FRAC_PI_2) - (x - (x.of(HALF_LOW) - more.copysign(x)));
    L::choose(a.above(0.5), far, near)
}

/// The inverse of the tangent.
#[inline(always)]
pub(crate) fn atan<L: Lanes>(x: L) -> L {
    let a = x.abs();
    let is_far = a.above(1.0);
    let t = L::choose(is_far, a.of(1.0) / a, a);
    let z = t * t;
    let p = polynomial(
        z,
        [
            -0.333_333,
            0.199_985_3,
            -0.142_640_16,
            0.109_508_805,
            -0.083_993_055,
            0.057_881_337,
            -0.031_096_863,
            0.010_868_565,
            -0.001_782_778_8,
        ],
    );
    let near = t + t * (z * p);
    let far = a.of(FRAC_PI_2) - (near - HALF_LOW);
    L::choose(is_far, far, near).copysign(x)
}
