//! Positions in a tensor of the elements that indices name.

use smallvec::SmallVec;

use crate::op::infer::{axis, equal};
use crate::op::strided::{Axis, Walk, distances};
use crate::op::{Lookup, OpError, Operand};
use crate::types::invariant::{int, invariant};
use crate::types::{Dim, Shape, Tensor, TensorType};

/// The number of steps that `length`, an element of an operand, says of sequences of `steps`.
pub(in crate::op) fn steps_of(operand: usize, length: i64, steps: i64) -> Result<usize, OpError> {
    usize::try_from(length).ok().filter(|_| length <= steps).ok_or_else(|| {
        let reason = format!("the length {length} is not one of a sequence of {steps} steps");
        OpError::value(operand, reason)
    })
}

/// The place among `size` entries that `index`, an element of operand 1, names, counted from the
/// end where it is negative.
pub(in crate::op) fn place(index: i64, size: i64) -> Result<i64, OpError> {
    let at = if index < 0 { index.saturating_add(size) } else { index };
    if (0..size).contains(&at) {
        Ok(at)
    } else {
        Err(OpError::value(1, format!("the index {index} is outside an axis of {size} entries")))
    }
}

/// [`place`] for a tensor's size.
pub(in crate::op) fn entry(index: i64, size: usize) -> Result<usize, OpError> {
    Ok(int::<usize>(place(index, int::<i64>(size))?))
}

/// The elements of indices, which inference found to be integers.
fn integers(indices: &Tensor) -> Vec<i64> {
    invariant(indices.to_i64(), "that indices are integers")
}

/// The sizes of indices: the coordinates in a row, then the axes of the rows.
fn by_rows(indices: &Tensor) -> (usize, &[usize]) {
    let (length, rows) = invariant(indices.dims().split_last(), "that indices have an axis");
    (*length, rows)
}

/// For each element of `indices` the position in a tensor with the sizes `dims` that has the same
/// coordinates but for `axis`, where the element says which.
fn along(dims: &[usize], axis: usize, indices: &Tensor) -> Result<Vec<usize>, OpError> {
    let steps = distances(dims);
    let axes: SmallVec<[Axis; 6]> = indices
        .dims()
        .iter()
        .zip(&steps)
        .enumerate()
        .map(|(i, (size, step))| (*size, if i == axis { 0 } else { *step }))
        .collect();
    let mut walk = Walk::new(0, &axes);
    let at = |index: i64| Ok(walk.next() + entry(index, dims[axis])? * steps[axis].unsigned_abs());
    integers(indices).into_iter().map(at).collect()
}

/// For each row of `indices` the position of the first element in a tensor with the sizes `dims`
/// that has the row as its coordinates behind the first `batch` ones, which are those of the row.
fn tuples(dims: &[usize], batch: usize, indices: &Tensor) -> Result<Vec<usize>, OpError> {
    let steps = distances(dims);
    let (length, rows) = by_rows(indices);
    let count: usize = rows.iter().product();
    let each = (count / rows[..batch].iter().product::<usize>().max(1)).max(1);
    let axes: SmallVec<[Axis; 6]> =
        dims[..batch].iter().copied().zip(steps.iter().copied()).collect();
    let mut walk = Walk::new(0, &axes);
    let mut first = 0;
    let values = integers(indices);
    let mut places = Vec::with_capacity(count);
    for row in 0..count {
        if row % each == 0 {
            first = walk.next();
        }
        let mut at = first;
        for (i, index) in values[row * length..(row + 1) * length].iter().enumerate() {
            at += entry(*index, dims[batch + i])? * steps[batch + i].unsigned_abs();
        }
        places.push(at);
    }
    Ok(places)
}

/// Fails unless indices have as many axes as the data, and of each but `axis` at most as many
/// entries.
fn within(data: &Operand<'_>, indices: &Operand<'_>, axis: usize) -> Result<(), OpError> {
    if data.ty.rank() != indices.ty.rank() {
        let expected = format!("it must have {} axes, as operand 0 has", data.ty.rank());
        return Err(OpError::shape(1, indices.ty, expected));
    }
    for (i, (own, size)) in indices.ty.shape.iter().zip(data.ty.shape.iter()).enumerate() {
        if i != axis && own != size && !(size.clone() - own.clone()).is_nonnegative() {
            let expected = format!("axis {i} must have at most {size} entries");
            return Err(OpError::shape(1, indices.ty, expected));
        }
    }
    Ok(())
}

