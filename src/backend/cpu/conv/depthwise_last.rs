//! Convolution of each channel by a filter of its own, of images whose channels are last in memory.
//!
//! The lanes of vectors are channels. The sums of a few neighbouring windows stay in registers over
//! all taps; what lies outside of the image is left out.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::super::ending_last::{Ended, EndingLast};
use super::super::gemm::{Area, Part, Sums, each_sum};
use super::super::isa;
use super::super::matrix::steps;
use super::super::tile::Pieces;
use super::operands::ConvOperands;
use crate::backend::host::Each;
use crate::op::window::WindowAxis;
use crate::types::Order;
use crate::types::invariant::invariant;

/// Multiplications for which a task is worth its cost.
const WORTH: usize = 1 << 15;

/// The most windows that are computed together.
const WINDOWS: usize = 7;

/// The most windows whose results are asked for together.
const WIDE: usize = 4 * WINDOWS;

/// The most vectors of channels that are computed together. Sixteen registers hold their sums and
/// no weights, which multiplications then read; what a block costs beside these counts for more.
const MOST: usize = 2;

/// The sizes of a convolution of images with the channels last, channel by channel.
#[derive(Debug)]
pub(super) struct DepthwiseLast {
    rows: WindowAxis,
    columns: WindowAxis,
    channels: usize,
}

impl DepthwiseLast {
    /// For windows over these axes; `None` unless there are two.
    pub(super) fn new(axes: &[WindowAxis], channels: usize) -> Option<Self> {
        let [rows, columns] = axes else { return None };
        (channels > 0).then_some(Self { rows: *rows, columns: *columns, channels })
    }

    /// The terms of each sum.
    pub(super) fn terms(&self) -> usize {
        self.rows.kernel * self.columns.kernel
    }

    /// `y = epilogue(conv(x, w) + bias)` for all samples, `w` in panels of channels.
    pub(super) fn convolve(&self, operands: ConvOperands<'_>, y: &mut [f32]) {
        let Self { rows, columns, channels } = self;
        let (input, row) = (rows.input * columns.input * channels, columns.output * channels);
        let batch = y.len() / (rows.output * row);
        let taps = self.terms();
        let expected = (batch * input, taps * channels);
        assert_eq!((operands.x.len(), operands.w.len()), expected, "samples of {self:?}");
        let ending = EndingLast::new(operands.bias, operands.epilogue, *channels);
        let ending = &ending.among(operands.x.len() + y.len());
        let each = (WORTH / (row * taps)).max(1);
        y.par_chunks_exact_mut(row).with_min_len(each).enumerate().each(|(i, y)| {
            let x = &operands.x[i / rows.output * input..][..input];
            let mut pieces = Pieces::new();
            pieces.extend(y.chunks_exact_mut(*channels));
            for panel in steps(0..*channels, Order::PANEL) {
                let w = &operands.w[panel.start * taps..][..panel.len() * taps];
                let (first, pieces) = (i * columns.output, &mut pieces);
                let sums = Ended { ending, row: first, channel: 0, pieces, has_nan: false };
                let row = i % rows.output;
                let taps = rows.taps(row);
                isa::arch().dispatch(Line { plan: self, x, w, panel, row, taps, sums });
            }
            drop(pieces);
            ending.rest(y, i * row);
        });
    }
}

/// The windows of a row of so many that are computed together. The last block reaches back: of many
/// windows that is little, of a few more than half.
fn together(all: usize) -> usize {
    let waste = |windows: usize| all.next_multiple_of(windows) - all;
    match all {
        0..4 => 1,
        WINDOWS.. if waste(WINDOWS) <= waste(4) + 2 => WINDOWS,
        4.. => 4,
    }
}

/// The channels of a panel in a row of windows.
struct Line<'a, 'y> {
    plan: &'a DepthwiseLast,
    /// The sample.
    x: &'a [f32],
    /// The weights of the panel, tap by tap.
    w: &'a [f32],
    panel: Range<usize>,
    row: usize,
    /// Its taps that lie in the image.
    taps: Range<usize>,
    /// The whole row of the result.
    sums: Ended<'a, 'y>,
}

impl WithSimd for Line<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (columns, channels) = (self.plan.columns, self.panel.len());
        // Three neighbouring taps are the most common, and have blocks of their own.
        let stride = match (columns.kernel, columns.dilation) {
            (3, 1) => columns.stride,
            _ => 0,
        };
        let windows = together(columns.output);
        let groups = columns.output.div_ceil(WIDE);
        let start = |group: usize| group * columns.output / groups;
        for group in (0..groups).map(|group| start(group)..start(group + 1)) {
            if self.sums.is_far() {
                let (rows, columns) = (group.clone(), self.panel.clone());
                let (stride, part) = (Order::PANEL, Part::WHOLE);
                self.sums.expect(&Area { rows, columns, stride, part });
            }
            for window in group.clone().step_by(windows) {
                // The last block reaches back.
                let window = window.min(group.end - windows);
                let inside = columns.sees_inside(&(window..window + windows));
                let mut first = 0;
                while first < channels {
                    let at = Block { window, first };
                    let vectors = ((channels - first) / S::F32_LANES).min(MOST);
                    macro_rules! blocks {
                        ($($windows:literal $vectors:literal;)*) => {
                            match (windows, vectors, stride) {
                                $(($windows, $vectors, 1) if inside => {
                                    self.block::<S, $windows, $vectors, 1, true>(simd, &at)
                                }
                                ($windows, $vectors, 1) => {
                                    self.block::<S, $windows, $vectors, 1, false>(simd, &at)
                                }
                                ($windows, $vectors, 2) => {
                                    self.block::<S, $windows, $vectors, 2, false>(simd, &at)
                                }
                                ($windows, $vectors, _) => {
                                    self.block::<S, $windows, $vectors, 0, false>(simd, &at)
                                })*
                                _ => {
                                    for i in 0..windows {
                                        self.rest(simd, &Block { window: window + i, first });
                                    }
                                    channels - first
                                }
                            }
                        };
                    }
                    first += blocks! { 7 2; 7 1; 4 2; 4 1; 1 2; 1 1; };
                }
            }
        }
    }
}

