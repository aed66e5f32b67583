//! Facts about operators, inferred from execution: what is stated holds, and what always holds is
//! stated.

use std::collections::{BTreeMap, BTreeSet};

use super::draw::Draw;
use super::generators;
use super::traits::{elements, evaluated};
use crate::splits::tensor;
use fanwise::internal::Traits;
use fanwise::op::Op;
use fanwise::types::Tensor;

/// Cases of each generator.
const CASES: u64 = 40;

/// Elements of each operand that are changed.
const CHANGES: usize = 4;

/// The facts that execution shows, which an operator states if it always shows them.
const FACTS: [(&str, Traits); 4] = [
    ("MOVES", Traits::MOVES),
    ("PERMUTES", Traits::PERMUTES),
    ("VIEW", Traits::VIEW),
    ("ELEMENTWISE", Traits::ELEMENTWISE),
];

/// Facts that an operator shows and does not state, with the reason.
const SILENT: &[(&str, &str, &str)] = &[
    ("bitwise_or", "MOVES", "chance: of few small integers it gives one of them"),
    ("add_loss", "ELEMENTWISE", MEANS_MORE),
    ("add_loss", "MOVES", MEANS_MORE),
    ("add_loss", "PERMUTES", MEANS_MORE),
    ("add_loss", "VIEW", MEANS_MORE),
    ("copy", "ELEMENTWISE", VIEWS),
    ("counted", "MOVES", MEANS_MORE),
    ("counted", "PERMUTES", MEANS_MORE),
    ("counted", "VIEW", MEANS_MORE),
    ("dropout", "ELEMENTWISE", VIEWS),
    ("gather", "MOVES", INDICES),
    ("gather_elements", "MOVES", INDICES),
    ("gather_nd", "MOVES", INDICES),
    ("identity", "ELEMENTWISE", VIEWS),
    ("in_training", "ELEMENTWISE", MEANS_MORE),
    ("in_training", "MOVES", MEANS_MORE),
    ("in_training", "PERMUTES", MEANS_MORE),
    ("in_training", "VIEW", MEANS_MORE),
    ("max", "MOVES", CHOICE),
    ("min", "MOVES", CHOICE),
    ("move_variable", "ELEMENTWISE", MEANS_MORE),
    ("move_variable", "MOVES", MEANS_MORE),
    ("move_variable", "PERMUTES", MEANS_MORE),
    ("move_variable", "VIEW", MEANS_MORE),
    ("reverse_sequence", "MOVES", INDICES),
    ("reverse_sequence", "PERMUTES", INDICES),
    ("stop_gradient", "ELEMENTWISE", MEANS_MORE),
    ("stop_gradient", "MOVES", MEANS_MORE),
    ("stop_gradient", "PERMUTES", MEANS_MORE),
    ("stop_gradient", "VIEW", MEANS_MORE),
    ("trilu", "ELEMENTWISE", "whether an element stays depends on its place"),
    ("where", "MOVES", CHOICE),
];

const VIEWS: &str = "a view is followed as such; as elementwise it would be ordered as a kernel";
const INDICES: &str = "bounds of the result are carried to all operands, also to the indices";
const MEANS_MORE: &str = "training gives it a meaning, so that nothing may take it for its operand";
const CHOICE: &str = "its interval is narrower, or carries nothing to the condition";

/// The shape that the operands have when they are broadcast.
fn broadcast(operands: &[Tensor]) -> Vec<usize> {
    let rank = operands.iter().map(|x| x.dims().len()).max().unwrap_or(0);
    let size = |axis: usize, x: &Tensor| {
        let before = rank - x.dims().len();
        axis.checked_sub(before).map_or(1, |axis| x.dims()[axis])
    };
    let widest = |axis| operands.iter().map(|x| size(axis, x)).max().unwrap_or(1);
    (0..rank).map(widest).collect()
}

/// The number of the element of an operand that is at the place `at` of a result of these sizes.
fn source(mut at: usize, dims: &[usize], operand: &[usize]) -> usize {
    let (mut from, mut stride) = (0, 1);
    for (back, size) in dims.iter().rev().enumerate() {
        if let Some(axis) = operand.len().checked_sub(back + 1) {
            let own = operand[axis];
            from += if own == 1 { 0 } else { at % size * stride };
            stride *= own;
        }
        at /= size;
    }
    from
}

