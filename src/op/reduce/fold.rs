//! The loops of a reduction: the operand is read once, in order, into one accumulator for each
//! result.

use std::ops::RangeInclusive;

use smallvec::SmallVec;

use super::Reduce;
use crate::op::OpError;
use crate::op::broadcast::Broadcast;
use crate::op::element::{Float, Int, reals};
use crate::op::real::Real;
use crate::op::wide::{LargeSum, Product, Sum, Wide};
use crate::types::{DType, Element};

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
    // One accumulator is a chain of dependent additions: `ROWS` chains side by side hide their
    // latency. The order within each row stays, and so does the result.
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
        // A local copy, so that the accumulators can stay in registers for the whole row.
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

/// State that the loops over one operand share. The elements are numbers already, so that a loop is
/// compiled for two types of floats instead of four; each result is rounded once.
struct Job<'a, R> {
    plan: &'a Broadcast<1>,
    x: &'a [R],
    results: usize,
}

impl<R: Real + Element> Job<'_, R> {
    /// Picks one of the elements.
    fn pick(&self, first: f64, step: impl Fn(R, R) -> R + Copy) -> Vec<f64> {
        let mut into = vec![R::of(first); self.results];
        fold(self.plan, self.x, &mut into, step);
        into.into_iter().map(R::to_f64).collect()
    }

    /// Sums of numbers of one sign, in `f64`: one after the other, millions of `f32` lose no digit
    /// of an `f32`.
    fn run(&self, step: impl Fn(f64, f64) -> f64 + Copy) -> Vec<f64> {
        let mut into = vec![0.0; self.results];
        fold(self.plan, self.x, &mut into, |a, x| step(a, x.to_f64()));
        into
    }

    /// Sums and products of which nothing is lost on the way.
    fn accumulate<W: Wide>(&self) -> Vec<W> {
        let mut into = vec![W::EMPTY; self.results];
        fold(self.plan, self.x, &mut into, |a, x| a.with(x.to_f64()));
        into
    }

    /// Sums that cancel, divided by `count`.
    fn sum(&self, count: f64) -> Vec<f64> {
        if R::DTYPE == DType::F64 {
            self.accumulate::<LargeSum>().into_iter().map(|a| a.over(count)).collect()
        } else {
            self.accumulate::<Sum>().into_iter().map(|a| a.over(count)).collect()
        }
    }

    /// The logarithm of the sum of `e^(x - m)` plus `m`, where `m` is the largest element; an
    /// infinite `m` is the result.
    fn log_sum_exp(&self) -> Vec<f64> {
        let mut most = vec![R::of(f64::NEG_INFINITY); self.results];
        fold(self.plan, self.x, &mut most, larger);
        let shift = |m: R| if m.abs() == R::of(f64::INFINITY) { R::of(0.0) } else { m };
        let mut into: Vec<(R, f64)> = most.into_iter().map(|m| (shift(m), 0.0)).collect();
        fold(self.plan, self.x, &mut into, |(m, s), x| (m, s + (x - m).exp().to_f64()));
        into.into_iter().map(|(m, s)| (R::of(s).ln() + m).to_f64()).collect()
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
    let results = numbers(op, count, &Job { plan, x: &reals(x), results: y.len() });
    y.iter_mut().zip(results).for_each(|(y, a)| *y = F::of_f64(a));
}

/// The results of a reduction of numbers, each to be rounded to the type of the elements.
fn numbers<R: Real + Element>(op: &Reduce, count: usize, job: &Job<'_, R>) -> Vec<f64> {
    let each = |results: Vec<f64>, f: fn(f64) -> f64| results.into_iter().map(f).collect();
    match op {
        Reduce::Sum { .. } | Reduce::WideSum { .. } => job.sum(1.0),
        Reduce::Mean { .. } => job.sum(count as f64),
        Reduce::Max { .. } => job.pick(f64::NEG_INFINITY, larger),
        Reduce::Min { .. } => job.pick(f64::INFINITY, smaller),
        Reduce::Prod { .. } | Reduce::WideProd { .. } => {
            job.accumulate::<Product>().into_iter().map(Product::value).collect()
        }
        Reduce::L1 { .. } => job.run(|a, x| a + x.abs()),
        Reduce::L2 { .. } => each(job.run(add_square), f64::sqrt),
        Reduce::LogSum { .. } => each(job.sum(1.0), Real::ln),
        Reduce::LogSumExp { .. } => job.log_sum_exp(),
        Reduce::SumSquare { .. } => job.run(add_square),
    }
}

