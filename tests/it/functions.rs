//! How far the functions of `f32` are from the exact results: within what `docs/kernels.md` states.

use std::collections::BTreeMap;
use std::f64::consts::PI;
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use fanwise::internal::keras_architecture;
use fanwise::op::{Binary, GeluForm, Op, Unary};
use fanwise::types::Tensor;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::programs::evaluate;

/// A function: its name in the book, the operator, the exact result, and the magnitudes between
/// which it is neither constant nor a multiple of its operand.
struct Function {
    name: &'static str,
    op: Unary,
    exact: fn(f64) -> f64,
    within: [f32; 2],
}

const fn function(
    name: &'static str,
    op: Unary,
    within: [f32; 2],
    exact: fn(f64) -> f64,
) -> Function {
    Function { name, op, exact, within }
}

/// Where the exponential is neither 1 nor beyond the range.
const EXPONENTS: [f32; 2] = [1e-8, 112.0];

/// Where the normal distribution function is neither one half nor beyond the range.
const NORMAL: [f32; 2] = [1e-8, 20.0];

const SELU: [f32; 2] = [1.673_263_2, 1.050_701];

fn functions() -> Vec<Function> {
    use Unary as U;
    let all = [1e-8, f32::MAX];
    vec![
        function("exp", U::Exp, EXPONENTS, libm::exp),
        function("tanh", U::Tanh, NORMAL, libm::tanh),
        function("sigmoid", U::Sigmoid, EXPONENTS, sigmoid),
        function("log", U::Log, [f32::from_bits(1), f32::MAX], libm::log),
        function("erf", U::Erf, NORMAL, libm::erf),
        function("sin", U::Sin, all, libm::sin),
        function("cos", U::Cos, all, libm::cos),
        function("tan", U::Tan, all, libm::tan),
        function("asin", U::Asin, [1e-8, 1.1], libm::asin),
        function("acos", U::Acos, [1e-8, 1.1], libm::acos),
        function("atan", U::Atan, [1e-8, 1e9], libm::atan),
        function("sinh", U::Sinh, EXPONENTS, libm::sinh),
        function("cosh", U::Cosh, EXPONENTS, libm::cosh),
        function("asinh", U::Asinh, all, libm::asinh),
        function("acosh", U::Acosh, [0.9, f32::MAX], |x| {
            if x < 1.0 { f64::NAN } else { libm::acosh(x) }
        }),
        function("atanh", U::Atanh, [1e-8, 1.1], libm::atanh),
        function(
            "elu",
            U::Elu { alpha: 1.0 },
            EXPONENTS,
            |x| if x < 0.0 { libm::expm1(x) } else { x },
        ),
        function("selu", U::Selu { alpha: SELU[0], gamma: SELU[1] }, EXPONENTS, |x| {
            let [alpha, gamma] = SELU.map(f64::from);
            gamma * if x < 0.0 { alpha * libm::expm1(x) } else { x }
        }),
        function("softplus", U::Softplus, EXPONENTS, softplus),
        function("swish", U::Swish { alpha: 1.0 }, EXPONENTS, |x| gated(x, sigmoid(x))),
        function("mish", U::Mish, EXPONENTS, |x| gated(x, libm::tanh(softplus(x)))),
        function("gelu", U::Gelu { approximate: GeluForm::Exact }, NORMAL, |x| {
            gated(x, 0.5 * libm::erfc(-x / 2f64.sqrt()))
        }),
        function("gelu, by `tanh`", U::Gelu { approximate: GeluForm::Tanh }, NORMAL, |x| {
            gated(x, sigmoid((8.0 / PI).sqrt() * (x + 0.044_715 * x * x * x)))
        }),
    ]
}

