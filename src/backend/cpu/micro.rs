//! The inner loops of matrix products: blocks of the result in registers.
//!
//! The lanes of vectors are columns of the result, so no sum runs across them: each element is one
//! chain of fused multiply-adds over its terms in ascending order, in every block, on every machine
//! and wherever it lies. A chain goes on from the value that is stored; a sum of zero is made
//! positive at every end, which no later term of the chain can tell.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use std::ops::Range;

use pulp::{NullaryFnOnce, Simd, WithSimd};

use super::prefetch::prefetch;
use super::scratch::LINE;
use super::simd::take;

/// Replaces each sum of a block by an expression of it and its row and vector: a loop over
/// indices, as iterators are calls where tests are built, and keep sums in memory.
macro_rules! each_sum {
    ($sums:ident, |$i:ident, $v:ident, $sum:ident| $f:expr) => {
        let mut $i = 0;
        while $i < M {
            let mut $v = 0;
            while $v < V {
                let $sum = $sums[$i][$v];
                $sums[$i][$v] = $f;
                $v += 1;
            }
            $i += 1;
        }
    };
}
pub(super) use each_sum;

/// Adds the products of a term of each row with vectors of the right operand to the sums of a
/// block.
macro_rules! add_term {
    ($simd:ident, $sums:ident, |$i:ident| $x:expr, $b:ident) => {
        let mut $i = 0;
        while $i < M {
            let x = $simd.splat_f32s($x);
            let mut v = 0;
            while v < V {
                $sums[$i][v] = $simd.mul_add_f32s(x, $b[v], $sums[$i][v]);
                v += 1;
            }
            $i += 1;
        }
    };
}
pub(super) use add_term;

/// The most terms of one call: what it reads of the right operand stays in a core's cache. Few in
/// unit tests, where sums of more go on.
pub(super) const TERMS: usize = if cfg!(test) { 512 } else { 1024 };

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

/// The rows that a copy asks for before it comes to them.
const AHEAD: usize = 8;

/// The columns of the widest block: 8 vectors of 16.
pub(super) const WIDEST: usize = 128;

/// The elements of the largest blocks that end together.
const BLOCK: usize = TOGETHER * ROWS * COLUMNS;

/// The elements that a block works with beside its operands.
pub(super) const MEMORY: usize = TERMS * COLUMNS + BLOCK;

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

    /// Asks for the rows, unless they may overlap.
    #[inline(always)]
    fn expect(self) {
        if let [Run { from, terms }] = self.runs {
            self.places.iter().for_each(|place| prefetch(&self.data[place + from..][..*terms]));
        }
    }
}

/// A right operand, a row for each term: the `columns` elements from its place on.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) data: &'a [f32],
    /// The number of rows.
    pub(super) terms: usize,
    pub(super) columns: usize,
    pub(super) places: RowPlaces<'a>,
}

/// Where the rows of a right operand begin.
#[derive(Clone, Copy)]
pub(super) enum RowPlaces<'a> {
    /// At the multiples of a distance: no less than the columns, unless there is a single row.
    Every(usize),
    /// One for each term.
    Each(&'a [usize]),
}

impl RowPlaces<'_> {
    #[inline(always)]
    fn get(&self, term: usize) -> usize {
        match self {
            Self::Every(stride) => term * stride,
            Self::Each(places) => places[term],
        }
    }
}

impl Rows<'_> {
    /// These columns.
    pub(super) fn columns(self, from: usize, columns: usize) -> Self {
        Self { data: &self.data[from..], columns, ..self }
    }

    /// Copies the rows to panels of so many vectors in `memory`, which lie one behind the other.
    /// What the last panel has beyond the columns are zeros.
    #[inline(always)]
    fn copy<S: Simd>(&self, _simd: S, memory: &mut [f32], vectors: usize) {
        let (width, terms) = (vectors * S::F32_LANES, self.terms);
        for term in 0..terms {
            if term + AHEAD < terms {
                prefetch(&self.data[self.places.get(term + AHEAD)..][..self.columns]);
            }
            let row = &self.data[self.places.get(term)..][..self.columns];
            for (panel, from) in row.chunks(width).enumerate() {
                let to = &mut memory[(panel * terms + term) * width..][..width];
                if from.len() == width {
                    let to = S::as_mut_simd_f32s(to).0;
                    to.iter_mut().zip(S::as_simd_f32s(from).0).for_each(|(to, from)| *to = *from);
                } else {
                    let (to, rest) = to.split_at_mut(from.len());
                    take(from, 1, to);
                    rest.fill(0.0);
                }
            }
        }
    }
}

