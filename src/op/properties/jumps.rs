//! Which operators turn a rounding of their floats into another result.

use std::collections::BTreeSet;

use rand::Rng;

use super::super::testing::tensor;
use super::draw::{Case, Draw};
use super::{fits, generators};
use crate::types::{Claim, DType, Tensor};

/// Operators that grow without bounds near some numbers, but do not jump at others; and those whose digits jump together with
/// their powers of 2.
const POLES: [&str; 6] = ["reciprocal", "div", "tan", "pow", "reduce_wide_prod", "narrow"];

/// The operand with each float a little further from 0, and not on a threshold.
fn moved(x: &Tensor, draw: &mut Draw) -> Tensor {
    if x.dtype() != DType::F64 {
        return x.clone();
    }
    let values: Vec<f64> =
        x.to_f64().iter().map(|x| x + 1e-10 * draw.rng.random_range(-1.0..1.0)).collect();
    tensor(DType::F64, x.dims(), &values)
}

/// Whether a result of the case differs by more than the move of its operands explains.
fn jumped(case: &Case, draw: &mut Draw) -> bool {
    let held: Vec<(&Tensor, Claim)> = case.operands.iter().map(|(t, c)| (t, *c)).collect();
    if !fits(&case.op, &held, draw.n) {
        return false;
    }
    let mut op = case.op.clone();
    op.at_rows(&i64::try_from(draw.n).unwrap().into());
    let operands: Vec<&Tensor> = case.operands.iter().map(|(x, _)| x).collect();
    let other: Vec<Tensor> = operands.iter().map(|x| moved(x, draw)).collect();
    let (Ok(one), Ok(two)) = (op.eval(&operands), op.eval(&other.iter().collect::<Vec<_>>()))
    else {
        return false;
    };
    one.iter().zip(&two).any(|(a, b)| {
        let apart = |(a, b): (f64, f64)| (a - b).abs() > 1e-4 * a.abs().max(1.0);
        a.to_f64().into_iter().zip(b.to_f64()).any(apart)
    })
}

#[test]
fn what_jumps_says_so() {
    let (mut silent, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for (name, generator) in generators() {
        for seed in 0..super::CASES {
            let mut draw = Draw::new(name, seed);
            let Some(case) = generator(&mut draw) else { continue };
            let name = case.op.name();
            if jumped(&case, &mut draw) {
                seen.insert(name);
                if !case.op.jumps() && !POLES.contains(&name) {
                    silent.insert(name);
                }
            }
        }
    }
    assert!(silent.is_empty(), "{silent:?} jump and do not say so");
    for name in ["floor", "sign", "greater", "cast", "arg_max", "hardmax"] {
        assert!(seen.contains(name), "{name} is not seen to jump: {seen:?}");
    }
}
