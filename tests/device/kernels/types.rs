//! Elementwise operators on elements of every type, with the numbers at which types end: exact
//! against the reference evaluation, but for functions of CUDA's library.

use fanwise::backend::{Executable, RunOptions};
use fanwise::ir::Value;
use fanwise::op::{
    BatchNorm, Binary, Cast, Classify, Compare, Conv, Logic, MatMul, Op, Pool, Range, Reduce,
    Unary, Where,
};
use fanwise::types::{DType, Dim, Tensor};
use libtest_mimic::Trial;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::turn::part;

use super::{Net, products};
use crate::results::trial;
use crate::setup::{assert_bits, expected, inputs, is_fake, on_gpus, outputs, replicas};

/// A graph of some kernels, from the number of a case.
type Make = fn(&mut Net, usize) -> Vec<Value>;

/// Names, graphs, how many of them on the fake device, and how far from
/// the reference they may be at least, unless they are exact.
const CLASSES: [(&str, Make, usize, Option<f64>); 9] = [
    ("casts", casts, 13, None),
    ("arithmetic", arithmetic, 24, None),
    ("relations", relations, 26, None),
    ("choices", choices, 13, None),
    ("chains", chains, 16, None),
    ("functions", functions, 12, Some(0.0)),
    ("excited_channels", excited, 8, Some(2e-5)),
    ("normalised_channels", normalised, 8, None),
    ("products", behind_products, 8, Some(2e-5)),
];

pub(super) fn trials() -> impl Iterator<Item = Trial> {
    let failing = trial("kernels_types_without_result", without_result);
    let classes = CLASSES.into_iter().map(|(name, make, cases, far)| {
        trial(format!("kernels_types_{name}"), move || {
            let cases = if is_fake() { cases } else { 2 * cases };
            part(0..cases, 2, 0).for_each(|i| check(name, make, i, far));
        })
    });
    let numbers = trial("kernels_types_numbers_beyond_i32", beyond_i32);
    classes.chain([failing, numbers])
}

/// Integers that have no quotient and no power: the error of the reference evaluation.
fn without_result() {
    for (op, wrong, reason) in [
        (Binary::Div, 0, "an integer is divided by 0"),
        (Binary::Mod { fmod: false }, 0, "an integer is divided by 0"),
        (Binary::Pow, -1, "0 has no negative power"),
    ] {
        let mut net = Net::new(0);
        let (a, b) = (net.input_of(DType::I32, &[5]), net.input_of(DType::I32, &[1]));
        let y = net.op(op, &[a, b]);
        let y = net.op(Cast { to: DType::F32 }, &[y]);
        let (graph, weights) = net.finish(&[y]);
        let program = on_gpus(&graph, &weights, 2, 1);
        let run = |divisors: [i32; 4]| {
            let a = Tensor::new(&[4, 5], &[0i32; 20]).unwrap();
            let b = Tensor::new(&[4, 1], &divisors).unwrap();
            let inputs = [("v1".to_owned(), a), ("v2".to_owned(), b)].into_iter().collect();
            program.run(&inputs, &RunOptions::default())
        };
        assert!(run([1, 2, 3, 4]).is_ok(), "{reason}");
        let error = run([1, 2, 3, wrong]).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(reason), "{error}");
        assert!(run([1, 2, 3, 4]).is_ok(), "{reason}");
    }
}

/// Integers at equal distances that are beyond their type at some batch sizes: the error of the
/// reference evaluation.
fn beyond_i32() {
    for delta in [1i64, 3, -2] {
        let end = Dim::n() * ((1 << 30) * delta.signum());
        let (start, limit) = (end.clone() - 5 * delta, end);
        let mut net = Net::new(0);
        let x = net.input(&[1]);
        let range = net.op(Range { delta, dtype: DType::I32, limit, start }, &[]);
        let y = net.op(Binary::Add, &[x, x]);
        let (graph, weights) = net.finish(&[range, y]);
        let run = on_gpus(&graph, &weights, 1, 1);
        for n in [1, 3, 2, 1] {
            let inputs = inputs(&graph, n, &mut ChaCha8Rng::seed_from_u64(1));
            if n < 2 || (n == 2 && delta < 0) {
                assert_eq!(outputs(&run, &inputs), expected(&graph, &weights, &inputs, false));
                continue;
            }
            let error = run.run(&inputs, &RunOptions::default()).unwrap_err().to_string();
            let named = error.contains("(range) on gpu:0") && error.contains("is beyond i32");
            assert!(named, "{n} rows by {delta}: {error}");
        }
    }
}

