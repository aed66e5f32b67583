//! Parts that the split rules of several operators share.

use smallvec::SmallVec;

use crate::op::infer::axis;
use crate::op::{Claims, Op, OpError, SplitOperand, Splitting, Traits};
use crate::types::{Claim, Code, Combine, Dim, Refusal, Shard, TensorType};

/// The refusal of a split that reaches the operator through `operand`.
pub(crate) fn refuse(code: Code, operand: usize, reason: impl Into<String>) -> Refusal {
    Refusal { code, reason: reason.into(), operand, hint: None }
}

/// The partial operand with the lowest position, if one is partial.
pub(crate) fn first_partial(operands: &[SplitOperand<'_>]) -> Option<(usize, Combine)> {
    operands.iter().enumerate().find_map(|(i, x)| x.claim.partial().map(|by| (i, by)))
}

impl Splitting<'_> {
    /// The split operand with the lowest position, if one is split.
    pub(in crate::op) fn first(&self) -> Option<(usize, Shard)> {
        first_shard(self.operands)
    }

    /// The position of that operand; 0 where none is split.
    pub(in crate::op) fn carrier(&self) -> usize {
        self.first().map_or(0, |(i, _)| i)
    }

    /// The axes of that operand.
    pub(in crate::op) fn rank(&self) -> usize {
        self.operands.get(self.carrier()).map_or(0, |x| x.ty.rank())
    }

    /// What a check of the attributes gives, which inference made before. A rule may be asked of
    /// operands that inference refuses, and refuses them, too.
    pub(in crate::op) fn checked<T>(&self, found: Result<T, OpError>) -> Result<T, Refusal> {
        let wrong = |e| refuse(Code::NoRule, self.carrier(), format!("has wrong attributes: {e}"));
        found.map_err(wrong)
    }

    /// How operand `i` is split, if it is.
    pub(in crate::op) fn shard(&self, i: usize) -> Option<Shard> {
        self.operands.get(i)?.claim.shard()
    }

    /// The same claim for every result, or for the one whose type is not known.
    #[expect(clippy::unnecessary_wraps, reason = "the last expression of split rules")]
    pub(in crate::op) fn give(&self, claim: Claim) -> Result<Claims, Refusal> {
        Ok(SmallVec::from_elem(claim, self.results.len().max(1)))
    }

    /// Whole results on every replica, from operands that are whole there. Sizes that depend on `N`
    /// are those of the whole batch then.
    pub(in crate::op) fn whole(&self) -> Result<Claims, Refusal> {
        self.give(Claim::Invariant)
    }

    /// Every result is split so.
    pub(in crate::op) fn keep(&self, shard: Shard) -> Result<Claims, Refusal> {
        self.give(Claim::Shard(shard))
    }

    /// Results that are split as `shard` says, where that is on another axis than the operator's
    /// `own`, which is negative from the end; otherwise a refusal.
    pub(in crate::op) fn keep_beside(
        &self,
        own: i64,
        shard: Shard,
        code: Code,
        reason: &str,
    ) -> Result<Claims, Refusal> {
        match axis("axis", own, self.rank()) {
            Ok(own) if own != shard.axis => self.keep(shard),
            _ => self.refuse(code, reason),
        }
    }

    /// Refuses the split of the first operand that is split.
    pub(in crate::op) fn refuse<T>(
        &self,
        code: Code,
        reason: impl Into<String>,
    ) -> Result<T, Refusal> {
        self.refuse_at(self.carrier(), code, reason)
    }

    /// Refuses the split of operand `i`.
    #[expect(clippy::unused_self, reason = "reads like the other refusals")]
    pub(in crate::op) fn refuse_at<T>(
        &self,
        i: usize,
        code: Code,
        reason: impl Into<String>,
    ) -> Result<T, Refusal> {
        Err(refuse(code, i, reason))
    }

    /// Refuses what is partial.
    pub(in crate::op) fn needs_whole<T>(&self) -> Result<T, Refusal> {
        Err(needs_whole(self.operands))
    }

    /// Fails where operand `i` is split; `reason` says what the operator needs the whole of it for.
    pub(in crate::op) fn expect_whole(
        &self,
        i: usize,
        code: Code,
        reason: &str,
    ) -> Result<(), Refusal> {
        if self.shard(i).is_some() { self.refuse_at(i, code, reason) } else { Ok(()) }
    }
}

