//! `exp` and what is made of it alone.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use super::lanes::{Bits, Lanes};
use super::pair::ordered_sum;
use super::{polynomial, power_of_two};

/// Added and taken off again, it rounds to an integer, which is then in the low bits.
const SHIFT: f32 = 12_582_912.0;
/// The upper digits of `ln 2`; a product with an integer below 2^14 is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -0.000_212_194_44;

/// `e^(x + low) = 2^n * (1 + r + rest)` with `|r| < 0.35`, for `|x| <= 104` and a `low` that is
/// small beside 1.
pub(super) struct Parts<L: Lanes> {
    pub(super) n: L::Bits,
    pub(super) r: L,
    pub(super) rest: L,
}

impl<L: Lanes> Parts<L> {
    #[inline(always)]
    pub(super) fn new(x: L, low: Option<L>) -> Self {
        let shifted = x * std::f32::consts::LOG2_E + SHIFT;
        let n = shifted - SHIFT;
        let (a, b) = (x - n * LN2_HIGH, n * LN2_LOW);
        let b = low.map_or(b, |low| b - low);
        let r = a - b;
        let lost = (a - r) - b;
        // A fit of `(e^r - 1 - r) / r^2`, within 3.2e-9 of `e^r`.
        let q = polynomial(r, [0.5, 0.166_665_2, 0.041_666_396, 0.008_368_836, 0.001_394_120_7]);
        let bits = shifted.bits();
        Self { n: bits.minus(bits.of(SHIFT.to_bits())), r, rest: r * r * q + lost }
    }

    /// `1 + r + rest`, within 0.55 units in the last place.
    #[inline(always)]
    pub(super) fn digits(&self) -> L {
        let [sum, lost] = ordered_sum(self.r.of(1.0), self.r);
        sum + (lost + self.rest)
    }

    /// `digits * 2^n`.
    #[inline(always)]
    pub(super) fn value(&self) -> L {
        scaled(self.digits(), self.n)
    }

    /// `factor * (1 + more) * (1 + r + rest) * 2^n` for a `more` that is small beside 1, rounded
    /// where that is subnormal and not before.
    #[inline(always)]
    pub(super) fn times(&self, factor: L, more: Option<L>) -> L {
        let [sum, lost] = ordered_sum(self.r.of(1.0), self.r);
        let rest = lost + self.rest;
        let rest = more.map_or(rest, |more| rest + more * sum);
        // Half of the digits: they are below 2, and the product may be the largest number.
        scaled(factor * ((sum + rest) * 0.5), self.n.plus(self.n.of(1)))
    }

    /// With this as `e^-|s|`, `x / (1 + e^-s)`, also where the quotient alone is subnormal.
    #[inline(always)]
    pub(super) fn sigmoid_times(&self, x: L, is_negative: L::Mask) -> L {
        let e = self.value();
        let [divisor, lost] = ordered_sum(x.of(1.0), e);
        let above = x / divisor;
        // What the divisor lacks, divided by it, about.
        let lacks = lost * (e * 0.5 - 1.0);
        L::choose(is_negative, self.times(above, Some(lacks)), above)
    }
}

/// `x * 2^n` for `n` in -252..=254, in two steps, since `2^n` may be beyond the range where the
/// result is not.
#[inline(always)]
pub(super) fn scaled<L: Lanes>(x: L, n: L::Bits) -> L {
    let half = n.down_signed(n.of(1));
    x * power_of_two::<L>(half) * power_of_two::<L>(n.minus(half))
}

/// `x` inside `-limit..=limit`; a NaN stays.
#[inline(always)]
pub(super) fn clamp<L: Lanes>(x: L, limit: f32) -> L {
    x.at_most(limit).at_least(-limit)
}

/// `e^x`.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    Parts::new(clamp(x, 104.0), None).value()
}

/// `e^x` for `x` in -80..=80.
#[inline(always)]
pub(super) fn moderate_exp<L: Lanes>(x: L) -> L {
    let parts = Parts::new(x, None);
    parts.digits() * power_of_two::<L>(parts.n)
}

/// `e^x - 1`, accurate near 0.
#[inline(always)]
pub(crate) fn exp_m1<L: Lanes>(x: L) -> L {
    // Below -18 the result is -1, above 89 it is infinite.
    let Parts { n, r, rest } = Parts::new(x.at_most(89.0).at_least(-30.0), None);
    // Half of the result, whose power of 2 is in range.
    let scale = power_of_two::<L>(n.minus(n.of(1)));
    let [sum, lost] = ordered_sum(scale - 0.5, scale * r);
    let y = (sum + (lost + scale * rest)) * 2.0;
    // `x` itself where the next term is below its last place.
    L::choose(x.abs().below(2e-8), x, y)
}

/// The hyperbolic tangent: an odd fit near 0, `1 - 2 / (e^2x + 1)` elsewhere.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(x: L) -> L {
    let a = x.abs();
    let e = moderate_exp(a.at_most(10.0) * 2.0);
    let far = x.of(1.0) - x.of(2.0) / (e + 1.0);
    let z = a * a;
    let p = polynomial(
        z,
        [-0.333_332_8, 0.133_314_06, -0.053_736_515, 0.020_628_167, -0.005_692_296_7],
    );
    let near = a + a * (z * p);
    L::choose(a.below(0.625), near, far).copysign(x)
}

/// `x / (1 + e^-s)`, also where the quotient alone is subnormal.
#[inline(always)]
pub(crate) fn times_sigmoid<L: Lanes>(x: L, s: L) -> L {
    // Beyond, the result is 0, and the power of 2 out of range.
    const LEAST: f32 = -170.0;
    let x = L::choose(s.below(LEAST), x * 0.0, x);
    Parts::new((-s.abs()).at_least(LEAST), None).sigmoid_times(x, s.below(0.0))
}

/// `x * tanh(ln(1 + e^x))`: with `e = e^x` the hyperbolic tangent is that of `e * (e + 2)` to 2
/// more, which rounds to 1 from `x = 20` on.
#[inline(always)]
pub(crate) fn mish<L: Lanes>(x: L) -> L {
    let parts = Parts::new(x.at_most(20.0).at_least(-150.0), None);
    let e = parts.value();
    let b = e + 2.0;
    let x = L::choose(x.below(-150.0), x * 0.0, x);
    parts.times(x * (b / (e * b + 2.0)), None)
}

/// `1 / (1 + e^-x)`, accurate on both sides.
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(x: L) -> L {
    let e = exp(-x.abs());
    let is_negative = x.below(0.0);
    let y = L::choose(is_negative, e, x.of(1.0)) / (e + 1.0);
    // `e / (1 + e) = e - e * (e / (1 + e))`, whose last place is more exact.
    L::choose(is_negative, e - e * y, y)
}
