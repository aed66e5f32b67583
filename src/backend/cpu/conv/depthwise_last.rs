//! Convolution of each channel by a filter of its own, of images whose channels are last in memory.
//!
//! The lanes of vectors are channels. The sums of a few neighbouring windows stay in registers over
//! all taps; what lies outside of the image is left out.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use std::ops::Range;

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::super::ending_last::{Ended, EndingLast};
use super::super::matrix::steps;
use super::super::{isa, scratch};
use super::operands::ConvOperands;
use crate::backend::host::Each;
use crate::op::window::WindowAxis;
use crate::types::Order;

/// Multiplications for which a task is worth its cost.
const WORTH: usize = 1 << 16;

/// The windows that are computed together.
const WINDOWS: usize = 4;

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
        let each = (WORTH / (row * taps)).max(1);
        y.par_chunks_exact_mut(row).with_min_len(each).enumerate().each(|(i, y)| {
            let x = &operands.x[i / rows.output * input..][..input];
            scratch::own(row, |sums| {
                for panel in steps(0..*channels, Order::PANEL) {
                    let w = &operands.w[panel.start * taps..][..panel.len() * taps];
                    let row = i % rows.output;
                    isa::arch().dispatch(Line { plan: self, x, w, panel, row, sums });
                }
                let rows = y.chunks_exact_mut(*channels).zip(sums.chunks_exact(*channels));
                ending.end(Ended { first: i * columns.output, channels: &(0..*channels), rows });
                ending.rest(y, i * row);
            });
        });
    }
}

/// The channels of a panel in a row of windows.
struct Line<'a> {
    plan: &'a DepthwiseLast,
    /// The sample.
    x: &'a [f32],
    /// The weights of the panel, tap by tap.
    w: &'a [f32],
    panel: Range<usize>,
    row: usize,
    /// The whole row of the result.
    sums: &'a mut [f32],
}

impl WithSimd for Line<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (columns, channels) = (self.plan.columns, self.panel.len());
        let mut window = 0;
        while window < columns.output {
            let taps = columns.taps(window);
            let last = window + WINDOWS - 1;
            // Neighbours under whose taps there is no border.
            let inner = taps.len() == columns.kernel
                && last < columns.output
                && columns.taps(last).len() == columns.kernel;
            let windows = if inner { WINDOWS } else { 1 };
            let mut first = 0;
            while first < channels {
                let lanes = (channels - first) / S::F32_LANES;
                let block = Block { window, first, taps: taps.clone() };
                first += match (windows, lanes) {
                    (WINDOWS, 4..) => self.block::<S, WINDOWS, 4>(simd, &block),
                    (WINDOWS, 2..) => self.block::<S, WINDOWS, 2>(simd, &block),
                    (WINDOWS, 1..) => self.block::<S, WINDOWS, 1>(simd, &block),
                    (_, 2..) => self.block::<S, 1, 2>(simd, &block),
                    (_, 1..) => self.block::<S, 1, 1>(simd, &block),
                    (_, 0) => {
                        for at in 0..windows {
                            let window = window + at;
                            self.rest(simd, &Block { window, ..block.clone() });
                        }
                        channels - first
                    }
                };
            }
            window += windows;
        }
    }
}

/// The first window and channel of a block, and the taps of a row under which its windows meet the
/// image.
#[derive(Clone)]
struct Block {
    window: usize,
    first: usize,
    taps: Range<usize>,
}

impl Line<'_> {
    /// Sums up a block of windows by vectors; returns the channels.
    #[inline(always)]
    fn block<S: Simd, const M: usize, const V: usize>(&mut self, simd: S, at: &Block) -> usize {
        let DepthwiseLast { rows, columns, channels } = self.plan;
        let (stride, width) = (self.panel.len(), V * S::F32_LANES);
        let mut sums = [[simd.splat_f32s(0.0); V]; M];
        for i in rows.taps(self.row) {
            let row = rows.position(self.row, i) * columns.input;
            for j in at.taps.clone() {
                let tap = i * columns.kernel + j;
                let w = S::as_simd_f32s(&self.w[tap * stride + at.first..][..width]).0;
                let first = row + columns.position(at.window, j);
                let mut m = 0;
                while m < M {
                    let place = (first + m * columns.stride) * channels;
                    let x = &self.x[place + self.panel.start + at.first..][..width];
                    let x = S::as_simd_f32s(x).0;
                    let mut v = 0;
                    while v < V {
                        sums[m][v] = simd.mul_add_f32s(x[v], w[v], sums[m][v]);
                        v += 1;
                    }
                    m += 1;
                }
            }
        }
        for (m, sums) in sums.iter().enumerate() {
            let place = (at.window + m) * channels + self.panel.start + at.first;
            let to = S::as_mut_simd_f32s(&mut self.sums[place..][..width]).0;
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to = *sum);
        }
        width
    }

    /// Sums up what is left of the channels, less than a vector, of one window.
    #[inline(always)]
    fn rest<S: Simd>(&mut self, simd: S, at: &Block) {
        let DepthwiseLast { rows, columns, channels } = self.plan;
        let (stride, left) = (self.panel.len(), self.panel.len() - at.first);
        let mut sums = simd.splat_f32s(0.0);
        for i in rows.taps(self.row) {
            let row = rows.position(self.row, i) * columns.input;
            for j in at.taps.clone() {
                let w = &self.w[(i * columns.kernel + j) * stride + at.first..][..left];
                let place = (row + columns.position(at.window, j)) * channels;
                let x = &self.x[place + self.panel.start + at.first..][..left];
                let (x, w) = (simd.partial_load_f32s(x), simd.partial_load_f32s(w));
                sums = simd.mul_add_f32s(x, w, sums);
            }
        }
        let place = at.window * channels + self.panel.start + at.first;
        simd.partial_store_f32s(&mut self.sums[place..][..left], sums);
    }
}
