//! Random cases of every operator: whatever its split rule accepts, the replicas compute.
//!
//! A case is an operator with random attributes and operands of a batch of 0 to 11 rows, on axes of
//! `N` or a multiple of it; [`check_split`] executes its rule on up to five
//! replicas.

mod declared;
mod draw;
mod empty;
mod facts;
mod gradients;
mod jumps;
mod layers;
mod parts;
mod plain;
mod traits;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rand::Rng;

use crate::splits::{assert_claims, check_split, symbolic, tensor};
pub(crate) use declared::{Operator, declared};
use draw::{Case, Draw};
use fanwise::internal::Operand;
use fanwise::op::{self, Op};
use fanwise::types::{Claim, Combine, DType, Dim, Tensor};

/// Cases of each generator.
const CASES: u64 = 150;

/// Operators whose results never have rows, and why, in the order of the list; each has tests of
/// its own.
const NEVER: [(&str, &str); 19] = [
    ("batch_norm_train", "the statistics are those of all samples"),
    ("batch_norm_train_grad", "the statistics are those of all samples"),
    ("max_unpool", "indices number the elements of all samples"),
    ("dynamic_quantize", "the range is that of all samples"),
    ("quantize_range", "its operands are whole"),
    ("first", "its operands are those of the replicas"),
    ("all_reduce", "its operands are those of the replicas"),
    ("all_gather", "its operands are those of the replicas"),
    ("exclusive_scan", "its operands are those of the replicas"),
    ("own_rows", "its operand is whole"),
    ("dims", "sizes of the whole batch are whole"),
    ("constant", "it is whole"),
    ("merge_top_k", "its operands are those of the replicas"),
    ("shape", "sizes of the whole batch are whole"),
    ("size", "sizes of the whole batch are whole"),
    ("range", "its positions are those of the whole batch"),
    ("random_uniform", "its numbers are those of the whole batch"),
    ("random_normal", "its numbers are those of the whole batch"),
    ("external", "nothing is known of it but what is assumed"),
];

/// A generator of cases; where what is drawn fits no operator it gives none.
type Generator = fn(&mut Draw) -> Option<Case>;

/// All generators, by a name for messages.
fn generators() -> impl Iterator<Item = (&'static str, Generator)> {
    plain::GENERATORS.iter().chain(parts::GENERATORS).chain(layers::GENERATORS).copied()
}

/// What was seen of an operator.
#[derive(Default)]
struct Seen {
    /// Cases in which a result has rows or parts.
    split: usize,
    refused: usize,
    /// Cases in which parts are passed on.
    partial: usize,
}

/// Whether the operator takes the operands, for every batch, and their values: many do not take an
/// empty batch.
fn fits(op: &Op, operands: &[(&Tensor, Claim)], n: usize) -> bool {
    let types: Vec<_> = operands.iter().map(|(t, c)| symbolic(t, *c)).collect();
    let known = |(t, c): &(&Tensor, Claim)| {
        let ints = t.to_i64().filter(|_| *c == Claim::Invariant)?;
        Some(ints.into_iter().map(Dim::from).collect())
    };
    let ints: Vec<Option<Vec<Dim>>> = operands.iter().map(known).collect();
    let inputs: Vec<Operand<'_>> =
        types.iter().zip(&ints).map(|(ty, ints)| Operand { ty, ints: ints.as_deref() }).collect();
    let whole: Vec<&Tensor> = operands.iter().map(|(t, _)| *t).collect();
    let mut at = op.clone();
    at.at_rows(&i64::try_from(n).unwrap().into());
    op.infer(&inputs).is_ok() && at.eval(&whole).is_ok()
}

/// The same case where one operand is partial and no other has rows, unless its type has no parts.
fn with_parts(draw: &mut Draw, case: &Case) -> Option<Case> {
    let mut op = case.op.clone();
    op.at_rows(&i64::try_from(draw.n).unwrap().into());
    let all: Vec<Combine> = Combine::ALL.into_iter().filter(|by| !by.is_wide()).collect();
    let by = all[draw.rng.random_range(0..all.len())];
    let mut operands: Vec<_> =
        case.operands.iter().map(|(t, _)| (t.clone(), Claim::Invariant)).collect();
    let at = draw.rng.random_range(0..operands.len().max(1));
    let (x, claim) = operands.get_mut(at)?;
    let exact = matches!(by, Combine::Sum | Combine::Prod | Combine::Max | Combine::Min);
    if x.dtype() == DType::Bool || !x.dtype().is_signed() || !(exact || x.dtype().is_float()) {
        return None;
    }
    let small = x.to_f64().into_iter().map(f64::round);
    let values: Vec<f64> = small.map(|v| if by == Combine::L2 { v.abs() } else { v }).collect();
    *x = tensor(x.dtype(), x.dims(), &values);
    *claim = Claim::Partial(by);
    Some(Case { op, operands })
}

fn check(case: &Case, n: usize, seen: &mut BTreeMap<String, Seen>) {
    let operands: Vec<(&Tensor, Claim)> = case.operands.iter().map(|(t, c)| (t, *c)).collect();
    if !fits(&case.op, &operands, n) {
        return;
    }
    let entry = seen.entry(case.op.name().to_owned()).or_default();
    match check_split(&case.op, &operands, n) {
        Err(_) => entry.refused += 1,
        Ok(claims) => {
            let parts = operands.iter().any(|(_, c)| c.partial().is_some());
            entry.partial += usize::from(parts);
            let rows = |c: &Claim| c.shard().is_some() || c.partial().is_some();
            entry.split += usize::from(!parts && n > 1 && claims.iter().any(rows));
        }
    }
}

#[test]
fn every_rule_is_right_wherever_it_accepts() {
    let (mut seen, mut failed) = (BTreeMap::new(), Vec::new());
    for (name, generator) in generators() {
        for seed in 0..CASES {
            let mut draw = Draw::new(name, seed);
            let Some(case) = generator(&mut draw) else { continue };
            let parts = with_parts(&mut draw, &case);
            for case in [Some(case), parts].into_iter().flatten() {
                let run = AssertUnwindSafe(|| check(&case, draw.n, &mut seen));
                if catch_unwind(run).is_err() {
                    failed.push(format!("{name}, seed {seed}, {} rows: {case}", draw.n));
                }
            }
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
    let split: BTreeSet<&str> =
        seen.iter().filter(|(_, s)| s.split > 0).map(|(name, _)| name.as_str()).collect();
    let without: Vec<&str> = Op::names().filter(|name| !split.contains(name)).collect();
    assert_eq!(without, NEVER.map(|(name, _)| name));
    let total = |of: fn(&Seen) -> usize| seen.values().map(of).sum::<usize>();
    let (accepted, refused, partial) =
        (total(|s| s.split), total(|s| s.refused), total(|s| s.partial));
    assert!(accepted > 3000 && refused > 3000 && partial > 800, "{accepted} {refused} {partial}");
}

#[test]
fn a_wrong_claim_is_found_out() {
    // The running sum of a shard is not its rows of the running sum.
    let x = tensor(DType::F32, &[5], &[1.0, 2.0, 3.0, 4.0, 5.0]);
    let op = Op::read("cumsum", vec![("axis".to_owned(), op::Attr::Int(0.into()))]).unwrap();
    let rows = Claim::rows(0);
    let types = [symbolic(&x, rows)];
    let check = || assert_claims(&op, &[(&x, rows)], &[rows], &types, 5);
    assert!(catch_unwind(AssertUnwindSafe(check)).is_err());
}
