//! Matrix products of `f32` in which every element is one chain of fused multiply-adds over its
//! terms in ascending order, as `matmul` defines it: the bits of an element depend on its row and
//! its column alone.

#![expect(clippy::inline_always, reason = "parts of loops that are compiled for wider vectors")]

use std::ops::Range;

use pulp::Simd;

use super::isa;
use super::matrix::steps;
pub(crate) use super::matrix::{Matrix, MatrixMut, Panels, Right};
pub(super) use super::micro::{
    Area, Part, RowPlaces, Rows, Run, Sums, WIDEST, Windows, add_term, array, each_sum,
    store_vectors,
};
use super::micro::{Block, COLUMNS, MEMORY, TERMS};
use super::scratch::{self, multiples};

/// The terms that callers pack and multiply in one go.
pub(crate) const MAX_TERMS: usize = TERMS;

/// The parts of a sum of `k` terms, in the order in which the chain takes them.
pub(crate) fn chunks(k: usize) -> impl Iterator<Item = Range<usize>> {
    let count = k.div_ceil(MAX_TERMS);
    let size = k.div_ceil(count.max(1)).next_multiple_of(4);
    (0..count).map(move |i| i * size..((i + 1) * size).min(k))
}

/// `c = a b`, or `c += a b` if `add`; returns whether an element is no number. A product may be
/// made by one call for each part of its terms, in their order and the first without `add`.
///
/// # Panics
/// If the sizes do not fit: a bug in the caller.
pub(crate) fn multiply<'a>(
    a: Matrix<'_>,
    b: impl Into<Right<'a>>,
    mut c: MatrixMut<'_>,
    add: bool,
) -> bool {
    accumulate(isa::arch(), a, b.into(), &mut c, add);
    c.unify_nans()
}

/// As [`multiply`], by these instructions, with a NaN of any bits where an element is no number.
///
/// # Panics
/// If the sizes do not fit: a bug in the caller.
pub(super) fn accumulate(
    arch: pulp::Arch,
    a: Matrix<'_>,
    b: Right<'_>,
    c: &mut MatrixMut<'_>,
    add: bool,
) {
    assert!((a.rows, b.columns()) == (c.rows, c.columns), "{a:?} by {b:?} into {c:?}");
    if c.is_empty() {
        return;
    }
    if a.columns == 0 && !add {
        c.clear();
    }
    sum(arch, a, b, c, add);
}

/// The sums of a product into `c`, from its first row and column on; they go on from those that are
/// there if `add`. Without terms it does nothing.
///
/// # Panics
/// If the sizes of the operands do not fit: a bug in the caller.
pub(super) fn sum(arch: pulp::Arch, a: Matrix<'_>, b: Right<'_>, c: &mut impl Sums, add: bool) {
    assert!(a.columns == b.rows(), "{} columns by {} rows", a.columns, b.rows());
    for terms in chunks(a.columns) {
        let part = Part { goes_on: add || terms.start > 0, is_last: terms.end == a.columns };
        for m in steps(0..a.rows, ROWS) {
            let a = a.block(m.clone(), terms.clone());
            let b = b.block(terms.clone(), 0..b.columns());
            sum_part(arch, a, b, c, m.start, part);
        }
    }
}

/// The sums of operands whose rows begin at places that are told.
///
/// # Panics
/// If the sizes do not fit, or there are more than [`MAX_TERMS`] terms or none: a bug in the
/// caller.
pub(super) fn sum_rows(a: Windows<'_>, b: Rows<'_>, c: &mut impl Sums, column: usize, part: Part) {
    let terms = b.terms;
    let has_places = match b.places {
        RowPlaces::Every(_) => true,
        RowPlaces::Each(places) => places.len() == terms,
    };
    let fits = has_places && terms == a.runs.iter().map(|run| run.terms).sum::<usize>();
    assert!(fits && (1..=MAX_TERMS).contains(&terms), "{terms} rows of {}", b.columns);
    scratch::panels(MEMORY, |memory| {
        sum_block(isa::arch(), Block { a, b, c, origin: [0, column], part, memory });
    });
}

