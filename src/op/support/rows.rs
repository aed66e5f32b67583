//! Folds over rows and columns of numbers, in an order that the number of elements alone fixes.
//!
//! A row of up to [`SHORT`] elements has [`LANES`] lanes, a longer one [`LONG_LANES`]. Element `i`
//! joins lane `i` modulo their number; the lanes are then joined in halves. So a row is folded
//! without one element waiting for another, and its bits depend neither on the rows beside it nor
//! on the machine's vectors. The kernels of GPUs have the same lanes (`kernels/include/lines.cuh`).

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use crate::op::element::Float;
use crate::op::real::Real;

/// The most elements of a row that few lanes fold.
pub(crate) const SHORT: usize = 4096;

/// The lanes of the fold of such a row.
pub(crate) const LANES: usize = 32;

/// The lanes of the fold of a longer one.
pub(crate) const LONG_LANES: usize = 1024;

/// Columns that are folded side by side, each as a row of its own.
pub(crate) const COLUMNS: usize = 16;

/// The rows that [`each`] takes at once.
const ROWS: usize = 8;

/// The larger of two numbers; a NaN if one is a NaN.
#[inline(always)]
pub(in crate::op) fn larger<R: Real>(a: R, x: R) -> R {
    if x > a || x.is_nan() { x } else { a }
}

/// The fold of a row by `step`, from `first` in every lane; `join` joins two lanes.
#[inline(always)]
fn fold<T: Copy, A: Copy>(
    x: &[T],
    first: A,
    step: impl Fn(A, T) -> A,
    join: impl Fn(A, A) -> A,
) -> A {
    if x.len() <= SHORT {
        fold_by::<LANES, _, _>(x, first, step, join)
    } else {
        fold_by::<LONG_LANES, _, _>(x, first, step, join)
    }
}

