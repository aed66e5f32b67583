//! The greatest element and the mean of sliding windows over one or two axes, for `f32`.
//!
//! The results have the bits of the reference evaluation.

use std::ops::Range;

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use super::phases::Phases;
use super::pool_last::{PoolLast, greater};
use super::scratch;
use super::simd::vectorised;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Images, Support, Types};
use crate::op::window::{WindowAxis, Windows};
use crate::op::{OpError, Pool};
use crate::types::{DType, KernelClass, Order, Shape, TensorType};

/// The sizes of a pooling, and how it is computed: a function of everything but the number of
/// planes.
#[derive(Debug)]
pub(crate) struct PoolPlan {
    axes: Windows,
    greatest: bool,
    method: Method,
    /// For a mean, the number of elements of each window, at least 1.
    counts: Vec<f32>,
}

/// How the windows of a plane are computed.
#[derive(Debug)]
enum Method {
    /// Row by row: each has as many columns, 2 or 3, and begins where the one before ends.
    SideBySide(usize),
    /// All at once, tap by tap.
    Phases(Box<Phases>),
    /// One by one.
    Each,
}

/// The columns of each window of a row, 2 or 3, where each begins where the one before ends.
pub(super) fn side_by_side(columns: &WindowAxis) -> Option<usize> {
    let WindowAxis { kernel, stride, dilation, .. } = *columns;
    let is_apart = kernel == stride && dilation == 1 && !columns.reaches_outside();
    (is_apart && matches!(kernel, 2 | 3)).then_some(kernel)
}

/// Rows of fewer windows are computed window by window.
const FEW: usize = 4;

/// Elements met by windows for which a task is worth its cost.
const WORTH: usize = 1 << 16;

impl PoolPlan {
    /// The plan for an operand of shape `x`, which `op` admits; the first two sizes are free.
    /// `None` if `op` is none that this kernel computes.
    pub(crate) fn new(op: &Pool, x: &[usize]) -> Result<Option<Self>, OpError> {
        let Some(told) = told(op) else { return Ok(None) };
        let ty = TensorType { dtype: DType::F32, shape: Shape::from(x) };
        let axes = op.windows(&ty)?;
        if axes.len() > 2 {
            return Ok(None);
        }
        // Rows of few windows leave most lanes of a vector idle.
        let columns = axes.last().filter(|a| a.output >= FEW);
        let method = match columns.map(side_by_side) {
            None => Method::Each,
            Some(Some(size)) => Method::SideBySide(size),
            Some(None) => {
                // Some planes cannot be divided.
                Phases::new(&axes).map_or(Method::Each, |phases| Method::Phases(Box::new(phases)))
            }
        };
        let (greatest, counts) = match told {
            Told::Greatest => (true, Vec::new()),
            Told::Mean { padding } => (false, counts(&axes, padding)),
        };
        Ok(Some(Self { axes, greatest, method, counts }))
    }

    fn size(&self, f: fn(&WindowAxis) -> usize) -> usize {
        self.axes.iter().map(f).product()
    }

    /// The windows of a plane: a function of what it gives for the elements before, and of each.
    #[inline]
    fn fold(&self, x: &[f32], y: &mut [f32], start: f32, f: impl Fn(f32, f32) -> f32) {
        match &self.method {
            Method::SideBySide(2) => by_rows::<2>(&self.axes, x, y, start, f),
            Method::SideBySide(_) => by_rows::<3>(&self.axes, x, y, start, f),
            Method::Phases(phases) => slide(phases, x, y, start, f),
            Method::Each => each_window(&self.axes, x, y, start, f),
        }
    }
}

/// What is told of a window.
#[derive(Clone, Copy)]
enum Told {
    Greatest,
    /// The mean of its elements, with those in the padding or without.
    Mean {
        padding: bool,
    },
}

/// What a pooling tells; `None` for what these kernels do not compute.
fn told(op: &Pool) -> Option<Told> {
    match op {
        Pool::Max { indices: false, .. } => Some(Told::Greatest),
        Pool::Average { count_include_pad, .. } => Some(Told::Mean { padding: *count_include_pad }),
        Pool::Max { .. } | Pool::Lp { .. } => None,
    }
}

