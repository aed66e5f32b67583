//! The loops of a reduction.
//!
//! A line, the elements of a result in row-major order, is taken apart into parts of [`PART`]
//! elements. Element `i` of a part joins lane `i` modulo [`LANES`], and the lanes are then joined
//! in halves; the parts of a line are joined likewise, as if each were an element. So the length of
//! a line alone fixes the order. The kernels of GPUs have the same (`kernels/reduce.cu`).

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use std::ops::{Range, RangeInclusive};

use smallvec::SmallVec;

use super::Reduce;
use crate::op::OpError;
use crate::op::broadcast::Broadcast;
use crate::op::element::{Float, Int, reals};
use crate::op::real::Real;
use crate::op::rows::{LANES, SHORT as PART};
use crate::op::wide::{LargeSum, Product, Sum, Wide};
use crate::types::invariant::int;
use crate::types::{DType, Element};

/// The most lines that are reduced side by side: each in its own order, none waiting for another.
const COLUMNS: usize = 64;

/// How the elements of an operand with these sizes meet the results: as if these were broadcast to
/// it.
pub(super) fn plan(dims: &[usize], reduced: &[bool]) -> Broadcast<1> {
    let results: SmallVec<[usize; 4]> =
        dims.iter().zip(reduced).map(|(d, reduced)| if *reduced { 1 } else { *d }).collect();
    Broadcast::new(dims, [&results])
}

/// Sizes, outermost first, and the distance of elements along each.
type Axes = SmallVec<[(usize, usize); 4]>;

/// The place of element `i` of those along some axes, in row-major order.
fn place(axes: &[(usize, usize)], i: usize) -> usize {
    if let [(_, step)] = axes {
        return i * step;
    }
    let (mut at, mut rest) = (0, i);
    for (size, step) in axes.iter().rev() {
        at += rest % size * step;
        rest /= size;
    }
    at
}

/// Joins lanes of `width` numbers each in halves. Those that their number lacks to a power of two
/// would be empty, and change nothing.
#[inline(always)]
fn halves<A: Copy>(lanes: &mut [A], width: usize, join: impl Fn(A, A) -> A) -> &[A] {
    let mut lanes = lanes;
    while lanes.len() > width {
        let half = (lanes.len() / width).next_power_of_two() / 2;
        let (low, high) = lanes.split_at_mut(half * width);
        low.iter_mut().zip(high).for_each(|(low, high)| *low = join(*low, *high));
        lanes = low;
    }
    lanes
}

/// The lines of an operand: where their elements lie, and where lines do.
struct Lines {
    size: usize,
    along: Axes,
    across: Axes,
}

/// What is done with elements of type `X`.
struct Steps<A, S, J> {
    /// What there is before the first element.
    empty: A,
    /// What there is with one more element of the line of this number.
    step: S,
    /// What two parts are together.
    join: J,
}

/// Lines that are reduced side by side.
struct Block {
    /// Where the first element of the first line is, how far the lines are apart, and their number.
    begin: usize,
    apart: usize,
    width: usize,
}

impl Lines {
    fn new(plan: &Broadcast<1>) -> Self {
        let (mut along, mut across) = (Axes::new(), Axes::new());
        let mut pitch = 1;
        for (size, [step]) in plan.axes().iter().rev() {
            let axes = if *step == 0 { &mut along } else { &mut across };
            axes.insert(0, (*size, pitch));
            pitch *= size;
        }
        Self { size: along.iter().map(|(size, _)| size).product(), along, across }
    }

    /// Reduces all lines, each to one of the results.
    #[inline(always)]
    fn fold<X: Copy, A: Copy>(
        &self,
        x: &[X],
        results: usize,
        steps: &Steps<A, impl Fn(usize, A, X) -> A, impl Fn(A, A) -> A>,
    ) -> Vec<A> {
        let Steps { empty, step, join } = steps;
        if x.is_empty() {
            return vec![*empty; results];
        }
        // Where nothing lies across there is one line.
        let (&(lines, apart), outer) = self.across.split_last().unwrap_or((&(1, 1), &[]));
        // Elements of one line are taken side by side where they lie so, and are enough.
        let is_row = matches!(self.along[..], [(_, 1)]) && self.size > LANES;
        let most = if is_row { 1 } else { COLUMNS };
        let mut into = Vec::with_capacity(results);
        let (mut lanes, mut parts) = (Vec::new(), Vec::new());
        for outermost in 0..results / lines {
            for first in (0..lines).step_by(most) {
                let begin = place(outer, outermost) + first * apart;
                let width = most.min(lines - first);
                let line = into.len();
                parts.clear();
                for (k, start) in (0..self.size).step_by(PART).enumerate() {
                    let part = start..self.size.min(start + PART);
                    lanes.clear();
                    lanes.resize(part.len().min(LANES) * width, *empty);
                    if is_row {
                        let x = &x[begin + part.start..begin + part.end];
                        take_row(x, &mut lanes, |a, x| step(line, a, x));
                    } else {
                        let block = Block { begin, apart, width };
                        self.take(x, &block, part, &mut lanes, |c, a, x| step(line + c, a, x));
                    }
                    let given = halves(&mut lanes, width, join);
                    if k < LANES {
                        parts.extend_from_slice(given);
                    } else {
                        let lane = parts[k % LANES * width..].iter_mut().zip(given);
                        lane.for_each(|(a, b)| *a = join(*a, *b));
                    }
                }
                into.extend_from_slice(halves(&mut parts, width, join));
            }
        }
        into
    }