fn check(name: &str, make: Make, i: usize, far: Option<f64>) {
    let mut net = Net::new(i);
    let results = make(&mut net, i);
    let n = net.rng.random_range(1..6);
    let (graph, weights) = net.finish(&results);
    let mut rng = ChaCha8Rng::seed_from_u64(i as u64);
    let input = |value| {
        let info = graph.info(value);
        let bare = matches!(name, "products" | "excited_channels") && info.ty.dtype == DType::F32;
        let tensor = if bare {
            let count = info.ty.shape.at(n).iter().product();
            let data: Vec<f32> = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
            Tensor::new(&info.ty.shape.at(n), &data).unwrap()
        } else {
            elements(&mut rng, info.ty.dtype, &info.ty.shape.at(n), true)
        };
        (info.name.to_string(), tensor)
    };
    let inputs = graph.inputs().map(input).collect();
    let what = format!("{name} {i} of {n} rows:\n{graph}");
    let wanted = expected(&graph, &weights, &inputs, false);
    let program = on_gpus(&graph, &weights, 1, 1);
    let alone = outputs(&program, &inputs);
    for (o, (found, wanted)) in alone.iter().zip(&wanted).enumerate() {
        assert_same(found, wanted, far, &format!("{what}: output {o}"));
    }
    let split = replicas(&graph, 3, i as u64);
    let many = outputs(&on_gpus(&graph, &weights, 3, i as u64), &inputs);
    assert_bits(&split, &many, &alone, &what);
}

/// Fails unless the elements are equal, NaNs as such, or close to one another.
fn assert_same(found: &Tensor, wanted: &Tensor, far: Option<f64>, what: &str) {
    assert_eq!(found.tensor_type(), wanted.tensor_type(), "{what}");
    if !wanted.dtype().is_float() {
        let (a, b) = (found.to_i64(), wanted.to_i64());
        assert!(found == wanted, "{what}: {a:?}, not {b:?}");
        return;
    }
    let (a, b) = (found.to_f64(), wanted.to_f64());
    let far = far.map_or(0.0, |far| far.max(8.0 * wanted.dtype().rounding()));
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        let close = (a - b).abs() <= far * b.abs().max(1.0);
        assert!(same || close, "{what}, element {i}: {a:e}, not {b:e}");
    }
}

/// Random elements, among them those at the ends of their type; `zeros` says whether 0 is among
/// them.
fn elements(rng: &mut ChaCha8Rng, dtype: DType, dims: &[usize], zeros: bool) -> Tensor {
    let count: usize = dims.iter().product();
    let mut bytes = Vec::with_capacity(count * dtype.bytes());
    for _ in 0..count {
        let bits = if dtype == DType::Bool {
            u64::from(rng.random_bool(0.5))
        } else if dtype.is_float() {
            float_bits(rng, dtype)
        } else {
            int_bits(rng, dtype, zeros)
        };
        bytes.extend_from_slice(&bits.to_le_bytes()[..dtype.bytes()]);
    }
    Tensor::from_bytes(dtype, dims, &bytes).unwrap()
}

#[expect(
    clippy::wildcard_enum_match_arm,
    clippy::cast_possible_truncation,
    reason = "the last type of floats; rounding is meant"
)]
fn float_bits(rng: &mut ChaCha8Rng, dtype: DType) -> u64 {
    let small: f64 = rng.random_range(-3.0..3.0);
    let ties = f64::from(rng.random_range(-9..9)) / 2.0;
    let large: f64 = rng.random_range(-1e5..1e5);
    let ends = [
        0.0,
        -0.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        127.5,
        -128.5,
        255.5,
        65_519.9,
        2_147_483_648.0,
        -2_147_483_649.0,
        9.3e18,
        -9.3e18,
        1.9e19,
        1e-40,
        -6e-8,
        3.5e38,
        1.0 + 1.0 / 2048.0 + 1e-9,
    ];
    let end = *ends.choose(rng).unwrap();
    let x = *[small, small, ties, large, end, end].choose(rng).unwrap();
    match dtype {
        DType::F64 => x.to_bits(),
        DType::F32 => u64::from((x as f32).to_bits()),
        DType::F16 => u64::from(half::f16::from_f64(x).to_bits()),
        _ => u64::from(half::bf16::from_f64(x).to_bits()),
    }
}

