//! One axis cut into consecutive parts.

use smallvec::SmallVec;

use super::infer::{axis, equal, exactly, known_sizes, result_with_ints, results, sizes};
use super::prelude::*;
use super::strided;

op! {
    /// The parts of its operand along `axis`, one result for each.
    pub struct SplitOp = "split" is MOVES | FOLLOWS_BLOCKS {
        /// The axis that is cut, negative from the end.
        pub axis: i64 = 0,
        /// The sizes of the parts, at least one; together that of the axis.
        pub sizes: Vec<Dim>,
    }
}

/// The known elements of the parts of a known vector.
fn known_parts(ints: &[Dim], sizes: &[Dim]) -> Option<Vec<SmallVec<[Dim; 8]>>> {
    let mut rest = ints;
    let part = |size: &Dim| {
        let (part, after) = rest.split_at_checked(usize::try_from(size.as_const()?).ok()?)?;
        rest = after;
        Some(part.iter().cloned().collect())
    };
    sizes.iter().map(part).collect()
}

impl OpDef for SplitOp {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let axis = axis("axis", self.axis, x.ty.rank())?;
        if self.sizes.is_empty() {
            return Err(OpError::attr("sizes", "there is no part"));
        }
        sizes("sizes", &self.sizes)?;
        let all = self.sizes.iter().fold(Dim::ZERO, |sum, d| sum + d.clone());
        equal("the sizes of all parts and of the axis", &all, &x.ty.shape[axis])?;
        let types = self.sizes.iter().map(|size| {
            let mut ty = x.ty.clone();
            ty.shape[axis] = size.clone();
            ty
        });
        match x.ints.filter(|_| x.ty.rank() == 1).and_then(|ints| known_parts(ints, &self.sizes)) {
            None => results(types),
            Some(parts) => {
                let each = types.zip(parts).map(|(ty, ints)| result_with_ints(ty, Some(ints)));
                Ok(each.collect::<Result<Vec<Results>, _>>()?.into_iter().flatten().collect())
            }
        }
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        match axis("axis", self.axis, at.rank()) {
            Ok(axis) if axis == shard.axis => {
                // A part of whole blocks of rows keeps every row with its replica.
                let part = |size: &Dim| {
                    let outer = shard.blocks(size).filter(|blocks| *blocks > 0)?;
                    Some(Claim::Shard(Shard { outer, ..shard }))
                };
                let parts = self.sizes.iter().map(part).collect::<Option<Claims>>();
                parts.map_or_else(|| at.refuse(Code::Reorders, "cuts the batch into parts"), Ok)
            }
            // A replica would evaluate such a size at its own number of rows.
            _ if self.sizes.iter().any(Dim::depends_on_batch) => {
                let reason = "cuts another axis at places that depend on the batch size";
                at.refuse(Code::BakedBatch, reason)
            }
            _ => at.keep(shard),
        }
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        rules::moved(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let axis = axis("axis", self.axis, x.rank())?;
        let (mut first, mut axes) = (0, strided::axes_of(x.dims()));
        let mut dims = x.dims().to_vec();
        let mut parts = Vec::with_capacity(self.sizes.len());
        for size in known_sizes("the sizes", &self.sizes)? {
            (axes[axis].0, dims[axis]) = (size, size);
            parts.push(strided::taken(x, first, &axes, &dims)?);
            first += size * axes[axis].1.unsigned_abs();
        }
        Ok(parts)
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let like = at.operand(0)?;
        let parts: Vec<Term> = (0..self.sizes.len())
            .map(|i| {
                if let Some(dy) = at.gradient(i) {
                    return Ok(dy);
                }
                let shape = at.shape(at.result(i)?);
                at.zeros(like, &shape)
            })
            .collect::<Result<_, RuleError>>()?;
        let dx = at.concat(&parts, self.axis)?;
        at.give(0, dx)
    }
}
