//! The loops of a reduction: the operand is read once, in order, into one accumulator for each
//! result.

use std::ops::RangeInclusive;

use smallvec::SmallVec;

use super::Reduce;
use crate::op::OpError;
use crate::op::broadcast::Broadcast;
use crate::op::element::{Float, Int};
use crate::op::real::Real;
use crate::op::wide::{LargeSum, Product, Sum, Wide};
use crate::types::DType;

/// Rows that are reduced side by side: each in its own order, none waiting for another.
const ROWS: usize = 8;

/// How the elements of an operand with these sizes meet the results: as if these were broadcast to
/// it.
pub(super) fn plan(dims: &[usize], reduced: &[bool]) -> Broadcast<1> {
    let results: SmallVec<[usize; 4]> =
        dims.iter().zip(reduced).map(|(d, reduced)| if *reduced { 1 } else { *d }).collect();
    Broadcast::new(dims, [&results])
}

/// Takes every element of `x` into the accumulator of its result.
fn fold<X: Copy, A: Copy>(
    plan: &Broadcast<1>,
    x: &[X],
    into: &mut [A],
    step: impl Fn(A, X) -> A + Copy,
) {
    if let [(rows, [1]), (len, [0])] = *plan.axes() {
        return fold_rows(rows, len, x, into, step);
    }
    plan.runs(|run| {
        let x = &x[run.out..run.out + run.len];
        let into = &mut into[run.starts[0]..];
        if run.steps == [0] {
            if let Some(a) = into.first_mut() {
                *a = x.iter().fold(*a, |a, x| step(a, *x));
            }
        } else {
            into.iter_mut().zip(x).for_each(|(a, x)| *a = step(*a, *x));
        }
    });
}

/// The same where each accumulator takes one contiguous row.
fn fold_rows<X: Copy, A: Copy>(
    rows: usize,
    len: usize,
    x: &[X],
    into: &mut [A],
    step: impl Fn(A, X) -> A + Copy,
) {
    let (blocks, rest) = into[..rows].as_chunks_mut::<ROWS>();
    for (i, block) in blocks.iter_mut().enumerate() {
        let x: [&[X]; ROWS] = std::array::from_fn(|r| &x[(i * ROWS + r) * len..][..len]);
        let mut a = *block;
        for j in 0..len {
            for (a, x) in a.iter_mut().zip(x) {
                *a = step(*a, x[j]);
            }
        }
        *block = a;
    }
    for (a, x) in rest.iter_mut().zip(x[rows / ROWS * ROWS * len..].chunks(len.max(1))) {
        *a = x.iter().fold(*a, |a, x| step(a, *x));
    }
}

/// What the loops over one operand share.
struct Job<'a, T> {
    plan: &'a Broadcast<1>,
    x: &'a [T],
    y: &'a mut [T],
}

impl<F: Float> Job<'_, F> {
    /// Picks one of the elements.
    fn pick(self, first: f64, step: impl Fn(F::Real, F::Real) -> F::Real + Copy) {
        let mut into = vec![F::Real::of(first); self.y.len()];
        fold(self.plan, self.x, &mut into, |a, x| step(a, x.real()));
        self.y.iter_mut().zip(into).for_each(|(y, a)| *y = F::round(a));
    }

    /// Sums of numbers of one sign, in `f64`: one after the other, millions of `f32` lose no digit
    /// of an `f32`.
    fn run(self, first: f64, step: impl Fn(f64, f64) -> f64 + Copy, last: impl Fn(f64) -> f64) {
        let mut into = vec![first; self.y.len()];
        fold(self.plan, self.x, &mut into, |a, x| step(a, x.real().to_f64()));
        self.y.iter_mut().zip(into).for_each(|(y, a)| *y = F::of_f64(last(a)));
    }

    /// Sums and products of which nothing is lost on the way; `last` rounds them to an `f64`.
    fn accumulate<W: Wide>(self, last: impl Fn(W) -> f64) {
        let into = accumulated::<F, W>(self.plan, self.x, self.y.len());
        self.y.iter_mut().zip(into).for_each(|(y, a)| *y = F::of_f64(last(a)));
    }

    /// Sums that cancel, divided by `count`.
    fn sum(self, count: f64, last: impl Fn(f64) -> f64) {
        if F::DTYPE == DType::F64 {
            self.accumulate::<LargeSum>(|a| last(a.over(count)));
        } else {
            self.accumulate::<Sum>(|a| last(a.over(count)));
        }
    }

    /// The logarithm of the sum of `e^(x - m)` plus `m`, where `m` is the largest element; an
    /// infinite `m` is the result.
    fn log_sum_exp(self) {
        let zero = F::Real::of(0.0);
        let mut into = vec![(F::Real::of(f64::NEG_INFINITY), 0.0); self.y.len()];
        fold(self.plan, self.x, &mut into, |(m, s), x| (larger(m, x.real()), s));
        let shift = |m: F::Real| if m.abs() == F::Real::of(f64::INFINITY) { zero } else { m };
        fold(self.plan, self.x, &mut into, |(m, s), x| {
            (m, s + (x.real() - shift(m)).exp().to_f64())
        });
        let result = |(m, s)| F::round(F::Real::of(s).ln() + shift(m));
        self.y.iter_mut().zip(into).for_each(|(y, a)| *y = result(a));
    }
}

/// The larger of two numbers, `+0` being larger than `-0`; a NaN if one is a NaN. So the largest of
/// many does not depend on their order.
pub(in crate::op) fn larger<R: Real>(a: R, x: R) -> R {
    let negative = R::of(1.0).copysign(a) < R::of(0.0);
    if x > a || x.is_nan() || (x == a && negative) { x } else { a }
}

