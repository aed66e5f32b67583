use half::f16;
use rand::Rng;

use super::super::testing::{self, check_split, random, rng, tensor};
use super::super::{OpDef, OpError, Operand};
use super::Binary;
use crate::types::{Claim, DType, Dim, Element, Shape, Shard, Tensor, TensorType};

const ALL: [Binary; 11] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Pow,
    Binary::Mod { fmod: false },
    Binary::Mod { fmod: true },
    Binary::Max,
    Binary::Min,
    Binary::Prelu,
    Binary::ReluGrad,
];

fn eval<T: Element>(op: Binary, a: &[T], b: &[T]) -> Vec<T> {
    let (a, b) = (Tensor::new(&[a.len()], a).unwrap(), Tensor::new(&[b.len()], b).unwrap());
    testing::eval(&op.into(), &[&a, &b])[0].as_slice::<T>().to_vec()
}

/// The functions by their formulas, in `f64`.
fn formula(op: &Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Pow => a.powf(b),
        Binary::Mod { fmod: true } => a - b * (a / b).trunc(),
        Binary::Mod { fmod: false } => a - b * (a / b).floor(),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Prelu => {
            if a < 0.0 {
                a * b
            } else {
                a
            }
        }
        Binary::ReluGrad => {
            if a > 0.0 {
                b
            } else {
                0.0
            }
        }
    }
}

#[test]
fn values_follow_the_formulas_in_every_type() {
    let a: Vec<f64> = vec![1.0, 2.0, 3.0, 5.0, 7.0, 6.0];
    let b: Vec<f64> = vec![2.0, 1.0, 2.0, 3.0, 2.0, 2.0];
    for op in ALL {
        for dtype in DType::ALL.into_iter().filter(|t| *t != DType::Bool) {
            if op == (Binary::Mod { fmod: false }) && dtype.is_float() {
                continue;
            }
            let own: Vec<f64> =
                if dtype.is_signed() { a.iter().map(|x| x - 4.0).collect() } else { a.clone() };
            let y = testing::eval(
                &op.clone().into(),
                &[&tensor(dtype, &[6], &own), &tensor(dtype, &[6], &b)],
            );
            for (i, y) in y[0].to_f64().into_iter().enumerate() {
                let exact = formula(&op, own[i], b[i]);
                let expected = tensor(dtype, &[1], &[exact]).to_f64()[0];
                let close = (y - expected).abs() <= 1e-6 * expected.abs();
                // An unsigned difference wraps.
                let wraps = exact < 0.0 && !dtype.is_signed();
                assert!(close || wraps, "{op:?}({}, {}) in {dtype} is {y}", own[i], b[i]);
            }
        }
    }
}

#[test]
fn integers_wrap_and_truncate() {
    assert_eq!(eval(Binary::Add, &[i8::MAX], &[1]), [i8::MIN]);
    assert_eq!(eval(Binary::Sub, &[0u8], &[1]), [255]);
    assert_eq!(eval(Binary::Mul, &[u64::MAX], &[u64::MAX]), [1]);
    assert_eq!(eval(Binary::Div, &[-7i32, 7, i32::MIN], &[2, -2, -1]), [-3, -3, i32::MIN]);
    assert_eq!(eval(Binary::Mod { fmod: false }, &[-7i64, 7, -8], &[3, -3, 4]), [2, -2, 0]);
    assert_eq!(eval(Binary::Mod { fmod: true }, &[-7i64, 7, i64::MIN], &[3, -3, -1]), [-1, 1, 0]);
    assert_eq!(eval(Binary::Pow, &[3i32, -2, 2, 0], &[4, 3, 40, 0]), [81, -8, 0, 1]);
    assert_eq!(eval(Binary::Pow, &[1i64, -1, -1, 5, -1], &[-3, -3, -2, -1, 0]), [1, -1, 1, 0, 1]);
    assert_eq!(eval(Binary::Max, &[u64::MAX, 3], &[4, 9]), [u64::MAX, 9]);
    assert_eq!(eval(Binary::Prelu, &[-3i32, 3], &[5, 5]), [-15, 3]);
    assert_eq!(eval(Binary::ReluGrad, &[-3i32, 3, 0], &[5, 5, 5]), [0, 5, 0]);
}

