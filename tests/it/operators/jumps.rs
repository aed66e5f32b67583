//! Which operators turn a rounding of their floats into another result.

use std::collections::BTreeSet;

use rand::Rng;

use super::draw::{Case, Draw};
use super::{fits, generators};
use crate::splits::tensor;
use fanwise::types::{Claim, DType, Tensor};

/// Operators that grow without bounds near some numbers, but do not jump at others; and those whose
/// digits jump together with their powers of 2.
const POLES: [&str; 7] =
    ["reciprocal", "div", "tan", "pow", "lp_norm", "reduce_wide_prod", "narrow"];

/// The operand as `f64` if it is a float, of halves, at which many operators jump.
fn halves(x: &Tensor) -> Tensor {
    if !x.dtype().is_float() {
        return x.clone();
    }
    let values: Vec<f64> = x.to_f64().iter().map(|x| (2.0 * x).round() / 2.0).collect();
    tensor(DType::F64, x.dims(), &values)
}

/// The operand with each float a little aside.
fn moved(x: &Tensor, draw: &mut Draw) -> Tensor {
    if !x.dtype().is_float() {
        return x.clone();
    }
    let values: Vec<f64> =
        x.to_f64().iter().map(|x| x + 1e-10 * draw.rng.random_range(-1.0..1.0)).collect();
    tensor(DType::F64, x.dims(), &values)
}

/// Whether a result of the case differs by more than the move of its operands explains.
fn jumped(case: &Case, draw: &mut Draw) -> bool {
    let one: Vec<Tensor> = case.operands.iter().map(|(x, _)| halves(x)).collect();
    let held: Vec<(&Tensor, Claim)> =
        one.iter().zip(&case.operands).map(|(x, (_, claim))| (x, *claim)).collect();
    if !fits(&case.op, &held, draw.n) {
        return false;
    }
    let mut op = case.op.clone();
    op.at_rows(&i64::try_from(draw.n).unwrap().into());
    let two: Vec<Tensor> = one.iter().map(|x| moved(x, draw)).collect();
    let eval = |operands: &[Tensor]| op.eval(&operands.iter().collect::<Vec<_>>());
    let (Ok(one), Ok(two)) = (eval(&one), eval(&two)) else { return false };
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
