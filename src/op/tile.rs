//! A value repeated as a whole along its axes.

use smallvec::SmallVec;

use super::infer::{exactly, result};
use super::prelude::*;
use super::strided;

op! {
    /// Its operand `repeats[i]` times, one after the other, along each axis `i`.
    pub struct Tile = "tile" is MOVES | FOLLOWS_BLOCKS {
        /// The number of repeats of every axis of the operand.
        pub repeats: Vec<usize>,
    }
}

impl OpDef for Tile {
    fn positions(&self, operands: &[PositionOperand<'_>], _: &TensorType) -> Option<Positions> {
        let rows = operands.first()?.rows?;
        (self.repeats.get(rows.axis) == Some(&1)).then_some(rows)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        if self.repeats.len() != x.ty.rank() {
            let reason = format!("{} numbers for {}", self.repeats.len(), x.ty);
            return Err(OpError::attr("repeats", reason));
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

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        // Repeated as a whole, an axis of blocks of rows is one of more such blocks.
        let times = self.repeats.get(shard.axis).and_then(|times| u64::try_from(*times).ok());
        match times.and_then(|times| shard.outer.checked_mul(times)) {
            Some(outer) if outer > 0 => at.keep(Shard { outer, ..shard }),
            _ => at.refuse(Code::Reorders, "repeats the whole batch"),
        }
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        rules::moved(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        // Repeats are an axis of their own, which reads the same elements again.
        let own = strided::axes_of(x.dims());
        let axes: SmallVec<[strided::Axis; 6]> =
            self.repeats.iter().zip(own).flat_map(|(count, own)| [(*count, 0), own]).collect();
        let dims: SmallVec<[usize; 6]> =
            axes.chunks_exact(2).map(|pair| pair[0].0.saturating_mul(pair[1].0)).collect();
        Ok(vec![strided::taken(x, 0, &axes, &dims)?])
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
        at.give(0, dx)
    }
}
