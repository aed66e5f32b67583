//! Matrix products of `f32` in which every element is a function of its row and its column alone.
//!
//! This file is the only one that calls the GEMM crate. That crate chooses its order of summation
//! by the sizes and strides of the whole product; here those choices are taken away from it:
//! - the sum runs over the parts of `0..k` that [`chunks`] gives, in order, each at most
//!   [`MAX_TERMS`] long, so that the crate never cuts it itself;
//! - a single row or column is computed as two equal ones, so that the matrix-vector paths are
//!   never taken;
//! - NaNs all get the same bits, as which one a sum keeps depends on its loops;
//! - which of the two orders of summation inside a part is used is said by the function called,
//!   [`multiply`] or [`multiply_rows`], and not by strides that happen to be 1.

#![allow(unsafe_code, reason = "the call of the GEMM crate takes pointers")]

use std::ops::Range;

use gemm_common::Parallelism;

use super::simd::vectorised;

/// The largest number of terms that are summed in one call. It must not exceed the depth at which
/// the crate cuts a sum itself, or the cut, and with it the bits, would follow from the whole size.
pub(crate) const MAX_TERMS: usize = 512;

/// The crate sums lane by lane, as [`multiply_rows`] wants it, only where a product has at most
/// this many elements.
const MAX_LANE_PRODUCT: usize = 256;

/// The elements of a single row or column that are computed in one go.
const PAIR_LENGTH: usize = MAX_LANE_PRODUCT / 2;

/// A matrix to read: element `(i, j)` is `data[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// A matrix to write, whose rows are contiguous: element `(i, j)` is `data[i * row_stride + j]`.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

/// The layout of a matrix in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The number of rows.
    pub rows: usize,
    /// The number of columns.
    pub columns: usize,
    /// The distance between rows.
    pub row_stride: usize,
    /// The distance between columns.
    pub column_stride: usize,
}

impl Layout {
    /// True if a slice of `elements` holds the matrix.
    fn fits(&self, elements: usize) -> bool {
        let last = || {
            let row = (self.rows - 1).checked_mul(self.row_stride)?;
            row.checked_add((self.columns - 1).checked_mul(self.column_stride)?)
        };
        self.rows == 0 || self.columns == 0 || last().is_some_and(|last| last < elements)
    }
}

impl<'a> Matrix<'a> {
    /// The matrix whose elements lie so in `data`.
    ///
    /// # Panics
    /// If `data` ends before the last element: a bug in the caller.
    pub(crate) fn new(data: &'a [f32], layout: Layout) -> Self {
        assert!(layout.fits(data.len()), "{layout:?} in {} elements", data.len());
        let Layout { rows, columns, row_stride, column_stride } = layout;
        Self { data, rows, columns, row_stride, column_stride }
    }

    /// The matrix whose rows lie one behind the other.
    ///
    /// # Panics
    /// If `data` is too short: a bug in the caller.
    pub(crate) fn contiguous(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::new(data, Layout { rows, columns, row_stride: columns, column_stride: 1 })
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The transpose.
    #[must_use]
    pub(crate) fn transposed(self) -> Self {
        let Self { data, rows, columns, row_stride, column_stride } = self;
        Self {
            data,
            rows: columns,
            columns: rows,
            row_stride: column_stride,
            column_stride: row_stride,
        }
    }

    /// The elements in these rows and columns.
    ///
    /// # Panics
    /// If the matrix does not have them: a bug in the caller.
    #[must_use]
    pub(crate) fn block(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && columns.end <= self.columns, "{rows:?} {columns:?}");
        let first = if rows.is_empty() || columns.is_empty() {
            self.data.len()
        } else {
            rows.start * self.row_stride + columns.start * self.column_stride
        };
        Self { data: &self.data[first..], rows: rows.len(), columns: columns.len(), ..self }
    }

    /// Copies the elements to `to`, rows one behind the other at a distance of `width`.
    pub(crate) fn pack(&self, to: &mut [f32], width: usize) {
        for (i, to) in to.chunks_exact_mut(width).take(self.rows).enumerate() {
            // None: rows without elements may start behind the end of `data`.
            let row = self.data.get(i * self.row_stride..).unwrap_or_default();
            if self.column_stride == 1 {
                to[..self.columns].copy_from_slice(&row[..self.columns]);
            } else {
                for (j, to) in to.iter_mut().take(self.columns).enumerate() {
                    *to = row[j * self.column_stride];
                }
            }
        }
    }