fn int_bits(rng: &mut ChaCha8Rng, dtype: DType, zeros: bool) -> u64 {
    let sign = 1u64 << (8 * dtype.bytes() - 1);
    let of_type = u64::MAX >> (64 - 8 * dtype.bytes());
    let ends = [0, 1, u64::MAX, sign, sign - 1, sign + 1, u64::MAX - 1, 2, 1 << 24, (1 << 24) + 1];
    let mut bits = match rng.random_range(0..3) {
        0 => *ends.choose(rng).unwrap(),
        1 => rng.random_range(0..20u64).wrapping_sub(10),
        _ => rng.random(),
    };
    if bits & of_type == 0 && !zeros {
        bits = u64::MAX;
    }
    bits & of_type
}

const NUMBERS: [DType; 12] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::Bf16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
];

impl Net {
    /// A parameter of random elements.
    fn constant(&mut self, dtype: DType, dims: &[usize], zeros: bool) -> Value {
        let tensor = elements(&mut self.rng, dtype, dims, zeros);
        let name = self.name();
        self.builder.param(&name, tensor)
    }

    /// A value that meets one with these sizes behind the batch: of its shape, a vector along an
    /// axis, or one element.
    fn other(&mut self, dtype: DType, dims: &[usize], zeros: bool) -> Value {
        let from = self.pick(0, dims.len());
        match self.pick(0, 3) {
            0 if zeros => self.input_of(dtype, dims),
            1 => {
                let mut sizes = dims[from..].to_vec();
                sizes.iter_mut().skip(1).for_each(|d| *d = 1);
                self.constant(dtype, &sizes, zeros)
            }
            2 => self.constant(dtype, &[1], zeros),
            _ => self.constant(dtype, dims, zeros),
        }
    }
}

fn sizes(net: &mut Net) -> Vec<usize> {
    let axes = net.pick(1, 3);
    (0..axes).map(|_| net.size(12)).collect()
}

/// One type in every other.
fn casts(net: &mut Net, i: usize) -> Vec<Value> {
    let x = net.input_of(DType::ALL[i % 13], &[if i.is_multiple_of(2) { 40 } else { 37 }]);
    DType::ALL.into_iter().map(|to| net.op(Cast { to }, &[x])).collect()
}

fn arithmetic(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = NUMBERS[i % 12];
    let dims = sizes(net);
    let x = net.input_of(dtype, &dims);
    let mut ops: Vec<(Binary, bool)> = [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Max,
        Binary::Min,
        Binary::Prelu,
        Binary::ReluGrad,
    ]
    .map(|op| (op, true))
    .to_vec();
    ops.extend([(Binary::Div, false), (Binary::Mod { fmod: true }, false)]);
    if dtype.is_integer() {
        ops.push((Binary::Mod { fmod: false }, false));
    }
    let mut results = Vec::new();
    for (op, zeros) in ops {
        let other = net.other(dtype, &dims, zeros);
        results.push(net.op(op, &[x, other]));
    }
    let mut ones = vec![Unary::Abs, Unary::Sign, Unary::Clip { min: Some(3.0), max: Some(100.0) }];
    if dtype.is_signed() {
        ones.extend([Unary::Neg, Unary::Relu, Unary::Clip { min: Some(-100.0), max: None }]);
    }
    if dtype.is_float() {
        ones.extend([Unary::Sqrt, Unary::Reciprocal, Unary::Floor, Unary::Ceil, Unary::Round]);
        ones.extend([Unary::LeakyRelu { alpha: 0.1 }, Unary::HardSwish, Unary::Softsign]);
        ones.push(Unary::Shrink { bias: 0.25, lambd: 0.5 });
    }
    results.extend(ones.into_iter().map(|op| net.op(op, &[x])).collect::<Vec<_>>());
    if dtype.is_integer() {
        results.extend(powers(net, dtype, x));
    }
    results
}