/// Adds the products of a tap to the sums of windows, of which each may see an element under it.
#[inline(always)]
fn add_tap<'a, S: Simd, const M: usize, const V: usize>(
    simd: S,
    sums: &mut [[S::f32s; V]; M],
    w: &[S::f32s],
    seen: impl Fn(usize) -> Option<&'a [S::f32s]>,
) {
    for (m, sums) in sums.iter_mut().enumerate() {
        let Some(x) = seen(m) else { continue };
        for (v, sum) in sums.iter_mut().enumerate() {
            *sum = simd.mul_add_f32s(x[v], w[v], *sum);
        }
    }
}

/// The first window and channel of a block.
struct Block {
    window: usize,
    first: usize,
}

impl Line<'_, '_> {
    /// Sums up a block of windows by vectors, of three neighbouring taps in a row at this `STRIDE`,
    /// or of any if that is 0; returns the channels. What is outside of the image is no term; there
    /// is none if they see `INSIDE` alone.
    #[inline(always)]
    fn block<S: Simd, const M: usize, const V: usize, const STRIDE: usize, const INSIDE: bool>(
        &mut self,
        simd: S,
        at: &Block,
    ) -> usize {
        let DepthwiseLast { rows, columns, channels } = self.plan;
        let (stride, width) = (self.panel.len(), V * S::F32_LANES);
        let zero = simd.splat_f32s(0.0);
        let mut sums = [[zero; V]; M];
        for i in self.taps.clone() {
            let first = rows.position(self.row, i) * columns.input * channels;
            let x = &self.x[first + self.panel.start + at.first..];
            let weights = &self.w[i * columns.kernel * stride + at.first..];
            let of_tap = |j: usize| S::as_simd_f32s(&weights[j * stride..][..width]).0;
            let seen = |column: usize| {
                let column = if INSIDE {
                    column - columns.before
                } else {
                    column.checked_sub(columns.before).filter(|c| *c < columns.input)?
                };
                Some(S::as_simd_f32s(&x[column * channels..][..width]).0)
            };
            if STRIDE == 0 {
                for j in 0..columns.kernel {
                    let at = at.window * columns.stride + j * columns.dilation;
                    add_tap(simd, &mut sums, of_tap(j), |m| seen(at + m * columns.stride));
                }
                continue;
            }
            let w = [of_tap(0), of_tap(1), of_tap(2)];
            // Each element is read once for all windows that see it. Columns are written out, as a
            // loop over them is not unrolled, and sums in a loop are in memory.
            macro_rules! columns {
                ($($column:literal)*) => {$(
                    if $column < (M - 1) * STRIDE + 3
                        && let Some(x) = seen(at.window * STRIDE + $column)
                    {
                        let mut m = 0;
                        while m < M {
                            let tap = usize::wrapping_sub($column, m * STRIDE);
                            if tap < 3 {
                                let mut v = 0;
                                while v < V {
                                    sums[m][v] = simd.mul_add_f32s(x[v], w[tap][v], sums[m][v]);
                                    v += 1;
                                }
                            }
                            m += 1;
                        }
                    }
                )*};
            }
            columns!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        }
        // A zero at the end of a chain is positive.
        each_sum!(sums, |m, v, sum| simd.add_f32s(sum, zero));
        let first = self.panel.start + at.first;
        self.sums.take(simd, at.window, &(first..first + width), Part::WHOLE, sums);
        width
    }

    /// Sums up what is left of the channels, less than a vector, of one window.
    #[inline(always)]
    fn rest<S: Simd>(&mut self, simd: S, at: &Block) {
        let DepthwiseLast { rows, columns, channels } = self.plan;
        let (stride, left) = (self.panel.len(), self.panel.len() - at.first);
        let mut sums = simd.splat_f32s(0.0);
        for i in self.taps.clone() {
            let row = rows.position(self.row, i) * columns.input;
            for j in columns.taps(at.window) {
                let w = &self.w[(i * columns.kernel + j) * stride + at.first..][..left];
                let place = (row + columns.position(at.window, j)) * channels;
                let x = &self.x[place + self.panel.start + at.first..][..left];
                let (x, w) = (simd.partial_load_f32s(x), simd.partial_load_f32s(w));
                sums = simd.mul_add_f32s(x, w, sums);
            }
        }
        let mut block = [0.0; Order::PANEL];
        let stored = S::as_mut_simd_f32s(&mut block).0.first_mut();
        let stored = invariant(stored, "that a panel has a vector");
        *stored = simd.add_f32s(sums, simd.splat_f32s(0.0));
        let columns = self.panel.start + at.first..self.panel.end;
        let (rows, stride, part) = (at.window..at.window + 1, Order::PANEL, Part::WHOLE);
        self.sums.end(simd, &Area { rows, columns, stride, part }, &mut block);
    }
}