/// Whether one element of an operand changes the results at its place alone.
fn is_elementwise(op: &Op, operands: &[Tensor], results: &[Tensor]) -> bool {
    let dims = broadcast(operands);
    if operands.is_empty() || results.iter().any(|x| x.dims() != dims) {
        return false;
    }
    operands.iter().enumerate().all(|(slot, x)| {
        let values = x.to_f64();
        let step = values.len().div_ceil(CHANGES).max(1);
        (0..values.len()).step_by(step).all(|at| {
            let Some(other) = values.iter().find(|y| y.to_bits() != values[at].to_bits()) else {
                return true;
            };
            let mut changed = values.clone();
            changed[at] = *other;
            let mut given = operands.to_vec();
            given[slot] = tensor(x.dtype(), x.dims(), &changed);
            let Ok(after) = op.eval(&given.iter().collect::<Vec<_>>()) else { return true };
            let same = |(before, after): (&Tensor, &Tensor)| {
                let pairs = elements(before).into_iter().zip(elements(after));
                let mut aside =
                    pairs.enumerate().filter(|(place, _)| source(*place, &dims, x.dims()) != at);
                before.dims() == after.dims() && aside.all(|(_, (a, b))| a == b)
            };
            results.iter().zip(&after).all(same)
        })
    })
}

/// The facts that a case shows.
fn shown(op: &Op, operands: &[Tensor], results: &[Tensor]) -> Traits {
    let mut shown = Traits::empty();
    let is_moved = |y: &Tensor| {
        let same = operands.iter().filter(|x| x.dtype() == y.dtype());
        let known: BTreeSet<&[u8]> = same.flat_map(elements).collect();
        elements(y).into_iter().all(|element| known.contains(element))
    };
    shown.set(Traits::MOVES, results.iter().all(is_moved));
    if let ([x, ..], [y]) = (operands, results) {
        let sorted = |x| {
            let mut all = elements(x);
            all.sort_unstable();
            all
        };
        if x.dtype() == y.dtype() && sorted(x) == sorted(y) {
            shown |= Traits::PERMUTES;
            if x.bytes() == y.bytes() {
                shown |= Traits::VIEW;
            }
        }
    }
    shown.set(Traits::ELEMENTWISE, is_elementwise(op, operands, results));
    shown
}

/// Whether a second evaluation gives the same.
fn repeats(op: &Op, operands: &[Tensor], results: &[Tensor]) -> bool {
    let again = op.eval(&operands.iter().collect::<Vec<_>>()).unwrap();
    again.iter().zip(results).all(|(a, b)| a.bytes() == b.bytes())
}

/// Whether the case tells facts apart: one element has no order.
fn tells(results: &[Tensor]) -> bool {
    results.iter().all(|x| elements(x).into_iter().collect::<BTreeSet<_>>().len() > 2)
}

#[test]
fn what_operators_always_show_they_state() {
    let (mut failed, mut always) = (Vec::new(), BTreeMap::new());
    for (name, generator) in generators() {
        for seed in 0..CASES {
            let mut draw = Draw::new(name, seed);
            let Some(mut case) = generator(&mut draw) else { continue };
            let Some((operands, results)) = evaluated(&mut case, draw.n) else { continue };
            if results.iter().any(|x| x.bytes().is_empty()) {
                continue;
            }
            let (stated, shows) = (case.op.traits(), shown(&case.op, &operands, &results));
            for (fact, bits) in FACTS {
                if stated.contains(bits) && !shows.contains(bits) {
                    failed.push(format!("{name}, seed {seed}: not {fact}: {case}"));
                }
            }
            if !stated.contains(Traits::UNREPEATABLE) && !repeats(&case.op, &operands, &results) {
                failed.push(format!("{name}, seed {seed}: another result: {case}"));
            }
            if tells(&results) {
                let all = (Traits::all(), Traits::empty(), 0);
                let seen = always.entry(case.op.name()).or_insert(all);
                *seen = (seen.0 & shows, seen.1 | stated, seen.2 + 1);
            }
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
    let silent = always.iter().filter(|(_, (.., cases))| *cases > 2).flat_map(|(op, seen)| {
        let silent = |bits: Traits| seen.0.contains(bits) && !seen.1.contains(bits);
        FACTS.into_iter().filter(move |(_, bits)| silent(*bits)).map(|(fact, _)| (*op, fact))
    });
    let listed: BTreeSet<_> = SILENT.iter().map(|(op, fact, _)| (*op, *fact)).collect();
    assert_eq!(silent.collect::<BTreeSet<_>>(), listed, "shown, and not stated");
}