/// Where the sums of a product go, block by block, and where those that go on come from.
pub(super) trait Sums {
    /// Some columns of a row.
    fn row(&self, row: usize, columns: &Range<usize>) -> &[f32];

    /// Some columns of a row, to write.
    fn row_mut(&mut self, row: usize, columns: &Range<usize>) -> &mut [f32];

    /// Whether more is done with the sums of this part than storing them.
    fn is_ended(&self, part: Part) -> bool;

    /// Whether [`Sums::take`] ends sums.
    fn ends_in_registers(&self) -> bool;

    /// Takes the sums of whole vectors of columns in the rows from one on, and ends them if they
    /// end in registers.
    fn take<S: Simd, const M: usize, const V: usize>(
        &mut self,
        simd: S,
        first: usize,
        columns: &Range<usize>,
        part: Part,
        sums: [[S::f32s; V]; M],
    );

    /// Whether what is read and written is too much for caches, so that it is asked for before.
    fn is_far(&self) -> bool;

    /// Asks for what [`Sums::end`] will read and write of an area.
    fn expect(&self, area: &Area);

    /// Takes the sums of an area from a block, and ends them. A row of the block has whole vectors;
    /// what is behind the sums is of any value.
    fn end<S: Simd>(&mut self, simd: S, area: &Area, block: &mut [f32]);
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
        // Without rows there is no block.
        while at < b.columns && height > 0 {
            let (left, few_registers) = (b.columns - at, S::REGISTER_COUNT < 32);
            let vectors = left.div_ceil(lanes).min(most_vectors(few_registers, height));
            let copied = left < vectors * lanes || is_copied(few_registers, height, b, lanes);
            let vectors = if copied { vectors.min(COLUMNS / lanes) } else { vectors };
            // There are no blocks between.
            let vectors = if matches!(vectors, 5..8) { 4 } else { vectors };
            let stride = vectors * lanes;
            debug_assert!(stride <= WIDEST, "a block of {vectors} vectors");
            // As many blocks side by side as there is room for a copy of their columns.
            let room = if copied { COLUMNS } else { stride };
            let width = left.min((left.min(room) / stride).max(1) * stride);
            let mut b = b.columns(at, width);
            if copied {
                b.copy(simd, memory, vectors);
                b = Rows { data: memory, places: RowPlaces::Every(stride), ..b };
            }
            let origin = [row, column + at];
            Strip { a, b, c, origin, part, block, vectors }.compute(simd);
            at += width;
        }
    }
}

/// Columns of a product that are computed before the next ones, by blocks of so many vectors: of
/// several side by side the right operand lies in panels.
struct Strip<'a, C> {
    a: Windows<'a>,
    b: Rows<'a>,
    c: &'a mut C,
    origin: [usize; 2],
    part: Part,
    block: &'a mut [f32],
    vectors: usize,
}

impl<C: Sums> Strip<'_, C> {
    #[inline(always)]
    fn compute<S: Simd>(self, simd: S) {
        let Self { a, b: strip, c, origin: [row, column], part, block, vectors } = self;
        let (height, terms, stride) = (a.places.len(), strip.terms, vectors * S::F32_LANES);
        // As even as possible: a low block leaves registers idle.
        let blocks = height.div_ceil(if vectors == 1 { NARROW_ROWS } else { ROWS });
        let (least, more) = (height / blocks, height % blocks);
        let first = |i: usize| i * least + i.min(more);
        let (is_ended, is_far) = (c.is_ended(part), c.is_far());
        // Some rows meet all columns while they are in a cache.
        for i in (0..blocks).step_by(TOGETHER) {
            let together = i..(i + TOGETHER).min(blocks);
            let rows = row + first(together.start)..row + first(together.end);
            for at in (0..strip.columns).step_by(stride) {
                let width = stride.min(strip.columns - at);
                let b = Rows { data: &strip.data[at * terms..], columns: width, ..strip };
                let is_whole = width == stride;
                let is_taken = is_whole && (!is_ended || c.ends_in_registers());
                let columns = column + at..column + at + width;
                let area = Area { rows: rows.clone(), columns, stride, part };
                if part.goes_on && !is_whole {
                    load(c, &area, block);
                }
                for i in together.clone() {
                    let own = Area { rows: row + first(i)..row + first(i + 1), ..area.clone() };
                    let from = (own.rows.start - area.rows.start) * stride;
                    if is_far {
                        let next = (i + 1 < blocks).then(|| first(i + 1)..first(i + 2));
                        expect(&*c, a, &own, row, next);
                    }
                    let operands = Operands { a: a.rows(first(i)..first(i + 1)), b };
                    let block = &mut block[from..];
                    tall(simd, vectors, operands, To { c, area: own, block, is_whole, is_taken });
                }
                match (is_taken, is_ended) {
                    (true, _) => {}
                    (false, true) => c.end(simd, &area, block),
                    (false, false) => store(c, &area, block),
                }
            }
        }
    }
}

