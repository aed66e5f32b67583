//! Entries of one axis, picked by index.

use smallvec::SmallVec;

use super::index::{entry, place};
use super::infer::{axis, dtype, exactly, result_with_ints};
use super::prelude::*;
use crate::types::invariant::invariant;

op! {
    /// The entries of the first operand along `axis` whose numbers are the second operand; the axes
    /// of the second stand in the place of that axis. Negative numbers count from the end.
    pub struct Gather = "gather" is FOLLOWS_BLOCKS | READS_ONCE | MEETS_WHOLE {
        /// The axis of the first operand, negative from its end.
        pub axis: i64 = 0,
    }
}

/// The known elements of the result where the data are a known vector.
fn picked(data: &[Dim], places: &[i64]) -> Option<SmallVec<[Dim; 8]>> {
    places.iter().map(|at| data.get(usize::try_from(*at).ok()?).cloned()).collect()
}

impl OpDef for Gather {
    fn lookup(&self, operands: &[&TensorType]) -> Option<Lookup> {
        Lookup::along(operands, self.axis, 1)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [data, indices] = exactly(operands)?;
        dtype(operands, 1, |t| matches!(t, DType::I64 | DType::I32), "i64 or i32")?;
        let axis = axis("axis", self.axis, data.ty.rank())?;
        let size = data.ty.shape.get(axis).and_then(Dim::as_const);
        let known: Option<Vec<i64>> =
            indices.ints.and_then(|ints| ints.iter().map(Dim::as_const).collect());
        let places = match (size, known) {
            (Some(size), Some(known)) => {
                Some(known.into_iter().map(|i| place(i, size)).collect::<Result<Vec<i64>, _>>()?)
            }
            _ => None,
        };
        let (before, after) = data.ty.shape.split_at(axis);
        let after = after.iter().skip(1);
        let shape: Shape =
            before.iter().chain(indices.ty.shape.iter()).chain(after).cloned().collect();
        let ints = match (data.ints, places) {
            (Some(ints), Some(places)) if data.ty.rank() == 1 => picked(ints, &places),
            _ => None,
        };
        result_with_ints(TensorType { dtype: data.ty.dtype, shape }, ints)
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        let [data, indices] = at.operands else { return at.whole() };
        let picked = at.checked(axis("axis", self.axis, data.ty.rank()))?;
        match (data.claim.shard(), indices.claim.shard()) {
            // A number counts rows of the whole batch, of which a replica holds a part.
            (Some(s), _) if s.axis == picked => {
                at.refuse(Code::Reorders, "picks samples of the batch by number")
            }
            (Some(s), Some(_)) => {
                let reason = format!("picks by rows of numbers from rows on axis {}", s.axis);
                at.refuse_at(1, Code::Misaligned, reason)
            }
            // Each replica picks by its own numbers from a table that all of them hold.
            (None, Some(s)) => at.keep(Shard { axis: picked + s.axis, ..s }),
            // The axes of the numbers stand where the picked axis was: what lies behind it moves.
            (Some(s), None) if s.axis > picked => {
                at.keep(Shard { axis: s.axis - 1 + indices.ty.rank(), ..s })
            }
            (s, None) => s.map_or_else(|| at.whole(), |s| at.keep(s)),
        }
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        rules::moved(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [data, indices] = exactly(operands)?;
        let axis = axis("axis", self.axis, data.rank())?;
        let size = data.dims()[axis];
        let numbers = invariant(indices.to_i64(), "that indices are integers");
        let places = numbers.into_iter().map(|i| entry(i, size));
        let places = places.collect::<Result<Vec<usize>, _>>()?;
        let (before, after) = (&data.dims()[..axis], &data.dims()[axis + 1..]);
        let mut y = Tensor::zeros(data.dtype(), &[before, indices.dims(), after].concat())?;
        let width = after.iter().product::<usize>() * data.dtype().bytes();
        if y.is_empty() {
            return Ok(vec![y]);
        }
        for (o, out) in y.bytes_mut().chunks_exact_mut(places.len() * width).enumerate() {
            let block = &data.bytes()[o * size * width..(o + 1) * size * width];
            for (out, at) in out.chunks_exact_mut(width).zip(&places) {
                out.copy_from_slice(&block[at * width..(at + 1) * width]);
            }
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (data, indices, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let axis = axis("axis", self.axis, at.ty(data).rank())?;
        let to = at.shape(data);
        let dx = at.gathered(dy, indices, axis, &to)?;
        at.give(0, dx)
    }
}
