//! Numbers in two parts, of which the second one is what the first rounds away.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use super::lanes::{Bits, Lanes};

/// `a + b` and what it rounds away (Knuth's two-sum), exactly.
#[inline(always)]
pub(super) fn sum<L: Lanes>(a: L, b: L) -> [L; 2] {
    let s = a + b;
    let added = s - a;
    [s, (a - (s - added)) + (b - added)]
}

/// The same where `a` is 0 or not smaller than `b` in magnitude (Dekker's).
#[inline(always)]
pub(super) fn ordered_sum<L: Lanes>(a: L, b: L) -> [L; 2] {
    let s = a + b;
    [s, b - (s - a)]
}

/// The upper 12 bits of the digits, and the others.
#[inline(always)]
pub(super) fn halves<L: Lanes>(x: L) -> [L; 2] {
    let bits = x.bits();
    let high = (bits & bits.of(0xffff_f000)).number();
    [high, x - high]
}

/// `a * b` and what it rounds away, exactly unless that is subnormal: products of halves do not
/// round.
#[inline(always)]
pub(super) fn product<L: Lanes>(a: L, b: L) -> [L; 2] {
    let p = a * b;
    let ([ah, al], [bh, bl]) = (halves(a), halves(b));
    [p, (((ah * bh - p) + ah * bl) + al * bh) + al * bl]
}

/// `x * x` and what it rounds away.
#[inline(always)]
pub(super) fn square<L: Lanes>(x: L) -> [L; 2] {
    let p = x * x;
    let [high, low] = halves(x);
    [p, ((high * high - p) + high * 2.0 * low) + low * low]
}