/// Refuses an operand that each replica holds of its own, or in several components, where the
/// operator cannot use it.
pub(in crate::op) fn own(op: &Op, operands: &[SplitOperand<'_>]) -> Result<(), Refusal> {
    if !op.is(Traits::WIDE_PARTS) && first_partial(operands).is_some_and(|(_, by)| by.is_wide()) {
        return Err(needs_whole(operands));
    }
    match operands.iter().position(|x| x.claim == Claim::Own).filter(|i| !op.takes_own(*i)) {
        None => Ok(()),
        Some(i) => {
            let reason = "takes what each replica holds of its own rows";
            Err(refuse(Code::NotPerSample, i, reason))
        }
    }
}

/// Refuses an operand whose rows lie in several blocks, where the operator's split rule was not
/// written for them.
pub(in crate::op) fn one_block(op: &Op, operands: &[SplitOperand<'_>]) -> Result<(), Refusal> {
    let several = |x: &SplitOperand<'_>| x.claim.shard().filter(|s| s.outer > 1);
    let found = operands.iter().enumerate().find_map(|(i, x)| Some((i, several(x)?)));
    match found {
        Some((i, shard)) if !op.is(Traits::FOLLOWS_BLOCKS) => {
            let reason =
                format!("takes axis {} as one block of rows; it is {}", shard.axis, shard.outer);
            Err(refuse(Code::Reorders, i, reason))
        }
        _ => Ok(()),
    }
}

/// The refusal of a partial operand by an operator that needs it whole.
pub(crate) fn needs_whole(operands: &[SplitOperand<'_>]) -> Refusal {
    let (i, by) = first_partial(operands).unwrap_or((0, Combine::Sum));
    let what = match by {
        Combine::Sum | Combine::WideSum => "the sum",
        Combine::Prod | Combine::WideProd => "the product",
        Combine::Max => "the largest",
        Combine::Min => "the smallest",
        Combine::Lse => "the logarithm of the sum of exponentials",
        Combine::L2 => "the norm",
        Combine::Mean => "the mean",
        Combine::Moments => "the mean and the variance",
    };
    // Beside rows it is a statistic of the batch; without any it is what is left of the batch.
    let rows = first_shard(operands).is_some();
    let code = if rows { Code::BatchStatistics } else { Code::NotPerSample };
    refuse(code, i, format!("uses {what} over all samples of the batch"))
}

/// The rule of an operator that only moves elements of its first operand: a partial one stays as it
/// is.
pub(in crate::op) fn moved(at: &Splitting<'_>) -> Result<Claims, Refusal> {
    match at.operands.split_first() {
        Some((x, rest)) if rest.iter().all(|x| x.claim == Claim::Invariant) => at.give(x.claim),
        _ => at.needs_whole(),
    }
}

/// `count` results that are whole on every replica: right where no operand is split.
pub(crate) fn invariant(count: usize) -> Claims {
    SmallVec::from_elem(Claim::Invariant, count)
}

/// The split operand with the lowest position, if one is split.
pub(crate) fn first_shard(operands: &[SplitOperand<'_>]) -> Option<(usize, Shard)> {
    operands.iter().enumerate().find_map(|(i, x)| x.claim.shard().map(|s| (i, s)))
}

/// The rule of what draws for the elements of its first operand by the numbers of their rows, which
/// the second one has, at the step that the third one is.
pub(in crate::op) fn by_row_numbers(at: &Splitting<'_>) -> Result<Claims, Refusal> {
    at.expect_whole(2, Code::SampleBySample, "takes its step from the samples of the batch")?;
    let others = "pairs rows with the numbers of others";
    match (at.shard(0), at.shard(1)) {
        (Some(s), Some(t)) if s == t && s.axis == 0 => at.keep(s),
        (Some(s), None) if s.axis > 0 => {
            at.refuse(Code::WindowAxis, "counts positions along the batch")
        }
        (Some(_), _) => at.refuse_at(1, Code::Misaligned, others),
        (None, _) => at.refuse_at(0, Code::Misaligned, others),
    }
}

/// The rule of an operator that computes each element from the elements at the same place, its
/// operands broadcast: all split operands are split on the same axis of the result, and what is
/// whole on every replica has size 1 there.
pub(in crate::op) fn elementwise(at: &Splitting<'_>) -> Result<Claims, Refusal> {
    let Some((first, shard)) = at.first() else { return at.whole() };
    let rank = at.results.first().map_or(0, TensorType::rank);
    let offset = |x: &SplitOperand<'_>| rank - x.ty.rank().min(rank);
    let aligned = |x: &SplitOperand<'_>, s: Shard| Shard { axis: s.axis + offset(x), ..s };
    let out = at.operands.get(first).map_or(shard, |x| aligned(x, shard));
    for (i, x) in at.operands.iter().enumerate() {
        match x.claim.shard() {
            Some(s) if aligned(x, s) == out => {}
            Some(s) => {
                let (own, other) = (out.axis, aligned(x, s).axis);
                let reason = format!("meets rows on axis {other} with rows on axis {own}");
                return at.refuse_at(i, Code::Misaligned, reason);
            }
            None => {
                let size = out.axis.checked_sub(offset(x)).and_then(|a| x.ty.shape.get(a));
                if size.is_some_and(Dim::depends_on_batch) {
                    let reason =
                        format!("meets {}, which every replica holds for the whole batch", x.ty);
                    return at.refuse_at(i, Code::GlobalIndex, reason);
                }
                if let Some(size) = size.filter(|d| d.as_const() != Some(1)) {
                    let axis = out.axis;
                    let reason =
                        format!("meets a value whose axis {axis} has a fixed size of {size}");
                    return at.refuse_at(i, Code::BakedBatch, reason);
                }
            }
        }
    }
    at.keep(out)
}

/// The axis of `ty` that holds the batch: the only one whose size depends on `N`, of `N * inner`
/// entries, in one block. `None` where no size depends on `N`; refused where sizes depend on it in
/// another way.
pub(crate) fn batch_axis(ty: &TensorType, operand: usize) -> Result<Option<Shard>, Refusal> {
    let mut sizes = ty.shape.iter().enumerate().filter(|(_, d)| d.depends_on_batch());
    let Some((axis, size)) = sizes.next() else { return Ok(None) };
    let inner = size.exact_div(&Dim::n()).and_then(|d| u64::try_from(d.as_const()?).ok());
    match inner {
        Some(inner) if inner > 0 && sizes.next().is_none() => {
            Ok(Some(Shard { axis, outer: 1, inner }))
        }
        _ => {
            let reason =
                format!("gives {ty}, whose sizes depend on the batch beyond one axis of rows");
            Err(refuse(Code::BakedBatch, operand, reason))
        }
    }
}

/// The refusal of a value of rows in several blocks where it is taken as one: an output, for which
/// the rows of the replicas are joined one after the other.
pub(crate) fn in_blocks(operand: usize, shard: Shard) -> Refusal {
    let Shard { axis, outer, .. } = shard;
    let reason = format!(
        "gives an output of {outer} blocks on axis {axis}, each with rows of every replica"
    );
    refuse(Code::Reorders, operand, reason)
}

/// The rule of an operator that keeps the row-major order of all elements and gives them another
/// shape.
///
/// Read as digits of the position of an element, what stands before the batch in the operand and
/// what does in the result have equal products, so the batch is the same digit in both; the sizes
/// before it and those behind it regroup freely, into the batch axis as its blocks or as its inner
/// entries, or out of it.
pub(in crate::op) fn regroup(at: &Splitting<'_>) -> Result<Claims, Refusal> {
    let ([x], [y]) = (at.operands, at.results) else { return at.whole() };
    let Some(from) = x.claim.shard() else { return at.whole() };
    let Some(to) = batch_axis(y, 0)? else {
        let reason = format!("gives a fixed size to the rows of {}", x.ty);
        return at.refuse(Code::BakedBatch, reason);
    };
    let before = |ty: &TensorType, axis: usize| {
        ty.shape.iter().take(axis).fold(Dim::ONE, |product, d| product * d.clone())
    };
    let blocks = i64::try_from(from.outer).unwrap_or(i64::MAX);
    let (ahead, own) = (before(x.ty, from.axis) * blocks, before(y, to.axis));
    let outer = if ahead == own { Some(Dim::ONE) } else { ahead.exact_div(&own) };
    let outer = outer.and_then(|d| u64::try_from(d.as_const()?).ok());
    if let Some(outer) = outer.filter(|o| *o > 0 && to.inner.is_multiple_of(*o)) {
        at.keep(Shard { outer, inner: to.inner / outer, ..to })
    } else {
        let reason = format!("moves elements between samples, from {} to {y}", x.ty);
        at.refuse(Code::Reorders, reason)
    }
}

#[cfg(test)]
mod tests {
    use crate::op::testing::{assert_claims, random, rng};
    use crate::op::{Binary, Concat, MatMul, Op, Reduce, Scan, Softmax, Unary};
    use crate::types::{Claim, Combine, DType, Tensor, TensorType};

    /// Claims of operands, and the claim of the result where the operator keeps parts.
    type Case = (Op, Vec<Claim>, Option<Claim>);

    /// Rules that are wrong: each is found out by executing it.
    #[test]
    fn wrong_claims_are_found_out() {
        use Combine::{L2, Lse, Max, Mean, Sum};
        let (all, part, rows) = (Claim::Invariant, Claim::Partial, Claim::rows(0));
        let over = |keepdims| (vec![0i64], keepdims);
        let (axes, keepdims) = over(true);
        let mean = Op::from(Reduce::Mean { axes, keepdims });
        let (axes, keepdims) = over(true);
        let sum = Op::from(Reduce::Sum { axes, keepdims });
        let (axes, keepdims) = over(true);
        let squares = Op::from(Reduce::SumSquare { axes, keepdims });
        let wrong: Vec<Case> = vec![
            (mean, vec![rows], Some(part(Sum))),
            (sum.clone(), vec![rows], Some(all)),
            (sum, vec![rows], Some(part(Max))),
            (squares.clone(), vec![rows], Some(part(L2))),
            (squares, vec![rows], Some(part(Lse))),
            (Unary::Relu.into(), vec![part(Sum)], Some(part(Sum))),
            (Unary::Exp.into(), vec![part(Mean)], Some(part(Mean))),
            (Unary::Neg.into(), vec![part(Max)], Some(part(Max))),
            (Binary::Add.into(), vec![part(Sum), all], Some(part(Sum))),
            (Binary::Mul.into(), vec![part(Sum), part(Sum)], Some(part(Sum))),
            (Binary::Div.into(), vec![part(Mean), part(Mean)], Some(part(Mean))),
            (MatMul {}.into(), vec![all, rows], Some(all)),
            (Softmax::Softmax { axis: 0 }.into(), vec![rows], Some(rows)),
            (
                Scan::Sum { axis: 0, exclusive: false, reverse: false }.into(),
                vec![rows],
                Some(rows),
            ),
            (Concat { axis: 0 }.into(), vec![part(Sum), all], Some(part(Sum))),
        ];
        let mut rng = rng(9);
        for (op, claims, claimed) in wrong {
            let whole: Vec<_> =
                claims.iter().map(|_| random(&mut rng, DType::F32, &[5, 5])).collect();
            let operands: Vec<_> = whole.iter().zip(claims).collect();
            let refs: Vec<&Tensor> = whole.iter().collect();
            let types: Vec<TensorType> =
                op.eval(&refs).unwrap().iter().map(Tensor::tensor_type).collect();
            let claimed = claimed.unwrap();
            let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                assert_claims(&op, &operands, &[claimed], &types, 5);
            }));
            assert!(held.is_err(), "{op:?} is not {claimed}");
        }
    }
}