/// The number of elements of each window, with those in the padding if `include`, and 1 instead of
/// 0.
fn counts(axes: &[WindowAxis], include: bool) -> Vec<f32> {
    let count = |a: &WindowAxis, o: usize| if include { a.padded_taps(o) } else { a.taps(o).len() };
    let all = axes.iter().fold(vec![1usize], |outer, axis| {
        // A window without an element has the sum 0, which a divisor of 1 keeps.
        let own = |o: usize| count(axis, o).max(1);
        outer.iter().flat_map(|n| (0..axis.output).map(move |o| n.saturating_mul(own(o)))).collect()
    });
    all.into_iter().map(|n| n as f32).collect()
}

/// The results for as many planes as `y` has.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn pool(plan: &PoolPlan, x: &[f32], y: &mut [f32]) {
    let (plane, windows, taps) =
        (plan.size(|a| a.input), plan.size(|a| a.output), plan.size(|a| a.kernel));
    assert_eq!(x.len() / plane * windows, y.len(), "planes of {plan:?}");
    let each = (WORTH / windows.saturating_mul(taps).max(1)).max(1);
    let planes = y.par_chunks_exact_mut(windows).zip(x.par_chunks_exact(plane));
    planes.with_min_len(each).each(|(y, x)| {
        if plan.greatest {
            plan.fold(x, y, f32::NEG_INFINITY, greater);
        } else {
            plan.fold(x, y, 0.0, |sum, x| sum + x);
        }
    });
    // Divided once after the sum, as the reference does.
    if !plan.greatest {
        y.par_chunks_exact_mut(windows).with_min_len(each).each(|y| {
            vectorised!(for (y, count) in y.iter_mut().zip(&plan.counts) {
                *y /= *count;
            });
        });
    }
}

/// The windows of a plane, each of `K` columns and beginning where the one before ends.
#[inline]
fn by_rows<const K: usize>(
    axes: &[WindowAxis],
    x: &[f32],
    y: &mut [f32],
    start: f32,
    f: impl Fn(f32, f32) -> f32,
) {
    let Some((columns, rows)) = axes.split_last() else { return };
    let rows = rows.first().copied().unwrap_or(WindowAxis::UNIT); // An axis alone is one row.
    vectorised!(for (i, y) in y.chunks_exact_mut(columns.output).enumerate() {
        y.fill(start);
        for tap in rows.taps(i) {
            let x = &x[rows.position(i, tap) * columns.input..][..columns.output * K];
            for (y, x) in y.iter_mut().zip(x.as_chunks::<K>().0) {
                for x in x {
                    *y = f(*y, *x);
                }
            }
        }
    });
}

/// All windows of a plane at once, tap by tap.
#[inline]
fn slide(phases: &Phases, x: &[f32], y: &mut [f32], start: f32, f: impl Fn(f32, f32) -> f32) {
    let (apart, windows) = phases.memory();
    scratch::own(apart + windows, |memory| {
        let (apart, windows) = memory.split_at_mut(apart);
        phases.fill(x, start, 0, apart);
        vectorised!(phases.slide(
            apart,
            windows,
            start,
            // Inlined with few optimisations as well, where it is no call for each element.
            #[inline(always)]
            |_, y, x| f(y, x)
        ));
        let width = y.len() / phases.rows(windows).count();
        for (y, row) in y.chunks_exact_mut(width).zip(phases.rows(windows)) {
            y.copy_from_slice(row);
        }
    });
}

/// The windows of a plane one by one, elements in row-major order.
#[inline]
fn each_window(
    axes: &[WindowAxis],
    x: &[f32],
    y: &mut [f32],
    start: f32,
    f: impl Fn(f32, f32) -> f32,
) {
    let Some((columns, rows)) = axes.split_last() else { return };
    let seen = |axis: &WindowAxis, o: usize| -> (usize, Range<usize>) {
        let taps = axis.taps(o);
        (axis.position(o, taps.start), taps)
    };
    for (i, y) in y.iter_mut().enumerate() {
        let (first_row, row_taps, stride) = match rows {
            [axis] => {
                let (first, taps) = seen(axis, i / columns.output);
                // The distance of two rows under neighbouring taps.
                (first, taps, axis.dilation * columns.input)
            }
            _ => (0, 0..1, 0),
        };
        let (first, taps) = seen(columns, i % columns.output);
        let mut value = start;
        for j in 0..row_taps.len() {
            let row = &x[first_row * columns.input + j * stride..];
            for x in row.iter().skip(first).step_by(columns.dilation).take(taps.len()) {
                value = f(value, *x);
            }
        }
        *y = value;
    }
}

