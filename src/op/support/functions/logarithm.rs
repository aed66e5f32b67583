//! Logarithms.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use super::lanes::{Bits, Lanes};
use super::pair::sum;
use super::polynomial;

/// `x = 2^k * (1 + f)` with `1 + f` between the roots of 1/2 and of 2, for normal `x` above 0.
#[inline(always)]
pub(super) fn parts<L: Lanes>(x: L) -> (L::Bits, L) {
    // The bits of the root of 1/2.
    const LEAST: u32 = 0x3f35_04f3;
    let bits = x.bits();
    let moved = bits.minus(bits.of(LEAST));
    let k = moved.down_signed(bits.of(23));
    let digits = (moved & bits.of(0x007f_ffff)).plus(bits.of(LEAST));
    (k, digits.number() - 1.0)
}

/// `ln(1 + f) + k * ln 2`.
#[inline(always)]
pub(super) fn series<L: Lanes>(f: L, k: L) -> L {
    // A fit of `(ln(1 + f) - f + f^2 / 2) / f^3`, within 2^-30 of the logarithm.
    let p = polynomial(
        f,
        [
            0.333_333_13,
            -0.250_000_1,
            0.200_020_72,
            -0.166_679_89,
            0.142_203_6,
            -0.124_062_404,
            0.118_835_38,
            -0.116_700_16,
            0.067_491_75,
        ],
    );
    let z = f * f;
    let y = f * z * p + k * -0.000_212_194_44;
    f + (y - z * 0.5) + k * (355.0 / 512.0)
}

/// A logarithm `y` of `x`, where that has one: 0 has minus infinity, infinity itself.
#[inline(always)]
pub(super) fn with_ends<L: Lanes>(x: L, y: L) -> L {
    let y = L::choose(x.below(f32::INFINITY), y, x);
    let y = L::choose(x.is(0.0), x.of(f32::NEG_INFINITY), y);
    L::choose(x.below(0.0), x.of(f32::NAN), y)
}

/// The natural logarithm.
#[inline(always)]
pub(crate) fn ln<L: Lanes>(x: L) -> L {
    let is_subnormal = x.below(f32::MIN_POSITIVE);
    let normal = L::choose(is_subnormal, x * 16_777_216.0, x);
    let (k, f) = parts(normal);
    let k = k.rounded() - L::choose(is_subnormal, x.of(24.0), x.of(0.0));
    with_ends(x, series(f, k))
}

/// The natural logarithm of `1 + x`, accurate near 0.
#[inline(always)]
pub(crate) fn ln_1p<L: Lanes>(x: L) -> L {
    let y = more(x, x.of(0.0));
    // `x` itself where the next term is below its last place.
    let y = L::choose(x.abs().below(2e-8), x, y);
    // Of a NaN always the same one, whatever its sign.
    let end = L::choose(x.is(f32::INFINITY), x, x.of(f32::NAN));
    let y = L::choose(x.below(f32::INFINITY), y, end);
    let y = L::choose(x.is(-1.0), x.of(f32::NEG_INFINITY), y);
    L::choose(x.below(-1.0), x.of(f32::NAN), y)
}

/// `ln(1 + x) + more * ln 2` for finite `x` above -1.
#[inline(always)]
pub(super) fn more<L: Lanes>(x: L, more: L) -> L {
    let [whole, lost] = sum(x.of(1.0), x);
    let (k, f) = parts(whole);
    // What the sum rounded away, `2^-k` times as large; for `k` of 0 this gives `x` again.
    // Beyond 2^64 it does not count, and the power of 2 is none.
    let scaled = lost * k.of(127).minus(k).up(k.of(23)).number();
    let scaled = L::choose(x.below(1e9), scaled, x.of(0.0));
    series(f + scaled, k.rounded() + more)
}
