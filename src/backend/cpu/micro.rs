//! The inner loops of matrix products: blocks of the result in registers.
//!
//! The lanes of vectors are columns of the result, so no sum runs across them: each element is one
//! chain of fused multiply-adds over its terms in ascending order, in every block, on every machine
//! and wherever it lies. A chain goes on from the value that is stored; a sum of zero is made
//! positive at every end, which no later term of the chain can tell.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use std::ops::Range;

use pulp::{NullaryFnOnce, Simd, WithSimd};
use smallvec::SmallVec;

use super::matrix::MatrixMut;

/// The most terms of one call: what it reads of the right operand stays in a core's cache.
pub(super) const TERMS: usize = 512;

/// The rows of the largest block.
const ROWS: usize = 6;

/// The columns of the widest block.
pub(super) const COLUMNS: usize = 64;

/// The elements of a page of memory.
const PAGE: usize = 1024;

/// The elements that a block works with beside its operands.
pub(super) const MEMORY: usize = (TERMS + ROWS) * COLUMNS;

/// Where the rows of an operand begin, most often at most [`TERMS`].
pub(super) type Places = SmallVec<[usize; TERMS]>;

/// A left operand: a row for each place, whose terms lie in runs at the same distances from it.
#[derive(Clone, Copy)]
pub(super) struct Windows<'a> {
    pub(super) data: &'a [f32],
    pub(super) places: &'a [usize],
    /// None is empty.
    pub(super) runs: &'a [Run],
}

/// Terms that are neighbours in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The distance of the first from the place of its row.
    pub(super) from: usize,
    pub(super) terms: usize,
}

impl Windows<'_> {
    /// These rows.
    fn rows(self, range: Range<usize>) -> Self {
        Self { places: &self.places[range], ..self }
    }
}

/// A right operand, a row for each term: the `columns` elements from its place on.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) data: &'a [f32],
    pub(super) places: &'a [usize],
    pub(super) columns: usize,
    /// The distance between places if it is always the same.
    pub(super) stride: Option<usize>,
}

impl Rows<'_> {
    /// The places of rows at this distance.
    pub(super) fn places(rows: usize, stride: usize) -> Places {
        (0..rows).map(|row| row * stride).collect()
    }

    /// These columns.
    fn columns(self, from: usize, columns: usize) -> Self {
        Self { data: &self.data[from..], columns, ..self }
    }

    /// Copies the rows to `memory`, one behind the other and zeros up to `width` at the end of
    /// each.
    fn copy(&self, memory: &mut [f32], width: usize) {
        for (to, at) in memory.chunks_exact_mut(width).zip(self.places) {
            let (to, rest) = to.split_at_mut(self.columns);
            to.copy_from_slice(&self.data[*at..][..self.columns]);
            rest.fill(0.0);
        }
    }
}

/// `c = a b`, or `c += a b` if `add`, for at most [`TERMS`] terms.
pub(super) struct Block<'a, 'b> {
    pub(super) a: Windows<'a>,
    pub(super) b: Rows<'a>,
    pub(super) c: &'a mut MatrixMut<'b>,
    pub(super) add: bool,
    /// Room for [`MEMORY`] elements.
    pub(super) memory: &'a mut [f32],
}

impl WithSimd for Block<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { a, b, c, add, memory } = self;
        let lanes = S::F32_LANES;
        let (memory, result) = memory.split_at_mut(TERMS * COLUMNS);
        // As even as possible: a low block leaves registers idle.
        let height = a.places.len();
        let blocks = height.div_ceil(ROWS);
        let block = |i: usize| i * height / blocks..(i + 1) * height / blocks;
        // As many sums as registers hold, and enough that none waits for another.
        let most = match (S::REGISTER_COUNT < 32, height.div_ceil(blocks)) {
            (true, 1) | (false, 1..=2) => 8,
            (true, 2) | (false, _) => 4,
            (true, _) => 2,
        };
        let mut at = 0;
        while at < b.columns {
            let left = b.columns - at;
            let mut vectors = left.div_ceil(lanes).min(most);
            let copied = left < vectors * lanes || is_copied(height, b, lanes);
            if copied {
                vectors = vectors.min(COLUMNS / lanes);
            }
            if vectors > 4 && vectors < 8 {
                vectors = 4;
            }
            let width = left.min(vectors * lanes);
            let mut right = b.columns(at, width);
            let close: Places;
            if copied {
                right.copy(memory, vectors * lanes);
                close = Rows::places(b.places.len(), vectors * lanes);
                right = Rows { data: memory, places: &close, ..right };
            }
            for rows in (0..blocks).map(block) {
                let operands = Operands { a: a.rows(rows.clone()), b: right };
                if width == vectors * lanes {
                    tall(simd, vectors, operands, c, Place { row: rows.start, column: at }, add);
                    continue;
                }
                let mut whole = MatrixMut::new(result, rows.len(), vectors * lanes, COLUMNS);
                for (i, row) in rows.clone().enumerate() {
                    whole.row(i)[..width].copy_from_slice(&c.row(row)[at..]);
                }
                tall(simd, vectors, operands, &mut whole, Place { row: 0, column: 0 }, add);
                for (i, row) in rows.enumerate() {
                    c.row(row)[at..].copy_from_slice(&whole.row(i)[..width]);
                }
            }
            at += width;
        }
    }
}

