//! Convolution that multiplies the image where it lies.
//!
//! A band of rows of each channel is taken apart by the phases of the stride. Then neighbouring
//! windows meet neighbouring elements under every tap, so that a term of the sums is a row of an
//! operand that needs no copy of its own: it begins where its tap lies. Between two rows of windows
//! lie a few elements of windows that do not exist; they are multiplied, too, and left out.

use super::super::gemm::{MatrixMut, Rows, accumulate_rows, chunks};
use super::super::im2col::SeenAxis;
use super::super::phases::{PhaseAxis, Phases};
use super::super::scratch::{self, LINE};
use super::super::tile::Tile;
use super::{Group, end};

/// The windows of a tile, about.
const TILE: usize = 512;

/// The most elements of the channels of a band: they stay in a core's cache.
const BAND: usize = 1 << 17;

/// How a convolution takes bands of images apart.
#[derive(Debug)]
pub(super) struct Direct {
    phases: Phases,
    /// The rows of windows of a band, and the windows of a row.
    rows: usize,
    width: usize,
    /// The elements of a channel of a band taken apart.
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
            let (channel, windows) = (phases.apart(), phases.windows());
            if channel.saturating_mul(channels) > BAND && rows > 1 {
                rows /= 2;
                continue;
            }
            let fits = channel.saturating_mul(channels) <= BAND;
            let wasteful = 4 * windows.div_ceil(LINE) > 5 * (rows * width).div_ceil(LINE);
            if !fits || wasteful {
                return None;
            }
            let taps = phases.taps().iter();
            let places = taps.flat_map(|tap| (0..channels).map(move |c| c * channel + tap));
            let places = places.collect();
            return Some(Self { phases, rows, width, channel, places });
        }
    }

    /// The windows of a band.
    pub(super) fn windows(&self) -> usize {
        self.rows * self.width
    }
}

impl Group<'_> {
    /// A tile that is a band of the image.
    pub(super) fn direct(&self, direct: &Direct, mut tile: Tile<'_>) {
        let plan = self.plan;
        let Direct { phases, width, channel, places, .. } = direct;
        let (from, rows) = (tile.columns.start / width, tile.columns.len() / width);
        let distance = phases.columns();
        let stride = ((rows - 1) * distance + width).next_multiple_of(LINE);
        // A last line of a window that does not exist may end behind the last channel.
        let apart = plan.channels.own * channel + LINE;
        let has_nan = scratch::own(apart + tile.pieces.len() * stride, |memory| {
            let (apart, result) = memory.split_at_mut(apart);
            for (x, to) in self.x.chunks_exact(plan.plane).zip(apart.chunks_exact_mut(*channel)) {
                phases.fill(x, 0.0, from, to);
            }
            let filters = tile.rows();
            let mut product = MatrixMut::new(result, filters.len(), stride, stride);
            for part in chunks(plan.terms) {
                let weights = self.weights.block(filters.clone(), part.clone());
                let add = part.start > 0;
                let places = &places[part];
                let rows = Rows { data: apart, places, columns: stride, stride: 0 };
                accumulate_rows(weights, rows, &mut product, add);
            }
            let mut has_nan = false;
            for ((row, y), sums) in filters.zip(&mut tile.pieces).zip(result.chunks_exact(stride)) {
                let sums = sums.chunks(distance).map(|sums| &sums[..*width]);
                has_nan |= end(y.chunks_exact_mut(*width).zip(sums), self.bias_of(row));
                self.epilogue.apply(y, self.first + row * plan.windows + tile.columns.start);
            }
            has_nan
        });
        // What lies outside of the image is no term, but was multiplied as a 0.
        if has_nan && plan.reaches_outside && !self.is_finite(tile.rows()) {
            self.unfolded(tile);
        }
    }
}
