//! Parts that the split rules of several operators share.

use smallvec::{SmallVec, smallvec};

use super::{Claims, SplitOperand};
use crate::types::{Claim, Code, Refusal, Shard};

/// The refusal of a split that reaches the operator through `operand`.
pub fn refuse(code: Code, operand: usize, reason: impl Into<String>) -> Refusal {
    Refusal { code, reason: reason.into(), operand }
}

/// `count` results that are whole on every replica: right where no operand is split.
pub fn invariant(count: usize) -> Claims {
    SmallVec::from_elem(Claim::Invariant, count)
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