/// Powers of integers, of one type and of two.
fn powers(net: &mut Net, dtype: DType, x: Value) -> [Value; 2] {
    let exponents: Vec<u8> = (0..4).map(|_| net.rng.random_range(0..70)).collect();
    let to = [dtype, DType::U8, DType::I32][net.pick(0, 2)];
    let name = net.name();
    let last = net.dims(x).last().copied().unwrap_or(1);
    let exponents: Vec<u8> = exponents.into_iter().cycle().take(last).collect();
    let exponents = net.builder.param(&name, Tensor::new(&[last], &exponents).unwrap());
    let exponents = net.op(Cast { to }, &[exponents]);
    let first = net.op(Binary::Pow, &[x, exponents]);
    let base = net.constant(dtype, &[last], false);
    let signed = net.input_of(DType::I8, &[last]);
    [first, net.op(Binary::Pow, &[base, signed])]
}

/// Comparisons, kinds of floats, truth values and bits.
#[expect(clippy::wildcard_enum_match_arm, reason = "all others are floats")]
fn relations(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = DType::ALL[i % 13];
    let dims = sizes(net);
    let (x, y) = (net.input_of(dtype, &dims), net.other(dtype, &dims, true));
    let mut ops: Vec<Op> = vec![Compare::Equal.into()];
    if dtype == DType::Bool {
        ops.extend([Logic::And, Logic::Or, Logic::Xor].map(Op::from));
    } else {
        let orders =
            [Compare::Less, Compare::LessOrEqual, Compare::Greater, Compare::GreaterOrEqual];
        ops.extend(orders.map(Op::from));
    }
    if dtype.is_integer() {
        ops.extend([Logic::BitwiseAnd, Logic::BitwiseOr, Logic::BitwiseXor].map(Op::from));
        if !dtype.is_signed() {
            ops.extend([true, false].map(|left| Op::from(Logic::BitShift { left })));
        }
    }
    let mut results: Vec<Value> = ops.into_iter().map(|op| net.op(op, &[x, y])).collect();
    let own: Vec<Op> = match dtype {
        DType::Bool => vec![Logic::Not.into()],
        _ if dtype.is_integer() => vec![Logic::BitwiseNot.into()],
        _ => vec![
            Classify::IsNan.into(),
            Classify::IsInf { negative: true, positive: true }.into(),
            Classify::IsInf { negative: false, positive: true }.into(),
            Classify::IsInf { negative: false, positive: false }.into(),
        ],
    };
    results.extend(own.into_iter().map(|op| net.op(op, &[x])).collect::<Vec<_>>());
    results
}

/// `where`, in chains and with operands that meet in other ways.
fn choices(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = DType::ALL[i % 13];
    let dims = sizes(net);
    let (condition, a) = (net.input_of(DType::Bool, &dims), net.input_of(dtype, &dims));
    let b = net.other(dtype, &dims, true);
    let mut results =
        vec![net.op(Where {}, &[condition, a, b]), net.op(Where {}, &[condition, b, a])];
    let thinned = |net: &mut Net| -> Vec<usize> {
        dims.iter().map(|d| if net.chance() { 1 } else { *d }).collect()
    };
    let thin: Vec<Vec<usize>> = (0..3).map(|_| thinned(net)).collect();
    let condition = net.input_of(DType::Bool, &thin[0]);
    let (a, b) = (net.input_of(dtype, &thin[1]), net.input_of(dtype, &thin[2]));
    results.push(net.op(Where {}, &[condition, a, b]));
    results.push(net.op(Compare::Equal, &[a, b]));
    if dtype != DType::Bool {
        results.push(net.op(Binary::Max, &[a, b]));
    }
    results
}

/// Walks from type to type.
fn chains(net: &mut Net, i: usize) -> Vec<Value> {
    let dims = sizes(net);
    let mut dtype = DType::ALL[i % 13];
    let mut x = net.input_of(dtype, &dims);
    for _ in 0..8 {
        let step = net.pick(0, 4);
        x = if step == 0 || dtype == DType::Bool && step < 3 {
            dtype = *DType::ALL.choose(&mut net.rng).unwrap();
            net.op(Cast { to: dtype }, &[x])
        } else if step == 1 {
            let other = net.other(dtype, &dims, true);
            dtype = DType::Bool;
            net.op(Compare::Less, &[x, other])
        } else if step == 2 {
            let other = net.other(dtype, &dims, true);
            let op = [Binary::Add, Binary::Mul, Binary::Sub].choose(&mut net.rng).unwrap().clone();
            if net.chance() { net.op(op, &[x, other]) } else { net.op(op, &[other, x]) }
        } else if dtype == DType::Bool {
            dtype = *NUMBERS.choose(&mut net.rng).unwrap();
            let (a, b) = (net.other(dtype, &dims, true), net.other(dtype, &dims, true));
            net.op(Where {}, &[x, a, b])
        } else {
            let (condition, other) =
                (net.other(DType::Bool, &dims, true), net.other(dtype, &dims, true));
            net.op(Where {}, &[condition, other, x])
        };
    }
    vec![x]
}

