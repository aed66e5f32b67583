//! Sine, cosine and tangent.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::f32::consts::{FRAC_2_PI, TAU};

use super::lanes::{Bits, Lanes, Rare};
use super::pair::{halves, ordered_sum, sum};
use super::polynomial;

/// The magnitude up to which a few multiples of parts of a quarter turn are taken off.
const MODERATE: f32 = 1024.0;

/// The digits of `2^-13 / (2 * pi)`, from the first place behind the point on.
const TURNS: [u32; 7] =
    [0x0001_45f3, 0x06dc_9c88, 0x2a53_f84e, 0xafa3_ea69, 0xbb81_b6c5, 0x2b32_7887, 0x2083_fca2];

/// `|x|` as a number of quarter turns, up to a multiple of 4, and the rest in two parts, up to an
/// eighth of a turn.
#[inline(always)]
fn reduce<L: Lanes>(x: L) -> [L; 3] {
    let a = x.abs();
    L::rarely::<Large, 3>(a.above(MODERATE), moderate(a), a)
}

/// For `a <= 1024`.
#[inline(always)]
fn moderate<L: Lanes>(a: L) -> [L; 3] {
    // Products of the first three parts of a quarter turn with `n` and their first two differences
    // are exact.
    let shift = 12_582_912.0;
    let n = (a * FRAC_2_PI + shift) - shift;
    let r = a - n * (6434.0 / 4096.0) - n * (-75.0 / 16_777_216.0);
    let [r, lost] = sum(r, -(n * 1.589_069_1e-8));
    let [r, low] = sum(r, lost - n * 2.563_344e-12);
    [n, r, low]
}

/// Three words of `TURNS` from any place on.
struct Window<B> {
    words: [B; 4],
    by: B,
}

impl<B: Bits> Window<B> {
    #[inline(always)]
    fn new(place: B) -> Self {
        // Words are chosen by bits of the place, without a table in memory.
        let by_two = place.of(0).minus(place.down(place.of(6)) & place.of(1));
        let by_one = place.of(0).minus(place.down(place.of(5)) & place.of(1));
        let (a, b, c) = (pick(by_two, 0), pick(by_two, 1), pick(by_two, 2));
        let (d, e) = (pick(by_two, 3), pick(by_two, 4));
        let words = [
            either(by_one, a, b),
            either(by_one, b, c),
            either(by_one, c, d),
            either(by_one, d, e),
        ];
        Self { words, by: place & place.of(31) }
    }

    /// Word `i` from the place on.
    #[inline(always)]
    fn digits(&self, i: usize) -> B {
        let by = self.by;
        let rest = by.of(31).minus(by);
        self.words[i].up(by) | self.words[i + 1].down(by.of(1)).down(rest)
    }
}

/// `b` where all bits of `mask` are 1, `a` where none is.
#[inline(always)]
fn either<B: Bits>(mask: B, a: B, b: B) -> B {
    a ^ ((a ^ b) & mask)
}

/// Word `i` of `TURNS`, or the second one behind it.
#[inline(always)]
fn pick<B: Bits>(mask: B, i: usize) -> B {
    either(mask, mask.of(TURNS[i]), mask.of(TURNS[i + 2]))
}

/// For any magnitude above 2^-13 (Payne and Hanek): of the product with `1 / (2 pi)` only those
/// digits that are no whole turns.
struct Large;

impl<L: Lanes> Rare<L, 3> for Large {
    #[inline(always)]
    fn of(a: L) -> [L; 3] {
        large(a)
    }
}