impl CpuOp for Pool {
    fn supports(&self, types: &Types<'_>) -> Support {
        let support = of_f32(KernelClass::Pool, types);
        let axes = types.operands.first().and_then(|x| self.windows(x).ok());
        let in_images = told(self).is_some() && axes.is_some_and(|axes| axes.len() <= 2);
        support.with_images(Images::First, in_images)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x] = at.operands.as_slice() else { return None };
        let plan = PoolPlan::new(self, x).ok()??;
        Some(if at.images == Order::ChannelsLast {
            let counts = (!plan.greatest).then_some(plan.counts);
            Box::new(PoolLast::new(&plan.axes, x[1], counts)?)
        } else {
            Box::new(plan)
        })
    }
}

impl CpuKernel for PoolPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        pool(self, x, y);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{PoolPlan, pool};
    use crate::backend::cpu::testing::{assert_bits, in_pools, misaligned, random, rng};
    use crate::op::{OpDef, Pool};
    use crate::types::Tensor;

    fn check(op: &Pool, dims: &[usize], data: &[f32]) {
        let what = format!("{op:?} {dims:?}");
        let plan = PoolPlan::new(op, dims).unwrap().expect("the kernel has it");
        let expected = op.eval(&[&Tensor::new(dims, data).unwrap()]).unwrap().remove(0);
        let expected = expected.as_slice::<f32>();
        let run = |x: &[f32]| {
            let planes = x.len() / plan.size(|a| a.input);
            let mut y = vec![0.5; planes * plan.size(|a| a.output)];
            pool(&plan, x, &mut y);
            y
        };
        assert_bits(&in_pools(|| run(data)), expected, &what);
        assert_bits(&run(&misaligned(data)[1..]), expected, &what);
        let (row, rows) = (data.len() / dims[0], expected.len() / dims[0]);
        assert_bits(&run(&data[row..2 * row]), &expected[rows..2 * rows], &what);
    }

    #[test]
    fn random_windows() {
        let mut rng = rng(1);
        for case in 0..120 {
            let rank = rng.random_range(1..=2usize);
            let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
                (0..n).map(|_| rng.random_range(from..=to)).collect()
            };
            let (kernel, mut strides) = (list(1, 4, rank), list(1, 3, rank));
            let (mut dilations, mut pads) = (list(1, 2, rank), list(0, 3, 2 * rank));
            if matches!(case % 4, 1 | 2) {
                // Each window of a row begins where the one before ends.
                (strides[rank - 1], dilations[rank - 1]) = (kernel[rank - 1], 1);
                (pads[rank - 1], pads[2 * rank - 1]) = (0, 0);
            }
            let mut dims = vec![3, 2];
            for k in &kernel {
                let size = 2 * k - 1 + rng.random_range(0..20);
                dims.push(usize::try_from(size).unwrap());
            }
            let mut data = random(&mut rng, dims.iter().product());
            if case % 3 == 0 {
                for at in [0, data.len() / 2] {
                    data[at] = [f32::NAN, f32::INFINITY, -0.0, f32::NEG_INFINITY][case % 4];
                }
            }
            let ceil_mode = rng.random_bool(0.5);
            let op = if case % 2 == 0 {
                let (indices, column_major) = (false, false);
                Pool::Max { kernel, strides, dilations, pads, ceil_mode, indices, column_major }
            } else {
                let count_include_pad = rng.random_bool(0.5);
                Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad }
            };
            check(&op, &dims, &data);
        }
    }

    fn average(kernel: Vec<i64>) -> Pool {
        let (strides, dilations, pads) = (vec![], vec![], vec![]);
        let (ceil_mode, count_include_pad) = (false, false);
        Pool::Average { kernel, strides, dilations, pads, ceil_mode, count_include_pad }
    }

    #[test]
    fn whole_planes() {
        let data = random(&mut rng(2), 2 * 5 * 7 * 7);
        check(&average(vec![7, 7]), &[2, 5, 7, 7], &data);
    }

    #[test]
    fn other_functions_are_left_to_the_reference() {
        let three = PoolPlan::new(&average(vec![1, 1, 1]), &[1, 1, 2, 2, 2]).unwrap();
        assert!(three.is_none());
        let (kernel, strides, dilations, pads) = (vec![2], vec![], vec![], vec![]);
        let lp = Pool::Lp { kernel, strides, dilations, pads, ceil_mode: false, p: 2 };
        assert!(PoolPlan::new(&lp, &[1, 1, 2]).unwrap().is_none());
    }
}
