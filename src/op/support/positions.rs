//! Integers that number the rows of the batch: `stride * row + rest`, as exporters compute them to
//! look up the mask or the token of each row.

use crate::op::Interval;
use crate::types::{Dim, Shape, TensorType};

/// Integers that are `stride * row + rest` where `row` is the number of the entry of the axis, and
/// the rest is what the operators give for the row 0 in place of each row number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// The axis along which the rows are numbered.
    pub axis: usize,
    /// The entries of the axis that each row has, one after the other: its size is `each * N`.
    pub each: i64,
    /// The distance between rows; 0 for values that repeat along the axis.
    pub stride: i64,
}

/// An operand of an operator whose results may number the rows.
pub struct PositionOperand<'a> {
    pub ty: &'a TensorType,
    /// The numbers of the rows in it; `None` where it is all rest.
    pub rows: Option<Positions>,
    /// The elements of the rest.
    pub rest: Option<Interval>,
}

impl Positions {
    /// The rows that an operand numbers, as axes of a result of `rank` axes to which it is
    /// broadcast.
    pub(crate) fn aligned(operand: &PositionOperand<'_>, rank: usize) -> Option<Self> {
        let rows = operand.rows?;
        Some(Self { axis: rows.axis + rank.checked_sub(operand.ty.rank())?, ..rows })
    }

    /// The rows in another shape of the same elements in the same order: the axis of a multiple of
    /// `N` behind as many entries.
    pub(crate) fn viewed(self, from: &Shape, to: &Shape) -> Option<Self> {
        let before = |shape: &Shape, axis: usize| {
            shape.iter().take(axis).cloned().fold(Dim::ONE, |p, d| p * d)
        };
        let ahead = before(from, self.axis);
        let each = |axis: usize| to[axis].exact_div(&Dim::n())?.as_const().filter(|each| *each > 0);
        (0..to.rank())
            .filter(|axis| before(to, *axis) == ahead)
            .find_map(|axis| Some(Self { axis, each: each(axis)?, ..self }))
    }

    /// The sum of numbers, of which one at least numbers rows; `None` where they number them along
    /// different axes.
    pub(crate) fn sum(a: Option<Self>, b: Option<Self>) -> Option<Self> {
        match (a, b) {
            (Some(a), Some(b)) if (a.axis, a.each) == (b.axis, b.each) => {
                Some(Self { stride: a.stride.checked_add(b.stride)?, ..a })
            }
            (Some(_), Some(_)) | (None, None) => None,
            (Some(one), None) | (None, Some(one)) => Some(one),
        }
    }
}
