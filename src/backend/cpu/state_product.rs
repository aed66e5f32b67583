//! The product of the states of a recurrent cell with its weights, which every step takes: an
//! element is the sum of eight chains of fused multiply-adds, as [`Part::joined`] adds them.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::gemm::{Matrix, add_term, array, each_sum, store_vectors};
use super::isa;
use crate::backend::host::Each;
use crate::op::Part;
use crate::types::Order;

/// The columns of a panel, at least as many as those of the widest block.
const PANEL: usize = Order::PANEL;

/// The terms that each sum has taken its run of.
const ROUND: usize = Part::RUN * Part::SUMS;

/// The terms between those of a sum and those of the sum that it is added to first.
const APART: usize = ROUND / 2;

/// The states of a block, at most: their sums fill registers.
const ROWS: usize = 6;

/// Weights in panels of columns: of each panel the columns' elements for one term, then for the
/// next, with zeros where the last panel has fewer columns. A direction of [`Order::GatePanels`] is
/// of this kind.
pub(super) struct StateWeights<'a> {
    data: &'a [f32],
    columns: usize,
    terms: usize,
}

/// Puts the rows of `weights`, of so many terms, as columns into panels; returns them. The last one
/// has as many columns as `room` has for it, those beyond the rows are zeros.
pub(super) fn panels<'a>(weights: &[f32], terms: usize, room: &'a mut [f32]) -> &'a [f32] {
    let panels = room.par_chunks_mut(PANEL * terms);
    panels.zip(weights.par_chunks(PANEL * terms)).each(|(panel, rows)| {
        let rows = Matrix::contiguous(rows, rows.len() / terms, terms);
        let width = panel.len() / terms;
        if rows.rows() < width {
            panel.fill(0.0);
        }
        rows.pack_transposed(panel, width);
    });
    room
}

impl<'a> StateWeights<'a> {
    /// The elements of weights of so many columns and terms in panels.
    pub(super) fn room(columns: usize, terms: usize) -> usize {
        columns.next_multiple_of(PANEL) * terms
    }

    /// Weights of so many columns and terms in panels.
    pub(super) fn new(data: &'a [f32], columns: usize, terms: usize) -> Self {
        assert_eq!(data.len(), Self::room(columns, terms), "elements of panels");
        Self { data, columns, terms }
    }

    /// `y = a b` for the states `a`, where `b` are the columns.
    pub(super) fn product(&self, states: &[f32], y: &mut [f32]) {
        isa::arch().dispatch(Product { weights: self, states, y });
    }
}

struct Product<'a> {
    weights: &'a StateWeights<'a>,
    states: &'a [f32],
    y: &'a mut [f32],
}

impl WithSimd for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { weights, states, y } = self;
        let StateWeights { data, columns, terms } = *weights;
        let rows = states.len() / terms;
        // As even as possible: a low block leaves registers idle.
        let blocks = rows.div_ceil(ROWS);
        for (i, data) in data.chunks_exact(PANEL * terms).enumerate() {
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
    weights: &'a StateWeights<'a>,
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
        let rows: [&[f32]; M] = self.rows(a);
        // In the order of `Part::joined`.
        for (i, pair) in [0, 2, 1, 3].into_iter().enumerate() {
            let mut sums = [[[zero; V]; M]; 2];
            let mut first = Part::RUN * pair;
            if PAIRED {
                first = self.add_both(simd, at, &rows, first, &mut sums);
            }
            self.add(simd, at, &rows, first + APART, &mut sums[1]);
            self.add(simd, at, &rows, first, &mut sums[0]);
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

    /// Each of `M` states.
    #[inline(always)]
    fn rows<const M: usize>(self, a: &[f32]) -> [&[f32]; M] {
        let terms = self.data.len();
        let mut rows = [&a[..0]; M];
        let mut i = 0;
        while i < M {
            rows[i] = &a[i * terms..][..terms];
            i += 1;
        }
        rows
    }

    /// Adds the terms of a sum, from the first of a run on.
    #[inline(always)]
    fn add<S: Simd, const M: usize, const V: usize>(
        self,
        simd: S,
        at: usize,
        rows: &[&[f32]; M],
        mut first: usize,
        sums: &mut [[S::f32s; V]; M],
    ) {
        let terms = self.data.len();
        let mut own = *sums;
        while first < terms {
            let mut term = first;
            while term < terms.min(first + Part::RUN) {
                step(simd, &mut own, &self.data[term][at..], rows, term);
                term += 1;
            }
            first += ROUND;
        }
        *sums = own;
    }

    /// Adds the terms of a sum, from the first of a run on, and of the one that it is added to, in
    /// runs that both have whole; returns the term behind those of the first.
    #[inline(always)]
    fn add_both<S: Simd, const M: usize, const V: usize>(
        self,
        simd: S,
        at: usize,
        rows: &[&[f32]; M],
        mut first: usize,
        sums: &mut [[[S::f32s; V]; M]; 2],
    ) -> usize {
        let terms = self.data.len();
        let mut own = *sums;
        while first + APART + Part::RUN <= terms {
            let mut term = first;
            while term < first + Part::RUN {
                step(simd, &mut own[0], &self.data[term][at..], rows, term);
                step(simd, &mut own[1], &self.data[term + APART][at..], rows, term + APART);
                term += 1;
            }
            first += ROUND;
        }
        *sums = own;
        first
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
    add_term!(simd, sums, |i| rows[i][term], b);
}
