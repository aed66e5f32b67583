//! The sizes of a value.

use super::infer::{exactly, result_with_ints};
use super::prelude::*;

op! {
    /// The sizes of the axes `start..end` of its operand as a vector of `i64`. Both count from the
    /// end where they are negative, and beyond the axes they mean the first or the last.
    pub struct ShapeOp = "shape" is FOLLOWS_BLOCKS {
        /// One past the last axis; absent, all up to the last.
        pub end: Option<i64>,
        /// The first axis.
        pub start: i64 = 0,
    }
}

impl ShapeOp {
    /// The axes reported, of `rank`.
    fn range(&self, rank: usize) -> std::ops::Range<usize> {
        let rank_i = i64::try_from(rank).unwrap_or(i64::MAX);
        let at = |i: i64| {
            let i = if i < 0 { i.saturating_add(rank_i) } else { i };
            usize::try_from(i.clamp(0, rank_i)).unwrap_or(0)
        };
        let start = at(self.start);
        start..self.end.map_or(rank, at).max(start)
    }
}

impl OpDef for ShapeOp {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let sizes = &x.ty.shape[self.range(x.ty.rank())];
        let ty = TensorType::new(DType::I64, Shape::from([sizes.len()].as_slice()));
        result_with_ints(ty, Some(sizes.iter().cloned().collect()))
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        if let [x] = at.operands
            && x.ty.shape[self.range(x.ty.rank())].iter().any(Dim::depends_on_batch)
        {
            return at.refuse(Code::BakedBatch, "reports the size of the batch");
        }
        at.whole()
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let sizes = x.dims()[self.range(x.rank())].iter();
        let sizes: Vec<i64> = sizes.map(|d| i64::try_from(*d).unwrap_or(i64::MAX)).collect();
        Ok(vec![Tensor::new(&[sizes.len()], &sizes)?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it depends on sizes only")
    }
}