/// Asks for what a block writes at its end, and for what the next one reads: sums that go on, and
/// rows of the left operand, which caches have for all columns but the first. `next` are rows of
/// `a`, whose first is this `row` of the product.
#[inline(always)]
fn expect(c: &impl Sums, a: Windows<'_>, own: &Area, row: usize, next: Option<Range<usize>>) {
    if c.is_ended(own.part) {
        c.expect(own);
    }
    let Some(next) = next else { return };
    if own.part.goes_on {
        c.expect(&Area { rows: row + next.start..row + next.end, ..own.clone() });
    }
    if own.columns.start == 0 {
        a.rows(next).expect();
    }
}

/// Copies the sums of an area, which go on, to a block.
#[inline(always)]
fn load(c: &impl Sums, area: &Area, block: &mut [f32]) {
    for (row, block) in area.rows.clone().zip(block.chunks_exact_mut(area.stride)) {
        let sums = c.row(row, &area.columns);
        block[..sums.len()].copy_from_slice(sums);
    }
}

/// Copies the sums of an area from a block.
#[inline(always)]
fn store(c: &mut impl Sums, area: &Area, block: &[f32]) {
    for (row, block) in area.rows.clone().zip(block.chunks_exact(area.stride)) {
        let sums = c.row_mut(row, &area.columns);
        sums.copy_from_slice(&block[..sums.len()]);
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

/// The places of a core's nearest cache for lines that lie apart, and the lines of each.
const SETS: usize = 64;
const WAYS: usize = 8;

/// Whether so many rows of the left operand are worth a copy of the right one, in which its rows
/// are neighbours.
#[inline(always)]
fn is_copied(few_registers: bool, rows: usize, b: Rows<'_>, lanes: usize) -> bool {
    let RowPlaces::Every(stride) = b.places else { return false };
    if few_registers {
        // A block reads little of each row, so that a cache holds as many rows as have places of
        // their own. Beyond these each block reads all of them from the next cache.
        let lines = stride.div_ceil(LINE);
        let apart = SETS >> lines.trailing_zeros().min(SETS.trailing_zeros());
        return rows >= 96 && b.terms > WAYS * apart;
    }
    if stride <= 4 * COLUMNS {
        return false;
    }
    let size = lanes * size_of::<f32>();
    let is_aligned = stride.is_multiple_of(lanes) && b.data.as_ptr().addr().is_multiple_of(size);
    // Vectors that cross pages are slow, and rows at a distance of pages share a few places of a
    // cache. What is read of few rows stays in the cache as it is.
    match (is_aligned, stride.is_multiple_of(PAGE)) {
        (false, _) => rows >= 48,
        (true, true) => rows >= 24 && b.terms > 256,
        (true, false) => rows >= 192 && b.terms > 128,
    }
}

#[derive(Clone, Copy)]
struct Operands<'a> {
    a: Windows<'a>,
    b: Rows<'a>,
}

/// Where the sums of a block go.
struct To<'a, C> {
    c: &'a mut C,
    area: Area,
    block: &'a mut [f32],
    /// Whether vectors end where the columns do: sums that go on are those of the rows, else those
    /// of the block.
    is_whole: bool,
    /// Whether `c` takes them from registers, and not from the block.
    is_taken: bool,
}