    /// Copies the elements of the transpose to `to`, its rows one behind the other at a distance of
    /// `width`.
    ///
    /// # Panics
    /// If rows are not contiguous, or `to` is too short: a bug in the caller.
    pub(crate) fn pack_transposed(&self, to: &mut [f32], width: usize) {
        /// The sides of the blocks that are transposed one by one: a row of a block has the 64
        /// bytes of a cache line.
        const SIDE: usize = 16;
        assert!(self.column_stride == 1 || self.columns < 2, "rows that are not contiguous");
        for j in steps(0..self.columns, SIDE) {
            for i in steps(0..self.rows, SIDE) {
                let mut square = [[0.0; SIDE]; SIDE];
                for (row, from) in i.clone().zip(&mut square) {
                    let row = &self.data[row * self.row_stride..][j.clone()];
                    from[..row.len()].copy_from_slice(row);
                }
                for (k, column) in j.clone().enumerate() {
                    let to = &mut to[column * width..][i.clone()];
                    for (to, row) in to.iter_mut().zip(&square) {
                        *to = row[k];
                    }
                }
            }
        }
    }

    /// The same matrix, or one with its only row twice; a stride of 0 repeats it without a copy.
    fn two_rows(self) -> Self {
        if self.rows == 1 { Self { rows: 2, row_stride: 0, ..self } } else { self }
    }

    /// The same matrix, or one with its only column twice.
    fn two_columns(self) -> Self {
        if self.columns == 1 { Self { columns: 2, column_stride: 0, ..self } } else { self }
    }
}

impl<'a> MatrixMut<'a> {
    /// The matrix of `rows` by `columns` elements, `row_stride` between its rows.
    ///
    /// # Panics
    /// If `data` ends before the last element, or rows overlap: a bug in the caller.
    pub(crate) fn new(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        let layout = Layout { rows, columns, row_stride, column_stride: 1 };
        assert!(layout.fits(data.len()), "{layout:?} in {} elements", data.len());
        assert!(row_stride >= columns || rows < 2, "rows of {columns} by {row_stride}");
        Self { data, rows, columns, row_stride }
    }

    /// The elements in these rows and columns.
    fn block(&mut self, rows: Range<usize>, columns: Range<usize>) -> MatrixMut<'_> {
        let first = rows.start * self.row_stride + columns.start;
        MatrixMut::new(&mut self.data[first..], rows.len(), columns.len(), self.row_stride)
    }

    fn is_empty(&self) -> bool {
        self.rows == 0 || self.columns == 0
    }

    fn clear(&mut self) {
        for i in 0..self.rows {
            self.data[i * self.row_stride..][..self.columns].fill(0.0);
        }
    }

    /// Makes every NaN the same one: which of two that meet in a sum is kept follows from the order
    /// of an instruction's operands, which differs among the crate's loops for different sizes.
    fn unify_nans(&mut self) {
        vectorised!(for i in 0..self.rows {
            for x in &mut self.data[i * self.row_stride..][..self.columns] {
                *x = if x.is_nan() { f32::NAN } else { *x };
            }
        });
    }
}

/// The parts of a sum of `k` terms, in the order in which they are added: a function of `k` alone,
/// each of at most [`MAX_TERMS`] terms.
pub(crate) fn chunks(k: usize) -> impl Iterator<Item = Range<usize>> {
    let count = k.div_ceil(MAX_TERMS);
    let size = k.div_ceil(count.max(1)).next_multiple_of(4);
    (0..count).map(move |i| i * size..((i + 1) * size).min(k))
}

/// `c = a b`, or `c += a b` if `add`, each sum with its terms in ascending order.
///
/// The bits of an element depend only on its row of `a`, its column of `b` and its value before. A
/// sum of more than one part may also be made by one call for each part, the first without `add`.
///
/// # Panics
/// If the sizes do not fit: a bug in the caller.
pub(crate) fn multiply(a: Matrix<'_>, b: Matrix<'_>, mut c: MatrixMut<'_>, add: bool) {
    check(a, b, &c);
    if c.is_empty() {
        return;
    }
    if a.columns == 0 && !add {
        c.clear();
    }
    for (i, part) in chunks(a.columns).enumerate() {
        let (a, b) = (a.block(0..a.rows, part.clone()), b.block(part, 0..b.columns));
        let add = add || i > 0;
        if b.row_stride == 1 {
            multiply_packed(a, b, &mut c, add);
        } else {
            multiply_part(a, b, &mut c, add);
        }
    }
    c.unify_nans();
}

