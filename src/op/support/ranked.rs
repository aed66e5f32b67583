//! Entries of lines in an order, with the positions that they had.

use std::cmp::Ordering;

use crate::op::element::for_dtype;
use crate::op::infer::{not_a_number, results};
use crate::op::{Backward, Formula, OpError, Results, RuleError};
use crate::types::{DType, Element, Tensor, TensorType};

/// A part of lines along an axis.
pub(in crate::op) struct Part<'a> {
    /// The entries.
    pub(in crate::op) values: &'a Tensor,
    /// Their positions in the part; `None` where they are those that they have in `values`.
    pub(in crate::op) places: Option<&'a Tensor>,
    /// The position of the part's first entry on the whole axis.
    pub(in crate::op) from: i64,
}

/// The order of two elements; a NaN is above all numbers.
pub(in crate::op) fn order<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    #[expect(clippy::eq_op, reason = "a NaN is what differs from itself")]
    let nan = |x: &T| x != x;
    a.partial_cmp(b).unwrap_or_else(|| nan(a).cmp(&nan(b)))
}

/// The types of the entries and their positions.
pub(in crate::op) fn types(entries: TensorType) -> Result<Results, OpError> {
    let positions = TensorType { dtype: DType::I64, shape: entries.shape.clone() };
    results([entries, positions])
}

/// The gradient of the entries, at the positions that they had.
pub(in crate::op) fn back_to_positions(at: &mut Backward<'_>, axis: i64) -> Result<(), RuleError> {
    let (positions, dy) = (at.result(1)?, at.dy()?);
    let to = at.shape(at.operand(0)?);
    let zeros = at.zeros(dy, &to)?;
    let dx = at.scatter(zeros, positions, dy, axis)?;
    at.give(0, dx);
    Ok(())
}

/// Which entries of a line stay, and in which order.
pub(in crate::op) trait Ranking {
    /// Leaves those entries, of pairs of entries and positions in ascending order of the positions.
    fn rank<T: PartialOrd>(&self, line: &mut Vec<(T, i64)>);
}

/// For each line of the parts, one behind the other along `axis`, the `k` entries that stay and
/// their positions. Where no part has entries, the results are like `like` but for the axis.
pub(in crate::op) fn ranked(
    like: &Tensor,
    axis: usize,
    parts: &[Part<'_>],
    k: usize,
    ranking: &impl Ranking,
) -> Result<Vec<Tensor>, OpError> {
    let inner: usize = like.dims()[axis + 1..].iter().product();
    let mut dims = like.dims().to_vec();
    dims[axis] = k;
    let mut values = Tensor::zeros(like.dtype(), &dims)?;
    let mut places = Tensor::zeros(DType::I64, &dims)?;
    if !values.is_empty() {
        let (lines, at) = (Lines { axis, inner, k }, places.as_mut_slice());
        for_dtype!(
            like.dtype(),
            float F => lines.fill::<F>(parts, ranking, values.as_mut_slice(), at),
            int I => lines.fill::<I>(parts, ranking, values.as_mut_slice(), at),
            bool => return Err(not_a_number()),
        );
    }
    Ok(vec![values, places])
}

/// Lines along an axis, as memory has them.
#[derive(Clone, Copy)]
struct Lines {
    axis: usize,
    /// The elements behind an entry of the axis.
    inner: usize,
    /// The entries that stay.
    k: usize,
}

impl Lines {
    /// Fills blocks of `k` rows with `inner` columns, a line each.
    fn fill<T: Element + PartialOrd>(
        self,
        parts: &[Part<'_>],
        ranking: &impl Ranking,
        values: &mut [T],
        places: &mut [i64],
    ) {
        let Self { axis, inner, k } = self;
        let mut line: Vec<(T, i64)> = Vec::new();
        let blocks = values.chunks_exact_mut(k * inner).zip(places.chunks_exact_mut(k * inner));
        for (block, (values, places)) in blocks.enumerate() {
            for column in 0..inner {
                line.clear();
                for part in parts {
                    let (count, entries) = (part.values.dims()[axis], part.values.as_slice::<T>());
                    let own = part.places.map(Tensor::as_slice::<i64>);
                    let first = block * count * inner + column;
                    line.extend((0..count).zip(part.from..).map(|(row, position)| {
                        let at = first + row * inner;
                        (entries[at], own.map_or(position, |own| part.from + own[at]))
                    }));
                }
                ranking.rank(&mut line);
                for (row, (value, position)) in line.iter().enumerate() {
                    values[row * inner + column] = *value;
                    places[row * inner + column] = *position;
                }
            }
        }
    }
}
