//! Single operands of the functions, by their exact results; `tests/it/functions.rs` has the dense
//! samples.

use super::{
    acos, acosh, asin, asinh, atan, atanh, cos, cosh, erf, exp, exp_m1, gelu, gelu_tanh, ln, ln_1p,
    mish, pow, sigmoid, sin, sinh, tan, tanh, times_sigmoid,
};

const INF: f32 = f32::INFINITY;
const NAN: f32 = f32::NAN;
/// The smallest number above 0.
const LEAST: f32 = f32::from_bits(1);

type Function = (&'static str, fn(f32) -> f32);
type Exact = fn(f64) -> f64;

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn what_is_known_exactly() {
    let table: [(Function, &[(f32, f32)]); 21] = [
        (("exp", exp), &[(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (LEAST, 1.0)]),
        (("exp_m1", exp_m1), &[(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0)]),
        (("exp_m1", exp_m1), &[(LEAST, LEAST), (-LEAST, -LEAST)]),
        (("tanh", tanh), &[(-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (-LEAST, -LEAST)]),
        (("sigmoid", sigmoid), &[(0.0, 0.5), (INF, 1.0), (-INF, 0.0)]),
        (("ln", ln), &[(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN)]),
        (("ln_1p", ln_1p), &[(-0.0, -0.0), (-1.0, -INF), (INF, INF), (-1.5, NAN), (-INF, NAN)]),
        (("erf", erf), &[(-0.0, -0.0), (INF, 1.0), (-INF, -1.0)]),
        (("gelu", gelu), &[(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-f32::MAX, -0.0)]),
        (("gelu_tanh", gelu_tanh), &[(-0.0, -0.0), (INF, INF), (-f32::MAX, -0.0)]),
        (("mish", mish), &[(-0.0, -0.0), (INF, INF), (-f32::MAX, -0.0)]),
        (("sin", sin), &[(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (LEAST, LEAST)]),
        (("cos", cos), &[(0.0, 1.0), (INF, NAN), (-INF, NAN)]),
        (("tan", tan), &[(-0.0, -0.0), (INF, NAN), (-LEAST, -LEAST)]),
        (("asin", asin), &[(-0.0, -0.0), (1.5, NAN), (-INF, NAN), (LEAST, LEAST)]),
        (("acos", acos), &[(1.0, 0.0), (1.5, NAN), (-1.0, std::f32::consts::PI)]),
        (("atan", atan), &[(-0.0, -0.0), (-LEAST, -LEAST), (INF, std::f32::consts::FRAC_PI_2)]),
        (("sinh", sinh), &[(-0.0, -0.0), (INF, INF), (-INF, -INF), (-LEAST, -LEAST)]),
        (("cosh", cosh), &[(0.0, 1.0), (INF, INF), (-INF, INF)]),
        (("asinh", asinh), &[(-0.0, -0.0), (INF, INF), (-INF, -INF), (-LEAST, -LEAST)]),
        (("atanh", atanh), &[(-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (LEAST, LEAST)]),
    ];
    for ((name, f), values) in table {
        assert!(f(NAN).is_nan(), "{name} of a NaN");
        for (x, y) in values {
            assert!(same(f(*x), *y), "{name}({x:e}) is {:e}, not {y:e}", f(*x));
        }
    }
    for (x, y) in [(1.0, 0.0), (0.5, NAN), (INF, INF), (-INF, NAN), (NAN, NAN)] {
        assert!(same(acosh(x), y), "acosh({x})");
    }
    for (x, s, y) in [(2.0, 0.0, 1.0), (3.0, INF, 3.0), (3.0, -INF, 0.0), (-3.0, -200.0, -0.0)] {
        assert!(same(times_sigmoid(x, s), y), "times_sigmoid({x}, {s})");
    }
}

/// As Annex F of the standard of C says.
#[test]
fn powers_of_what_is_special() {
    let numbers = [0.0, 0.5, 1.0, 2.0, 3.0, 2.5, 1e10, 8_388_609.0, LEAST, f32::MAX, INF, NAN];
    let all = || numbers.into_iter().flat_map(|x| [x, -x]);
    for x in all() {
        for y in all() {
            let expected = libm::pow(f64::from(x), f64::from(y));
            #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
            let expected = expected as f32;
            let found = pow(x, y);
            let close = (found - expected).abs() <= 2e-7 * expected.abs();
            assert!(same(found, expected) || close, "{x:e}^{y:e} is {found:e}, not {expected:e}");
        }
    }
}

#[test]
fn whole_powers_that_are_numbers_are_exact() {
    for x in 1..=16u8 {
        for y in 0..=6u8 {
            let (a, b) = (f32::from(x), f32::from(y));
            let exact = u32::from(x).pow(u32::from(y));
            if exact <= 1 << 24 {
                assert!(same(pow(a, b), exact as f32), "{x}^{y}");
                assert!(same(pow(-a, b), if y % 2 == 1 { -(exact as f32) } else { exact as f32 }));
            }
        }
    }
}

/// The distance of `y` from `exact` in units of the last place of `exact` as an `f32`, no number
/// where only one of them is a number, and infinite where the sign of a zero differs.
fn ulps(y: f32, exact: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
    let nearest = exact as f32;
    if same(y, nearest) {
        return 0.0;
    }
    if y == 0.0 && nearest == 0.0 {
        return f64::INFINITY;
    }
    // An infinity stands for the number behind the last one.
    let end = f64::from(f32::MAX) + libm::ldexp(1.0, 103);
    let (y, exact) = (f64::from(y).clamp(-end, end), exact.clamp(-end, end));
    let magnitude = exact.abs().clamp(f32::MIN_POSITIVE.into(), f32::MAX.into());
    let (_, power) = libm::frexp(magnitude);
    (y - exact).abs() / libm::ldexp(1.0, power - 24)
}

/// Two that other functions are made of, and powers of two: samples of all bit patterns, those of
/// negative operands among them.
#[test]
fn parts_of_other_functions_are_within_two_units() {
    let table: [(Function, Exact); 3] = [
        (("ln_1p", ln_1p), f64::ln_1p),
        (("exp_m1", exp_m1), f64::exp_m1),
        (("pow of 2", |x| pow(2.0, x)), f64::exp2),
    ];
    for ((name, f), exact) in table {
        for x in (0..=u32::MAX).step_by(4099).map(f32::from_bits) {
            let far = ulps(f(x), exact(f64::from(x)));
            assert!(far <= 2.0, "{name}({x:e}) is {:e}: {far} units", f(x));
        }
    }
}