/// The block of all rows of `a` and of so many vectors.
#[inline(always)]
fn tall<S: Simd, C: Sums>(simd: S, vectors: usize, operands: Operands<'_>, to: To<'_, C>) {
    macro_rules! of {
        ($($rows:literal: $($vectors:literal)*;)*) => {
            match (operands.a.places.len(), vectors) {
                $($(($rows, $vectors) => {
                    simd.vectorize(Registers::<S, C, $rows, $vectors> { simd, operands, to });
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
struct Registers<'a, S, C, const M: usize, const V: usize> {
    simd: S,
    operands: Operands<'a>,
    to: To<'a, C>,
}

impl<S: Simd, C: Sums, const M: usize, const V: usize> NullaryFnOnce for Registers<'_, S, C, M, V> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { simd, operands: Operands { a, b }, to } = self;
        let To { c, area: Area { rows, columns, stride, part }, block, is_whole, is_taken } = to;
        let zero = simd.splat_f32s(0.0);
        let mut sums = [[zero; V]; M];
        let width = V * S::F32_LANES;
        if part.goes_on {
            let mut i = 0;
            while i < M {
                let from =
                    if is_whole { c.row(rows.start + i, &columns) } else { &block[i * stride..] };
                sums[i] = *array(S::as_simd_f32s(&from[..width]).0);
                i += 1;
            }
        }
        let first: &[usize; M] = array(a.places);
        let mut begin = 0;
        for run in a.runs {
            let mut rows = [&a.data[..0]; M];
            let mut i = 0;
            while i < M {
                rows[i] = &a.data[first[i] + run.from..][..run.terms];
                i += 1;
            }
            add_terms(simd, &mut sums, rows, b, begin..begin + run.terms);
            begin += run.terms;
        }
        // A sum of zero is positive.
        each_sum!(sums, |i, v, sum| simd.add_f32s(sum, zero));
        if is_taken {
            c.take(simd, rows.start, &columns, part, sums);
        } else {
            let mut i = 0;
            while i < M {
                store_vectors(simd, &sums[i], &mut block[i * stride..]);
                i += 1;
            }
        }
    }
}

/// Adds the products of these terms, which `rows` hold of the left operand, to the sums of a block:
/// in loops over indices, as iterators are calls where tests are built, and keep sums in memory.
#[inline(always)]
fn add_terms<S: Simd, const M: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; M],
    rows: [&[f32]; M],
    b: Rows<'_>,
    terms: Range<usize>,
) {
    let width = V * S::F32_LANES;
    let mut term = 0;
    match b.places {
        RowPlaces::Every(stride) => {
            // Two terms to a turn, and no test of a single one: where somebody shares the core,
            // how many instructions it begins is what counts. Elements of four terms as arrays
            // would be loaded at once, so that sums leave the registers.
            let turns = if width <= stride { terms.len() / 2 } else { 0 };
            let mut pairs = [&[][..]; M];
            let mut i = 0;
            while i < M {
                pairs[i] = &rows[i].as_chunks::<2>().0[..turns];
                i += 1;
            }
            let from = terms.start * stride;
            let mut pairs_below = b.data[from..].chunks_exact(2 * stride.max(width));
            let mut turn = 0;
            while turn < turns {
                // Not of the last rows, if the data end with the columns.
                let Some(pair) = pairs_below.next() else { break };
                let (one, other) = pair.split_at(stride);
                let vectors: [S::f32s; V] = *array(S::as_simd_f32s(&one[..width]).0);
                add_term!(simd, sums, |i| pairs[i][turn][0], vectors);
                let vectors: [S::f32s; V] = *array(S::as_simd_f32s(&other[..width]).0);
                add_term!(simd, sums, |i| pairs[i][turn][1], vectors);
                turn += 1;
            }
            term = 2 * turn;
            while term < terms.len() {
                let row = &b.data[from + term * stride..][..width];
                let vectors: [S::f32s; V] = *array(S::as_simd_f32s(row).0);
                add_term!(simd, sums, |i| rows[i][term], vectors);
                term += 1;
            }
        }
        RowPlaces::Each(places) => {
            let places = &places[terms];
            while term < places.len() {
                let row = &b.data[places[term]..][..width];
                let vectors: [S::f32s; V] = *array(S::as_simd_f32s(row).0);
                add_term!(simd, sums, |i| rows[i][term], vectors);
                term += 1;
            }
        }
    }
}

/// Stores vectors at the beginning of a row.
#[inline(always)]
pub(super) fn store_vectors<S: Simd, const V: usize>(
    _simd: S,
    vectors: &[S::f32s; V],
    to: &mut [f32],
) {
    let to = S::as_mut_simd_f32s(&mut to[..V * S::F32_LANES]).0;
    let mut v = 0;
    while v < V {
        to[v] = vectors[v];
        v += 1;
    }
}

/// The vectors as an array.
#[inline(always)]
pub(super) fn array<T, const V: usize>(vectors: &[T]) -> &[T; V] {
    match vectors.first_chunk() {
        Some(vectors) => vectors,
        None => unreachable!("a row of less than {V} vectors"),
    }
}