    /// Takes the elements `part` of each line of a block into its lanes.
    #[inline(always)]
    fn take<X: Copy, A: Copy>(
        &self,
        x: &[X],
        block: &Block,
        part: Range<usize>,
        lanes: &mut [A],
        take: impl Fn(usize, A, X) -> A,
    ) {
        let Block { begin, apart, width } = *block;
        let mut neighbours = [x[begin]; COLUMNS];
        for (k, i) in part.enumerate() {
            let mut x = &x[begin + place(&self.along, i)..];
            if apart != 1 {
                // Brought together, so that the loop over lines has vectors of them.
                for (to, x) in neighbours[..width].iter_mut().zip(x.iter().step_by(apart)) {
                    *to = *x;
                }
                x = &neighbours;
            }
            let lane = lanes[k % LANES * width..][..width].iter_mut().enumerate();
            lane.zip(x).for_each(|((c, a), x)| *a = take(c, *a, *x));
        }
    }
}

/// Takes neighbouring elements into the lanes of a line.
#[inline(always)]
fn take_row<X: Copy, A: Copy>(x: &[X], lanes: &mut [A], take: impl Fn(A, X) -> A) {
    let (blocks, rest) = x.as_chunks::<LANES>();
    for x in blocks.iter().map(<[X; LANES]>::as_slice).chain([rest]) {
        lanes.iter_mut().zip(x).for_each(|(a, x)| *a = take(*a, *x));
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
    /// Reduces all lines, each from `empty` on.
    #[inline(always)]
    fn fold<A: Copy>(
        &self,
        empty: A,
        step: impl Fn(A, R) -> A,
        join: impl Fn(A, A) -> A,
    ) -> Vec<A> {
        let steps = Steps { empty, step: |_, a, x| step(a, x), join };
        Lines::new(self.plan).fold(self.x, self.results, &steps)
    }

    /// Picks one of the elements.
    #[inline(always)]
    fn pick(&self, first: f64, step: impl Fn(R, R) -> R + Copy) -> Vec<f64> {
        self.fold(R::of(first), step, step).into_iter().map(R::to_f64).collect()
    }

    /// Sums of numbers of one sign, in `f64`: millions of `f32` lose no digit of an `f32`.
    #[inline(always)]
    fn run(&self, step: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        self.fold(0.0, |sum, x| step(sum, x.to_f64()), |a, b| a + b)
    }

    /// Sums and products of which nothing is lost on the way.
    #[inline(always)]
    fn accumulate<W: Wide>(&self) -> Vec<W> {
        self.fold(W::EMPTY, |sum: W, x| sum.with(x.to_f64()), W::join)
    }

    /// Sums that cancel, divided by `count`.
    #[inline(always)]
    fn sum(&self, count: f64) -> Vec<f64> {
        if R::DTYPE == DType::F64 {
            self.accumulate::<LargeSum>().into_iter().map(|a| a.over(count)).collect()
        } else {
            self.accumulate::<Sum>().into_iter().map(|a| a.over(count)).collect()
        }
    }

    /// The logarithm of the sum of `e^(x - m)` plus `m`, where `m` is the largest element; an
    /// infinite `m` is the result.
    #[inline(always)]
    fn log_sum_exp(&self) -> Vec<f64> {
        let most = self.fold(R::of(f64::NEG_INFINITY), larger, larger);
        let shift = |m: R| if m.abs() == R::of(f64::INFINITY) { R::of(0.0) } else { m };
        let shifts: Vec<R> = most.into_iter().map(shift).collect();
        let steps = Steps {
            empty: 0.0,
            step: |line: usize, sum: f64, x: R| sum + (x - shifts[line]).exp().to_f64(),
            join: |a, b| a + b,
        };
        let sums = Lines::new(self.plan).fold(self.x, self.results, &steps);
        sums.into_iter().zip(&shifts).map(|(s, m)| (R::of(s).ln() + *m).to_f64()).collect()
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
#[inline(always)]
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
#[inline(always)]
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

type Step = fn(i128, i128) -> i128;

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
    let add: Step = i128::wrapping_add;
    let (empty, step, join): (i128, Step, Step) = match op {
        Reduce::LogSumExp { .. } => {
            let wide: Vec<f64> = x.iter().map(|x| x.wide() as f64).collect();
            let logs = Job { plan, x: &wide, results: y.len() }.log_sum_exp();
            y.iter_mut().zip(logs).for_each(|(y, a)| *y = I::truncate(a));
            return Ok(());
        }
        Reduce::Sum { .. }
        | Reduce::WideSum { .. }
        | Reduce::Mean { .. }
        | Reduce::LogSum { .. } => (0, add, add),
        Reduce::Max { .. } => (*bounds.start(), i128::max, i128::max),
        Reduce::Min { .. } => (*bounds.end(), i128::min, i128::min),
        Reduce::Prod { .. } | Reduce::WideProd { .. } => {
            (1, i128::wrapping_mul, i128::wrapping_mul)
        }
        Reduce::L1 { .. } => (0, |a, x| a.wrapping_add(x.abs()), add),
        Reduce::L2 { .. } | Reduce::SumSquare { .. } => {
            (0, |a, x| a.wrapping_add(x.wrapping_mul(x)), add)
        }
    };
    let steps = Steps { empty, step: |_, a, x: I| step(a, x.wide()), join };
    let into = Lines::new(plan).fold(x, y.len(), &steps);
    let count = int::<i128>(count.max(1));
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