/// Runs a block; the last columns by vectors half as long, where they fill no more and a copy of
/// them, with zeros behind, would be for few rows, or there are no others.
fn sum_block(arch: pulp::Arch, block: Block<'_, impl Sums>) {
    let columns = block.b.columns;
    let whole = columns - columns % LONGEST;
    let suits = columns > whole
        && columns - whole <= LONGEST / 2
        && (whole == 0 || block.a.places.len() < FEW);
    match isa::half(arch).filter(|_| suits) {
        None => arch.dispatch(block),
        Some(half) => {
            let Block { a, b, c, origin: [row, column], part, memory } = block;
            if whole > 0 {
                let (c, memory, b) = (&mut *c, &mut *memory, b.columns(0, whole));
                arch.dispatch(Block { a, b, c, origin: [row, column], part, memory });
            }
            let (b, origin) = (b.columns(whole, columns - whole), [row, column + whole]);
            half.dispatch(Block { a, b, c, origin, part, memory });
        }
    }
}

/// The lanes of the longest vectors.
const LONGEST: usize = 16;

/// Rows for which a copy of some columns is not worth its cost.
const FEW: usize = 16;

/// Products of matrices that lie one behind the other, too small for each to be a task.
pub(super) struct Stack<'a> {
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
    /// The rows and columns of a product, and the terms of its sums: no more than [`MAX_TERMS`],
    /// and some.
    pub(super) sizes: [usize; 3],
    /// The distance between the rows of a left matrix, and of a right one.
    pub(super) strides: [usize; 2],
}

impl Stack<'_> {
    /// Makes the sums of so many products. `of` has the places where the operands of each begin,
    /// and where its sums go.
    pub(super) fn sum<C: Sums>(&self, of: impl Iterator<Item = ([usize; 2], C)>) {
        let [rows, columns, terms] = self.sizes;
        let [left, stride] = self.strides;
        let left = &multiples(left, rows)[..rows];
        let runs = &[Run { from: 0, terms }];
        scratch::panels(MEMORY, |memory| {
            for ([a, b], mut c) in of {
                let a = Windows { data: &self.a[a..], places: left, runs };
                let (data, places) = (&self.b[b..], RowPlaces::Every(stride));
                let b = Rows { data, terms, columns, places };
                let (c, part, memory) = (&mut c, Part::WHOLE, &mut *memory);
                sum_block(isa::arch(), Block { a, b, c, origin: [0, 0], part, memory });
            }
        });
    }
}

/// The rows that are multiplied in one go, at most; few in unit tests.
const ROWS: usize = if cfg!(test) { 128 } else { 1024 };

/// A part of the sums of at most [`ROWS`] rows from this one on, and at most [`MAX_TERMS`] terms.
fn sum_part(
    arch: pulp::Arch,
    a: Matrix<'_>,
    b: Right<'_>,
    c: &mut impl Sums,
    row: usize,
    part: Part,
) {
    let (height, terms) = (a.rows, a.columns);
    let apart = if a.has_contiguous_rows() { 0 } else { height * terms };
    scratch::panels(apart + TERMS * COLUMNS + MEMORY, |memory| {
        let (left, memory) = memory.split_at_mut(apart);
        let (right, memory) = memory.split_at_mut(TERMS * COLUMNS);
        let a = if apart > 0 {
            a.pack_rows(left, a.columns);
            Matrix::contiguous(left, a.rows, a.columns)
        } else {
            a
        };
        let rows = multiples(a.row_stride, height);
        let runs = &[Run { from: 0, terms }];
        let a = Windows { data: a.data, places: &rows[..height], runs };
        let mut multiply = |b: Rows<'_>, column: usize| {
            sum_block(arch, Block { a, b, c, origin: [row, column], part, memory });
        };
        let b = match b {
            Right::Panels(panels) => {
                for (n, data, stride) in panels.panels() {
                    let places = RowPlaces::Every(stride);
                    multiply(Rows { data, terms, columns: n.len(), places }, n.start);
                }
                return;
            }
            Right::Matrix(matrix) => matrix,
        };
        if b.has_contiguous_rows() {
            let places = RowPlaces::Every(b.row_stride);
            multiply(Rows { data: b.data, terms, columns: b.columns, places }, 0);
            return;
        }
        for n in steps(0..b.columns, COLUMNS) {
            b.block(0..b.rows, n.clone()).pack_rows(right, n.len());
            let places = RowPlaces::Every(n.len());
            multiply(Rows { data: right, terms, columns: n.len(), places }, n.start);
        }
    });
}

