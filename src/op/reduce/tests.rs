use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::testing::{self, random, rng, tensor};
use super::super::{Attr, Op, OpRead};
use super::Reduce;
use crate::types::{Claim, DType, Dim, Tensor};

fn op(name: &str, axes: &[i64], keepdims: bool) -> Reduce {
    let attrs = vec![
        ("axes".to_owned(), Attr::Ints(axes.iter().map(|a| Dim::from(*a)).collect())),
        ("keepdims".to_owned(), Attr::Bool(keepdims)),
    ];
    let Op::Reduce(op) = Op::read(name, attrs).unwrap() else { panic!("{name}") };
    op
}

fn eval(op: &Reduce, x: &Tensor) -> Tensor {
    testing::eval(&op.clone().into(), &[x]).remove(0)
}

/// The reductions by their formulas, in `f64`.
fn formula(op: &Reduce, x: &[f64]) -> f64 {
    let sum = |f: &dyn Fn(f64) -> f64| x.iter().map(|x| f(*x)).sum::<f64>();
    match op {
        Reduce::Sum { .. } | Reduce::WideSum { .. } => sum(&|x| x),
        Reduce::Mean { .. } => sum(&|x| x) / x.len() as f64,
        Reduce::Max { .. } => x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Reduce::Min { .. } => x.iter().copied().fold(f64::INFINITY, f64::min),
        Reduce::Prod { .. } | Reduce::WideProd { .. } => x.iter().product(),
        Reduce::L1 { .. } => sum(&f64::abs),
        Reduce::L2 { .. } => sum(&|x| x * x).sqrt(),
        Reduce::LogSum { .. } => sum(&|x| x).ln(),
        Reduce::LogSumExp { .. } => sum(&f64::exp).ln(),
        Reduce::SumSquare { .. } => sum(&|x| x * x),
    }
}

/// For each result in row-major order, the elements that it takes.
fn groups(x: &Tensor, reduced: &[usize]) -> Vec<Vec<f64>> {
    let kept: Vec<usize> = (0..x.rank()).filter(|a| !reduced.contains(a)).collect();
    let count = kept.iter().map(|a| x.dims()[*a]).product();
    let mut groups = vec![Vec::new(); count];
    for (flat, v) in x.to_f64().into_iter().enumerate() {
        let mut rest = flat;
        let mut index = vec![0; x.rank()];
        for (i, d) in index.iter_mut().zip(x.dims()).rev() {
            *i = rest % d;
            rest /= d;
        }
        groups[kept.iter().fold(0, |at, a| at * x.dims()[*a] + index[*a])].push(v);
    }
    groups
}

fn random_axes(rng: &mut ChaCha8Rng, rank: usize) -> Vec<usize> {
    (0..rank).filter(|_| rng.random_bool(0.5)).collect()
}

#[test]
fn products_are_finite_on_the_way() {
    let product = |dtype: DType, x: &[f64]| {
        let x = tensor(dtype, &[x.len()], x);
        testing::eval(&op("reduce_prod", &[0], false).into(), &[&x]).remove(0).to_f64()[0]
    };
    let far = [[1e37; 20], [1e-37; 20]];
    for far in [far.concat(), far.iter().rev().flatten().copied().collect()] {
        assert!((product(DType::F32, &far) - 1.0).abs() < 1e-5);
    }
    let (most, least) = (f64::MAX, f64::MIN_POSITIVE / 8.0);
    let close = |x: &[f64], y: f64| (product(DType::F64, x) / y - 1.0).abs() < 1e-12;
    assert!(close(&[most, most, -1.0 / most, 0.5 / most], -0.5));
    assert!(close(&[least, least, 1.0 / f64::MIN_POSITIVE, 1.0 / f64::MIN_POSITIVE], 1.0 / 64.0));
    assert!(product(DType::F64, &[most, -most]) < f64::MIN);
    let bits = |x: &[f64]| product(DType::F64, x).to_bits();
    assert_eq!([bits(&[least, -least]), bits(&[0.0, -3.0])], [(-0.0f64).to_bits(); 2]);
    assert_eq!([bits(&[]), bits(&[5.0, f64::INFINITY])], [1.0f64, f64::INFINITY].map(f64::to_bits));
    assert!(product(DType::F64, &[0.0, f64::INFINITY]).is_nan());
}

