//! The product of the states of a recurrent cell with its weights, which every step takes: an
//! element is the sum of eight chains of fused multiply-adds, as [`Part::joined`] adds them.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::gemm::{Matrix, add_term, array, each_sum, store_vectors};
use super::isa;
use super::scratch;
use crate::backend::host::Each;
use crate::op::Part;

/// The columns of a panel, at least as many as those of the widest block.
const PANEL: usize = 64;

/// The states of a block, at most: their sums fill registers.
const ROWS: usize = 6;

/// Weights in panels of columns: of each panel the columns' elements for one term, then for the
/// next, with zeros where the last panel has fewer columns.
pub(super) struct StateWeights {
    data: Vec<f32>,
    columns: usize,
    /// The terms in the order of the panels: those of each sum are neighbours.
    order: Vec<usize>,
    /// For each sum where its terms are.
    sums: [Range<usize>; Part::SUMS],
}

impl StateWeights {
    /// The rows of `weights`, of so many terms, as columns.
    pub(super) fn new(weights: &[f32], terms: usize) -> Self {
        let columns = weights.len() / terms;
        let mut order = Vec::with_capacity(terms);
        let sums = std::array::from_fn(|sum| {
            let first = order.len();
            order.extend(Part::terms_of(sum, terms));
            first..order.len()
        });
        let mut data = vec![0.0; columns.div_ceil(PANEL) * PANEL * terms];
        let panels = data.par_chunks_exact_mut(PANEL * terms);
        panels.zip(weights.par_chunks(PANEL * terms)).each(|(panel, rows)| {
            let rows = Matrix::contiguous(rows, rows.len() / terms, terms);
            scratch::own(PANEL * terms, |turned| {
                turned.fill(0.0);
                rows.pack_transposed(turned, PANEL);
                let rows = turned.as_chunks::<PANEL>().0;
                let to = panel.as_chunks_mut::<PANEL>().0.iter_mut();
                to.zip(&order).for_each(|(to, term)| *to = rows[*term]);
            });
        });
        Self { data, columns, order, sums }
    }

    /// `y = a b` for the states `a`, where `b` are the columns.
    pub(super) fn product(&self, a: &[f32], y: &mut [f32]) {
        let terms = self.order.len();
        scratch::own(a.len(), |states| {
            for (to, from) in states.chunks_exact_mut(terms).zip(a.chunks_exact(terms)) {
                to.iter_mut().zip(&self.order).for_each(|(to, term)| *to = from[*term]);
            }
            isa::arch().dispatch(Product { weights: self, states, y });
        });
    }
}

/// A product of states whose terms are in the order of the weights.
struct Product<'a> {
    weights: &'a StateWeights,
    states: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { weights, states, y } = self;
        let (terms, columns) = (weights.order.len(), weights.columns);
        let rows = states.len() / terms;
        // As even as possible: a low block leaves registers idle.
        let blocks = rows.div_ceil(ROWS);
        for (i, data) in weights.data.chunks_exact(PANEL * terms).enumerate() {
            let (data, first) = (data.as_chunks().0, i * PANEL);
            let mut row = 0;
            for block in 0..blocks {
                let height = rows / blocks + usize::from(block < rows % blocks);
                let a = &states[row * terms..][..height * terms];
                let y = &mut y[row * columns..][..height * columns];
                tall(simd, Panel { weights, data, first }, height, a, y);
                row += height;
            }
        }
    }
}

/// Columns of the weights, from the first on.
#[derive(Clone, Copy)]
struct Panel<'a> {
    weights: &'a StateWeights,
    data: &'a [[f32; PANEL]],
    first: usize,
}

/// The products of so many states with a panel. Of few states two sums are made at a time, so that
/// none waits for itself.
#[inline(always)]
fn tall<S: Simd>(simd: S, panel: Panel<'_>, height: usize, a: &[f32], y: &mut [f32]) {
    let few_registers = S::REGISTER_COUNT < 32;
    match (height, few_registers) {
        (1, _) => panel.product::<S, 1, 4, true>(simd, a, y),
        (2, true) => panel.product::<S, 2, 2, true>(simd, a, y),
        (2, false) => panel.product::<S, 2, 4, true>(simd, a, y),
        (3, true) => panel.product::<S, 3, 2, true>(simd, a, y),
        (3, false) => panel.product::<S, 3, 4, true>(simd, a, y),
        (4, true) => panel.product::<S, 4, 2, false>(simd, a, y),
        (4, false) => panel.product::<S, 4, 4, false>(simd, a, y),
        (5, true) => panel.product::<S, 5, 2, false>(simd, a, y),
        (5, false) => panel.product::<S, 5, 4, false>(simd, a, y),
        (6, true) => panel.product::<S, 6, 2, false>(simd, a, y),
        (6, false) => panel.product::<S, 6, 4, false>(simd, a, y),
        shape => unreachable!("a block of {shape:?}"),
    }
}

