//! Gradient rules against finite differences in `f64`.
//!
//! A rule is evaluated operator by operator as it is written. The loss is the sum of all
//! floating-point results, each element with a random weight; its slope along an element of an
//! operand is measured on both sides, and where the two disagree (at a corner or a step) the
//! element is left out.

use std::collections::BTreeMap;

use rand::Rng;
use smallvec::SmallVec;

use super::draw::{Case, Draw};
use super::generators;
use crate::splits::tensor;
use fanwise::internal::Operand;
use fanwise::internal::{Backward, Emit, Gradient, RuleError, Term};
use fanwise::op::{Op, Reduction, Scatter};
use fanwise::types::{DType, Tensor, TensorType};

/// The distance of differences.
const STEP: f64 = 1e-6;

/// Operators no element of whose operands has a gradient to compare, in the order of the list:
/// those whose results are no floats or constant between their steps, that take no floats, stand
/// between replicas, or are gradients.
const WITHOUT: [&str; 60] = [
    "batch_norm_train_grad",
    "batch_moments",
    "batch_norm_apply",
    "batch_norm_sums",
    "batch_norm_apply_grad",
    "conv_weight_grad",
    "max_pool_grad",
    "average_pool_grad",
    "grid_sample_grad",
    "sign",
    "floor",
    "ceil",
    "round",
    "equal",
    "less",
    "less_or_equal",
    "greater",
    "greater_or_equal",
    "not",
    "and",
    "or",
    "xor",
    "bitwise_not",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bit_shift",
    "is_nan",
    "is_inf",
    "bit_cast",
    "quantize_linear",
    "dynamic_quantize",
    "quantize_range",
    "reduce_wide_sum",
    "reduce_wide_prod",
    "narrow",
    "arg_max",
    "arg_min",
    "tree_ensemble",
    "pair_probabilities",
    "hardmax",
    "row_uniform",
    "row_normal",
    "stop_gradient",
    "first",
    "all_reduce",
    "all_gather",
    "exclusive_scan",
    "own_rows",
    "dims",
    "constant",
    "merge_top_k",
    "shape",
    "size",
    "constant_of_shape",
    "range",
    "random_uniform",
    "random_normal",
    "recurrent_grad",
    "external",
];

/// What a rule writes, evaluated at once.
struct Eager {
    values: Vec<(Tensor, TensorType)>,
}

impl Eager {
    fn add(&mut self, value: Tensor) -> Term {
        let ty = value.tensor_type();
        self.values.push((value, ty));
        Term(u32::try_from(self.values.len() - 1).unwrap())
    }

    fn get(&self, term: Term) -> &Tensor {
        &self.values[term.0 as usize].0
    }
}

impl Emit for Eager {
    type Value = Term;
    type Error = RuleError;

    fn ty(&self, term: Term) -> &TensorType {
        &self.values[term.0 as usize].1
    }

    fn emit(&mut self, op: Op, operands: &[Term]) -> Result<SmallVec<[Term; 2]>, RuleError> {
        let types: Vec<&TensorType> = operands.iter().map(|t| self.ty(*t)).collect();
        let operands: Vec<&Tensor> = operands.iter().map(|t| self.get(*t)).collect();
        let inputs: Vec<Operand<'_>> = types.iter().map(|ty| Operand { ty, ints: None }).collect();
        op.infer(&inputs)?;
        let results = op.eval(&operands)?;
        Ok(results.into_iter().map(|value| self.add(value)).collect())
    }
}

/// The operands with every float in `f64`, and an operator for them.
fn wide(case: &Case, n: usize) -> (Op, Vec<Tensor>) {
    let mut op = case.op.clone();
    op.at_rows(&i64::try_from(n).unwrap().into());
    let operands = case.operands.iter().map(|(t, _)| {
        if t.dtype().is_float() { tensor(DType::F64, t.dims(), &t.to_f64()) } else { t.clone() }
    });
    (op, operands.collect())
}

fn results(op: &Op, operands: &[Tensor]) -> Option<Vec<Tensor>> {
    let types: Vec<TensorType> = operands.iter().map(Tensor::tensor_type).collect();
    let inputs: Vec<Operand<'_>> = types.iter().map(|ty| Operand { ty, ints: None }).collect();
    op.infer(&inputs).ok()?;
    op.eval(&operands.iter().collect::<Vec<_>>()).ok()
}