#[inline(always)]
fn large<L: Lanes>(a: L) -> [L; 3] {
    let bits = a.bits();
    let digits = (bits & bits.of(0x007f_ffff)) | bits.of(0x0080_0000);
    // The place of the first digit that counts.
    let place = bits.down(bits.of(23)).minus(bits.of(137));
    let window = Window::new(place);
    let [high, middle, low] = [window.digits(0), window.digits(1), window.digits(2)];
    // The digits behind the point, in turns.
    let second = digits.times(middle);
    let behind = second.plus(digits.times_high(low));
    let carry = L::Bits::choose(behind.less(second), bits.of(1), bits.of(0));
    let top = digits.times(high).plus(digits.times_high(middle)).plus(carry);
    // The nearest number of quarters, and what is left: 30 digits and a sign, and 24 more.
    let quarter = top.plus(bits.of(0x2000_0000)).down(bits.of(30));
    let left = top.minus(quarter.up(bits.of(30)));
    let first = left.down_signed(bits.of(12)).rounded() * f32::from_bits((127 - 20) << 23);
    let second = (left & bits.of(0xfff)).rounded() * f32::from_bits((127 - 32) << 23);
    let third = behind.down(bits.of(8)).rounded() * f32::from_bits((127 - 56) << 23);
    let [turns, lost] = ordered_sum(first, second);
    let [turns, lost] = ordered_sum(turns, lost + third);
    let [r, low] = radians(turns, lost);
    [quarter.rounded(), r, low]
}

/// The product with `2 pi`.
#[inline(always)]
fn radians<L: Lanes>(turns: L, lost: L) -> [L; 2] {
    // `2 pi` in two parts, the first of them in halves.
    const WHOLE: f32 = TAU;
    const LOW: f32 = -1.748_455_5e-7;
    let [high, low] = halves(turns);
    let upper = f32::from_bits(WHOLE.to_bits() & 0xffff_f000);
    let lower = WHOLE - upper;
    let r = turns * WHOLE;
    let rest = (((high * upper - r) + high * lower) + low * upper) + low * lower;
    ordered_sum(r, rest + (turns * LOW + lost * WHOLE))
}

/// The sine and the cosine of `r + low`, up to an eighth of a turn.
#[inline(always)]
fn near<L: Lanes>(r: L, low: L) -> [L; 2] {
    let z = r * r;
    let p = polynomial(z, [-0.166_666_54, 0.008_332_106, -1.950_787_7e-4]);
    let sine = r + (r * z * p + low);
    let q = polynomial(z, [0.041_666_646, -0.001_388_730_1, 2.443_066_8e-5]);
    let half = z * 0.5;
    let [whole, lost] = ordered_sum(z.of(1.0), -half);
    [sine, whole + (lost + (z * z * q - r * low))]
}

/// An angle as an eighth of a turn at most, and quarter turns.
struct Turned<L: Lanes> {
    sine: L,
    cosine: L,
    /// Quarter turns, up to a multiple of 4.
    quarters: L::Bits,
}

impl<L: Lanes> Turned<L> {
    #[inline(always)]
    fn new(x: L) -> Self {
        let [n, r, low] = reduce(x);
        let [sine, cosine] = near(r, low);
        Self { sine, cosine, quarters: (n + 12_582_912.0).bits() }
    }

    /// The sine of the angle and `more` quarter turns.
    #[inline(always)]
    fn sine(&self, more: u32) -> L {
        let q = self.quarters.plus(self.quarters.of(more));
        let one = q.of(1);
        let is_even = (q & one).less(one);
        let y = L::choose(is_even, self.sine, self.cosine);
        let is_up = (q & q.of(2)).less(one);
        L::choose(is_up, y, -y)
    }
}

/// `y` where `x` is finite, else a NaN.
#[inline(always)]
fn of_finite<L: Lanes>(x: L, y: L) -> L {
    L::choose(x.abs().below(f32::INFINITY), y, x.of(f32::NAN))
}

/// The sine.
#[inline(always)]
pub(crate) fn sin<L: Lanes>(x: L) -> L {
    let y = Turned::new(x).sine(0);
    of_finite(x, L::choose(x.below(0.0), -y, L::choose(x.is(0.0), x, y)))
}

/// The cosine.
#[inline(always)]
pub(crate) fn cos<L: Lanes>(x: L) -> L {
    of_finite(x, Turned::new(x).sine(1))
}

/// The tangent.
#[inline(always)]
pub(crate) fn tan<L: Lanes>(x: L) -> L {
    let turned = Turned::new(x);
    let y = turned.sine(0) / turned.sine(1);
    of_finite(x, L::choose(x.below(0.0), -y, L::choose(x.is(0.0), x, y)))
}
