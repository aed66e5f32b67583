//! Gradients of pooling over one or two axes, for `f32`.
//!
//! The results have the bits of the reference evaluation.

use std::hint::select_unpredictable;
use std::ops::Range;

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use super::pool::side_by_side;
use super::scratch;
use super::simd::vectorised;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::window::WindowAxis;
use crate::op::{OpError, PoolGrad};
use crate::types::KernelClass;
use crate::types::invariant::int;

/// The sizes of the gradient of a pool: a function of everything but the number of planes.
#[derive(Debug)]
pub(crate) struct PoolGradPlan {
    /// Elements of a plane of the pool's operand.
    plane: usize,
    /// The distance between rows of a plane.
    width: usize,
    rows: Vec<Span>,
    columns: Vec<Span>,
    alike: Alike,
    /// The columns of each window of a row, where each begins where the one before ends.
    side_by_side: Option<usize>,
    greatest: bool,
}

/// Neighbouring windows of a row that meet as many elements, each as far behind the one before.
#[derive(Clone, Debug)]
struct Alike {
    windows: Range<usize>,
    /// The distance between their first elements.
    stride: usize,
}

impl Alike {
    /// The first windows that meet as many elements as any.
    fn of(spans: &[Span], stride: usize) -> Self {
        // Where there are no windows none are alike.
        let most = spans.iter().map(|span| span.count).max().unwrap_or_default();
        // Where there are no windows there is no first one.
        let start = spans.iter().position(|span| span.count == most).unwrap_or_default();
        let is_next = |(i, span): &(usize, &Span)| {
            span.count == most && span.first == spans[start].first + i * stride
        };
        let count = spans[start..].iter().enumerate().take_while(is_next).count();
        Self { windows: start..start + count, stride }
    }
}

/// The elements that a window meets along one axis.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    first: usize,
    count: usize,
    /// The distance between elements.
    step: usize,
    /// The elements among which it is shared.
    shared: usize,
}

impl Span {
    fn positions(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, step) = (self.first, self.step);
        (0..self.count).map(move |i| first + i * step)
    }
}

/// Elements met by windows for which a task is worth its cost.
const WORTH: usize = 1 << 15;

impl PoolGradPlan {
    /// The plan for a pool's operand whose spatial axes have these sizes; `None` where there are
    /// more than two.
    pub(crate) fn new(op: &PoolGrad, sizes: &[usize]) -> Result<Option<Self>, OpError> {
        let sizes: Vec<i64> = sizes.iter().map(|d| int(*d)).collect();
        let windows = op.windows(&sizes)?;
        let include = matches!(op, PoolGrad::Average { count_include_pad: true, .. });
        let spans = |a: &WindowAxis| -> Vec<Span> {
            let span = |o: usize| {
                let taps = a.taps(o);
                let first = if taps.is_empty() { 0 } else { a.position(o, taps.start) };
                let shared = if include { a.padded_taps(o) } else { taps.len() };
                Span { first, count: taps.len(), step: a.dilation, shared }
            };
            (0..a.output).map(span).collect()
        };
        let alone = || vec![Span { first: 0, count: 1, step: 1, shared: 1 }];
        let (rows, columns) = match windows.as_slice() {
            [columns] => (alone(), columns),
            [rows, columns] => (spans(rows), columns),
            _ => return Ok(None),
        };
        let own = spans(columns);
        let alike = Alike::of(&own, columns.stride);
        let most = rows.iter().map(|row| row.count).max();
        let is_counted =
            |k: &usize| most.is_none_or(|m| u32::try_from(m.saturating_mul(*k)).is_ok());
        Ok(Some(Self {
            alike,
            side_by_side: side_by_side(columns).filter(is_counted),
            plane: windows.iter().map(|a| a.input).product(),
            width: columns.input,
            rows,
            columns: own,
            greatest: matches!(op, PoolGrad::Max { .. }),
        }))
    }

    /// The windows of a plane, in row-major order.
    fn windows(&self) -> impl Iterator<Item = (&Span, &Span)> {
        self.rows.iter().flat_map(|row| self.columns.iter().map(move |column| (row, column)))
    }

    /// Each number of `dy` to the greatest element of its window.
    fn to_greatest(&self, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        let count = self.columns.len();
        let words = count * (size_of::<usize>() / size_of::<f32>());
        scratch::own(words + count, |memory| {
            let (places, best) = memory.split_at_mut(words);
            let taps = &mut bytemuck::cast_slice_mut(places)[..count];
            match self.side_by_side {
                Some(2) => vectorised!(self.by_rows::<2>([x, dy], dx, best, taps)),
                Some(_) => vectorised!(self.by_rows::<3>([x, dy], dx, best, taps)),
                None => self.by_places([x, dy], dx, best, bytemuck::cast_slice_mut(places)),
            }
        });
    }

