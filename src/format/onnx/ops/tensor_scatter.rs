//! Steps written into a cache of a fixed length, at a place of its own for each sample.

use super::attention::shape_error;
use super::{Done, Imports, Node, NodeError, wrong};
use crate::ir::Value;
use crate::op::Formula;
use crate::op::infer::axis as named_axis;
use crate::types::{DType, Dim};

pub(super) fn imports(all: &mut Imports) {
    all.add("TensorScatter", 3, tensor_scatter);
}

/// Each entry of the cache asks which of the new ones it becomes, if one: rows stay apart.
fn tensor_scatter(n: &mut Node<'_, '_>) -> Done {
    let (cache, update) = (n.operand(0)?, n.operand(1)?);
    let circular = n.choice("mode", "linear", &[("linear", false), ("circular", true)])?;
    let given = n.int("axis", -2)?;
    let (shape, added) = (n.shape(cache).to_vec(), n.shape(update).to_vec());
    let axis = named_axis("axis", given, shape.len())?;
    if axis == 0 {
        return Err(wrong("axis", "is that of the samples"));
    }
    let alike = |(i, (a, b)): (usize, (&Dim, &Dim))| i == axis || a == b;
    if shape.len() != added.len() || !shape.iter().zip(&added).enumerate().all(alike) {
        return Err(shape_error(
            n,
            1,
            update,
            "it must have the sizes of the cache beside the axis",
        ));
    }
    let (length, count) = (&shape[axis], &added[axis]);
    if *count == Dim::ZERO {
        n.last(0).identity(cache)?;
        return Ok(());
    }
    let places = places(n, &shape[0], length, circular)?;
    let last = n.dim(count.clone() - 1)?;
    let zero = n.dim(Dim::ZERO)?;
    let (not_before, not_behind) = (n.less_or_equal(zero, places)?, n.less_or_equal(places, last)?);
    let inside = n.and(not_before, not_behind)?;
    let from = n.choose(inside, places, zero)?;
    // Samples on the first axis, entries of the cache on theirs.
    let mut wide = vec![Dim::ONE; shape.len()];
    wide[0] = n.shape(places)[0].clone();
    wide[axis] = length.clone();
    let (from, inside) = (n.view(from, wide.clone())?, n.view(inside, wide)?);
    let from = n.broadcast(from, shape)?;
    let entries = n.gather_elements(update, from, given)?;
    n.last(0).choose(inside, entries, cache)?;
    Ok(())
}

/// For each sample and entry of the cache the number of the new entry that is written there.
fn places(
    n: &mut Node<'_, '_>,
    batch: &Dim,
    length: &Dim,
    circular: bool,
) -> Result<Value, NodeError> {
    let entries = n.count_to(length.clone(), DType::I64)?;
    let Some(first) = n.optional(2) else { return n.unsqueeze(entries, vec![0]) };
    if n.dtype(first) != DType::I64 || n.shape(first).to_vec() != [batch.clone()] {
        return Err(shape_error(n, 2, first, "it must be an i64 for each sample"));
    }
    let first = n.unsqueeze(first, vec![1])?;
    let places = n.sub(entries, first)?;
    if !circular {
        return Ok(places);
    }
    let length = n.dim(length.clone())?;
    n.rem(places, length)
}