impl Sums for MatrixMut<'_> {
    #[inline(always)]
    fn row(&self, row: usize, columns: &Range<usize>) -> &[f32] {
        &self.data[row * self.row_stride..][columns.clone()]
    }

    #[inline(always)]
    fn row_mut(&mut self, row: usize, columns: &Range<usize>) -> &mut [f32] {
        &mut self.data[row * self.row_stride..][columns.clone()]
    }

    #[inline(always)]
    fn is_ended(&self, _part: Part) -> bool {
        false
    }

    #[inline(always)]
    fn ends_in_registers(&self) -> bool {
        false
    }

    #[inline(always)]
    fn take<S: Simd, const M: usize, const V: usize>(
        &mut self,
        simd: S,
        first: usize,
        columns: &Range<usize>,
        _part: Part,
        sums: [[S::f32s; V]; M],
    ) {
        let mut i = 0;
        while i < M {
            store_vectors(simd, &sums[i], self.row_mut(first + i, columns));
            i += 1;
        }
    }

    #[inline(always)]
    fn is_far(&self) -> bool {
        false
    }

    #[inline(always)]
    fn expect(&self, _area: &Area) {}

    #[inline(always)]
    fn end<S: Simd>(&mut self, _simd: S, _area: &Area, _block: &mut [f32]) {
        unreachable!("a matrix takes sums as they are");
    }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "bits are compared")]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::super::isa::Isa;
    use super::super::testing::assert_bits;
    use super::{Matrix, MatrixMut, Part, RowPlaces, Rows, Run, Windows};
    use super::{accumulate, chunks, multiply, sum_rows};

    const ROWS: usize = 27;
    const COLUMNS: usize = 70;
    const TERMS: [usize; 7] = [1, 2, 5, 8, 63, 512, 513];

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

    fn product(a: Matrix<'_>, b: Matrix<'_>, c: &mut [f32]) {
        multiply(a, b, MatrixMut::new(c, a.rows, b.columns, b.columns), false);
    }

    /// Every block of a product of [`ROWS`] by [`COLUMNS`] elements is the product of its rows and
    /// its columns; of long sums one size in sixteen is tried, and all narrow ones.
    fn blocks(a: Matrix<'_>, b: Matrix<'_>) {
        let mut whole = vec![0.0; ROWS * COLUMNS];
        product(a, b, &mut whole);
        let mut part = vec![0.0; ROWS * COLUMNS + 1];
        for m in 1..=ROWS {
            for n in 1..=COLUMNS {
                if a.columns > 7 && m > 2 && n > 2 && (m + n) % 16 > 0 {
                    continue;
                }
                let (i, j) = (m * 7 % (ROWS - m + 1), n * 5 % (COLUMNS - n + 1));
                let a = a.block(i..i + m, 0..a.columns);
                let part = &mut part[n % 2..][..m * n];
                product(a, b.block(0..b.rows, j..j + n), part);
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
            blocks(a, Matrix::contiguous(&b, k, COLUMNS));
        }
    }

    #[test]
    fn a_row_of_any_numbers_does_not_depend_on_the_others() {
        for k in [1, 2, 7, 30] {
            let (a, b) = (spiced(ROWS * k, 1), spiced(COLUMNS * k, 2));
            let a = Matrix::contiguous(&a, ROWS, k);
            blocks(a, Matrix::contiguous(&b, k, COLUMNS));
            blocks(a, Matrix::contiguous(&b, COLUMNS, k).transposed());
        }
    }

    #[test]
    fn a_row_does_not_depend_on_the_others_when_terms_are_contiguous() {
        for k in TERMS {
            let (a, b) = (random(ROWS * k, 1), random(COLUMNS * k + 1, 2));
            let b = Matrix::contiguous(&b[k % 2..], COLUMNS, k).transposed();
            blocks(Matrix::contiguous(&a, ROWS, k), b);
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
            product(a, b, &mut expected);
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

    /// Of any numbers, those that round to zeros among them, from matrices of each kind of stride.
    #[test]
    fn elements_are_chains() {
        let sizes = [
            (1, 1, 1, 0),
            (7, 64, 2, 0),
            (7, 64, 3, 0),
            (7, 64, 4, 1),
            (3, 128, 5, 0),
            (1, 165, 513, 0),
            (2, 200, 30, 1),
            (130, 1, 700, 3),
            (17, 33, 515, 0),
            (3, 70, 100, 186),
            (24, 40, 257, 984),
            (48, 17, 20, 300),
            (193, 16, 130, 256),
        ];
        for (m, n, k, apart) in sizes {
            let what = format!("{m} x {n} x {k}, {apart} apart");
            let (mut a, mut b) = (spiced(m * k, 5), spiced(n * k, 6));
            a[0] = -1e-30;
            b[0] = 1e-30;
            let chain = |i: usize, j: usize, start: f32| {
                let sum = (0..k).fold(start, |sum, p| a[i * k + p].mul_add(b[j * k + p], sum));
                sum + 0.0
            };
            let left = Matrix::contiguous(&a, m, k);
            let right = Matrix::contiguous(&b, n, k).transposed();
            let mut rows = vec![f32::NAN; k * (n + apart)];
            right.pack(&mut rows, n + apart);
            let each = |start| (0..m * n).map(move |at| (at / n, at % n, start));
            let of = |start| each(start).map(|(i, j, s)| chain(i, j, s)).collect::<Vec<f32>>();
            let (expected_plain, expected_added) = (of(0.0), of(1.0));
            for right in [right, Matrix::contiguous(&rows, k, n + apart).block(0..k, 0..n)] {
                for arch in Isa::available().filter_map(Isa::arch) {
                    let (mut plain, mut added) = (vec![0.0; m * n], vec![1.0; m * n]);
                    for (c, add) in [(&mut plain, false), (&mut added, true)] {
                        let mut c = MatrixMut::new(c, m, n, n);
                        accumulate(arch, left, right.into(), &mut c, add);
                        c.unify_nans();
                    }
                    assert_bits(&plain, &expected_plain, &format!("{what}, {arch:?}"));
                    assert_bits(&added, &expected_added, &format!("1 + {what}, {arch:?}"));
                }
            }
        }
    }

    /// Of runs of each length, from rows at one distance and from rows in any order.
    #[test]
    fn sums_of_runs_are_chains() {
        let (lengths, height, columns) = ([1, 2, 3, 4, 5, 8], 7, 64);
        let terms: usize = lengths.iter().sum();
        let (a, b) = (random(height * 100, 7), random(terms * columns, 8));
        let (mut runs, mut at) = (Vec::new(), 3);
        for terms in lengths {
            runs.push(Run { from: at, terms });
            at += terms + 2;
        }
        let firsts: Vec<usize> = (0..height).map(|i| i * 100).collect();
        let lefts: Vec<usize> =
            runs.iter().flat_map(|run| run.from..run.from + run.terms).collect();
        let every: Vec<usize> = (0..terms).map(|term| term * columns).collect();
        let backwards: Vec<usize> = every.iter().rev().copied().collect();
        let cases = [
            (RowPlaces::Every(columns), &every),
            (RowPlaces::Each(&every), &every),
            (RowPlaces::Each(&backwards), &backwards),
        ];
        for (places, rights) in cases {
            let windows = Windows { data: &a, places: &firsts, runs: &runs };
            let rows = Rows { data: &b, terms, columns, places };
            let mut sums = vec![f32::NAN; height * columns];
            let mut c = MatrixMut::new(&mut sums, height, columns, columns);
            sum_rows(windows, rows, &mut c, 0, Part::WHOLE);
            let chain = |at: usize| {
                let pairs = lefts.iter().zip(rights);
                let product = |sum: f32, (l, r): (&usize, &usize)| {
                    a[at / columns * 100 + l].mul_add(b[r + at % columns], sum)
                };
                pairs.fold(0.0, product) + 0.0
            };
            let expected: Vec<f32> = (0..height * columns).map(chain).collect();
            assert_bits(&sums, &expected, "runs");
        }
    }

    #[test]
    fn sums_without_terms_are_zero() {
        let mut c = [1.0; 6];
        let (a, b) = (Matrix::contiguous(&[], 2, 0), Matrix::contiguous(&[], 3, 0).transposed());
        multiply(a, b, MatrixMut::new(&mut c, 2, 3, 3), true);
        assert_eq!(c, [1.0; 6]);
        multiply(a, b, MatrixMut::new(&mut c, 2, 3, 3), false);
        assert_eq!(c, [0.0; 6]);
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
