//! Powers, by a logarithm in two parts.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use super::exponential::{Parts, clamp};
use super::lanes::{Bits, Lanes};
use super::logarithm;
use super::pair::{ordered_sum, product, square, sum};
use super::polynomial;

/// `ln(2^k * (1 + f))` in two parts, within 2^-40 of it.
#[inline(always)]
fn ln<L: Lanes>(f: L, k: L) -> [L; 2] {
    // With `s = f / (2 + f)` it is `2s + 2/3 s^3 + 2/5 s^5 + …`.
    let [divisor, lost] = ordered_sum(f.of(2.0), f);
    let s = f / divisor;
    let [p, rest] = product(s, divisor);
    let low = (((f - p) - rest) - s * lost) / divisor;
    let [z, rest] = square(s);
    let z_low = rest + s * low * 2.0;
    // `2/3 + 2/5 z + …`, the first term in two parts.
    let tail = z * polynomial(z, [0.400_001_53, 0.285_470_93, 0.234_195_08]);
    let [g, rest] = ordered_sum(z.of(2.0 / 3.0), tail);
    let g_low = rest - 1.986_821_6e-8;
    let [u, rest] = product(z, g);
    let u_low = rest + (z_low * g + z * g_low);
    let [cubic, rest] = product(s, u);
    let cubic_low = rest + (low * u + s * u_low);
    // `ln 2` in three parts; products of the first two with `k` are exact.
    let [y, a] = sum(k * (355.0 / 512.0), s * 2.0);
    let [y, b] = sum(y, k * (-28_480.0 / 134_217_728.0));
    let [y, c] = sum(y, cubic);
    let rest = ((a + b) + c) + ((low * 2.0 + cubic_low) + k * -1.904_654_2e-9);
    ordered_sum(y, rest)
}

/// The kinds of exponents: `[is an integer, is an odd one]`.
#[inline(always)]
fn kinds<L: Lanes>(y: L) -> [L::Mask; 2] {
    // Added and taken off again, it rounds a magnitude below it to an integer.
    const WHOLE: f32 = 8_388_608.0;
    let is_whole = |a: L| (!a.below(WHOLE)) | ((a + WHOLE) - WHOLE).equals(a);
    let a = y.abs();
    let is_integer = is_whole(a);
    [is_integer, is_integer & !is_whole(a * 0.5)]
}

/// `x` to the power `y`.
#[inline(always)]
pub(crate) fn pow<L: Lanes>(x: L, y: L) -> L {
    let a = x.abs();
    let is_subnormal = a.below(f32::MIN_POSITIVE);
    let normal = L::choose(is_subnormal, a * 16_777_216.0, a);
    let (k, f) = logarithm::parts(normal);
    let k = k.rounded() - L::choose(is_subnormal, a.of(24.0), a.of(0.0));
    let [high, low] = ln(f, k);
    let high = logarithm::with_ends(a, high);
    let [z, lost] = product(y, high);
    let z_low = lost + y * low;
    // Beyond, the result is 0 or infinite, and the second part may be a NaN.
    let z_low = L::choose(z.abs().below(110.0), z_low, z.of(0.0));
    let size = Parts::new(clamp(z, 104.0), Some(z_low)).value();
    let one = x.of(1.0);
    let size = L::choose(a.is(1.0) & y.equals(y), one, size);
    let [is_integer, is_odd] = kinds(y);
    let has_sign = x.bits().of(0x7fff_ffff).less(x.bits());
    let size = L::choose(has_sign & is_odd, -size, size);
    let is_none = x.below(0.0) & a.below(f32::INFINITY) & !is_integer;
    let size = L::choose(is_none, x.of(f32::NAN), size);
    L::choose(x.is(1.0) | y.is(0.0), one, size)
}
