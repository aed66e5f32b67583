//! Elements and blocks picked one by one: `gather_elements`, `gather_nd`.

use super::index::{Named, row_length};
use super::infer::{axis, dtype, exactly, result};
use super::prelude::*;
use crate::types::invariant::{int, invariant};

family! {
    /// Elements of the first operand that the second one, `i64` or `i32`, names. Negative numbers
    /// count from the end of their axis.
    pub enum GatherAt is FOLLOWS_BLOCKS {
        /// For each index the element with the same coordinates but for `axis`, where the index
        /// says which.
        ///
        /// The result has the shape of the indices, which have at most as many entries as the data
        /// on the other axes.
        Elements = "gather_elements" {
            /// The axis that indices run along, negative from the end.
            axis: i64 = 0,
        },
        /// For each row of indices, along their last axis, the block with these first coordinates.
        ///
        /// The result has the axes of the indices but the last, then those of a block.
        Nd = "gather_nd" {
            /// The leading axes that data and indices share; the rows' coordinates stand behind
            /// them.
            batch_dims: i64 = 0,
        },
    }
}

/// The number of leading axes that `batch_dims` says.
fn leading(batch_dims: i64) -> Result<usize, OpError> {
    usize::try_from(batch_dims)
        .map_err(|_| OpError::attr("batch_dims", format!("{batch_dims} is negative")))
}

/// The refusal of data that are split where the indices pick.
fn picks(operand: usize) -> Refusal {
    rules::refuse(Code::Reorders, operand, "picks samples of the batch by number")
}

/// The refusal of rows that do not meet.
fn apart(data: Option<Shard>, indices: Option<Shard>) -> Refusal {
    if data.is_some() && indices.is_some() {
        return rules::refuse(Code::Misaligned, 1, "picks by rows of numbers from other rows");
    }
    let reason = "has the samples of all replicas in one operand and its own in the other";
    rules::refuse(Code::BakedBatch, usize::from(data.is_none()), reason)
}

impl GatherAt {
    fn named(&self) -> Result<Named, OpError> {
        Ok(match *self {
            Self::Elements { axis } => Named::Along(axis),
            Self::Nd { batch_dims } => Named::Blocks(leading(batch_dims)?),
        })
    }

    fn split_elements(own: usize, data: Claim, indices: Claim) -> Result<Claim, Refusal> {
        match (data.shard(), indices.shard()) {
            (Some(s), _) if s.axis == own => Err(picks(0)),
            // Beside the axis an index and the element that it names have equal coordinates: rows
            // pick from the same rows.
            (Some(s), Some(i)) if s == i => Ok(Claim::Shard(s)),
            // Along the axis each index stands for itself, and every replica holds all data.
            (None, Some(i)) if i.axis == own => Ok(Claim::Shard(i)),
            (data, indices) => Err(apart(data, indices)),
        }
    }