/// Whether gradients may come from every result.
fn all_used(op: &Op) -> bool {
    matches!(op.name(), "split" | "lstm" | "gru" | "rnn" | "layer_norm")
}

/// The sum of the products of results and weights.
fn loss(op: &Op, operands: &[Tensor], weights: &[Option<Tensor>]) -> f64 {
    let all = results(op, operands).unwrap_or_default();
    let dot = |(y, w): (&Tensor, &Option<Tensor>)| {
        let Some(w) = w else { return 0.0 };
        let terms = y.to_f64().into_iter().zip(w.to_f64()).filter(|(_, w)| *w != 0.0);
        terms.map(|(y, w)| y * w).sum::<f64>()
    };
    all.iter().zip(weights).map(dot).sum()
}

/// The slopes along element `at` of operand `i` on both sides of it.
fn slopes(
    op: &Op,
    operands: &[Tensor],
    weights: &[Option<Tensor>],
    (i, at): (usize, usize),
) -> [f64; 2] {
    let moved = |by: f64| {
        let mut operands = operands.to_vec();
        operands[i].as_mut_slice::<f64>()[at] += by;
        loss(op, &operands, weights)
    };
    let (below, here, above) = (moved(-STEP), moved(0.0), moved(STEP));
    [(here - below) / STEP, (above - here) / STEP]
}

/// The gradients that the rule gives the operands.
fn gradients(
    op: &Op,
    operands: &[Tensor],
    results: &[Tensor],
    weights: &[Option<Tensor>],
) -> Result<Vec<Option<Tensor>>, RuleError> {
    let mut eager = Eager { values: Vec::new() };
    let terms: Vec<Term> = operands.iter().map(|t| eager.add(t.clone())).collect();
    let ys: Vec<Term> = results.iter().map(|t| eager.add(t.clone())).collect();
    let dys: Vec<Option<Term>> =
        weights.iter().map(|w| w.as_ref().map(|w| eager.add(w.clone()))).collect();
    let wanted: Vec<bool> = operands.iter().map(|t| t.dtype().is_float()).collect();
    let mut at = Backward::new(&mut eager, &terms, &ys, &dys, &wanted);
    op.backward(&mut at)?;
    let given = at.finish();
    Ok(given.iter().map(|g| g.map(|g| eager.get(g).clone())).collect())
}