    /// The same for windows of `K` columns, of which each begins where the one before ends.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
    fn by_rows<const K: usize>(
        &self,
        [x, dy]: [&[f32]; 2],
        dx: &mut [f32],
        best: &mut [f32],
        taps: &mut [u32],
    ) {
        let count = best.len();
        for (rows, dy) in self.rows.iter().zip(dy.chunks_exact(count)) {
            best.fill(f32::NEG_INFINITY);
            taps.fill(0);
            for (row, first) in rows.positions().zip((0..).step_by(K)) {
                let x = x[row * self.width..][..count * K].as_chunks::<K>().0;
                for ((best, tap), x) in best.iter_mut().zip(&mut *taps).zip(x) {
                    for (x, own) in x.iter().zip(first..) {
                        let is_greater = (*x > *best) | x.is_nan();
                        *best = select_unpredictable(is_greater, *x, *best);
                        *tap = select_unpredictable(is_greater, own, *tap);
                    }
                }
            }
            for (row, first) in rows.positions().zip((0..).step_by(K)) {
                let dx = dx[row * self.width..][..count * K].as_chunks_mut::<K>().0;
                for ((dx, tap), dy) in dx.iter_mut().zip(&*taps).zip(dy) {
                    for (dx, own) in dx.iter_mut().zip(first..) {
                        // No sum is a negative zero, so that 0 changes none.
                        *dx += if *tap == own { *dy } else { 0.0 };
                    }
                }
            }
        }
    }

    /// The same for any windows, of which `best` and `places` have one for each of a row.
    fn by_places(
        &self,
        [x, dy]: [&[f32]; 2],
        dx: &mut [f32],
        best: &mut [f32],
        places: &mut [usize],
    ) {
        let Range { start, end } = self.alike.windows;
        for (rows, dy) in self.rows.iter().zip(dy.chunks_exact(best.len().max(1))) {
            if rows.count == 0 {
                continue;
            }
            vectorised!(self.greatest(x, rows, &mut best[start..end], &mut places[start..end]));
            for (i, columns) in self.columns.iter().enumerate() {
                if !(start..end).contains(&i) && columns.count > 0 {
                    places[i] = self.greatest_of(x, rows, columns);
                }
            }
            // In the order of the windows, which may share an element.
            for ((columns, place), dy) in self.columns.iter().zip(&*places).zip(dy) {
                if columns.count > 0 {
                    dx[*place] += dy;
                }
            }
        }
    }

    /// The greatest elements of windows that are alike and where they lie, tap by tap: which ones
    /// they are cannot be foreseen, so there are no branches.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
    fn greatest(&self, x: &[f32], rows: &Span, best: &mut [f32], places: &mut [usize]) {
        let (columns, stride) = (&self.columns[self.alike.windows.start], self.alike.stride);
        let taps = rows
            .positions()
            .flat_map(|row| columns.positions().map(move |column| row * self.width + column));
        for (tap, first) in taps.enumerate() {
            let seen = x[first..].iter().step_by(stride).zip((first..).step_by(stride));
            let kept = best.iter_mut().zip(places.iter_mut());
            if tap == 0 {
                kept.zip(seen).for_each(|((best, place), (x, at))| (*best, *place) = (*x, at));
                continue;
            }
            for ((best, place), (x, at)) in kept.zip(seen) {
                let is_greater = (*x > *best) | x.is_nan();
                *best = select_unpredictable(is_greater, *x, *best);
                *place = select_unpredictable(is_greater, at, *place);
            }
        }
    }

    /// Where the greatest element of a window lies, which has one.
    fn greatest_of(&self, x: &[f32], rows: &Span, columns: &Span) -> usize {
        let mut place = rows.first * self.width + columns.first;
        for row in rows.positions() {
            for at in columns.positions().map(|column| row * self.width + column) {
                place = if x[at] > x[place] || x[at].is_nan() { at } else { place };
            }
        }
        place
    }

    /// Each number of `dy` shared among the elements of its window.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
    fn to_all(&self, dy: &[f32], dx: &mut [f32]) {
        for ((rows, columns), dy) in self.windows().zip(dy) {
            let count = rows.shared as f64 * columns.shared as f64;
            if count > 0.0 {
                let share = dy / count as f32;
                for row in rows.positions() {
                    for column in columns.positions() {
                        dx[row * self.width + column] += share;
                    }
                }
            }
        }
    }
}