/// Functions of every float type.
fn functions(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = [DType::F64, DType::F16, DType::Bf16][i % 3];
    let all = products::unaries();
    let x = net.input_of(dtype, &[24]);
    let x = net.op(Unary::Clip { min: Some(-8.0), max: Some(8.0) }, &[x]);
    let own = (0..8).map(|k| all[(8 * (i / 3) + k) % all.len()].clone());
    let mut results: Vec<Value> = own.map(|op| net.op(op, &[x])).collect();
    let positive = net.op(Unary::Abs, &[x]);
    let roots = [Unary::Log, Unary::Acosh, Unary::Tan, Unary::Atanh, Unary::Asin, Unary::Acos];
    results.push(net.op(roots[i % 6].clone(), &[positive]));
    results.push(net.op(Binary::Pow, &[positive, x]));
    results
}

fn normalised(net: &mut Net, i: usize) -> Vec<Value> {
    let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
    let dims = [net.pick(1, 9), net.size(12), net.size(40)];
    let x = net.input_of(dtype, &dims);
    let mut operands = vec![x];
    for least in [-2.0, -2.0, -2.0, 0.1] {
        let vector = net.param_from(least, &dims[..1]);
        operands.push(net.op(Cast { to: dtype }, &[vector]));
    }
    let y = net.op(BatchNorm { epsilon: 0.001, ..BatchNorm::default() }, &operands);
    let other = net.other(dtype, &dims, true);
    let y = net.op(Binary::Add, &[y, other]);
    vec![net.op(Unary::Relu, &[y])]
}

/// Images scaled by numbers of their own for each channel, between kernels whose channels are last.
fn excited(net: &mut Net, i: usize) -> Vec<Value> {
    let channels = [1, 4, 6, 9][i % 4];
    let x = net.input(&[channels, 6, 5]);
    let pool = || Pool::Max {
        kernel: vec![2, 2],
        strides: vec![1, 1],
        dilations: Vec::new(),
        pads: Vec::new(),
        ceil_mode: false,
        indices: false,
        column_major: false,
    };
    let image = net.op(pool(), &[x]);
    let mean = net.op(Reduce::Mean { axes: vec![2, 3], keepdims: true }, &[image]);
    let gate = net.op(Unary::Sigmoid, &[mean]);
    let operands = if i.is_multiple_of(2) { [image, gate] } else { [gate, image] };
    let scaled = net.op(Binary::Mul, &operands);
    let plane = net.param(&[5, 4]);
    let large = net.op(Compare::Less, &[plane, scaled]);
    let chosen = net.op(Where {}, &[large, scaled, gate]);
    vec![net.op(pool(), &[chosen])]
}

/// What follows a product or a convolution at its end.
#[expect(clippy::many_single_char_names, reason = "the values of a graph")]
fn behind_products(net: &mut Net, i: usize) -> Vec<Value> {
    let y = if i.is_multiple_of(2) {
        let (k, w) = (net.size(20), net.size(40));
        let (x, right) = (net.input(&[k]), net.param(&[k, w]));
        net.op(MatMul {}, &[x, right])
    } else {
        let (c, m) = (net.size(8), net.size(16));
        let x = net.input(&[c, 5, 4]);
        let groups = i64::try_from(if i % 4 == 3 { c } else { 1 }).unwrap();
        let w = if groups > 1 { net.param(&[c, 1, 3, 3]) } else { net.param(&[m, c, 3, 3]) };
        net.op(Conv { groups, pads: vec![1; 4], ..Conv::default() }, &[x, w])
    };
    let dims = net.dims(y);
    let to = [DType::F16, DType::Bf16, DType::F64, DType::Bool][i / 2 % 4];
    if to != DType::Bool {
        return vec![net.op(Cast { to }, &[y])];
    }
    let other = net.param(&[1]);
    let truth = net.op(Compare::Less, &[y, other]);
    let numbers = net.other(DType::I32, &dims, true);
    let zero = net.constant(DType::I32, &[1], true);
    vec![net.op(Where {}, &[truth, numbers, zero])]
}