fn add_square(a: f64, x: f64) -> f64 {
    a + x * x
}

/// The components of wide sums and products: `y` has them one behind the other.
pub(super) fn wide<F: Float>(op: &Reduce, plan: &Broadcast<1>, x: &[F], y: &mut [f64]) {
    fn write<W: Wide, R: Real + Element>(plan: &Broadcast<1>, x: &[R], y: &mut [f64]) {
        let results = y.len() / W::WIDTH;
        let into = Job { plan, x, results }.accumulate::<W>();
        for (i, y) in y.chunks_exact_mut(results.max(1)).enumerate() {
            y.iter_mut().zip(&into).for_each(|(y, a)| *y = a.component(i));
        }
    }
    let x = reals(x);
    if matches!(op, Reduce::WideProd { .. }) {
        write::<Product, _>(plan, &x, y);
    } else if F::DTYPE == DType::F64 {
        write::<LargeSum, _>(plan, &x, y);
    } else {
        write::<Sum, _>(plan, &x, y);
    }
}

/// Reduces integers; `count` of them make one result, `bounds` are the least and the greatest of
/// the type. One loop serves all reductions: it takes the step by its address.
pub(super) fn ints<I: Int>(
    op: &Reduce,
    plan: &Broadcast<1>,
    count: usize,
    bounds: RangeInclusive<i128>,
    x: &[I],
    y: &mut [I],
) -> Result<(), OpError> {
    if matches!(op, Reduce::Mean { .. }) && count == 0 && !y.is_empty() {
        return Err(OpError::value(0, "the mean of zero integers is undefined"));
    }
    let (first, step): (i128, fn(i128, i128) -> i128) = match op {
        Reduce::LogSumExp { .. } => {
            let wide: Vec<f64> = x.iter().map(|x| x.wide() as f64).collect();
            let logs = Job { plan, x: &wide, results: y.len() }.log_sum_exp();
            y.iter_mut().zip(logs).for_each(|(y, a)| *y = I::truncate(a));
            return Ok(());
        }
        Reduce::Sum { .. }
        | Reduce::WideSum { .. }
        | Reduce::Mean { .. }
        | Reduce::LogSum { .. } => (0, i128::wrapping_add),
        Reduce::Max { .. } => (*bounds.start(), i128::max),
        Reduce::Min { .. } => (*bounds.end(), i128::min),
        Reduce::Prod { .. } | Reduce::WideProd { .. } => (1, i128::wrapping_mul),
        Reduce::L1 { .. } => (0, |a, x| a.wrapping_add(x.abs())),
        Reduce::L2 { .. } | Reduce::SumSquare { .. } => {
            (0, |a, x| a.wrapping_add(x.wrapping_mul(x)))
        }
    };
    let mut into = vec![first; y.len()];
    fold(plan, x, &mut into, |a, x| step(a, x.wide()));
    let count = i128::try_from(count.max(1)).unwrap_or(i128::MAX);
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are integers already")]
    let of = |a: i128| match op {
        Reduce::Mean { .. } => I::wrap(a / count),
        Reduce::L2 { .. } => I::truncate((a as f64).sqrt()),
        Reduce::LogSum { .. } => I::truncate(Real::ln(a as f64)),
        _ => I::wrap(a),
    };
    y.iter_mut().zip(into).for_each(|(y, a)| *y = of(a));
    Ok(())
}