fn sigmoid(x: f64) -> f64 {
    let e = libm::exp(-x.abs());
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

fn softplus(x: f64) -> f64 {
    (if x < 0.0 { 0.0 } else { x }) + libm::log1p(libm::exp(-x.abs()))
}

/// A product with a number between 0 and 1.
fn gated(x: f64, gate: f64) -> f64 {
    x * gate
}

/// The distance of `y` from `exact` in units of the last place of `exact` as an `f32`; infinite
/// where the sign of a zero differs, or only one of them is a number.
fn ulps(y: f32, exact: f64) -> f64 {
    #[expect(clippy::cast_possible_truncation, reason = "rounding is meant")]
    let nearest = exact as f32;
    if exact.is_nan() || y.is_nan() {
        return if exact.is_nan() && y.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if y.to_bits() == nearest.to_bits() && (nearest == 0.0 || exact.is_infinite()) {
        return 0.0;
    }
    if exact.is_infinite() || (y == 0.0 && nearest == 0.0) {
        return f64::INFINITY;
    }
    // An infinity stands for the number behind the last one.
    let end = f64::from(f32::MAX) + libm::ldexp(1.0, 103);
    let (y, exact) = (f64::from(y).clamp(-end, end), exact.clamp(-end, end));
    let magnitude = exact.abs().clamp(f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX));
    let (_, power) = libm::frexp(magnitude);
    (y - exact).abs() / libm::ldexp(1.0, power - 24)
}

/// The bounds that the book states, by the name of the function.
fn stated() -> BTreeMap<String, f64> {
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/kernels.md");
    let book = fs::read_to_string(book).unwrap();
    let (_, table) = book.split_once("| function | bound |").unwrap();
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let all = rows.map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let name = cells[0].trim_start_matches('`').replacen('`', "", 1);
        (name, cells[1].parse().unwrap())
    });
    all.collect()
}

/// The worst of these patterns: how far, and where.
fn worst(function: &Function, patterns: impl Iterator<Item = u32>) -> (f64, f32) {
    let x: Vec<f32> = patterns.map(f32::from_bits).collect();
    let tensor = Tensor::new(&[x.len()], &x).unwrap();
    let y = Op::from(function.op.clone()).eval(&[&tensor]).unwrap().remove(0);
    let far = x.iter().zip(y.as_slice::<f32>());
    let far = far.map(|(x, y)| (ulps(*y, (function.exact)(f64::from(*x))), *x));
    far.fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a })
}

/// Fails unless a function is within its bound on blocks of patterns, which are given by number.
fn check(function: &Function, bound: f64, blocks: u32, block: impl Fn(u32) -> Vec<u32> + Sync) {
    let (next, all) = (AtomicU32::new(0), Mutex::new((0.0f64, 0f32)));
    let work = || {
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= blocks {
                return;
            }
            let own = worst(function, block(i).into_iter());
            let mut all = all.lock().unwrap();
            if own.0 > all.0 {
                *all = own;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let (far, x) = *all.lock().unwrap();
    assert!(far <= bound, "{}({x:e}) is {far} units from the exact result", function.name);
}

/// The patterns of a sample, a block of the highest bits at a time.
fn sample(step: usize) -> impl Fn(u32) -> Vec<u32> + Sync {
    move |i| {
        let from = i << 26;
        (from..=from + ((1 << 26) - 1)).step_by(step).collect()
    }
}

#[test]
fn functions_are_as_exact_as_the_book_says() {
    let stated = stated();
    let names: Vec<&str> = functions().iter().map(|f| f.name).collect();
    for function in functions() {
        let name = function.name;
        let bound = *stated.get(name).unwrap_or_else(|| panic!("no bound of {name}"));
        check(&function, bound, 64, sample(4099));
        // Where most functions have their corners.
        let near = |i: u32| {
            let from = i16::MIN + i16::try_from(i << 10).unwrap_or(i16::MAX);
            (0..1024).map(|k| ((f32::from(from) + k as f32) / 512.0).to_bits()).collect()
        };
        check(&function, bound, 32, near);
    }
    let others: Vec<_> = stated.keys().filter(|name| !names.contains(&name.as_str())).collect();
    assert_eq!(others, ["expm1 of Keras", "log1p of Keras", "pow"]);
}

/// What `log1p` and `expm1` of a file of Keras are read as: several operators.
#[test]
fn functions_of_keras_are_as_exact_as_the_book_says() {
    let stated = stated();
    let log1p: fn(f64) -> f64 = libm::log1p;
    let functions = [("Log1p", "log1p of Keras", log1p), ("Expm1", "expm1 of Keras", libm::expm1)];
    // All patterns, and where most of the digits could be lost.
    let all = (0..u32::MAX).step_by(4099).map(f32::from_bits);
    let near = (1..1 << 17).flat_map(|i| [i as f32, -(i as f32)]).map(|x| x / 65_536.0);
    let mut x: Vec<f32> = all.chain(near).collect();
    x.truncate(x.len() / 4 * 4);
    let rows = x.len() / 4;
    let inputs = BTreeMap::from([("x".to_owned(), Tensor::new(&[rows, 4], &x).unwrap())]);
    for (class, name, exact) in functions {
        let text = format!(
            r#"{{"class_name": "Sequential", "config": {{"name": "m", "layers": [
            {{"class_name": "InputLayer", "config": {{"name": "x", "batch_shape": [null, 4]}}}},
            {{"module": "keras.src.ops.numeric", "class_name": "{class}",
            "config": {{"name": "y"}}}}]}}}}"#
        );
        let model = keras_architecture(&text, "m.json", BTreeMap::new()).unwrap();
        let n = i64::try_from(rows).unwrap();
        let y = evaluate(&model.graph, &model.weights, &inputs, n).unwrap().remove(0);
        for (x, y) in x.iter().zip(y.as_slice::<f32>()) {
            let far = ulps(*y, exact(f64::from(*x)));
            assert!(far <= stated[name], "{name}: {x:e} gives {y:e}, by {far} units");
        }
    }
}

