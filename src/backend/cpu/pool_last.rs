//! The greatest element and the mean of sliding windows over images whose channels are last.

use rayon::prelude::*;
use smallvec::SmallVec;

use super::cpu_op::CpuKernel;
use super::elementwise::Epilogue;
use super::simd::vectorised;
use crate::backend::host::{Each, Unsuited};
use crate::op::window::WindowAxis;

/// Elements met by windows for which a task is worth its cost.
const WORTH: usize = 1 << 14;

/// The channels that are computed side by side.
const LANES: usize = 32;

/// The sizes of a pooling of images with the channels last.
#[derive(Debug)]
pub(super) struct PoolLast {
    rows: WindowAxis,
    columns: WindowAxis,
    channels: usize,
    /// For a mean, the number of elements of each window, at least 1; none for the greatest.
    counts: Option<Vec<f32>>,
}

impl PoolLast {
    /// For windows over one or two axes.
    pub(super) fn new(
        axes: &[WindowAxis],
        channels: usize,
        counts: Option<Vec<f32>>,
    ) -> Option<Self> {
        let (rows, columns) = match axes {
            [rows, columns] => (*rows, *columns),
            [rows] => (*rows, WindowAxis::UNIT),
            _ => return None,
        };
        Some(Self { rows, columns, channels, counts })
    }

    /// A row of windows of a sample.
    fn row(&self, x: &[f32], row: usize, y: &mut [f32]) {
        let (output, channels) = (self.columns.output, self.channels);
        let Some(counts) = &self.counts else {
            vectorised!(self.fold(x, row, y, f32::NEG_INFINITY, greater));
            return;
        };
        vectorised!({
            self.fold(x, row, y, 0.0, |sum, x| sum + x);
            // Divided once after the sum, as the reference does.
            for (y, count) in y.chunks_exact_mut(channels).zip(&counts[row * output..]) {
                for y in y {
                    *y /= *count;
                }
            }
        });
    }

    /// Folds what each window of a row sees, a few channels at a time.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
    fn fold(&self, x: &[f32], row: usize, y: &mut [f32], start: f32, f: impl Fn(f32, f32) -> f32) {
        let Self { rows, columns, channels, .. } = self;
        let taps = rows.taps(row);
        // Where the first channel of each element lies that a window sees.
        let mut seen: SmallVec<[usize; 64]> = SmallVec::new();
        for (window, y) in y.chunks_exact_mut(*channels).enumerate() {
            seen.clear();
            for i in taps.clone() {
                let first = rows.position(row, i) * columns.input;
                let place = |j| (first + columns.position(window, j)) * channels;
                seen.extend(columns.taps(window).map(place));
            }
            let (blocks, rest) = y.as_chunks_mut::<LANES>();
            for (i, y) in blocks.iter_mut().enumerate() {
                let mut folded = [start; LANES];
                for at in &seen {
                    if let Some(x) = x[at + i * LANES..].first_chunk::<LANES>() {
                        for (folded, x) in folded.iter_mut().zip(x) {
                            *folded = f(*folded, *x);
                        }
                    }
                }
                *y = folded;
            }
            rest.fill(start);
            let first = channels - rest.len();
            for at in &seen {
                rest.iter_mut().zip(&x[at + first..]).for_each(|(y, x)| *y = f(*y, *x));
            }
        }
    }
}

/// The greater one of two, a NaN if one is a NaN.
#[inline]
pub(super) fn greater(best: f32, x: f32) -> f32 {
    if x > best || x.is_nan() { x } else { best }
}

impl CpuKernel for PoolLast {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        let Self { rows, columns, channels, .. } = self;
        let (input, row) = (rows.input * columns.input * channels, columns.output * channels);
        if row == 0 || x.len() / input * rows.output * row != y.len() {
            return Err(Unsuited);
        }
        let taps = rows.kernel.saturating_mul(columns.kernel);
        let each = (WORTH / row.saturating_mul(taps).max(1)).max(1);
        y.par_chunks_exact_mut(row).with_min_len(each).enumerate().each(|(i, y)| {
            self.row(&x[i / rows.output * input..][..input], i % rows.output, y);
        });
        Ok(())
    }
}
