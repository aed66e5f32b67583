//! The first entries of every sequence, in reverse.

use super::index::steps_of;
use super::infer::{axis, dtype, equal, exactly, result, sizes_of};
use super::prelude::*;
use crate::types::invariant::{int, invariant};

op! {
    /// The first operand with the first entries of every sequence in reverse; the second operand,
    /// one number for each entry of `batch_axis`, says how many of them along `time_axis`. The
    /// entries behind them stay.
    pub struct ReverseSequence = "reverse_sequence" is FOLLOWS_BLOCKS {
        /// The axis of the sequences, negative from the end.
        pub batch_axis: i64 = 1,
        /// The axis of the steps, negative from the end.
        pub time_axis: i64 = 0,
    }
}

impl ReverseSequence {
    /// The axes of the sequences and of the steps in a value of `rank` axes.
    fn axes(&self, rank: usize) -> Result<(usize, usize), OpError> {
        let batch = axis("batch_axis", self.batch_axis, rank)?;
        Ok((batch, axis("time_axis", self.time_axis, rank)?))
    }
}

impl OpDef for ReverseSequence {
    fn lookup(&self, operands: &[&TensorType]) -> Option<Lookup> {
        Lookup::lengths(operands, self.time_axis, 1)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x, lengths] = exactly(operands)?;
        dtype(operands, 1, |t| matches!(t, DType::I64 | DType::I32), "i64 or i32")?;
        let (batch, time) = self.axes(x.ty.rank())?;
        if batch == time {
            return Err(OpError::shape(0, x.ty, "its sequences and its steps must be two axes"));
        }
        let expected = "it must have one axis, with a length for each sequence";
        let [count] = sizes_of(operands, 1, expected)?;
        equal("number of sequences", &x.ty.shape[batch], count)?;
        if let (Some(steps), Some(known)) = (x.ty.shape[time].as_const(), lengths.ints) {
            for length in known.iter().filter_map(Dim::as_const) {
                steps_of(1, length, steps)?;
            }
        }
        result(x.ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        let [x, _] = at.operands else { return at.whole() };
        let (batch, time) = at.checked(self.axes(x.ty.rank()))?;
        match (at.shard(0), at.shard(1)) {
            (Some(s), _) if s.axis == time => {
                at.refuse(Code::Reorders, "reverses the order of the samples")
            }
            (Some(s), Some(l)) if s.axis == batch && l == Shard { axis: 0, ..s } => at.keep(s),
            // Rows within a step: all sequences and their lengths are on every replica.
            (Some(s), None) if s.axis != batch => at.keep(s),
            (_, None) => at.refuse(Code::BakedBatch, "has lengths of all samples on every replica"),
            (_, Some(_)) => {
                let reason = "has rows of lengths for sequences that are not the same rows";
                at.refuse_at(1, Code::Misaligned, reason)
            }
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, lengths] = exactly(operands)?;
        let (batch, time) = self.axes(x.rank())?;
        let dims = x.dims();
        let steps = int::<i64>(dims[time]);
        let lengths = invariant(lengths.to_i64(), "that lengths are integers");
        let lengths = lengths.into_iter().map(|l| steps_of(1, l, steps));
        let lengths = lengths.collect::<Result<Vec<usize>, _>>()?;
        let mut y = (*x).clone();
        if x.is_empty() {
            return Ok(vec![y]);
        }
        let (low, high) = (batch.min(time), batch.max(time));
        let middle: usize = dims[low + 1..high].iter().product();
        let width = dims[high + 1..].iter().product::<usize>() * x.dtype().bytes();
        // The elements of a block lie on `[low, middle, high]`, of which one of `low` and `high` is
        // the axis of the sequences and the other that of the steps.
        let block = dims[low] * middle * dims[high];
        for (at, out) in y.bytes_mut().chunks_exact_mut(width).enumerate() {
            let (i, j) = (at / (middle * dims[high]) % dims[low], at % dims[high]);
            let (sequence, step) = if batch == low { (i, j) } else { (j, i) };
            let length = lengths[sequence];
            if step < length {
                let from = length - 1 - step;
                let (i, j) = if batch == low { (i, from) } else { (from, j) };
                let row = i * middle + at / dims[high] % middle;
                let from = at / block * block + row * dims[high] + j;
                out.copy_from_slice(&x.bytes()[from * width..(from + 1) * width]);
            }
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, lengths) = (at.dy()?, at.operand(1)?);
        // Reversing twice is the identity: the operator is its own gradient.
        at.give(0, dy.with(self.clone(), lengths))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{self, indices, random, rng};
    use super::ReverseSequence;
    use crate::types::{DType, Tensor};

    #[test]
    fn the_first_steps_are_reversed_and_the_rest_stays() {
        let mut rng = rng(1);
        for _ in 0..100 {
            let rank = rng.random_range(2..5);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(0..4)).collect();
            let batch = rng.random_range(0..rank);
            let time = (batch + rng.random_range(1..rank)) % rank;
            let x = random(&mut rng, DType::F32, &dims);
            let int = |size: usize| i64::try_from(size).unwrap();
            let lengths: Vec<usize> =
                (0..dims[batch]).map(|_| rng.random_range(0..=dims[time])).collect();
            let numbers: Vec<i64> = lengths.iter().map(|l| int(*l)).collect();
            let op = ReverseSequence { batch_axis: int(batch), time_axis: int(time) - int(rank) };
            let op: Op = op.into();
            let y = testing::eval(&op, &[&x, &Tensor::new(&[dims[batch]], &numbers).unwrap()]);
            let (all, values) = (indices(&dims), x.to_f64());
            let expected = all.iter().map(|index| {
                let (mut from, length) = (index.clone(), lengths[index[batch]]);
                if index[time] < length {
                    from[time] = length - 1 - index[time];
                }
                values[all.iter().position(|i| *i == from).unwrap()]
            });
            assert_eq!(y[0].to_f64(), expected.collect::<Vec<_>>(), "{dims:?} {op:?} {lengths:?}");
        }
    }
}