#[test]
fn powers_are_as_exact_as_the_book_says() {
    let bound = stated()["pow"];
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (mut bases, mut exponents) = (Vec::new(), Vec::new());
    for i in 0..400_000 {
        let any = f32::from_bits(rng.random());
        let near: f32 = rng.random_range(0.01..2.0);
        let (base, exponent) = match i % 5 {
            0 => (any, f32::from_bits(rng.random())),
            1 => (near, rng.random_range(-100.0..100.0)),
            2 => (1.0 + (near - 1.0) / 100.0, rng.random_range(-9000.0..9000.0)),
            3 => (any, f32::from(rng.random_range(-5i8..6))),
            // Results of every size.
            _ => (any.abs(), rng.random_range(-105.0..105.0) / any.abs().ln()),
        };
        bases.push(base);
        exponents.push(exponent);
    }
    let [a, b] = [&bases, &exponents].map(|x| Tensor::new(&[x.len()], x).unwrap());
    let y = Op::from(Binary::Pow).eval(&[&a, &b]).unwrap().remove(0);
    for ((a, b), y) in bases.iter().zip(&exponents).zip(y.as_slice::<f32>()) {
        let exact = libm::pow(f64::from(*a), f64::from(*b));
        let far = ulps(*y, exact);
        assert!(far <= bound, "{a:e}^{b:e} is {y:e}, not {exact:e}: {far} units");
    }
}

/// How many functions `cargo xtask full` tests at one commit: one of so many.
const TURNS: u64 = 8;

#[test]
#[ignore = "every operand of some functions: cargo xtask full"]
fn thousands_of_millions_of_operands() {
    const BLOCK: u32 = 1 << 16;
    let stated = stated();
    let seed = support::turn::seed();
    for (i, function) in (0..).zip(functions().iter()) {
        if seed.is_some_and(|seed| (seed + i) % TURNS != 0) {
            continue;
        }
        let [least, most] = function.within.map(f32::to_bits);
        let blocks = 2 * ((most - least) / BLOCK + 1);
        check(function, stated[function.name], blocks, |i| {
            let from = least + i / 2 * BLOCK;
            (from..from.saturating_add(BLOCK)).map(|x| x | (i % 2) << 31).collect()
        });
        check(function, stated[function.name], 64, sample(97));
    }
}
