//! What operators state of themselves holds where it is executed.

use std::collections::BTreeSet;

use super::draw::{Case, Draw};
use super::{fits, generators};
use crate::splits::tensor;
use fanwise::internal::{Interval, Traits, converted};
use fanwise::internal::{Known, OpDef};
use fanwise::op::Constant;
use fanwise::types::{DType, Tensor};

/// Cases of each generator.
const CASES: u64 = 40;

/// The operands and results of a case; none where the operator does not take them.
pub(super) fn evaluated(case: &mut Case, rows: usize) -> Option<(Vec<Tensor>, Vec<Tensor>)> {
    let held: Vec<_> = case.operands.iter().map(|(x, claim)| (x, *claim)).collect();
    if !fits(&case.op, &held, rows) {
        return None;
    }
    case.op.at_rows(&i64::try_from(rows).unwrap().into());
    let operands: Vec<Tensor> = case.operands.iter().map(|(x, _)| x.clone()).collect();
    let results = case.op.eval(&operands.iter().collect::<Vec<_>>()).ok()?;
    Some((operands, results))
}

/// The bits of each element.
pub(super) fn elements(tensor: &Tensor) -> Vec<&[u8]> {
    tensor.bytes().chunks_exact(tensor.dtype().bytes()).collect()
}

/// What is wrong with the traits of a case, if anything is.
fn wrong(case: &Case, operands: &[Tensor], results: &[Tensor]) -> Option<&'static str> {
    let traits = case.op.traits();
    if traits.contains(Traits::MOVES) {
        let known: BTreeSet<&[u8]> = operands.iter().flat_map(elements).collect();
        if !results.iter().flat_map(elements).all(|x| known.contains(x)) {
            return Some("an element is none of the operands'");
        }
    }
    let sorted = |tensor: &Tensor| {
        let mut all: Vec<Vec<u8>> = elements(tensor).into_iter().map(<[u8]>::to_vec).collect();
        all.sort_unstable();
        all
    };
    if traits.contains(Traits::PERMUTES)
        && (results.len() != 1 || sorted(&results[0]) != sorted(&operands[0]))
    {
        return Some("the elements are not those of the operand");
    }
    if traits.contains(Traits::VIEW) && results[0].bytes() != operands[0].bytes() {
        return Some("the elements are in another order");
    }
    if traits.contains(Traits::NEGATES) {
        let negated = operands[0].to_f64().into_iter().map(|x| -x);
        if operands[0].dtype().is_float() && !negated.eq(results[0].to_f64()) {
            return Some("the elements are not those of the operand with the other sign");
        }
    }
    if traits.contains(Traits::CONVERTS) {
        let holds = results[0].dtype() == DType::F64 && operands[0].dtype().is_float();
        let same = operands[0].to_f64() == results[0].to_f64();
        if operands[0].dims() != results[0].dims() || (holds && !same) {
            return Some("the elements are not those of the operand in another type");
        }
    }
    let largest = operands.iter().map(|x| x.dims().len()).max();
    if traits.contains(Traits::ELEMENTWISE) && largest != Some(results[0].dims().len()) {
        return Some("the result has not the axes of the operands");
    }
    None
}

/// What is wrong with how the sums of a case are said to be made, if anything is.
fn wrong_sums(case: &Case, operands: &[Tensor], results: &[Tensor]) -> Option<&'static str> {
    let types: Vec<_> = operands.iter().map(Tensor::tensor_type).collect();
    if let Some((wide, narrow)) = case.op.unrounded(&types.iter().collect::<Vec<_>>()) {
        let parts = wide.eval(&operands.iter().collect::<Vec<_>>()).unwrap();
        let rounded = narrow.eval(&parts.iter().collect::<Vec<_>>()).unwrap();
        let rounded = converted(&rounded[0], results[0].dtype()).unwrap();
        if elements(&rounded) != elements(&results[0]) {
            return Some("its parts, rounded, are not its result");
        }
    }
    let of = case.op.of_magnitudes().filter(|of| *of == case.op)?;
    let sizes = operands.iter().map(|x| {
        let sizes: Vec<f64> = x.to_f64().into_iter().map(f64::abs).collect();
        if x.dtype().is_float() { tensor(x.dtype(), x.dims(), &sizes) } else { x.clone() }
    });
    let sizes: Vec<Tensor> = sizes.collect();
    let sizes = of.eval(&sizes.iter().collect::<Vec<_>>()).unwrap();
    let pairs = results[0].to_f64().into_iter().zip(sizes[0].to_f64());
    let mut pairs = pairs.filter(|(y, size)| y.is_finite() && size.is_finite());
    let float = results[0].dtype().is_float();
    let larger = pairs.any(|(y, size)| y.abs() > size * 1.01 + 1e-3);
    (float && larger).then_some("a result is more than the magnitudes of its terms")
}