#[test]
fn division_by_the_integer_0_is_an_error() {
    let (a, zero) =
        (Tensor::new(&[2], &[1i32, 0]).unwrap(), Tensor::new(&[2], &[1i32, 0]).unwrap());
    for op in [Binary::Div, Binary::Mod { fmod: false }, Binary::Mod { fmod: true }] {
        assert!(matches!(op.eval(&[&a, &zero]), Err(OpError::Value { operand: 1, .. })), "{op:?}");
    }
    let minus = Tensor::new(&[1], &[-1i32]).unwrap();
    assert!(matches!(Binary::Pow.eval(&[&zero, &minus]), Err(OpError::Value { .. })));
    assert_eq!(eval(Binary::Div, &[1.0f32, 0.0], &[0.0, 1.0]), [f32::INFINITY, 0.0]);
}

#[test]
fn special_floats() {
    let nan = f32::NAN;
    for op in [Binary::Max, Binary::Min] {
        assert!(eval(op.clone(), &[nan, 1.0], &[1.0, nan]).iter().all(|x| x.is_nan()), "{op:?}");
    }
    assert_eq!(eval(Binary::ReluGrad, &[nan, 0.0, -0.0, -1.0], &[nan, nan, nan, nan]), [0.0; 4]);
    assert_eq!(eval(Binary::Mod { fmod: true }, &[-7.5f32, 7.5], &[2.0, -2.0]), [-1.5, 1.5]);
    assert_eq!(
        eval(Binary::Pow, &[-8.0f32, 4.0, 0.0, -2.0], &[3.0, 0.5, 0.0, -1.0]),
        [-512.0, 2.0, 1.0, -0.5]
    );
    assert!(eval(Binary::Pow, &[-8.0f64], &[0.5])[0].is_nan());
    let tenth = f16::from_f32(0.1);
    assert_eq!(eval(Binary::Add, &[f16::ONE], &[tenth]), [f16::from_f32(1.0 + tenth.to_f32())]);
}

#[test]
fn an_exponent_may_have_another_type() {
    let pow = |a: &Tensor, b: &Tensor| testing::eval(&Binary::Pow.into(), &[a, b]).remove(0);
    let half = Tensor::scalar(0.5f32);
    assert_eq!(pow(&Tensor::new(&[2], &[9i64, 10]).unwrap(), &half).as_slice::<i64>(), [3, 3]);
    let three = Tensor::scalar(3i64);
    assert_eq!(
        pow(&Tensor::new(&[2], &[-2.0f32, 1.5]).unwrap(), &three).as_slice::<f32>(),
        [-8.0, 3.375]
    );
    assert_eq!(pow(&Tensor::new(&[2], &[-2i32, 7]).unwrap(), &three).as_slice::<i32>(), [-8, 343]);
    let base = Tensor::scalar(f16::from_f32(2.0));
    assert_eq!(pow(&base, &half).as_slice::<f16>(), [f16::from_f64(2f64.sqrt())]);
    assert_eq!(pow(&Tensor::scalar(2u8), &Tensor::scalar(7u64)).as_slice::<u8>(), [128]);
}

#[test]
fn both_sides_broadcast() {
    let mut rng = rng(5);
    for _ in 0..100 {
        let out: Vec<usize> = (0..rng.random_range(0..5)).map(|_| rng.random_range(0..4)).collect();
        let mut operand = || {
            let skip = rng.random_range(0..=out.len());
            let dims: Vec<usize> =
                out[skip..].iter().map(|d| if rng.random_bool(0.4) { 1 } else { *d }).collect();
            random(&mut rng, DType::I32, &dims)
        };
        let (a, b) = (operand(), operand());
        let y = testing::eval(&Binary::Sub.into(), &[&a, &b]).remove(0);
        let at = |t: &Tensor, mut flat: usize| {
            let mut index: Vec<usize> = y
                .dims()
                .iter()
                .rev()
                .map(|d| {
                    let i = flat % d;
                    flat /= d;
                    i
                })
                .collect();
            index.reverse();
            let skip = y.rank() - t.rank();
            let flat = t
                .dims()
                .iter()
                .zip(&index[skip..])
                .fold(0, |flat, (d, i)| flat * d + if *d == 1 { 0 } else { *i });
            t.as_slice::<i32>()[flat]
        };
        for (i, v) in y.as_slice::<i32>().iter().enumerate() {
            assert_eq!(*v, at(&a, i) - at(&b, i), "{a:?} - {b:?}");
        }
    }
}

