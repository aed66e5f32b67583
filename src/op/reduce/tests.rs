use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::super::testing::{self, check_split, random, rng, tensor};
use super::super::{Attr, Op, OpDef, OpError, OpRead, OpText, Operand};
use super::Reduce;
use crate::types::{Claim, Combine, DType, Dim, Shard, Tensor, TensorType};

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

#[test]
fn integers() {
    let x = Tensor::new(&[2, 3], &[1i32, -2, 3, i32::MAX, 1, 7]).unwrap();
    let ints = |name: &str| eval(&op(name, &[1], false), &x).as_slice::<i32>().to_vec();
    assert_eq!(ints("reduce_sum"), [2, i32::MIN + 7]);
    assert_eq!(ints("reduce_mean"), [0, 715_827_885]);
    assert_eq!(ints("reduce_max"), [3, i32::MAX]);
    assert_eq!(ints("reduce_min"), [-2, 1]);
    assert_eq!(ints("reduce_prod"), [-6, i32::MAX.wrapping_mul(7)]);
    assert_eq!(ints("reduce_l1"), [6, i32::MIN + 7]);
    assert_eq!(ints("reduce_sum_square"), [14, 51]);
    assert_eq!(ints("reduce_l2"), [3, i32::MAX]);
    assert_eq!(ints("reduce_log_sum"), [0, 21]);
    assert_eq!(ints("reduce_log_sum_exp"), [3, i32::MAX]);
    let x = tensor(DType::Bool, &[2, 2], &[0.0, 1.0, 0.0, 0.0]);
    assert_eq!(eval(&op("reduce_max", &[1], false), &x).as_slice::<u8>(), [1, 0]);
    assert_eq!(eval(&op("reduce_min", &[0, 1], true), &x).as_slice::<u8>(), [0]);
    let x = Tensor::new(&[2], &[u64::MAX, 5]).unwrap();
    assert_eq!(eval(&op("reduce_max", &[0], false), &x).as_slice::<u64>(), [u64::MAX]);
}

#[test]
#[expect(clippy::float_cmp, reason = "the values are exact")]
fn special_values() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let f32s = |name: &str, x: &[f32]| {
        let x = Tensor::new(&[x.len()], x).unwrap();
        eval(&op(name, &[0], false), &x).as_slice::<f32>()[0]
    };
    let rounded: Vec<&str> =
        Reduce::NAMES.iter().copied().filter(|name| !name.contains("wide")).collect();
    for name in &rounded {
        assert!(f32s(name, &[1.0, nan, 2.0]).is_nan(), "{name}");
    }
    let lse = |x: &[f32]| f32s("reduce_log_sum_exp", x);
    assert_eq!([lse(&[inf, 1.0]), lse(&[-inf, -inf])], [inf, -inf]);
    assert_eq!([lse(&[1000.0, 1000.0]), lse(&[-inf, 3.0])], [1000.0 + 2f32.ln(), 3.0]);
    let empty: Vec<f32> = rounded.iter().map(|name| f32s(name, &[])).collect();
    assert_eq!(empty[0].to_bits(), 0);
    assert!(empty[1].is_nan());
    assert_eq!(empty[2..], [-inf, inf, 1.0, 0.0, 0.0, -inf, -inf, 0.0]);
    let none = Tensor::new::<i8>(&[2, 0], &[]).unwrap();
    assert_eq!(eval(&op("reduce_max", &[1], false), &none).as_slice::<i8>(), [i8::MIN, i8::MIN]);
    assert!(matches!(op("reduce_mean", &[1], false).eval(&[&none]), Err(OpError::Value { .. })));
    assert_eq!(eval(&op("reduce_mean", &[0], true), &none).dims(), [1, 0]);
    let wide = Tensor::new::<f32>(&[1 << 40, 1 << 40, 0], &[]).unwrap_err();
    assert!(wide.to_string().contains("too large"));
    let long = Tensor::new::<f32>(&[1 << 40, 0], &[]).unwrap();
    assert_eq!(eval(&op("reduce_sum", &[0], true), &long).dims(), [1, 0]);
}

#[test]
fn without_axes_each_element_is_reduced_on_its_own() {
    let x = Tensor::new(&[2], &[-3.0f32, 2.0]).unwrap();
    let each = |name: &str| eval(&op(name, &[], true), &x).as_slice::<f32>().to_vec();
    assert_eq!(each("reduce_sum"), [-3.0, 2.0]);
    assert_eq!(each("reduce_l1"), [3.0, 2.0]);
    assert_eq!(each("reduce_sum_square"), [9.0, 4.0]);
    assert_eq!(eval(&op("reduce_prod", &[], false), &Tensor::scalar(4i64)), Tensor::scalar(4i64));
}