/// Holds the rule against differences; gives the number of elements compared, or that the rule
/// offers nothing here.
fn check(draw: &mut Draw, case: &Case) -> Result<Option<usize>, String> {
    let (op, operands) = wide(case, draw.n);
    let Some(ys) = results(&op, &operands) else { return Ok(None) };
    let weight = |y: &Tensor, rng: &mut rand_chacha::ChaCha8Rng| {
        // What is no number has no slope.
        let known = |y: &f64| if y.is_finite() { rng.random_range(-1.0..1.0) } else { 0.0 };
        let values: Vec<f64> = y.to_f64().iter().map(known).collect();
        (y.dtype() == DType::F64).then(|| tensor(DType::F64, y.dims(), &values))
    };
    // Of several results the first is used, of some operators the others cannot be.
    let weights: Vec<Option<Tensor>> = ys
        .iter()
        .enumerate()
        .map(|(i, y)| weight(y, &mut draw.rng).filter(|_| i == 0 || all_used(&op)))
        .collect();
    if weights.iter().all(Option::is_none) || ys[0].is_empty() {
        return Ok(None);
    }
    let given = match gradients(&op, &operands, &ys, &weights) {
        Ok(given) => given,
        Err(RuleError::Undefined(_)) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let unknown = ys.iter().any(|y| y.to_f64().iter().any(|x| !x.is_finite()));
    let mut compared = 0;
    for (i, x) in operands.iter().enumerate().filter(|(_, x)| x.dtype() == DType::F64) {
        let zeros = vec![0.0; x.len()];
        let given = match &given[i] {
            Some(given) if given.dims() != x.dims() => {
                return Err(format!("operand {i}: {:?} instead of {:?}", given.dims(), x.dims()));
            }
            Some(given) => given.to_f64(),
            None => zeros,
        };
        for _ in 0..x.len().min(3) {
            let at = draw.rng.random_range(0..x.len());
            let [below, above] = slopes(&op, &operands, &weights, (i, at));
            let (slope, size) = (f64::midpoint(below, above), below.abs().max(1.0));
            // A corner, or a step; what is no number near the element has no slope either.
            let smooth = (above - below).abs() <= 1e-4 * size && slope.abs() < 1e4;
            if !smooth || (unknown && !given[at].is_finite()) {
                continue;
            }
            let error = (slope - given[at]).abs();
            // What rounding of the loss adds to a difference.
            let noise = loss(&op, &operands, &weights).abs() * 1e-8;
            if error.is_nan() || error > 2e-5 * size + noise {
                return Err(format!("operand {i}, element {at}: {} instead of {slope}", given[at]));
            }
            compared += 1;
        }
    }
    Ok(Some(compared))
}

#[test]
fn every_rule_agrees_with_differences() {
    let (mut seen, mut failed): (BTreeMap<&str, usize>, Vec<String>) = Default::default();
    for (name, generator) in generators() {
        for seed in 0..super::CASES {
            let mut draw = Draw::new(name, seed);
            let Some(case) = generator(&mut draw) else { continue };
            if case.op.gradient() != Gradient::Defined {
                continue;
            }
            match check(&mut draw, &case) {
                Ok(compared) => *seen.entry(case.op.name()).or_default() += compared.unwrap_or(0),
                Err(error) => {
                    let op = case.op.name();
                    if failed.iter().filter(|f: &&String| f.starts_with(op)).count() < 3 {
                        failed.push(format!("{op} by {name}, seed {seed}: {error}\n  {case}"));
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    let without: Vec<&str> =
        Op::names().filter(|name| seen.get(name).copied().unwrap_or(0) == 0).collect();
    assert_eq!(without, WITHOUT);
}

/// Of 3 at 0 and the updates 3, 3 and 1 of it, three share; at 1 the update wins, at 2 the element.
#[test]
fn equal_elements_share_what_a_scatter_gives() {
    let indices = Tensor::new(&[5], &[0i64, -3, 0, 1, 2]).unwrap();
    for (reduction, sign) in [(Reduction::Max, 1.0), (Reduction::Min, -1.0)] {
        let list = |values: &[f64]| {
            let values: Vec<f64> = values.iter().map(|x| x * sign).collect();
            tensor(DType::F64, &[values.len()], &values)
        };
        let op: Op = Scatter::Elements { axis: 0, reduction }.into();
        let x = list(&[3.0, 0.0, 5.0]);
        let operands = [x, indices.clone(), list(&[3.0, 3.0, 1.0, 1.0, 4.0])];
        let ys = results(&op, &operands).unwrap();
        let dy = [Some(tensor(DType::F64, &[3], &[6.0, 2.0, 4.0]))];
        let given = gradients(&op, &operands, &ys, &dy).unwrap();
        let of = |i: usize| given[i].as_ref().unwrap().to_f64();
        assert_eq!((of(0), of(2)), (vec![2.0, 0.0, 4.0], vec![2.0, 2.0, 0.0, 2.0, 0.0]));
    }
}

/// Of 2 at 0 and its updates 3, 0 and 5 the zero alone has a gradient, of 7 at 1 and its two zeros
/// nothing; at 2 there is no zero, at 3 the element is one, at 4 nothing is written.
#[test]
fn each_factor_of_a_scatter_has_the_product_of_the_others() {
    let list = |values: &[f64]| tensor(DType::F64, &[values.len()], values);
    let indices = [0i64, 1, 2, -5, 0, 3, 1, 2];
    let x = list(&[2.0, 7.0, 4.0, 0.0, 6.0]);
    let updates = list(&[3.0, 0.0, -2.0, 0.0, 5.0, 8.0, 0.0, 0.5]);
    let dy = list(&[1.0, 2.0, 3.0, 4.0, 5.0]);
    let rows = Tensor::new(&[8, 1], &indices).unwrap();
    for (op, indices) in [
        (
            Scatter::Elements { axis: 0, reduction: Reduction::Mul },
            Tensor::new(&[8], &indices).unwrap(),
        ),
        (Scatter::Nd { reduction: Reduction::Mul }, rows),
    ] {
        let (op, operands) = (Op::from(op), [x.clone(), indices, updates.clone()]);
        let ys = results(&op, &operands).unwrap();
        let given = gradients(&op, &operands, &ys, &[Some(dy.clone())]).unwrap();
        let of = |i: usize| given[i].as_ref().unwrap().to_f64();
        assert_eq!(of(0), [0.0, 0.0, -3.0, 32.0, 5.0]);
        assert_eq!(of(2), [0.0, 0.0, 6.0, 30.0, 0.0, 0.0, 0.0, -24.0]);
    }
}
