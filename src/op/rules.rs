//! Parts that the split rules of several operators share.

use smallvec::{SmallVec, smallvec};

use super::{Claims, SplitOperand};
use crate::types::{Claim, Code, Dim, Refusal, Shard, TensorType};

/// The refusal of a split that reaches the operator through `operand`.
pub fn refuse(code: Code, operand: usize, reason: impl Into<String>) -> Refusal {
    Refusal { code, reason: reason.into(), operand }
}

/// `count` results that are whole on every replica: right where no operand is split.
pub fn invariant(count: usize) -> Claims {
    SmallVec::from_elem(Claim::Invariant, count)
}

/// `count` results, each with the claim of the one operand.
pub fn same(operands: &[SplitOperand<'_>], count: usize) -> Claims {
    SmallVec::from_elem(operands.first().map_or(Claim::Invariant, |x| x.claim), count)
}

/// The split operand with the lowest position, if one is split.
pub fn first_shard(operands: &[SplitOperand<'_>]) -> Option<(usize, Shard)> {
    operands.iter().enumerate().find_map(|(i, x)| x.claim.shard().map(|s| (i, s)))
}

/// The rule of an operator that computes each element from the elements at the same place, its operands
/// broadcast to `rank` axes: all split operands are split on the same axis of the result, and what is whole
/// on every replica has size 1 there.
pub fn elementwise(operands: &[SplitOperand<'_>], rank: usize) -> Result<Claims, Refusal> {
    let Some((first, shard)) = first_shard(operands) else { return Ok(invariant(1)) };
    let offset = |x: &SplitOperand<'_>| rank - x.ty.rank().min(rank);
    let aligned =
        |x: &SplitOperand<'_>, s: Shard| Shard { axis: s.axis + offset(x), inner: s.inner };
    let out = operands.get(first).map_or(shard, |x| aligned(x, shard));
    for (i, x) in operands.iter().enumerate() {
        match x.claim.shard() {
            Some(s) if aligned(x, s) == out => {}
            Some(s) => {
                let other = aligned(x, s);
                return Err(refuse(
                    Code::Misaligned,
                    i,
                    format!("meets rows on axis {} with rows on axis {}", other.axis, out.axis),
                ));
            }
            None => {
                let size = out.axis.checked_sub(offset(x)).and_then(|a| x.ty.shape.get(a));
                if let Some(size) = size.filter(|d| d.as_const() != Some(1)) {
                    return Err(refuse(
                        Code::BakedBatch,
                        i,
                        format!("meets a value whose axis {} has a fixed size of {size}", out.axis),
                    ));
                }
            }
        }
    }
    Ok(smallvec![Claim::Shard(out)])
}

/// Fails where operand `i` is split; `reason` says what the operator needs the whole of it for.
pub fn whole(
    operands: &[SplitOperand<'_>],
    i: usize,
    code: Code,
    reason: &str,
) -> Result<(), Refusal> {
    match operands.get(i).map(|x| x.claim) {
        Some(Claim::Shard(_)) => Err(refuse(code, i, reason)),
        _ => Ok(()),
    }
}

/// The axis of `ty` that holds the batch: the only one whose size depends on `N`, of `N * inner` entries.
/// `None` where no size depends on `N`; refused where sizes depend on it in another way.
pub fn batch_axis(ty: &TensorType, operand: usize) -> Result<Option<Shard>, Refusal> {
    let mut sizes = ty.shape.iter().enumerate().filter(|(_, d)| d.depends_on_batch());
    let Some((axis, size)) = sizes.next() else { return Ok(None) };
    let inner = size.exact_div(&Dim::n()).and_then(|d| u64::try_from(d.as_const()?).ok());
    match inner {
        Some(inner) if inner > 0 && sizes.next().is_none() => Ok(Some(Shard { axis, inner })),
        _ => {
            let reason =
                format!("gives {ty}, whose sizes depend on the batch beyond one axis of rows");
            Err(refuse(Code::BakedBatch, operand, reason))
        }
    }
}

/// Whole results on every replica, from operands that are whole there; refused where the size of a
/// result depends on the batch.
pub fn whole_results(results: &[TensorType]) -> Result<Claims, Refusal> {
    match results.iter().find(|ty| ty.shape.iter().any(Dim::depends_on_batch)) {
        None => Ok(invariant(results.len())),
        Some(ty) => {
            let reason = format!("gives {ty} from values that are whole on every replica");
            Err(refuse(Code::BakedBatch, 0, reason))
        }
    }
}

/// The rule of an operator that keeps the row-major order of all elements and gives them another shape.
///
/// Read as digits of the position of an element, the sizes before the batch axis of the operand and those
/// before the batch axis of the result have equal products, so the batch is the same digit in both; the
/// sizes behind it regroup freely, into the batch axis as its inner entries or out of it.
pub fn regroup(operands: &[SplitOperand<'_>], results: &[TensorType]) -> Result<Claims, Refusal> {
    let ([x], [y]) = (operands, results) else { return whole_results(results) };
    let Some(from) = x.claim.shard() else { return whole_results(results) };
    let Some(to) = batch_axis(y, 0)? else {
        let reason = format!("gives a fixed size to the rows of {}", x.ty);
        return Err(refuse(Code::BakedBatch, 0, reason));
    };
    let before = |ty: &TensorType, axis: usize| {
        ty.shape.iter().take(axis).fold(Dim::ONE, |product, d| product * d.clone())
    };
    if before(x.ty, from.axis) == before(y, to.axis) {
        Ok(smallvec![Claim::Shard(to)])
    } else {
        let reason = format!("moves elements between samples, from {} to {y}", x.ty);
        Err(refuse(Code::Reorders, 0, reason))
    }
}
