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

/// The most terms of one call: what it reads of the right operand stays in a core's cache.
pub(super) const TERMS: usize = 512;

/// The rows of the largest block.
const ROWS: usize = 6;

/// The rows of a block of one vector: with as few sums as a wide one has rows, each would wait for
/// itself.
const NARROW_ROWS: usize = 8;

/// The columns of the widest block.
pub(super) const COLUMNS: usize = 64;

/// The elements of a page of memory.
const PAGE: usize = 1024;

/// The blocks that end together: what is done for each of them once costs as much as some rows.
const TOGETHER: usize = 4;

/// The columns of the widest block: 8 vectors of 16.
pub(super) const WIDEST: usize = 128;

/// The elements of the largest blocks that end together.
const BLOCK: usize = TOGETHER * ROWS * COLUMNS;

/// The elements that a block works with beside its operands.
pub(super) const MEMORY: usize = TERMS * COLUMNS + BLOCK;

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
        let mut places = Places::from_elem(0, rows);
        // In a loop over memory that is there, several to an instruction.
        places.iter_mut().enumerate().for_each(|(row, place)| *place = row * stride);
        places
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

/// Where the sums of a product go, block by block, and where those that go on come from.
pub(super) trait Sums {
    /// The elements of an area and the distance between its rows, if blocks may be computed there.
    fn in_place(&mut self, area: &Area) -> Option<(&mut [f32], usize)>;

    /// Copies the sums of an area, which go on, to a block.
    fn load(&self, area: &Area, block: &mut [f32]);

    /// Takes the sums of an area from a block; what is behind them in a row is of any value.
    fn store<S: Simd>(&mut self, simd: S, area: &Area, block: &mut [f32]);
}

/// Some rows and columns of a product, and the part of the sums that was made.
#[derive(Clone, Debug)]
pub(super) struct Area {
    pub(super) rows: Range<usize>,
    pub(super) columns: Range<usize>,
    /// The distance between rows in a block.
    pub(super) stride: usize,
    pub(super) part: Part,
}

/// A part of the terms of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Whether sums go on from those that are stored.
    pub(super) goes_on: bool,
    /// Whether it is the last.
    pub(super) is_last: bool,
}

impl Part {
    /// All terms.
    pub(super) const WHOLE: Self = Self { goes_on: false, is_last: true };
}

/// `c = a b`, or `c += a b` if it goes on, for at most [`TERMS`] terms.
pub(super) struct Block<'a, C> {
    pub(super) a: Windows<'a>,
    pub(super) b: Rows<'a>,
    pub(super) c: &'a mut C,
    /// The first row and column in `c`.
    pub(super) origin: [usize; 2],
    pub(super) part: Part,
    /// Room for [`MEMORY`] elements.
    pub(super) memory: &'a mut [f32],
}

impl<C: Sums> WithSimd for Block<'_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { a, b, c, origin: [row, column], part, memory } = self;
        let lanes = S::F32_LANES;
        let (memory, block) = memory.split_at_mut(TERMS * COLUMNS);
        let height = a.places.len();
        let mut at = 0;
        while at < b.columns {
            let left = b.columns - at;
            let most = most_vectors(S::REGISTER_COUNT < 32, height);
            let mut vectors = left.div_ceil(lanes).min(most);
            let copied = left < vectors * lanes || is_copied(height, b, lanes);
            if copied {
                vectors = vectors.min(COLUMNS / lanes);
            }
            if vectors > 4 && vectors < 8 {
                vectors = 4;
            }
            let width = left.min(vectors * lanes);
            debug_assert!(vectors * lanes <= WIDEST, "a block of {vectors} vectors");
            let mut right = b.columns(at, width);
            let close: Places;
            if copied {
                right.copy(memory, vectors * lanes);
                close = Rows::places(b.places.len(), vectors * lanes);
                right = Rows { data: memory, places: &close, ..right };
            }
            // As even as possible: a low block leaves registers idle.
            let blocks = height.div_ceil(if vectors == 1 { NARROW_ROWS } else { ROWS });
            let first = |i: usize| i * height / blocks;
            let (columns, stride) = (column + at..column + at + width, vectors * lanes);
            for i in (0..blocks).step_by(TOGETHER) {
                let together = i..(i + TOGETHER).min(blocks);
                let rows = row + first(together.start)..row + first(together.end);
                let area = Area { rows, columns: columns.clone(), stride, part };
                let multiply = {
                    #[inline(always)]
                    |sums: &mut [f32], stride: usize| {
                        for i in together.clone() {
                            let operands = Operands { a: a.rows(first(i)..first(i + 1)), b: right };
                            let sums = &mut sums[(first(i) - first(together.start)) * stride..];
                            tall(simd, vectors, operands, To { sums, stride, add: part.goes_on });
                        }
                    }
                };
                if width == stride
                    && let Some((sums, stride)) = c.in_place(&area)
                {
                    multiply(sums, stride);
                    continue;
                }
                if part.goes_on {
                    c.load(&area, block);
                }
                multiply(block, stride);
                c.store(simd, &area, block);
            }
            at += width;
        }
    }
}

/// The vectors of a block of so many rows, or 3 and more: as many sums as registers hold, and
/// enough that none waits for another.
const fn most_vectors(few_registers: bool, rows: usize) -> usize {
    match (few_registers, rows) {
        (true, 1) | (false, 1..=2) => 8,
        (true, 2) | (false, _) => 4,
        (true, _) => 2,
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

/// Where the sums of a block go.
struct To<'a> {
    sums: &'a mut [f32],
    /// The distance between rows.
    stride: usize,
    /// Whether they go on from those that are there.
    add: bool,
}

/// The block of all rows of `a` and of so many vectors.
#[inline(always)]
fn tall<S: Simd>(simd: S, vectors: usize, operands: Operands<'_>, to: To<'_>) {
    macro_rules! of {
        ($($rows:literal: $($vectors:literal)*;)*) => {
            match (operands.a.places.len(), vectors) {
                $($(($rows, $vectors) => {
                    simd.vectorize(Registers::<S, $rows, $vectors> { simd, operands, to });
                })*)*
                shape => unreachable!("a block of {shape:?}"),
            }
        };
    }
    of! {
        1: 1 2 3 4 8; 2: 1 2 3 4 8; 3: 1 2 3 4; 4: 1 2 3 4; 5: 1 2 3 4; 6: 1 2 3 4;
        7: 1; 8: 1;
    }
}

/// A block of `M` rows by `V` vectors, whose sums are in registers.
struct Registers<'a, S, const M: usize, const V: usize> {
    simd: S,
    operands: Operands<'a>,
    to: To<'a>,
}

impl<S: Simd, const M: usize, const V: usize> NullaryFnOnce for Registers<'_, S, M, V> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { simd, operands: Operands { a, b }, to: To { sums: to, stride, add } } = self;
        let zero = simd.splat_f32s(0.0);
        let mut sums = [[zero; V]; M];
        let width = V * S::F32_LANES;
        if add {
            for (i, sums) in sums.iter_mut().enumerate() {
                *sums = *array(S::as_simd_f32s(&to[i * stride..][..width]).0);
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
            let to = S::as_mut_simd_f32s(&mut to[i * stride..][..width]).0;
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