/// The smaller one, likewise.
pub(in crate::op) fn smaller<R: Real>(a: R, x: R) -> R {
    let positive = R::of(1.0).copysign(a) > R::of(0.0);
    if x < a || x.is_nan() || (x == a && positive) { x } else { a }
}

/// Reduces floats; `count` of them make one result.
pub(super) fn floats<F: Float>(
    op: &Reduce,
    plan: &Broadcast<1>,
    count: usize,
    x: &[F],
    y: &mut [F],
) {
    let job = Job { plan, x, y };
    let same = |a| a;
    match op {
        Reduce::Sum { .. } | Reduce::WideSum { .. } => job.sum(1.0, same),
        Reduce::Mean { .. } => job.sum(count as f64, same),
        Reduce::Max { .. } => job.pick(f64::NEG_INFINITY, larger),
        Reduce::Min { .. } => job.pick(f64::INFINITY, smaller),
        Reduce::Prod { .. } | Reduce::WideProd { .. } => job.accumulate(Product::value),
        Reduce::L1 { .. } => job.run(0.0, |a, x| a + x.abs(), same),
        Reduce::L2 { .. } => job.run(0.0, |a, x| a + x * x, f64::sqrt),
        Reduce::LogSum { .. } => job.sum(1.0, Real::ln),
        Reduce::LogSumExp { .. } => job.log_sum_exp(),
        Reduce::SumSquare { .. } => job.run(0.0, |a, x| a + x * x, same),
    }
}

/// What the elements of each result accumulate to.
fn accumulated<F: Float, W: Wide>(plan: &Broadcast<1>, x: &[F], results: usize) -> Vec<W> {
    let mut into = vec![W::EMPTY; results];
    fold(plan, x, &mut into, |a, x| a.with(x.real().to_f64()));
    into
}

/// The components of wide sums and products: `y` has them one behind the other.
pub(super) fn wide<F: Float>(op: &Reduce, plan: &Broadcast<1>, x: &[F], y: &mut [f64]) {
    fn write<F: Float, W: Wide>(plan: &Broadcast<1>, x: &[F], y: &mut [f64]) {
        let results = y.len() / W::WIDTH;
        let into = accumulated::<F, W>(plan, x, results);
        for (i, y) in y.chunks_exact_mut(results.max(1)).enumerate() {
            y.iter_mut().zip(&into).for_each(|(y, a)| *y = a.component(i));
        }
    }
    if matches!(op, Reduce::WideProd { .. }) {
        write::<F, Product>(plan, x, y);
    } else if F::DTYPE == DType::F64 {
        write::<F, LargeSum>(plan, x, y);
    } else {
        write::<F, Sum>(plan, x, y);
    }
}

impl<I: Int> Job<'_, I> {
    fn run_wide(
        self,
        first: i128,
        step: impl Fn(i128, i128) -> i128 + Copy,
        last: impl Fn(i128) -> I,
    ) {
        let mut into = vec![first; self.y.len()];
        fold(self.plan, self.x, &mut into, |a, x| step(a, x.wide()));
        self.y.iter_mut().zip(into).for_each(|(y, a)| *y = last(a));
    }
}

/// Reduces integers; `count` of them make one result, `bounds` are the least and the greatest of
/// the type.
pub(super) fn ints<I: Int>(
    op: &Reduce,
    plan: &Broadcast<1>,
    count: usize,
    bounds: RangeInclusive<i128>,
    x: &[I],
    y: &mut [I],
) -> Result<(), OpError> {
    let add = |a: i128, x: i128| a.wrapping_add(x);
    let add_square = |a: i128, x: i128| a.wrapping_add(x.wrapping_mul(x));
    let job = Job { plan, x, y };
    match op {
        Reduce::Sum { .. } | Reduce::WideSum { .. } => job.run_wide(0, add, I::wrap),
        Reduce::Mean { .. } => {
            if count == 0 && !job.y.is_empty() {
                let reason = "no integers have no mean".to_owned();
                return Err(OpError::Value { operand: 0, reason });
            }
            let count = i128::try_from(count.max(1)).unwrap_or(i128::MAX);
            job.run_wide(0, add, |a| I::wrap(a / count));
        }
        Reduce::Max { .. } => job.run_wide(*bounds.start(), i128::max, I::wrap),
        Reduce::Min { .. } => job.run_wide(*bounds.end(), i128::min, I::wrap),
        Reduce::Prod { .. } | Reduce::WideProd { .. } => {
            job.run_wide(1, i128::wrapping_mul, I::wrap);
        }
        Reduce::L1 { .. } => job.run_wide(0, |a, x| a.wrapping_add(x.abs()), I::wrap),
        Reduce::L2 { .. } => job.run_wide(0, add_square, |a| I::truncate((a as f64).sqrt())),
        Reduce::LogSum { .. } => job.run_wide(0, add, |a| I::truncate(Real::ln(a as f64))),
        Reduce::LogSumExp { .. } => {
            let wide: Vec<f64> = job.x.iter().map(|x| x.wide() as f64).collect();
            let mut logs = vec![0.0; job.y.len()];
            Job { plan, x: &wide, y: &mut logs }.log_sum_exp();
            job.y.iter_mut().zip(logs).for_each(|(y, a)| *y = I::truncate(a));
        }
        Reduce::SumSquare { .. } => job.run_wide(0, add_square, I::wrap),
    }
    Ok(())
}
