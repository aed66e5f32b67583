//! A value repeated as a whole along its axes.

use smallvec::{SmallVec, smallvec};

use super::declare::op;
use super::infer::{one, result, tensors};
use super::{
    Backward, Claims, Formula, Gradient, OpDef, OpError, Operand, PositionOperand, Positions,
    Results, RuleError, SplitOperand, Traits, rules, strided,
};
use crate::types::{Claim, Code, Dim, Refusal, Shape, Shard, Tensor, TensorType};

op! {
    /// Its operand `repeats[i]` times, one after the other, along each axis `i`.
    pub struct Tile = "tile" {
        /// The number of repeats of every axis of the operand.
        pub repeats: Vec<usize>,
    }
}

impl OpDef for Tile {
    fn traits(&self) -> Traits {
        Traits::MOVES | Traits::FOLLOWS_BLOCKS
    }

    fn positions(&self, operands: &[PositionOperand<'_>], _: &TensorType) -> Option<Positions> {
        let rows = operands.first()?.rows?;
        (self.repeats.get(rows.axis) == Some(&1)).then_some(rows)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        if self.repeats.len() != x.ty.rank() {
            let reason = format!("{} numbers for {}", self.repeats.len(), x.ty);
            return Err(OpError::Attribute { attr: "repeats", reason });
        }
        let times = |count: &usize| Dim::from(i64::try_from(*count).unwrap_or(i64::MAX));
        let shape =
            x.ty.shape
                .iter()
                .zip(&self.repeats)
                .map(|(d, count)| d.clone() * times(count))
                .collect();
        result(TensorType { dtype: x.ty.dtype, shape })
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let Some((i, shard)) = rules::first_shard(operands) else {
            return rules::whole_results(results);
        };
        // Repeated as a whole, an axis of blocks of rows is one of more such blocks.
        let times = self.repeats.get(shard.axis).and_then(|times| u64::try_from(*times).ok());
        match times.and_then(|times| shard.outer.checked_mul(times)) {
            Some(outer) if outer > 0 => Ok(smallvec![Claim::Shard(Shard { outer, ..shard })]),
            _ => Err(rules::refuse(Code::Reorders, i, "repeats the whole batch")),
        }
    }

    fn partial(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::moved(operands, results)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = tensors(operands)?;
        let mut axes: SmallVec<[strided::Axis; 6]> = SmallVec::new();
        let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
        for ((size, distance), count) in
            x.dims().iter().zip(strided::distances(x.dims())).zip(&self.repeats)
        {
            dims.push(size.saturating_mul(*count));
            // Repeats are an axis of their own, which reads the same elements again.
            axes.extend([(*count, 0), (*size, distance)]);
        }
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        strided::read(x.bytes(), y.bytes_mut(), x.dtype().bytes(), 0, &axes);
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, shape) = (at.dy()?, at.shape(at.operand(0)?));
        let times = |count: &usize| Dim::from(i64::try_from(*count).unwrap_or(i64::MAX));
        // The sum over the copies: each axis is taken apart into its repeats and its entries.
        let apart: Shape = shape
            .iter()
            .zip(&self.repeats)
            .flat_map(|(d, count)| [times(count), d.clone()])
            .collect();
        let apart = at.reshape(dy, &apart)?;
        let copies: Vec<usize> = (0..shape.len()).map(|axis| 2 * axis).collect();
        let sum = at.sum(apart, &copies)?;
        let dx = at.reshape(sum, &shape)?;
        at.give(0, dx);
        Ok(())
    }
}
