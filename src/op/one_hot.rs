//! Numbers as vectors with one element that is different.

use super::infer::{axis, dtype, exactly, known_sizes, result, sizes};
use super::prelude::*;
use crate::types::invariant::{int, invariant};

op! {
    /// One-hot encoding: for each element of the first operand, an integer, a vector of `depth`
    /// elements along a new axis: the second element of the second operand at that position, the
    /// first one elsewhere. Negative numbers count from the end; numbers without a position give a
    /// vector of first elements.
    pub struct OneHot = "one_hot" is FOLLOWS_BLOCKS | JUMPS {
        /// The new axis among those of the result, negative from the end.
        pub axis: i64 = -1,
        /// The size of the new axis.
        pub depth: Dim,
    }
}

impl OneHot {
    fn own(&self, rank: usize) -> Result<usize, OpError> {
        axis("axis", self.axis, rank + 1)
    }
}

impl OpDef for OneHot {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [numbers, values] = exactly(operands)?;
        let is_integer = |t: DType| !t.is_float() && t != DType::Bool;
        dtype(operands, 0, is_integer, "an integer")?;
        sizes("depth", std::slice::from_ref(&self.depth))?;
        if values.ty.rank() != 1 || values.ty.shape[0] != Dim::from(2) {
            let expected = "it must have two elements, for other positions and for the one";
            return Err(OpError::shape(1, values.ty, expected));
        }
        let mut shape = numbers.ty.shape.clone();
        shape.insert(self.own(shape.rank())?, self.depth.clone());
        result(TensorType { dtype: values.ty.dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        at.expect_whole(1, Code::NotPerSample, "takes its two values from samples")?;
        // A replica would evaluate the depth at its own number of rows.
        if self.depth.depends_on_batch() {
            let reason = format!("gives each sample {} entries", self.depth);
            return at.refuse(Code::BakedBatch, reason);
        }
        let own = at.checked(self.own(at.rank()))?;
        // The new axis moves the rows where it comes before them.
        let axis = shard.axis + usize::from(own <= shard.axis);
        at.keep(Shard { axis, ..shard })
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [numbers, values] = exactly(operands)?;
        let own = self.own(numbers.rank())?;
        let depth = known_sizes("the depth", std::slice::from_ref(&self.depth))?[0];
        let mut dims = numbers.dims().to_vec();
        dims.insert(own, depth);
        let mut y = Tensor::zeros(values.dtype(), &dims)?;
        let inner: usize = numbers.dims()[own..].iter().product();
        let width = values.dtype().bytes();
        // Bytes are copied: the values may have any type.
        let (off, on) = values.bytes().split_at(width);
        for element in y.bytes_mut().chunks_exact_mut(width) {
            element.copy_from_slice(off);
        }
        let limit = int::<i64>(depth);
        // Unsigned numbers beyond the range of i64 have no position.
        let unsigned = numbers.dtype() == DType::U64;
        let all = invariant(numbers.to_i64(), "that numbers of entries are integers");
        for (i, number) in all.into_iter().enumerate() {
            let from_end = number < 0 && !unsigned;
            let at = if from_end { number.saturating_add(limit) } else { number };
            if let Some(at) = usize::try_from(at).ok().filter(|at| *at < depth) {
                let place = ((i / inner * depth + at) * inner + i % inner) * width;
                y.bytes_mut()[place..place + width].copy_from_slice(on);
            }
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (indices, values, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let ends = at.zero_and_one()?;
        let to = at.ty(values).dtype;
        let ends = at.cast(ends, to)?;
        let hot = at.op(self.clone(), &[indices, ends])?;
        let axes: Vec<usize> = (0..at.ty(dy).rank()).collect();
        let on = at.mul(dy, hot)?;
        let (on, all) = (at.sum(on, &axes)?, at.sum(dy, &axes)?);
        let off = at.sub(all, on)?;
        let one: Shape = [Dim::ONE].into_iter().collect();
        let (off, on) = (at.reshape(off, &one)?, at.reshape(on, &one)?);
        let both = at.concat(&[off, on], 0)?;
        at.give(1, both)
    }
}
