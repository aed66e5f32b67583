//! Operands that hold indices or lengths.

use crate::op::infer;
use crate::types::{Dim, TensorType};

/// Indices or lengths in an operand, and which of them are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The operand.
    pub operand: usize,
    /// `0..count` are valid.
    pub count: i64,
    /// Whether `-count..0` are valid, too: they count from the end.
    pub from_end: bool,
}

/// The entries of an axis of the first operand, if no batch changes them.
fn size(operands: &[&TensorType], axis: i64) -> Option<i64> {
    let shape = &operands.first()?.shape;
    shape.get(infer::axis("axis", axis, shape.rank()).ok()?)?.as_const()
}

impl Lookup {
    /// Indices along an axis of the first operand.
    pub(in crate::op) fn along(
        operands: &[&TensorType],
        axis: i64,
        operand: usize,
    ) -> Option<Self> {
        Some(Self { operand, count: size(operands, axis)?, from_end: true })
    }

    /// Coordinates of blocks of the first operand, behind axes that it shares with the indices.
    pub(in crate::op) fn blocks(
        operands: &[&TensorType],
        leading: usize,
        operand: usize,
    ) -> Option<Self> {
        let coordinates = operands.get(operand)?.shape.last()?.as_const()?;
        let coordinates = usize::try_from(coordinates).ok()?;
        let picked = operands.first()?.shape.iter().skip(leading).take(coordinates);
        let sizes: Vec<i64> = picked.map(Dim::as_const).collect::<Option<_>>()?;
        Some(Self { operand, count: sizes.into_iter().min()?, from_end: true })
    }

    /// Lengths of sequences along an axis of the first operand: all steps may be taken, and none.
    pub(in crate::op) fn lengths(
        operands: &[&TensorType],
        axis: i64,
        operand: usize,
    ) -> Option<Self> {
        Some(Self { operand, count: size(operands, axis)?.checked_add(1)?, from_end: false })
    }
}
