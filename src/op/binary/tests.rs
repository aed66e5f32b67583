use rand::Rng;

use super::super::testing::{self, random, rng, tensor};
use super::Binary;
use crate::types::{DType, Tensor};

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