#[test]
fn axes_and_types_are_checked() {
    let fails = |op: Reduce, dtype: DType| {
        let ty = TensorType::new(dtype, [2, 3]);
        op.infer(&[Operand { ty: &ty, ints: None }]).is_err()
    };
    assert!(fails(op("reduce_sum", &[2], true), DType::F32));
    assert!(fails(op("reduce_sum", &[-3], true), DType::F32));
    assert!(fails(op("reduce_sum", &[1, -1], true), DType::F32));
    assert!(fails(op("reduce_sum", &[i64::MIN, i64::MAX], true), DType::F32));
    assert!(fails(op("reduce_sum", &[0], true), DType::Bool));
    assert!(!fails(op("reduce_max", &[-2, 1], true), DType::Bool));
}

#[test]
fn known_elements_pass() {
    let ty = TensorType::new(DType::I64, [2, 2]);
    let n = Dim::n;
    let elements = [n(), Dim::from(4), Dim::from(3), Dim::from(5)];
    let known = |name: &str, axes: &[i64]| {
        let x = Operand { ty: &ty, ints: Some(&elements) };
        op(name, axes, false).infer(&[x]).unwrap().remove(0).ints.map(|i| i.to_vec())
    };
    assert_eq!(known("reduce_prod", &[0, 1]), Some(vec![n() * 60]));
    assert_eq!(known("reduce_prod", &[0]), Some(vec![n() * 3, 20.into()]));
    assert_eq!(known("reduce_sum", &[1]), Some(vec![n() + 4, 8.into()]));
    assert_eq!(known("reduce_max", &[1]), Some(vec![n().maximum(&4.into()), 5.into()]));
    assert_eq!(known("reduce_min", &[0]), Some(vec![n().minimum(&3.into()), 4.into()]));
    assert_eq!(known("reduce_sum_square", &[]), None);
    let large = [Dim::from(i64::MAX), Dim::ONE, Dim::ONE, Dim::ONE];
    let x = Operand { ty: &ty, ints: Some(&large) };
    assert_eq!(op("reduce_sum", &[0, 1], true).infer(&[x]).unwrap()[0].ints, None);
}

#[test]
fn the_batch_passes_beside_the_reduced_axes() {
    let mut rng = rng(3);
    for round in 0..200 {
        let rank = rng.random_range(1..5);
        let (n, inner) = (rng.random_range(1..9), rng.random_range(1..4usize));
        let at = rng.random_range(0..rank);
        let dims: Vec<usize> =
            (0..rank).map(|a| if a == at { n * inner } else { rng.random_range(1..6) }).collect();
        let (axes, keepdims) = (random_axes(&mut rng, rank), rng.random_bool(0.5));
        let listed: Vec<i64> = axes.iter().map(|a| i64::try_from(*a).unwrap()).collect();
        let op = op(Reduce::NAMES[round % 10], &listed, keepdims);
        let dtype = [DType::F32, DType::F16, DType::I32, DType::F64][round / 10 % 4];
        let x = random(&mut rng, dtype, &dims);
        let claim = |axis| Claim::Shard(Shard { axis, outer: 1, inner: inner as u64 });
        let expected = if axes.contains(&at) {
            let by = match op.name() {
                "reduce_sum" | "reduce_l1" | "reduce_sum_square" => Some(Combine::Sum),
                "reduce_prod" => Some(Combine::Prod),
                "reduce_max" => Some(Combine::Max),
                "reduce_min" => Some(Combine::Min),
                "reduce_mean" => Some(Combine::Mean).filter(|_| dtype.is_float()),
                "reduce_l2" => Some(Combine::L2).filter(|_| dtype.is_float()),
                "reduce_log_sum_exp" => Some(Combine::Lse).filter(|_| dtype.is_float()),
                _ => None,
            };
            by.map(|by| vec![Claim::Partial(by)]).ok_or("R0111".to_owned())
        } else {
            let gone = axes.iter().filter(|a| **a < at && !keepdims).count();
            Ok(vec![claim(at - gone)])
        };
        assert_eq!(check_split(&op.into(), &[(&x, claim(at))], n), expected, "{dims:?} {axes:?}");
    }
    let x = random(&mut rng, DType::F32, &[3, 2]);
    let all = op("reduce_sum", &[0, 1], false);
    assert_eq!(check_split(&all.into(), &[(&x, Claim::Invariant)], 4), Ok(vec![Claim::Invariant]));
}