impl Panel<'_> {
    /// The products of `M` states with `V` vectors of columns at a time.
    #[inline(always)]
    fn product<S: Simd, const M: usize, const V: usize, const PAIRED: bool>(
        self,
        simd: S,
        a: &[f32],
        y: &mut [f32],
    ) {
        let columns = self.weights.columns;
        let left = PANEL.min(columns - self.first);
        let stride = V * S::F32_LANES;
        for at in (0..left).step_by(stride) {
            let sums = self.sums::<S, M, V, PAIRED>(simd, at, a);
            let width = stride.min(left - at);
            for (sums, y) in sums.iter().zip(y.chunks_exact_mut(columns)) {
                let y = &mut y[self.first + at..][..width];
                if width == stride {
                    store_vectors(simd, sums, y);
                } else {
                    let mut whole = [0.0; PANEL];
                    store_vectors(simd, sums, &mut whole);
                    y.copy_from_slice(&whole[..width]);
                }
            }
        }
    }

    /// The elements of a block, from this column of the panel on.
    #[inline(always)]
    fn sums<S: Simd, const M: usize, const V: usize, const PAIRED: bool>(
        self,
        simd: S,
        at: usize,
        a: &[f32],
    ) -> [[S::f32s; V]; M] {
        let zero = simd.splat_f32s(0.0);
        let mut halves = [[[zero; V]; M]; 2];
        // In the order of `Part::joined`.
        for (i, pair) in [0, 2, 1, 3].into_iter().enumerate() {
            let (low, high) = (&self.weights.sums[pair], &self.weights.sums[pair + 4]);
            let mut sums = [[[zero; V]; M]; 2];
            // The first has no fewer terms.
            let middle = low.start + if PAIRED { high.len() } else { 0 };
            if PAIRED {
                let parts = [low.start..middle, high.clone()];
                self.add_both(simd, at, a, parts, &mut sums);
            } else {
                self.add(simd, at, a, high.clone(), &mut sums[1]);
            }
            self.add(simd, at, a, middle..low.end, &mut sums[0]);
            let (half, [low, high]) = (&mut halves[i / 2], sums);
            each_sum!(half, |r, v, sum| {
                let pair = simd.add_f32s(low[r][v], high[r][v]);
                if i % 2 == 0 { pair } else { simd.add_f32s(sum, pair) }
            });
        }
        let [mut all, other] = halves;
        // A sum of zero is positive.
        each_sum!(all, |r, v, sum| simd.add_f32s(simd.add_f32s(sum, other[r][v]), zero));
        all
    }

    /// The terms of `M` states in this range.
    #[inline(always)]
    fn rows<'a, const M: usize>(self, a: &'a [f32], range: &Range<usize>) -> [&'a [f32]; M] {
        let terms = self.weights.order.len();
        let mut rows = [&a[..0]; M];
        let mut i = 0;
        while i < M {
            rows[i] = &a[i * terms + range.start..][..range.len()];
            i += 1;
        }
        rows
    }

    /// Adds the terms of a range to sums.
    #[inline(always)]
    fn add<S: Simd, const M: usize, const V: usize>(
        self,
        simd: S,
        at: usize,
        a: &[f32],
        range: Range<usize>,
        sums: &mut [[S::f32s; V]; M],
    ) {
        let rows: [&[f32]; M] = self.rows(a, &range);
        let data = &self.data[range];
        let mut own = *sums;
        let mut term = 0;
        while term < data.len() {
            step(simd, &mut own, &data[term][at..], &rows, term);
            term += 1;
        }
        *sums = own;
    }

    /// Adds the terms of two ranges of one length, each to sums of its own.
    #[inline(always)]
    fn add_both<S: Simd, const M: usize, const V: usize>(
        self,
        simd: S,
        at: usize,
        a: &[f32],
        [low, high]: [Range<usize>; 2],
        sums: &mut [[[S::f32s; V]; M]; 2],
    ) {
        let rows: [[&[f32]; M]; 2] = [self.rows(a, &low), self.rows(a, &high)];
        let data = [&self.data[low], &self.data[high]];
        let mut own = *sums;
        let mut term = 0;
        while term < data[0].len() {
            step(simd, &mut own[0], &data[0][term][at..], &rows[0], term);
            step(simd, &mut own[1], &data[1][term][at..], &rows[1], term);
            term += 1;
        }
        *sums = own;
    }
}

/// Adds the products of a term.
#[inline(always)]
fn step<S: Simd, const M: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; M],
    b: &[f32],
    rows: &[&[f32]; M],
    term: usize,
) {
    let b: [S::f32s; V] = *array(S::as_simd_f32s(&b[..V * S::F32_LANES]).0);
    add_term!(simd, sums, rows[term], b);
}