#[test]
fn types_and_shapes_are_checked() {
    let fails = |op: Binary, a: TensorType, b: TensorType| {
        op.infer(&[Operand { ty: &a, ints: None }, Operand { ty: &b, ints: None }]).is_err()
    };
    let of = |dtype, dims: [i64; 2]| TensorType::new(dtype, dims);
    assert!(fails(Binary::Add, of(DType::F32, [2, 3]), of(DType::F64, [2, 3])));
    assert!(fails(Binary::Add, of(DType::F32, [2, 3]), of(DType::F32, [2, 2])));
    assert!(fails(Binary::Add, of(DType::Bool, [2, 3]), of(DType::Bool, [2, 3])));
    assert!(fails(Binary::Mod { fmod: false }, of(DType::F32, [1, 1]), of(DType::F32, [1, 1])));
    assert!(fails(Binary::Pow, of(DType::F32, [1, 1]), of(DType::Bool, [1, 1])));
    assert!(fails(Binary::Prelu, of(DType::F32, [1, 3]), of(DType::F32, [2, 3])));
    assert!(!fails(Binary::Prelu, of(DType::F32, [2, 3]), of(DType::F32, [1, 3])));
    let batch = TensorType::new(DType::F32, Shape::from_iter([Dim::n(), 3.into()]));
    assert!(!fails(Binary::Add, batch.clone(), of(DType::F32, [1, 1])));
    assert!(fails(Binary::Add, batch, of(DType::F32, [2, 3])));
    let ty = of(DType::F32, [1, 1]);
    assert!(Binary::Add.infer(&[Operand { ty: &ty, ints: None }]).is_err());
}

#[test]
fn known_elements_pass() {
    let (vector, scalar) = (TensorType::new(DType::I64, [2]), TensorType::scalar(DType::I64));
    let n = Dim::n;
    let left = [n() * 6, Dim::from(7)];
    let known = |op: Binary, right: Dim| {
        let right = [right];
        let operands = [
            Operand { ty: &vector, ints: Some(&left) },
            Operand { ty: &scalar, ints: Some(&right) },
        ];
        op.infer(&operands).unwrap().remove(0).ints.map(|i| i.to_vec())
    };
    let dims = |a: Dim, b: i64| Some(vec![a, b.into()]);
    assert_eq!(known(Binary::Add, 2.into()), dims(n() * 6 + 2, 9));
    assert_eq!(known(Binary::Sub, 2.into()), dims(n() * 6 - 2, 5));
    assert_eq!(known(Binary::Mul, 3.into()), dims(n() * 18, 21));
    assert_eq!(known(Binary::Div, 4.into()), dims((n() * 6).floor_div(&4.into()), 1));
    assert_eq!(known(Binary::Div, (-2).into()), dims(n() * -3, -3));
    assert_eq!(known(Binary::Div, (-4).into()), None);
    assert_eq!(known(Binary::Div, 0.into()), None);
    assert_eq!(known(Binary::Mod { fmod: false }, 4.into()), dims((n() * 6).modulo(&4.into()), 3));
    assert_eq!(known(Binary::Max, 5.into()), dims((n() * 6).maximum(&5.into()), 7));
    assert_eq!(known(Binary::Min, 5.into()), dims((n() * 6).minimum(&5.into()), 5));
    assert_eq!(known(Binary::Pow, 2.into()), None);
    assert_eq!(known(Binary::Mul, i64::MAX.into()), None);
    assert_eq!(known(Binary::Mul, (1i64 << 50).into()), None);
    let ones = [Dim::from(i64::MAX)];
    let one = Operand { ty: &scalar, ints: Some(&ones) };
    assert_eq!(Binary::Add.infer(&[one, one]).unwrap()[0].ints, None);
    let narrow = TensorType::scalar(DType::U8);
    let batch = [n()];
    let byte = Operand { ty: &narrow, ints: Some(&batch) };
    assert_eq!(Binary::Add.infer(&[byte, byte]).unwrap()[0].ints, None);
}