/// The integers that the elements of a tensor lie between, if all are integers.
fn interval(tensor: &Tensor) -> Option<Interval> {
    let whole = tensor.to_f64().iter().all(|x| x.fract() == 0.0);
    whole.then(|| Constant { value: tensor.clone() }.interval(tensor.dtype(), &[])).flatten()
}

/// The operands of a case, rounded to integers.
fn rounded(case: &mut Case) {
    for (x, _) in case.operands.iter_mut().filter(|(x, _)| x.dtype().is_float()) {
        let values: Vec<f64> = x.to_f64().into_iter().map(f64::round).collect();
        *x = tensor(x.dtype(), x.dims(), &values);
    }
}

/// Whether the results lie in the interval that follows from those of the operands.
fn is_inside(case: &Case, operands: &[Tensor], results: &[Tensor]) -> bool {
    let known: Vec<Option<Interval>> = operands.iter().map(interval).collect();
    results.iter().all(|result| {
        let Some(told) = case.op.interval(result.dtype(), &known) else { return true };
        let inside = |x: &f64| told.low as f64 <= *x && *x <= told.high as f64;
        result.to_f64().iter().all(inside)
    })
}

/// Whether the first result is the operand that it is said to be.
fn is_same(case: &Case, operands: &[Tensor], results: &[Tensor]) -> bool {
    let types: Vec<_> = operands.iter().map(Tensor::tensor_type).collect();
    let known: Vec<Known<'_>> =
        types.iter().zip(operands).map(|(ty, x)| Known { ty, value: Some(x) }).collect();
    let told = case.op.same_as(&known, &results[0].tensor_type()).map(|i| &operands[i]);
    told.is_none_or(|x| x.tensor_type() != results[0].tensor_type() || *x == results[0])
}

#[test]
fn what_operators_state_is_true() {
    let (mut failed, mut told) = (Vec::new(), [BTreeSet::new(), BTreeSet::new()]);
    for (name, generator) in generators() {
        for seed in 0..CASES {
            let mut draw = Draw::new(name, seed);
            let Some(mut case) = generator(&mut draw) else { continue };
            rounded(&mut case);
            let Some((operands, results)) = evaluated(&mut case, draw.n) else { continue };
            if results.iter().any(|x| x.bytes().is_empty()) {
                continue;
            }
            let error = wrong(&case, &operands, &results)
                .or(wrong_sums(&case, &operands, &results))
                .or((!is_inside(&case, &operands, &results)).then_some("its interval is wrong"))
                .or((!is_same(&case, &operands, &results)).then_some("it is not an identity"));
            failed.extend(error.map(|error| format!("{name}, seed {seed}: {error}: {case}")));
            let known: Vec<_> = operands.iter().map(interval).collect();
            if case.op.interval(results[0].dtype(), &known).is_some() {
                told[0].insert(case.op.name());
            }
            if case.op.is(Traits::MOVES) {
                told[1].insert(case.op.name());
            }
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
    for name in ["add", "cast", "less", "and", "where", "abs", "transpose", "concat"] {
        assert!(told[0].contains(name), "{name} states no interval");
    }
    for name in ["slice", "reshape", "split", "tile", "reverse", "expand"] {
        assert!(told[1].contains(name), "{name} is not seen to move elements");
    }
}