/// `c = a b`, or `c += a b` if `add`, for an `a` whose rows and a `b` whose columns are contiguous:
/// the terms of each sum are dealt to lanes, which are then added up.
///
/// The bits of an element depend only on its row of `a`, its column of `b` and its value before;
/// they differ from those of [`multiply`] by rounding.
///
/// # Panics
/// If the sizes do not fit or the terms are not contiguous: a bug in the caller.
pub(crate) fn multiply_rows(a: Matrix<'_>, b: Matrix<'_>, mut c: MatrixMut<'_>, add: bool) {
    check(a, b, &c);
    assert!(a.column_stride == 1 && b.row_stride == 1, "terms that are not contiguous");
    if c.is_empty() {
        return;
    }
    if a.columns == 0 && !add {
        c.clear();
    }
    let rows = if c.columns == 1 { PAIR_LENGTH } else { 16.min(c.rows) };
    let columns = MAX_LANE_PRODUCT / rows.max(2);
    for (i, part) in chunks(a.columns).enumerate() {
        for m in steps(0..c.rows, rows) {
            let a = a.block(m.clone(), part.clone());
            for n in steps(0..c.columns, columns) {
                let b = b.block(part.clone(), n.clone());
                let mut c = c.block(m.clone(), n);
                if c.rows < 2 || c.columns < 2 {
                    call_doubled(a, b, &mut c, add || i > 0);
                } else {
                    call(a, b, &mut c, add || i > 0);
                }
            }
        }
    }
    c.unify_nans();
}

fn check(a: Matrix<'_>, b: Matrix<'_>, c: &MatrixMut<'_>) {
    let fits = a.rows == c.rows && a.columns == b.rows && b.columns == c.columns;
    assert!(
        fits,
        "{} x {} by {} x {} into {} x {}",
        a.rows, a.columns, b.rows, b.columns, c.rows, c.columns
    );
}

/// `range` in pieces of `size`, the last one shorter.
pub(super) fn steps(
    range: Range<usize>,
    size: usize,
) -> impl Iterator<Item = Range<usize>> + Clone {
    range.clone().step_by(size).map(move |i| i..(i + size).min(range.end))
}

/// One part of [`multiply`] with columns of `b` that are contiguous, from a copy in which they are
/// not.
fn multiply_packed(a: Matrix<'_>, b: Matrix<'_>, c: &mut MatrixMut<'_>, add: bool) {
    const COLUMNS: usize = 8;
    let mut packed = [0.0; MAX_TERMS * COLUMNS];
    for n in steps(0..c.columns, COLUMNS) {
        let width = n.len().max(2);
        b.block(0..b.rows, n.clone()).pack(&mut packed[..b.rows * width], width);
        let layout = Layout { rows: b.rows, columns: n.len(), row_stride: width, column_stride: 1 };
        let b = Matrix::new(&packed, layout);
        multiply_part(a, b, &mut c.block(0..a.rows, n), add);
    }
}

/// One part of [`multiply`] with columns of `b` that are not contiguous.
fn multiply_part(a: Matrix<'_>, b: Matrix<'_>, c: &mut MatrixMut<'_>, add: bool) {
    if c.rows > 1 && c.columns > 1 {
        return call(a, b, c, add);
    }
    for m in steps(0..c.rows, PAIR_LENGTH) {
        let a = a.block(m.clone(), 0..a.columns);
        for n in steps(0..c.columns, PAIR_LENGTH) {
            let b = b.block(0..b.rows, n.clone());
            call_doubled(a, b, &mut c.block(m.clone(), n), add);
        }
    }
}

/// A product of one row or one column and at most [`PAIR_LENGTH`] of the other, as one of two equal
/// ones.
fn call_doubled(a: Matrix<'_>, b: Matrix<'_>, c: &mut MatrixMut<'_>, add: bool) {
    let mut twice = [0.0; MAX_LANE_PRODUCT];
    let (rows, columns) = (c.rows, c.columns);
    let stride = columns.max(2);
    if add {
        for i in 0..2.max(rows) {
            let row = &c.data[i.min(rows - 1) * c.row_stride..];
            for j in 0..stride {
                twice[i * stride + j] = row[j.min(columns - 1)];
            }
        }
    }
    let mut pair = MatrixMut::new(&mut twice, rows.max(2), stride, stride);
    call(a.two_rows(), b.two_columns(), &mut pair, add);
    for i in 0..rows {
        c.data[i * c.row_stride..][..columns].copy_from_slice(&twice[i * stride..][..columns]);
    }
}