/// The coordinates that each row of `indices` gives, of a tensor whose first `batch` axes are those
/// of the rows.
fn coordinates(data: &Operand<'_>, indices: &Operand<'_>, batch: usize) -> Result<usize, OpError> {
    let wrong = |expected: String| OpError::shape(1, indices.ty, expected);
    let Some((last, rows)) = indices.ty.shape.split_last() else {
        return Err(wrong("it must have at least one axis".to_owned()));
    };
    if batch > rows.len() || batch > data.ty.rank() {
        let reason = format!("{batch} axes are more than the operands have");
        return Err(OpError::attr("batch_dims", reason));
    }
    for (own, size) in rows.iter().zip(data.ty.shape.iter()).take(batch) {
        equal("sizes of the leading axes", own, size)?;
    }
    let most = data.ty.rank() - batch;
    let count = last.as_const().and_then(|c| usize::try_from(c).ok());
    count.filter(|c| (1..=most).contains(c)).ok_or_else(|| {
        wrong(format!("its last axis must have 1 to {most} entries, the coordinates in operand 0"))
    })
}

/// What indices, operand 1, name of the first operand.
#[derive(Clone, Copy)]
pub(in crate::op) enum Named {
    /// Elements that have the coordinates of the index but for this axis.
    Along(i64),
    /// Blocks with these coordinates behind so many axes that both share.
    Blocks(usize),
}

impl Named {
    /// Which elements of the operand are valid.
    pub(in crate::op) fn lookup(self, operands: &[&TensorType]) -> Option<Lookup> {
        match self {
            Self::Along(axis) => Lookup::along(operands, axis, 1),
            Self::Blocks(batch) => Lookup::blocks(operands, batch, 1),
        }
    }

    /// The shape of all that is named.
    pub(in crate::op) fn shape(
        self,
        data: &Operand<'_>,
        indices: &Operand<'_>,
    ) -> Result<Shape, OpError> {
        Ok(match self {
            Self::Along(listed) => {
                let axis = axis("axis", listed, data.ty.rank())?;
                within(data, indices, axis)?;
                check_known(indices, data.ty.shape.get(axis))?;
                indices.ty.shape.clone()
            }
            Self::Blocks(batch) => {
                let count = coordinates(data, indices, batch)?;
                // A block for each row of indices: the axes that its coordinates leave open.
                let rows = indices.ty.shape.iter().take(indices.ty.rank() - 1);
                rows.chain(data.ty.shape.iter().skip(batch + count)).cloned().collect()
            }
        })
    }

    /// The sizes of all that is named, the places of it in the data, and how many elements lie at
    /// each.
    pub(in crate::op) fn places(
        self,
        data: &Tensor,
        indices: &Tensor,
    ) -> Result<(Vec<usize>, Vec<usize>, usize), OpError> {
        Ok(match self {
            Self::Along(listed) => {
                let axis = axis("axis", listed, data.rank())?;
                (indices.dims().to_vec(), along(data.dims(), axis, indices)?, 1)
            }
            Self::Blocks(batch) => {
                let (count, rows) = by_rows(indices);
                let block = &data.dims()[batch + count..];
                let places = tuples(data.dims(), batch, indices)?;
                ([rows, block].concat(), places, block.iter().product())
            }
        })
    }
}

/// The coordinates that each row of indices gives, as [`coordinates`] found them; `None` for
/// indices that it refuses.
pub(in crate::op) fn row_length(indices: &TensorType) -> Option<usize> {
    usize::try_from(indices.shape.last()?.as_const()?).ok()
}

/// Fails where a known index names no entry of an axis of known size.
fn check_known(indices: &Operand<'_>, size: Option<&Dim>) -> Result<(), OpError> {
    let (Some(known), Some(size)) = (indices.ints, size.and_then(Dim::as_const)) else {
        return Ok(());
    };
    known.iter().filter_map(Dim::as_const).try_for_each(|index| place(index, size).map(|_| ()))
}