/// As [`fold`], by so many lanes.
#[inline(always)]
fn fold_by<const LANES: usize, T: Copy, A: Copy>(
    x: &[T],
    first: A,
    step: impl Fn(A, T) -> A,
    join: impl Fn(A, A) -> A,
) -> A {
    let mut lanes = [first; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = step(*lane, *x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane = step(*lane, *x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low = join(*low, *high);
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of `f` over a row.
#[inline(always)]
pub(in crate::op) fn sum<T: Copy, R: Real>(x: &[T], f: impl Fn(T) -> R) -> R {
    fold(x, R::of(0.0), |sum, x| sum + f(x), |a, b| a + b)
}

/// Folds each column of a matrix with `out.len()` columns, at most `COLUMNS`, as [`fold`] does with
/// a row.
#[inline(always)]
pub(in crate::op) fn fold_columns<R: Copy>(
    x: &[R],
    out: &mut [R],
    first: R,
    step: impl Fn(R, R) -> R,
    join: impl Fn(R, R) -> R,
) {
    if let [single] = out {
        *single = fold(x, first, step, join);
        return;
    }
    let width = out.len();
    if x.len() <= SHORT * width {
        join_columns(x, &mut [first; LANES * COLUMNS][..LANES * width], out, step, join);
    } else {
        join_columns(x, &mut vec![first; LONG_LANES * width], out, step, join);
    }
}

/// As [`fold_columns`], by these lanes of each column, from what they hold.
#[inline(always)]
fn join_columns<R: Copy>(
    x: &[R],
    lanes: &mut [R],
    out: &mut [R],
    step: impl Fn(R, R) -> R,
    join: impl Fn(R, R) -> R,
) {
    let width = out.len();
    for block in x.chunks(lanes.len()) {
        for (lane, x) in lanes.iter_mut().zip(block) {
            *lane = step(*lane, *x);
        }
    }
    let mut height = lanes.len() / width / 2;
    while height > 0 {
        let (low, high) = lanes.split_at_mut(height * width);
        for (low, high) in low.iter_mut().zip(high) {
            *low = join(*low, *high);
        }
        height /= 2;
    }
    out.copy_from_slice(&lanes[..width]);
}

/// The mean of a row, and `1 / sqrt(variance + epsilon)`, where the variance is the mean of squared
/// distances from the mean.
#[inline(always)]
pub(in crate::op) fn moments<F: Float>(x: &[F], epsilon: F::Real) -> (F::Real, F::Real) {
    let count = F::Real::of(x.len() as f64);
    let mean = sum(x, F::real) / count;
    let square = |x: F| (x.real() - mean) * (x.real() - mean);
    let variance = sum(x, square) / count;
    (mean, F::Real::of(1.0) / (variance + epsilon).sqrt())
}

/// Replaces the columns of blocks of `size` rows with `inner` columns: `f` changes a few
/// neighbouring ones, copied side by side, so that what folds all of them runs over consecutive
/// memory.
#[inline(always)]
pub(in crate::op) fn in_columns<F: Float>(
    x: &[F],
    y: &mut [F],
    size: usize,
    inner: usize,
    f: impl Fn(&mut [F::Real], usize),
) {
    let mut columns: Vec<F::Real> = Vec::new();
    let block = (size * inner).max(1);
    for (x, y) in x.chunks_exact(block).zip(y.chunks_exact_mut(block)) {
        for from in (0..inner).step_by(COLUMNS) {
            let width = COLUMNS.min(inner - from);
            columns.clear();
            for row in x.chunks_exact(inner) {
                columns.extend(row[from..from + width].iter().map(|x| x.real()));
            }
            f(&mut columns, width);
            for (row, results) in y.chunks_exact_mut(inner).zip(columns.chunks_exact(width)) {
                for (y, result) in row[from..from + width].iter_mut().zip(results) {
                    *y = F::round(*result);
                }
            }
        }
    }
}

/// Calls `f` with each element of a matrix, row by row, and the state of its column.
#[inline(always)]
pub(in crate::op) fn each<R: Copy>(x: &mut [R], state: &[R], f: impl Fn(&mut R, &R)) {
    if let [single] = state {
        for x in x {
            f(x, single);
        }
    } else if state.len() == COLUMNS {
        // Several rows at once: of a loop over one compilers make vectors across rows.
        let mut states = [state[0]; ROWS * COLUMNS];
        for own in states.chunks_exact_mut(COLUMNS) {
            own.copy_from_slice(state);
        }
        for rows in x.chunks_mut(states.len()) {
            // No `for_each`, which may be a function of its own, for narrower vectors.
            for (x, state) in rows.iter_mut().zip(&states) {
                f(x, state);
            }
        }
    } else {
        for row in x.chunks_exact_mut(state.len()) {
            row.iter_mut().zip(state).for_each(|(x, state)| f(x, state));
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{COLUMNS, fold_columns, moments, sum};
    use crate::op::testing::rng;

    #[test]
    fn a_column_is_folded_as_a_row_is() {
        let mut rng = rng(1);
        for i in 0..200 {
            let most = if i % 20 == 0 { 9000 } else { 140 };
            let (rows, width) = (rng.random_range(0..most), rng.random_range(1..=COLUMNS));
            let x: Vec<f32> = (0..rows * width).map(|_| rng.random_range(-1.0..1.0)).collect();
            let mut sums = vec![f32::NAN; width];
            fold_columns(&x, &mut sums, 0.0, |a, x| a + x, |a, b| a + b);
            for (c, found) in sums.iter().enumerate() {
                let column: Vec<f32> = x.iter().skip(c).step_by(width).copied().collect();
                assert_eq!(sum(&column, |x| x).to_bits(), found.to_bits(), "{rows} by {width}");
            }
        }
    }

    #[test]
    fn moments_follow_the_formulas() {
        let x = [1.0f64, 2.0, 3.0, 6.0];
        let (mean, inverse) = moments(&x, 0.5);
        assert_eq!(mean.to_bits(), 3.0f64.to_bits());
        assert!((inverse - 1.0 / 4.0f64.sqrt()).abs() < 1e-15);
        assert!(moments::<f32>(&[], 1e-5).0.is_nan());
    }
}
