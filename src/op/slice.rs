//! A range of every axis.

use smallvec::SmallVec;

use super::infer::{exactly, known, result_with_ints};
use super::prelude::*;
use super::strided;
use crate::types::invariant::int;

op! {
    /// The elements `starts, starts + steps, …` before `ends` of each axis named.
    ///
    /// `0 <= start <= size` and `start <= end <= size` where the step is positive; where it is
    /// negative the elements run down from `start` to the one after `end`,
    /// `-1 <= end <= start < size` (or both are equal). Bounds may depend on `N`; they are in range
    /// for every `N`.
    pub struct Slice = "slice" is MOVES | FOLLOWS_BLOCKS {
        /// The axes, ascending.
        pub axes: Vec<usize>,
        /// The first element of each.
        pub starts: Vec<Dim>,
        /// One past the last element of each.
        pub ends: Vec<Dim>,
        /// The distance between elements of each, not 0.
        pub steps: Vec<i64>,
    }
}

impl Slice {
    /// The rows `from..to` of one axis.
    pub fn rows(axis: usize, from: Dim, to: Dim) -> Self {
        Self { axes: vec![axis], starts: vec![from], ends: vec![to], steps: vec![1] }
    }

    fn bounds(&self) -> impl Iterator<Item = (usize, &Dim, &Dim, i64)> {
        let ranges = self.starts.iter().zip(&self.ends).zip(&self.steps);
        self.axes.iter().zip(ranges).map(|(axis, ((start, end), step))| (*axis, start, end, *step))
    }

    fn check(&self, ty: &TensorType) -> Result<(), OpError> {
        let wrong = |reason: String| OpError::attr("axes", reason);
        let n = self.axes.len();
        if self.starts.len() != n || self.ends.len() != n || self.steps.len() != n {
            return Err(wrong("axes, starts, ends and steps differ in number".to_owned()));
        }
        if !self.axes.is_sorted_by(|a, b| a < b) {
            return Err(wrong("the axes are not ascending".to_owned()));
        }
        for (axis, start, end, step) in self.bounds() {
            let Some(size) = ty.shape.get(axis) else {
                return Err(wrong(format!("{axis} is not an axis of {ty}")));
            };
            let ordered = |a: &Dim, b: &Dim| (b.clone() - a.clone()).is_nonnegative();
            // The order must hold for every `N`: bounds are not moved into the axis when the graph
            // runs.
            let inside = match step {
                0 => false,
                s if s > 0 => {
                    ordered(&Dim::ZERO, start) && ordered(start, end) && ordered(end, size)
                }
                _ => {
                    start == end
                        || (ordered(&(-1).into(), end)
                            && ordered(end, start)
                            && ordered(start, &(size.clone() - 1)))
                }
            };
            if !inside {
                let reason =
                    format!("{start}..{end} by {step} is not a range of axis {axis} of {ty}");
                return Err(OpError::attr("starts", reason));
            }
        }
        Ok(())
    }
}

/// The number of elements from `start` to before `end` by `step`.
fn length(start: &Dim, end: &Dim, step: i64) -> Dim {
    // `ceil(distance / |step|)`.
    let distance = if step > 0 { end.clone() - start.clone() } else { start.clone() - end.clone() };
    let step = step.saturating_abs();
    (distance + (step - 1)).floor_div(&step.into())
}

impl OpDef for Slice {
    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        self.steps.iter().all(|step| *step > 0).then_some(0)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        self.check(x.ty)?;
        let mut ty = x.ty.clone();
        for (axis, start, end, step) in self.bounds() {
            ty.shape[axis] = length(start, end, step);
        }
        let ints = match (x.ints, self.bounds().next()) {
            (Some(ints), None) => Some(ints.iter().cloned().collect()),
            (Some(ints), Some((_, start, _, step))) if x.ty.rank() == 1 => {
                let (start, count) = (start.as_const(), ty.shape[0].as_const());
                start.zip(count).and_then(|(start, count)| {
                    (0..count)
                        .map(|i| ints.get(usize::try_from(start + i * step).ok()?).cloned())
                        .collect::<Option<SmallVec<[Dim; 8]>>>()
                })
            }
            _ => None,
        };
        result_with_ints(ty, ints)
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let mut kept = shard;
        for (on, start, end, step) in self.bounds() {
            // A replica would evaluate such a bound at its own number of rows.
            if on != shard.axis && (start.depends_on_batch() || end.depends_on_batch()) {
                let reason =
                    format!("takes {start}..{end} of axis {on}, which depends on the batch size");
                return at.refuse(Code::BakedBatch, reason);
            }
            if on == shard.axis {
                // Whole blocks of rows stay with their rows; any other range cuts through the
                // batch.
                kept.outer = match (shard.blocks(start), shard.blocks(end)) {
                    (Some(from), Some(to)) if from < to && step == 1 => to - from,
                    _ => return at.refuse(Code::Reorders, "selects samples of the batch"),
                };
            }
        }
        at.keep(kept)
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        rules::moved(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let mut axes = strided::axes_of(x.dims());
        let mut first = 0usize;
        for (axis, start, end, step) in self.bounds() {
            let count = int::<usize>(known("the bound", &length(start, end, step))?);
            if count == 0 {
                // Its start may be any number.
                axes[axis].0 = 0;
                continue;
            }
            let start = int::<isize>(known("the bound", start)?);
            // A step beyond the type takes one element at most.
            let (step, distance) = (isize::try_from(step).unwrap_or(isize::MAX), axes[axis].1);
            first = first.wrapping_add_signed(start.wrapping_mul(distance));
            axes[axis] = (count, step.wrapping_mul(distance));
        }
        let dims: Vec<usize> = axes.iter().map(|axis| axis.0).collect();
        Ok(vec![strided::taken(x, first, &axes, &dims)?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, whole) = (at.dy()?, at.shape(at.operand(0)?));
        let mut dx = dy;
        for (i, axis) in self.axes.iter().enumerate() {
            dx = at.spread(dx, *axis, &self.starts[i], self.steps[i], &whole[*axis])?;
        }
        at.give(0, dx)
    }
}