#[test]
#[expect(clippy::float_cmp, reason = "infinities are equal or not")]
fn values_follow_the_formulas() {
    let mut rng = rng(1);
    for round in 0..400 {
        let rank = rng.random_range(0..5);
        let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..13)).collect();
        let (axes, keepdims) = (random_axes(&mut rng, rank), rng.random_bool(0.5));
        let signed: Vec<i64> = axes
            .iter()
            .map(|a| a.cast_signed() - if rng.random_bool(0.5) { rank.cast_signed() } else { 0 })
            .map(|a| i64::try_from(a).unwrap())
            .collect();
        let op = op(Reduce::NAMES[round % 10], &signed, keepdims);
        let (dtype, tolerance) =
            [(DType::F64, 1e-6), (DType::F32, 1e-6), (DType::F16, 1e-3), (DType::Bf16, 8e-3)]
                [round / 10 % 4];
        let x = random(&mut rng, dtype, &dims);
        let y = eval(&op, &x);
        let expected: Vec<usize> = (0..rank)
            .filter(|a| keepdims || !axes.contains(a))
            .map(|a| if axes.contains(&a) { 1 } else { dims[a] })
            .collect();
        assert_eq!(y.dims(), expected);
        for (group, y) in groups(&x, &axes).iter().zip(y.to_f64()) {
            let exact = formula(&op, group);
            let size: f64 = group.iter().map(|x| x.abs()).sum::<f64>().max(exact.abs()).max(1.0);
            // The logarithm of a sum near 0 keeps none of its digits.
            let log = matches!(op, Reduce::LogSum { .. }) && (exact.is_nan() || exact < 0.0);
            let same = y == exact || (y.is_nan() && exact.is_nan());
            let overflow = dtype == DType::F16 && exact.abs() > 65504.0;
            assert!(
                same || log || overflow || (y - exact).abs() <= tolerance * size,
                "{op:?} of {x:?} is {y}, not {exact}"
            );
        }
    }
}

/// The sum of squares of a line, in the order of the definition.
fn squares_in_order(line: &[f64]) -> f64 {
    fn halves(lanes: [f64; 32]) -> f64 {
        let mut lanes = lanes.to_vec();
        while lanes.len() > 1 {
            let high = lanes.split_off(lanes.len() / 2);
            lanes.iter_mut().zip(high).for_each(|(low, high)| *low += high);
        }
        lanes[0]
    }
    let mut parts = [0.0; 32];
    for (k, part) in line.chunks(4096).enumerate() {
        let mut lanes = [0.0; 32];
        for (i, x) in part.iter().enumerate() {
            lanes[i % 32] += x * x;
        }
        parts[k % 32] += halves(lanes);
    }
    halves(parts)
}

#[test]
fn the_order_follows_from_the_length() {
    let mut rng = rng(2);
    let mut told_apart = false;
    for size in [1, 2, 7, 8, 9, 31, 32, 33, 100, 4095, 4096, 4097, 13_000, 4096 * 33 + 5] {
        let wide = if size > 20_000 { 1 } else { 19 };
        for (dims, axes) in [
            (vec![3, size], vec![1]),
            (vec![size, wide], vec![0]),
            (vec![2, size, 8], vec![1]),
            (vec![2, 2, size], vec![0, 2]),
            (vec![2, 3, size, wide], vec![0, 2]),
        ] {
            // Magnitudes far apart, so that sums are rounded.
            let x = random(&mut rng, DType::F64, &dims).to_f64();
            let x: Vec<f64> = x.iter().enumerate().map(|(i, x)| x * [1.0, 1e-6][i % 2]).collect();
            let x = tensor(DType::F64, &dims, &x);
            let listed: Vec<i64> = axes.iter().map(|a| i64::try_from(*a).unwrap()).collect();
            let y = eval(&op("reduce_sum_square", &listed, false), &x).to_f64();
            for (line, y) in groups(&x, &axes).iter().zip(y) {
                let in_order = squares_in_order(line);
                assert_eq!(y.to_bits(), in_order.to_bits(), "{dims:?} over {axes:?}");
                let one_by_one = line.iter().map(|x| x * x).sum::<f64>();
                told_apart |= in_order.to_bits() != one_by_one.to_bits();
            }
        }
    }
    assert!(told_apart, "some other order has another sum");
}

#[test]
fn rules_refuse_axes_that_inference_refuses() {
    let x = random(&mut rng(9), DType::F32, &[3, 2]);
    for axes in [&[2i64][..], &[1, 1]] {
        let op = Op::from(op("reduce_sum", axes, true));
        assert_eq!(testing::refusal(&op, &[(&x, Claim::rows(0))]), "R0199");
    }
}