    fn split_nd(batch: usize, [data, indices]: [&SplitOperand<'_>; 2]) -> Result<Claim, Refusal> {
        let rows = indices.ty.rank().saturating_sub(1);
        let reason = "takes the coordinates of an element from several samples";
        let several = rules::refuse(Code::NotPerSample, 1, reason);
        // Inference refuses an unknown number; a rule may be asked of such operands.
        let Some(count) = row_length(indices.ty) else { return Err(several) };
        let picked = batch + count;
        match (data.claim.shard(), indices.claim.shard()) {
            (_, Some(i)) if i.axis == rows => Err(several),
            (Some(s), Some(i)) if s == i && s.axis < batch => Ok(Claim::Shard(s)),
            (Some(s), _) if (batch..picked).contains(&s.axis) => Err(picks(0)),
            // The rows lie within the blocks: whichever block is named, a replica has its own rows
            // of it.
            (Some(s), None) if s.axis >= picked => {
                Ok(Claim::Shard(Shard { axis: s.axis - picked + rows, ..s }))
            }
            // Each row of coordinates stands for itself, and every replica holds all data.
            (None, Some(i)) if i.axis >= batch => Ok(Claim::Shard(i)),
            (data, indices) => Err(apart(data, indices)),
        }
    }
}

impl OpDef for GatherAt {
    fn lookup(&self, operands: &[&TensorType]) -> Option<Lookup> {
        self.named().ok()?.lookup(operands)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [data, indices] = exactly(operands)?;
        dtype(operands, 1, |t| matches!(t, DType::I64 | DType::I32), "i64 or i32")?;
        let shape = self.named()?.shape(&data, &indices)?;
        result(TensorType { dtype: data.ty.dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        let [data, indices] = at.operands else { return at.whole() };
        at.give(match *self {
            Self::Elements { axis: listed } => {
                let own = at.checked(axis("axis", listed, data.ty.rank()))?;
                Self::split_elements(own, data.claim, indices.claim)?
            }
            Self::Nd { batch_dims } => {
                Self::split_nd(at.checked(leading(batch_dims))?, [data, indices])?
            }
        })
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [data, indices] = exactly(operands)?;
        let (dims, places, run) = self.named()?.places(data, indices)?;
        let mut y = Tensor::zeros(data.dtype(), &dims)?;
        let width = data.dtype().bytes();
        if run > 0 {
            let to = y.bytes_mut().chunks_exact_mut(run * width);
            for (to, at) in to.zip(places) {
                to.copy_from_slice(&data.bytes()[at * width..(at + run) * width]);
            }
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (data, indices, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        if let Self::Nd { batch_dims } = *self
            && batch_dims != 0
        {
            return numbered(at, leading(batch_dims)?);
        }
        let to = at.shape(data);
        let zeros = at.zeros(dy, &to)?;
        let dx = match *self {
            Self::Elements { axis } => at.scatter_add(zeros, indices, dy, axis)?,
            Self::Nd { .. } => at.scatter_add_blocks(zeros, indices, dy)?,
        };
        at.give(0, dx)
    }
}

/// The gradient where data and indices share `batch` leading axes: there the blocks that
/// coordinates name are numbered, and are added along the axis of their numbers, sample by sample.
fn numbered(at: &mut Backward<'_>, batch: usize) -> Result<(), RuleError> {
    let (data, indices, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
    let (from, tuples) = (at.shape(data), at.shape(indices));
    let count = row_length(at.ty(indices));
    let behind = batch + invariant(count, "that the number of coordinates is known");
    let elements = |dims: &[Dim]| dims.iter().fold(Dim::ONE, |n, d| n * d.clone());
    let picked = &from[batch..behind];
    let block = elements(&from[behind..]);
    // The row-major number of a block: each coordinate times the blocks behind its axis.
    let steps = (1..=picked.len()).map(|i| elements(&picked[i..])).collect();
    let number = at.cast(indices, DType::I64)?;
    let sizes = at.dims(picked.to_vec())?;
    let steps = at.dims(steps)?;
    let negative = at.is_below(number, 0.0)?;
    let from_end = at.add(number, sizes)?;
    let number = at.choose(negative, from_end, number)?;
    let number = at.mul(number, steps)?;
    let number = at.sum(number, &[tuples.len() - 1])?;
    let with = |rows: Dim, width: &Dim| -> Shape {
        from.iter().take(batch).cloned().chain([rows, width.clone()]).collect()
    };
    let rows = elements(&tuples[batch..tuples.len() - 1]);
    let number = at.reshape(number, &with(rows.clone(), &Dim::ONE))?;
    let number = at.expand(number, &with(rows.clone(), &block))?;
    let updates = at.reshape(dy, &with(rows, &block))?;
    let zeros = at.zeros(dy, &with(elements(picked), &block))?;
    let axis = int::<i64>(batch);
    let sums = at.scatter_add(zeros, number, updates, axis)?;
    let dx = at.reshape(sums, &from)?;
    at.give(0, dx)
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, indices, random, rng};

    use super::GatherAt;
    use crate::types::{DType, Tensor};

    fn int(size: usize) -> i64 {
        i64::try_from(size).unwrap()
    }

    /// Indices of these sizes below `size`, some counted from the end.
    fn numbers(rng: &mut impl Rng, dims: &[usize], size: usize) -> Tensor {
        let size = int(size);
        let values: Vec<i64> =
            (0..dims.iter().product()).map(|_| rng.random_range(-size..size)).collect();
        Tensor::new(dims, &values).unwrap()
    }

    /// The element with these coordinates, negative ones from the end.
    fn element(x: &Tensor, coordinates: &[i64]) -> f64 {
        let at = coordinates.iter().zip(x.dims()).fold(0, |at, (c, d)| {
            let c = if *c < 0 { c + int(*d) } else { *c };
            at * d + usize::try_from(c).unwrap()
        });
        x.to_f64()[at]
    }

    #[test]
    fn elements_are_those_with_the_coordinates() {
        let mut rng = rng(1);
        for _ in 0..200 {
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
            let axis = rng.random_range(0..rank);
            let mut own: Vec<usize> = dims.iter().map(|d| rng.random_range(0..=*d)).collect();
            own[axis] = rng.random_range(0..5);
            let x = random(&mut rng, DType::F32, &dims);
            let i = numbers(&mut rng, &own, dims[axis]);
            let op = GatherAt::Elements { axis: int(axis) - int(rank) };
            let y = testing::eval(&op.into(), &[&x, &i]).remove(0);
            let named = i.to_i64().unwrap();
            let expected = indices(&own).into_iter().zip(named).map(|(at, index)| {
                let mut at: Vec<i64> = at.into_iter().map(int).collect();
                at[axis] = index;
                element(&x, &at)
            });
            assert_eq!(y.to_f64(), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn blocks_are_those_with_the_coordinates() {
        let mut rng = rng(2);
        for _ in 0..200 {
            let rank = rng.random_range(1..5);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
            let batch = rng.random_range(0..rank);
            let count = rng.random_range(1..=rank - batch);
            let mut rows = dims[..batch].to_vec();
            rows.extend((0..rng.random_range(0..3)).map(|_| rng.random_range(0..3)));
            let x = random(&mut rng, DType::F16, &dims);
            let smallest = dims[batch..batch + count].iter().copied().min().unwrap();
            let i = numbers(&mut rng, &[&rows[..], &[count]].concat(), smallest);
            let op = GatherAt::Nd { batch_dims: int(batch) };
            let y = testing::eval(&op.into(), &[&x, &i]).remove(0);
            assert_eq!(y.dims(), [&rows[..], &dims[batch + count..]].concat());
            let named = i.to_i64().unwrap();
            let mut expected = Vec::new();
            for (row, at) in indices(&rows).into_iter().enumerate() {
                for rest in indices(&dims[batch + count..]) {
                    let lead = at[..batch].iter().map(|c| int(*c));
                    let tuple = named[row * count..(row + 1) * count].iter().copied();
                    let all: Vec<i64> =
                        lead.chain(tuple).chain(rest.into_iter().map(int)).collect();
                    expected.push(element(&x, &all));
                }
            }
            assert_eq!(y.to_f64(), expected, "{dims:?} {batch} {count} {rows:?}");
        }
    }
}