/// The call of the crate, for at most [`MAX_TERMS`] terms and at least two rows and two columns.
///
/// The crate wants the columns of its result contiguous, so it computes the transposed product.
fn call(a: Matrix<'_>, b: Matrix<'_>, c: &mut MatrixMut<'_>, add: bool) {
    check(a, b, c);
    assert!(c.rows >= 2 && c.columns >= 2 && (1..=MAX_TERMS).contains(&a.columns));
    let stride = |s: usize| isize::try_from(s).expect("invariant: strides lie inside a slice");
    let gemm = gemm_f32::gemm::f32::get_gemm_fn();
    // SAFETY: the function reads element (i, j) of its left and right operands and reads and writes
    // element (i, j) of its result only for the i and j within the sizes given. `Matrix` and
    // `MatrixMut` are only made when the last of those lies in their slice (strides are not
    // negative, so it is the furthest), `check` holds the sizes against each other, and a stride of
    // 0 stands only where a row or column is read twice. The result is borrowed exclusively, and
    // its rows do not overlap.
    unsafe {
        gemm(
            c.columns,
            c.rows,
            a.columns,
            c.data.as_mut_ptr(),
            stride(c.row_stride),
            1,
            add,
            b.data.as_ptr(),
            stride(b.row_stride),
            stride(b.column_stride),
            a.data.as_ptr(),
            stride(a.row_stride),
            stride(a.column_stride),
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
#[expect(
    clippy::float_cmp,
    clippy::many_single_char_names,
    reason = "bits are compared, of matrices"
)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::{Matrix, MatrixMut, chunks, multiply, multiply_rows};

    const ROWS: usize = 130;
    const COLUMNS: usize = 65;
    const TERMS: [usize; 9] = [1, 2, 7, 511, 512, 513, 1024, 1025, 1500];

    fn random(n: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    /// Numbers among which are some of which no sum can be made, and different NaNs.
    fn spiced(n: usize, seed: u64) -> Vec<f32> {
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN, -0.0];
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut number = |x: f32| {
            if rng.random_range(0..16) == 0 { special[rng.random_range(0..5)] } else { x }
        };
        random(n, seed).into_iter().map(&mut number).collect()
    }

    fn product(f: Multiply, a: Matrix<'_>, b: Matrix<'_>, c: &mut [f32]) {
        let stride = b.columns;
        f(a, b, MatrixMut::new(c, a.rows, b.columns, stride), false);
    }

    type Multiply = fn(Matrix<'_>, Matrix<'_>, MatrixMut<'_>, bool);

    /// Every block of a product of [`ROWS`] by [`COLUMNS`] elements is the product of its rows and
    /// its columns; of long sums one size in sixteen is tried, and all narrow ones.
    fn blocks(f: Multiply, a: Matrix<'_>, b: Matrix<'_>) {
        let mut whole = vec![0.0; ROWS * COLUMNS];
        product(f, a, b, &mut whole);
        let mut part = vec![0.0; ROWS * COLUMNS + 1];
        for m in 1..=ROWS {
            for n in 1..=COLUMNS {
                if a.columns > 7 && m > 2 && n > 2 && (m + n) % 16 > 0 {
                    continue;
                }
                let (i, j) = (m * 7 % (ROWS - m + 1), n * 5 % (COLUMNS - n + 1));
                let a = a.block(i..i + m, 0..a.columns);
                let part = &mut part[n % 2..][..m * n];
                product(f, a, b.block(0..b.rows, j..j + n), part);
                for (i, row) in (i..).zip(part.chunks_exact(n)) {
                    let expected = &whole[i * COLUMNS + j..][..n];
                    let equal = bytemuck::cast_slice::<f32, u8>(row)
                        == bytemuck::cast_slice::<f32, u8>(expected);
                    assert!(equal, "row {i} of {m} x {n} x {}", a.columns);
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_others() {
        for k in TERMS {
            let (a, b) = (random(ROWS * k + 1, 1), random(COLUMNS * k, 2));
            let a = Matrix::contiguous(&a[k % 2..], ROWS, k);
            blocks(multiply, a, Matrix::contiguous(&b, k, COLUMNS));
        }
    }

    #[test]
    fn a_row_of_any_numbers_does_not_depend_on_the_others() {
        for k in [1, 2, 7, 30, 513] {
            let (a, b) = (spiced(ROWS * k, 1), spiced(COLUMNS * k, 2));
            let a = Matrix::contiguous(&a, ROWS, k);
            blocks(multiply, a, Matrix::contiguous(&b, k, COLUMNS));
            blocks(multiply_rows, a, Matrix::contiguous(&b, COLUMNS, k).transposed());
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_others_when_terms_are_contiguous() {
        for k in TERMS {
            let (a, b) = (random(ROWS * k, 1), random(COLUMNS * k + 1, 2));
            let b = Matrix::contiguous(&b[k % 2..], COLUMNS, k).transposed();
            blocks(multiply_rows, Matrix::contiguous(&a, ROWS, k), b);
        }
    }

    #[test]
    fn strides_and_parts_do_not_matter() {
        for (m, n, k) in [(1, 1, 1), (1, 5, 3), (9, 1, 700), (1, 300, 520), (20, 30, 1030)] {
            let (a, b) = (random(m * k, 3), random(n * k, 4));
            let (a, b) = (Matrix::contiguous(&a, m, k), Matrix::contiguous(&b, k, n));
            let (mut a_t, mut b_t) = (vec![0.0; m * k], vec![0.0; n * k]);
            a.transposed().pack(&mut a_t, m);
            b.transposed().pack(&mut b_t, k);
            let mut expected = vec![0.0; m * n];
            product(multiply, a, b, &mut expected);
            for a in [a, Matrix::contiguous(&a_t, k, m).transposed()] {
                for b in [b, Matrix::contiguous(&b_t, n, k).transposed()] {
                    let mut c = vec![0.0; m * (n + 3)];
                    for part in chunks(k) {
                        let add = part.start > 0;
                        let (a, b) = (a.block(0..m, part.clone()), b.block(part, 0..n));
                        multiply(a, b, MatrixMut::new(&mut c, m, n, n + 3), add);
                    }
                    for (row, expected) in c.chunks(n + 3).zip(expected.chunks(n)) {
                        assert_eq!(row[..n], *expected, "{m} x {n} x {k}");
                        assert!(row[n..].iter().all(|x| *x == 0.0));
                    }
                }
            }
        }
    }

    #[test]
    fn sums_are_near_the_exact_ones() {
        for (m, n, k) in [(1, 1, 1), (1, 65, 513), (130, 1, 1500), (17, 33, 1025), (64, 64, 100)] {
            let (a, b) = (random(m * k, 5), random(n * k, 6));
            let (a, b) = (Matrix::contiguous(&a, m, k), Matrix::contiguous(&b, n, k).transposed());
            let (mut ascending, mut lanes) = (vec![0.0; m * n], vec![1.0; m * n]);
            product(multiply, a, b, &mut ascending);
            multiply_rows(a, b, MatrixMut::new(&mut lanes, m, n, n), true);
            for i in 0..m {
                for j in 0..n {
                    let term =
                        |p: usize| f64::from(a.data[i * k + p]) * f64::from(b.data[j * k + p]);
                    let exact: f64 = (0..k).map(term).sum();
                    let bound = 1e-6 * (k as f64).sqrt();
                    assert!((f64::from(ascending[i * n + j]) - exact).abs() < bound);
                    assert!((f64::from(lanes[i * n + j]) - 1.0 - exact).abs() < bound);
                }
            }
        }
    }

    #[test]
    fn sums_without_terms_are_zero() {
        for f in [multiply as Multiply, multiply_rows] {
            let mut c = [1.0; 6];
            let (a, b) =
                (Matrix::contiguous(&[], 2, 0), Matrix::contiguous(&[], 3, 0).transposed());
            f(a, b, MatrixMut::new(&mut c, 2, 3, 3), true);
            assert_eq!(c, [1.0; 6]);
            f(a, b, MatrixMut::new(&mut c, 2, 3, 3), false);
            assert_eq!(c, [0.0; 6]);
        }
    }

    #[test]
    fn parts_cover_the_terms_in_order() {
        for k in (0..5000).chain([99_841, 1 << 20]) {
            let mut at = 0;
            for part in chunks(k) {
                assert_eq!(part.start, at);
                assert!(!part.is_empty() && part.len() <= super::MAX_TERMS);
                at = part.end;
            }
            assert_eq!(at, k);
        }
    }
}