/// Whether so many rows of the left operand are worth a copy of the right one, in which its rows
/// are neighbours.
#[inline(always)]
fn is_copied(rows: usize, b: Rows<'_>, lanes: usize) -> bool {
    let Some(stride) = b.stride.filter(|stride| *stride > 4 * COLUMNS) else { return false };
    let size = lanes * size_of::<f32>();
    let is_aligned = stride.is_multiple_of(lanes) && b.data.as_ptr().addr().is_multiple_of(size);
    // Vectors that cross pages are slow, and rows at a distance of pages share a few places of a
    // cache. What is read of few rows stays in the cache as it is.
    match (is_aligned, stride.is_multiple_of(PAGE)) {
        (false, _) => rows >= 48,
        (true, true) => rows >= 24 && b.places.len() > TERMS / 2,
        (true, false) => rows >= 192 && b.places.len() > TERMS / 4,
    }
}

#[derive(Clone, Copy)]
struct Operands<'a> {
    a: Windows<'a>,
    b: Rows<'a>,
}

/// The first row and column of a block.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    column: usize,
}

/// The block of all rows of `a` and of so many vectors.
#[inline(always)]
fn tall<S: Simd>(
    simd: S,
    vectors: usize,
    operands: Operands<'_>,
    c: &mut MatrixMut<'_>,
    place: Place,
    add: bool,
) {
    macro_rules! of {
        ($($rows:literal: $($vectors:literal)*;)*) => {
            match (operands.a.places.len(), vectors) {
                $($(($rows, $vectors) => {
                    let sums = Registers::<S, $rows, $vectors> { simd, operands, c, place, add };
                    simd.vectorize(sums);
                })*)*
                shape => unreachable!("a block of {shape:?}"),
            }
        };
    }
    of! {
        1: 1 2 3 4 8; 2: 1 2 3 4 8; 3: 1 2 3 4; 4: 1 2 3 4; 5: 1 2 3 4; 6: 1 2 3 4;
    }
}

/// A block of `M` rows by `V` vectors, whose sums are in registers.
struct Registers<'a, 'b, S, const M: usize, const V: usize> {
    simd: S,
    operands: Operands<'a>,
    c: &'a mut MatrixMut<'b>,
    place: Place,
    add: bool,
}

impl<S: Simd, const M: usize, const V: usize> NullaryFnOnce for Registers<'_, '_, S, M, V> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { simd, operands: Operands { a, b }, c, place: Place { row, column }, add } = self;
        let zero = simd.splat_f32s(0.0);
        let mut sums = [[zero; V]; M];
        let width = V * S::F32_LANES;
        if add {
            for (i, sums) in sums.iter_mut().enumerate() {
                *sums = *array(S::as_simd_f32s(&c.row(row + i)[column..][..width]).0);
            }
        }
        let first: &[usize; M] = array(a.places);
        let mut places = b.places;
        for run in a.runs {
            let (own, others) = places.split_at(run.terms);
            places = others;
            // Slices of one length: no term needs a test of each.
            let rows: [&[f32]; M] =
                std::array::from_fn(|i| &a.data[first[i] + run.from..][..own.len()]);
            // Loops over indices: where tests are built, iterators are calls that keep sums in
            // memory. One term to a turn: several are no faster, and of those whose elements are
            // taken as arrays the compiler loads all at once, so that sums leave the registers.
            let mut term = 0;
            while term < own.len() {
                let b: [S::f32s; V] = *array(S::as_simd_f32s(&b.data[own[term]..][..width]).0);
                let mut i = 0;
                while i < M {
                    let x = simd.splat_f32s(rows[i][term]);
                    let mut v = 0;
                    while v < V {
                        sums[i][v] = simd.mul_add_f32s(x, b[v], sums[i][v]);
                        v += 1;
                    }
                    i += 1;
                }
                term += 1;
            }
        }
        for (i, sums) in sums.iter().enumerate() {
            let to = S::as_mut_simd_f32s(&mut c.row(row + i)[column..][..width]).0;
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = simd.add_f32s(*sum, zero);
            }
        }
    }
}

/// The vectors as an array.
#[inline(always)]
fn array<T, const V: usize>(vectors: &[T]) -> &[T; V] {
    match vectors.first_chunk() {
        Some(vectors) => vectors,
        None => unreachable!("a row of less than {V} vectors"),
    }
}
