//! The error function and the normal distribution.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::f32::consts::FRAC_1_SQRT_2;

use super::exponential::{Parts, moderate_exp};
use super::lanes::Lanes;
use super::pair::{ordered_sum, product, square, sum};
use super::polynomial;

/// `erf(x)` for `|x| < 0.92`.
#[inline(always)]
fn near<L: Lanes>(x: L) -> L {
    let z = x * x;
    let q = polynomial(
        z,
        [
            0.128_379_17,
            -0.376_126_3,
            0.112_836_26,
            -0.026_855_726,
            0.005_192_365,
            -8.048_934_4e-4,
            7.991_312e-5,
        ],
    );
    x + x * q
}

/// The error function: an odd fit near 0, one minus the exponential of a fit elsewhere.
#[inline(always)]
pub(crate) fn erf<L: Lanes>(x: L) -> L {
    let a = x.abs();
    // A fit of `ln(erfc(a))` for `0.9 <= a <= 4`; beyond, the result is 1.
    let b = a.at_most(4.0);
    let p = polynomial(
        b,
        [
            1.692_040_1e-4,
            -1.129_488_3,
            -0.633_401_1,
            -0.108_219_944,
            0.025_080_202,
            -0.004_156_041,
            4.313_363_2e-4,
            -2.082_242_8e-5,
        ],
    );
    let far = x.of(1.0) - moderate_exp(p);
    L::choose(a.below(0.92), near(x), far.copysign(x))
}

/// `erfc(z) = factor * (1 + more) * e` for `0 <= z <= 10.2`, with `z` and `z^2` in two parts.
struct Tail<L: Lanes> {
    factor: L,
    more: L,
    e: Parts<L>,
}

impl<L: Lanes> Tail<L> {
    #[inline(always)]
    fn new([z, z_low]: [L; 2], [high, low]: [L; 2]) -> Self {
        // `(1 + 2z) * e^(z^2) * erfc(z)` as a fit by `z / (z + 2) - 1/2`, within 2.2e-8.
        let q = z / (z + 2.0) - 0.5;
        let p = polynomial(
            q,
            [
                0.276_978_4,
                -0.185_527_67,
                -0.664_125_7,
                1.312_429,
                -0.867_284_4,
                -0.257_732_12,
                0.552_719_3,
                0.167_424,
                -0.316_301_7,
                -0.205_436,
            ],
        );
        let one = z.of(1.0);
        let [dividend, over] = ordered_sum(one, p);
        let [divisor, under] = sum(one, z * 2.0);
        let under = under + z_low * 2.0;
        let factor = dividend / divisor;
        // What both lack, divided by them, about.
        let more = over - under * factor;
        Self { factor, more, e: Parts::new(-high, Some(-low)) }
    }
}

/// `x` times the normal distribution function at `x`.
#[inline(always)]
pub(crate) fn gelu<L: Lanes>(x: L) -> L {
    // Below -14.3 the result is -0, of minus infinity a NaN.
    let a = x.abs().at_most(14.4);
    let [high, low] = square(a);
    let [z, lost] = product(a, x.of(FRAC_1_SQRT_2));
    let z_low = lost + a * 1.210_161_75e-8;
    let Tail { factor, more, e } = Tail::new([z, z_low], [high * 0.5, low * 0.5]);
    let half = a * 0.5;
    let below = e.times(half * factor, Some(more));
    let far = L::choose(x.below(0.0), x * 0.0 - below, x - below);
    let close = x * 0.5;
    let close = close + close * near(z).copysign(x);
    // A zero keeps its sign.
    L::choose(a.below(0.66), close.copysign(x), far)
}

/// `x * sigmoid(sqrt(8 / pi) * (x + 0.044715 * x^3))`.
#[inline(always)]
pub(crate) fn gelu_tanh<L: Lanes>(x: L) -> L {
    // The largest magnitude for which the result is not 0 on the negative side.
    const MOST: f32 = 10.8;
    let a = x.abs().at_most(MOST);
    // The argument in two parts, as `c * a * (a^2 + 1 / 0.044715)`.
    let [z, z_low] = square(a);
    let [w, lost] = sum(z, x.of(22.363_86));
    let w_low = (lost + 8.256_006_4e-7) + z_low;
    let [u, lost] = product(a, w);
    let u_low = lost + a * w_low;
    let [s, lost] = product(u, x.of(0.071_354_814));
    let s_low = lost + (u * 2.398_832_5e-9 + u_low * 0.071_354_814);
    let x = L::choose(x.below(-MOST), x * 0.0, x);
    Parts::new(-s, Some(-s_low)).sigmoid_times(x, x.below(0.0))
}