/// The gradient `dx` of the operand from `dy`, that of the result, for as many planes as `dx` has;
/// `x`, the operand, is empty where the pool is a mean.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn pool_grad(plan: &PoolGradPlan, x: &[f32], dy: &[f32], dx: &mut [f32]) {
    let windows = plan.rows.len() * plan.columns.len();
    assert_eq!(dx.len() / plan.plane * windows, dy.len(), "planes of {plan:?}");
    assert_eq!(x.len(), if plan.greatest { dx.len() } else { 0 }, "planes of {plan:?}");
    let met = |spans: &[Span]| spans.iter().map(|s| s.count).sum::<usize>();
    let each = (WORTH / met(&plan.rows).saturating_mul(met(&plan.columns)).max(1)).max(1);
    let planes = dx.par_chunks_exact_mut(plan.plane).zip(dy.par_chunks_exact(windows));
    planes.with_min_len(each).enumerate().each(|(i, (dx, dy))| {
        dx.fill(0.0);
        if plan.greatest {
            plan.to_greatest(&x[i * plan.plane..][..plan.plane], dy, dx);
        } else {
            plan.to_all(dy, dx);
        }
    });
}

impl CpuOp for PoolGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Training, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let plan = PoolGradPlan::new(self, at.results.first()?.get(2..)?);
        Some(Box::new(plan.ok()??))
    }
}

impl CpuKernel for PoolGradPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        match (operands, results) {
            ([dy], [dx]) => pool_grad(self, &[], dy, dx),
            ([x, dy], [dx]) => pool_grad(self, x, dy, dx),
            _ => return Err(Unsuited),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{PoolGradPlan, pool_grad};
    use crate::backend::cpu::testing::{assert_bits, in_pools, misaligned, random, rng};
    use crate::op::{OpDef, PoolGrad};
    use crate::types::Tensor;

    #[test]
    fn windows_give_as_in_the_reference() {
        let mut rng = rng(1);
        for case in 0..160 {
            let rank = rng.random_range(1..=2usize);
            let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
                (0..n).map(|_| rng.random_range(from..=to)).collect()
            };
            let (kernel, mut strides) = (list(1, 4, rank), list(1, 3, rank));
            let (mut dilations, mut pads) = (list(1, 2, rank), list(0, 3, 2 * rank));
            if case % 4 == 0 {
                // Each window of a row begins where the one before ends.
                (strides[rank - 1], dilations[rank - 1]) = (kernel[rank - 1], 1);
                (pads[rank - 1], pads[2 * rank - 1]) = (0, 0);
            }
            let sizes: Vec<i64> =
                kernel.iter().zip(list(0, 12, rank)).map(|(k, more)| 2 * k - 1 + more).collect();
            let ceil_mode = rng.random_bool(0.5);
            let op = if case % 2 == 0 {
                PoolGrad::Max { kernel, strides, dilations, pads, ceil_mode }
            } else {
                let (sizes, count_include_pad) = (sizes.clone(), rng.random_bool(0.5));
                PoolGrad::Average {
                    sizes,
                    kernel,
                    strides,
                    dilations,
                    pads,
                    ceil_mode,
                    count_include_pad,
                }
            };
            let windows = op.windows(&sizes).unwrap();
            let (mut dims, mut out) = (vec![3, 2], vec![3, 2]);
            dims.extend(windows.iter().map(|a| a.input));
            out.extend(windows.iter().map(|a| a.output));
            // Few values, so that there are ties.
            let mut x: Vec<f32> =
                (0..dims.iter().product()).map(|_| rng.random_range(0..5u8).into()).collect();
            if case % 3 == 0 {
                let at = rng.random_range(0..x.len());
                x[at] = [f32::NAN, f32::INFINITY, -0.0, f32::NEG_INFINITY][case % 4];
                x[0] = f32::NAN;
            }
            let dy = random(&mut rng, out.iter().product());
            let plan = PoolGradPlan::new(&op, &dims[2..]).unwrap().expect("the kernel has it");
            let greatest = case % 2 == 0;
            let tensors = [Tensor::new(&dims, &x).unwrap(), Tensor::new(&out, &dy).unwrap()];
            let refs: Vec<&Tensor> = tensors[usize::from(!greatest)..].iter().collect();
            let expected = op.eval(&refs).unwrap().remove(0);
            let what = format!("{op:?} {dims:?}");
            let run = |x: &[f32], dy: &[f32]| {
                let mut dx = vec![f32::NAN; expected.len()];
                pool_grad(&plan, if greatest { x } else { &[] }, dy, &mut dx);
                dx
            };
            assert_bits(&in_pools(|| run(&x, &dy)), expected.as_slice(), &what);
            let (x, dy) = (misaligned(&x), misaligned(&dy));
            assert_bits(&run(&x[1..], &dy[1..]), expected.as_slice(), &what);
        }
    }

    #[test]
    fn three_axes_have_no_kernel() {
        let op = PoolGrad::Max {
            kernel: vec![2; 3],
            strides: vec![],
            dilations: vec![],
            pads: vec![],
            ceil_mode: false,
        };
        assert!(PoolGradPlan::new(&op, &[4, 4, 4]).unwrap().is_none());
    }
}
