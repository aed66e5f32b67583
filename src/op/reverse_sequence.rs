//! The first entries of every sequence, in reverse.

use smallvec::smallvec;

use super::declare::op;
use super::infer::{axis, dtype, equal, result, tensors, two};
use super::{
    Backward, Claims, Formula, Gradient, Lookup, OpDef, OpError, Operand, Results, RuleError,
    SplitOperand, Traits, rules,
};
use crate::types::{Claim, Code, DType, Dim, Refusal, Shard, Tensor, TensorType};

op! {
    /// The first operand with the first entries of every sequence in reverse; the second operand,
    /// one number for each entry of `batch_axis`, says how many of them along `time_axis`. The
    /// entries behind them stay.
    pub struct ReverseSequence = "reverse_sequence" {
        /// The axis of the sequences, negative from the end.
        pub batch_axis: i64 = 1,
        /// The axis of the steps, negative from the end.
        pub time_axis: i64 = 0,
    }
}

/// The number of steps that `length` says, of `steps`.
fn checked(length: i64, steps: i64) -> Result<usize, OpError> {
    usize::try_from(length).ok().filter(|_| length <= steps).ok_or_else(|| {
        let reason = format!("the length {length} is not one of a sequence of {steps} steps");
        OpError::Value { operand: 1, reason }
    })
}

impl ReverseSequence {
    /// The axes of the sequences and of the steps in a value of `rank` axes.
    fn axes(&self, rank: usize) -> Result<(usize, usize), OpError> {
        let batch = axis("batch_axis", self.batch_axis, rank)?;
        Ok((batch, axis("time_axis", self.time_axis, rank)?))
    }
}

impl OpDef for ReverseSequence {
    fn traits(&self) -> Traits {
        Traits::FOLLOWS_BLOCKS
    }

    fn lookup(&self, operands: &[&TensorType]) -> Option<Lookup> {
        Lookup::lengths(operands, self.time_axis, 1)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let (x, lengths) = two(operands)?;
        dtype(operands, 1, |t| matches!(t, DType::I64 | DType::I32), "i64 or i32")?;
        let (batch, time) = self.axes(x.ty.rank())?;
        if batch == time {
            let expected = "its sequences and its steps must be two axes".to_owned();
            return Err(OpError::Shape { operand: 0, found: x.ty.clone(), expected });
        }
        let [count] = &lengths.ty.shape[..] else {
            let expected = "it must have one axis, with a length for each sequence".to_owned();
            return Err(OpError::Shape { operand: 1, found: lengths.ty.clone(), expected });
        };
        equal("number of sequences", &x.ty.shape[batch], count)?;
        if let (Some(steps), Some(known)) = (x.ty.shape[time].as_const(), lengths.ints) {
            for length in known.iter().filter_map(Dim::as_const) {
                checked(length, steps)?;
            }
        }
        result(x.ty.clone())
    }

    fn split(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        let [x, lengths] = operands else { return Ok(rules::invariant(1)) };
        let (batch, time) = self.axes(x.ty.rank()).unwrap_or((0, 0));
        match (x.claim.shard(), lengths.claim.shard()) {
            (None, None) => Ok(rules::invariant(1)),
            (Some(s), _) if s.axis == time => {
                Err(rules::refuse(Code::Reorders, 0, "reverses the order of the samples"))
            }
            (Some(s), Some(l)) if s.axis == batch && l == Shard { axis: 0, ..s } => {
                Ok(smallvec![Claim::Shard(s)])
            }
            // Rows within a step: all sequences and their lengths are on every replica.
            (Some(s), None) if s.axis != batch => Ok(smallvec![Claim::Shard(s)]),
            (Some(_), None) => {
                let reason = "has lengths of all samples on every replica";
                Err(rules::refuse(Code::BakedBatch, 0, reason))
            }
            (_, Some(_)) => {
                let reason = "has rows of lengths for sequences that are not the same rows";
                Err(rules::refuse(Code::Misaligned, 1, reason))
            }
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, lengths] = tensors(operands)?;
        let (batch, time) = self.axes(x.rank())?;
        let dims = x.dims();
        let steps = i64::try_from(dims[time]).unwrap_or(i64::MAX);
        let lengths = lengths.to_i64().unwrap_or_default().into_iter().map(|l| checked(l, steps));
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

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, lengths) = (at.dy()?, at.operand(1)?);
        // Reversing twice is the identity: the operator is its own gradient.
        let dx = at.op(self.clone(), &[dy, lengths])?;
        at.give(0, dx);
        Ok(())
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
