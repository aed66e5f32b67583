//! Convolution without an operand of its own for each tap.
//!
//! A band of rows of each channel is copied once, taken apart by the phases of the stride. Then
//! neighbouring windows meet neighbouring elements under every tap, so that a term of the sums is a
//! row of an operand that begins where its tap lies. Between two rows of windows lie a few elements
//! of windows that do not exist; they are multiplied, too, and left out.

use std::ops::Range;

use super::super::gemm::{
    Matrix, MatrixMut, Part, RowPlaces, Rows, Run, Windows, chunks, sum_rows,
};
use super::super::im2col::SeenAxis;
use super::super::phases::{PhaseAxis, Phases};
use super::super::scratch::{LINE, multiples};

/// The windows of a tile, about, and at most.
const TILE: usize = 512;
const WIDE: usize = 2048;

/// The most elements of the channels of a band: they stay in a core's cache.
const BAND: usize = 1 << 17;

/// Channels at a multiple of this distance would share a few places of a core's cache.
const SHARED: usize = 256;

/// How a convolution takes bands of images apart.
#[derive(Debug)]
pub(super) struct Direct {
    phases: Phases,
    channels: usize,
    /// The rows of windows of a band, and the windows of a row.
    rows: usize,
    width: usize,
    /// The distance between channels of a band taken apart.
    channel: usize,
    /// Where each term begins.
    places: Vec<usize>,
}

impl Direct {
    /// For windows over these axes and this number of channels; `None` where too many elements
    /// belong to no window, or a band is too large.
    pub(super) fn new(axes: &[SeenAxis], channels: usize) -> Option<Self> {
        let mut axes: Vec<PhaseAxis> =
            axes.iter().map(SeenAxis::as_phases).collect::<Option<_>>()?;
        let (most, width) = match axes.as_slice() {
            [columns] => (1, columns.output),
            [rows, columns] => (rows.output, columns.output),
            _ => return None,
        };
        if width > WIDE {
            return None;
        }
        let mut band = |rows: usize| {
            if let [first, _] = axes.as_mut_slice() {
                first.output = rows;
            }
            Phases::of(&axes)
        };
        let mut rows = (TILE / band(1)?.columns()).clamp(1, most);
        loop {
            // Bands of about the same number of rows.
            rows = most.div_ceil(most.div_ceil(rows));
            let phases = band(rows)?;
            let (apart, windows) = (phases.apart(), phases.windows());
            let channel = if apart.is_multiple_of(SHARED) { apart + LINE } else { apart };
            let fits = channel.saturating_mul(channels) <= BAND;
            if !fits && rows > 1 {
                rows /= 2;
                continue;
            }
            let wasteful = 4 * windows.div_ceil(LINE) > 5 * (rows * width).div_ceil(LINE);
            if !fits || wasteful {
                return None;
            }
            let taps = phases.taps().iter();
            let places = taps.flat_map(|tap| (0..channels).map(move |c| c * channel + tap));
            let places = places.collect();
            return Some(Self { phases, channels, rows, width, channel, places });
        }
    }

    /// The windows of a band.
    pub(super) fn windows(&self) -> usize {
        self.rows * self.width
    }

    /// The windows of a row.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// The distance between rows of windows.
    pub(super) fn distance(&self) -> usize {
        self.phases.columns()
    }

    /// The elements of a band taken apart.
    pub(super) fn band(&self) -> usize {
        // A last line of a window that does not exist may end behind the last channel.
        self.channels * self.channel + LINE
    }

    /// The windows of so many rows with those that do not exist, in whole lines.
    pub(super) fn stride(&self, rows: usize) -> usize {
        ((rows - 1) * self.distance() + self.width).next_multiple_of(LINE)
    }

    /// Writes to `result` the products of `weights`, `[filters, terms]`, with the windows of these
    /// rows: [`Self::stride`] elements for each filter. Takes `x`, the planes of all channels,
    /// apart in `band`.
    pub(super) fn multiply(
        &self,
        x: &[f32],
        weights: Matrix<'_>,
        rows: &Range<usize>,
        band: &mut [f32],
        result: &mut [f32],
    ) {
        let plane = x.len() / self.channels;
        for (x, to) in x.chunks_exact(plane).zip(band.chunks_exact_mut(self.channel)) {
            self.phases.fill(x, 0.0, rows.start, to);
        }
        let (filters, columns) = (weights.rows(), self.stride(rows.len()));
        let mut product = MatrixMut::new(result, filters, columns, columns);
        let firsts = multiples(weights.columns(), filters);
        for part in chunks(weights.columns()) {
            let is_last = part.end == weights.columns();
            let of = Part { goes_on: part.start > 0, is_last };
            let runs = &[Run { from: part.start, terms: part.len() }];
            let weights = Windows { data: weights.data, places: &firsts[..filters], runs };
            let (terms, places) = (part.len(), RowPlaces::Each(&self.places[part]));
            let rows = Rows { data: band, terms, columns, places };
            sum_rows(weights, rows, &mut product, 0, of);
        }
    }
}