/// An operand of a split on `axis` of `out`: its own shape and claim, or one that broadcasts there.
fn operand(
    rng: &mut impl Rng,
    out: &[usize],
    axis: usize,
    inner: u64,
    split: bool,
) -> (Vec<usize>, Claim) {
    let most = if split { axis } else { out.len() };
    let skip = rng.random_range(0..=most);
    let dims = (skip..out.len()).map(|i| match (i == axis, split) {
        (true, false) => 1,
        (true, true) => out[i],
        _ if rng.random_bool(0.3) => 1,
        _ => out[i],
    });
    let claim = if split {
        Claim::Shard(Shard { axis: axis - skip, outer: 1, inner })
    } else {
        Claim::Invariant
    };
    (dims.collect(), claim)
}

#[test]
fn aligned_rows_pass() {
    let mut rng = rng(7);
    for round in 0..120 {
        let (n, inner) = (rng.random_range(1..9), rng.random_range(1..4));
        let mut out: Vec<usize> =
            (0..rng.random_range(1..5)).map(|_| rng.random_range(1..4)).collect();
        let axis = rng.random_range(0..out.len());
        out[axis] = n * inner;
        let inner = inner as u64;
        let op = &ALL[round % ALL.len()];
        let dtype = if *op == (Binary::Mod { fmod: false }) { DType::U16 } else { DType::F32 };
        let (mut a, claim_a) = operand(&mut rng, &out, axis, inner, true);
        let split = rng.random_bool(0.5);
        let (b, claim_b) = operand(&mut rng, &out, axis, inner, split);
        if *op == Binary::Prelu {
            a.clone_from(&out);
        }
        let claim_a = if *op == Binary::Prelu {
            Claim::Shard(Shard { axis, outer: 1, inner })
        } else {
            claim_a
        };
        let (left, mut right) = (random(&mut rng, dtype, &a), random(&mut rng, dtype, &b));
        if dtype == DType::U16 {
            right.as_mut_slice::<u16>().iter_mut().for_each(|v| *v += 1);
        }
        let rank = a.len().max(b.len());
        let expected = Claim::Shard(Shard { axis: axis - (out.len() - rank), outer: 1, inner });
        let got = check_split(&op.clone().into(), &[(&left, claim_a), (&right, claim_b)], n);
        assert_eq!(got, Ok(vec![expected]), "{op:?} {a:?} {b:?}");
    }
}

#[test]
fn rows_that_do_not_align_are_refused() {
    let mut rng = rng(8);
    let mut check = |a: (&[usize], Claim), b: (&[usize], Claim), n: usize| {
        let (x, y) = (random(&mut rng, DType::F32, a.0), random(&mut rng, DType::F32, b.0));
        check_split(&Binary::Add.into(), &[(&x, a.1), (&y, b.1)], n)
    };
    let rows = Claim::rows;
    let refused = |code: &str| Err(code.to_owned());
    assert_eq!(check((&[4, 1], rows(0)), (&[1, 4], rows(1)), 4), refused("R0101"));
    assert_eq!(check((&[4, 1], rows(0)), (&[4], rows(0)), 4), refused("R0101"));
    let folded = Claim::Shard(Shard { axis: 0, outer: 1, inner: 2 });
    assert_eq!(check((&[8], folded), (&[8], folded), 4), Ok(vec![folded]));
    let invariant = [(&[2usize, 3][..], Claim::Invariant), (&[3][..], Claim::Invariant)];
    assert_eq!(check(invariant[0], invariant[1], 4), Ok(vec![Claim::Invariant]));
}

#[test]
fn a_baked_batch_is_refused() {
    let batch = TensorType::new(DType::F32, Shape::from_iter([Dim::n(), 4.into()]));
    let fixed = TensorType::new(DType::F32, [8, 4]);
    let operands = [
        super::SplitOperand { claim: Claim::rows(0), ty: &batch },
        super::SplitOperand { claim: Claim::Invariant, ty: &fixed },
    ];
    let refusal = Binary::Add.split(&operands, std::slice::from_ref(&batch)).unwrap_err();
    assert_eq!((refusal.code.name(), refusal.operand), ("R0110", 1));
}
