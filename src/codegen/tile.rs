//! Tile sizes of matrix products and implicit-GEMM convolutions.

use super::builder::{Builder, ceil_div};
use crate::types::Dim;
use crate::types::invariant::int;

/// The tile of a block, and the part of it that a thread computes, in elements of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    rows: i64,
    columns: i64,
    thread_rows: i64,
    thread_columns: i64,
    /// The terms of a step.
    terms: i64,
}

/// The least multiple of `by` that is `size` or more.
fn up(size: i64, by: i64) -> i64 {
    (size + by - 1) / by * by
}

impl Tile {
    /// Chooses the tile for the rows of one sample and the columns. No result depends on it: every
    /// element is one chain of multiply-adds over ascending terms, whatever the tile (`tile.cuh`).
    pub(super) fn new(rows: i64, columns: i64) -> Self {
        // The narrowest tile that covers the columns: a wider one would compute padding. Rows are
        // those of one sample, never of the batch, so that the kernel does not depend on the batch
        // size.
        let (columns, thread_columns) = match columns {
            ..=32 => (32, 4),
            33..=64 => (64, 4),
            _ => (128, 8),
        };
        let rows = if rows > 64 { 128 } else { 64 };
        // 4 x 4 elements for a thread in small tiles, so that a block still has enough threads to
        // hide latency; up to 8 x 8 in large ones, for more multiply-adds per shared memory load.
        let thread_rows = if rows == 64 && columns < 128 { 4 } else { 8 };
        Self { rows, columns, thread_rows, thread_columns, terms: 8 }
    }

    /// Chooses the tile of a convolution with so many places in a sample and channels in a group.
    /// For few channels it is narrow, so that at most half of what it computes is padding.
    pub(super) fn of_channels(places: i64, channels: i64) -> Self {
        let own = Self::new(places, channels);
        match channels {
            ..=4 => Self { columns: 4, thread_rows: 4, ..own },
            5..=8 => Self { columns: 8, thread_rows: 4, ..own },
            9..=16 => Self { columns: 16, ..own },
            _ => own,
        }
    }

    /// Chooses the tile of a gradient of so many weights by so many channels, from so many places
    /// of a sample: that of a product, or a smaller one where more than half of that would be
    /// padding.
    pub(super) fn of_weights(channels: i64, weights: i64, places: i64) -> Self {
        /// The most rows. Taller tiles need so many registers, with windows looked up along the
        /// terms, that two blocks no longer fit on a multiprocessor.
        const ROWS: i64 = 64;
        /// The fewest threads: those of a warp.
        const FEWEST: u32 = 32;
        let own = Self::new(channels.min(ROWS), weights);
        let elements = channels.saturating_mul(weights);
        // A step of which one sample has less is mostly padding in small batches, whatever the
        // tile.
        let steps = if places < own.terms { 1 } else { places };
        let terms = if steps == 1 { 1 } else { up(places, own.terms) };
        let wasteful = |tile: &Self| {
            let done = tile.area(channels, weights).saturating_mul(terms);
            done > elements.saturating_mul(steps).saturating_mul(2)
        };
        if !wasteful(&own) {
            return own;
        }
        let sizes = [64, 32, 16, 8, 4].into_iter();
        let tiles = sizes.flat_map(|rows| {
            let columns = [128, 64, 32, 16, 8, 4].into_iter();
            columns.map(move |columns| Self {
                rows,
                columns,
                thread_rows: if rows == 64 && columns == 128 { 8 } else { 4 },
                // Of few rows each thread has fewer columns, so that there are enough threads.
                thread_columns: if columns == 128 && rows > 4 { 8 } else { 4 },
                ..own
            })
        });
        let tiles = tiles.filter(|tile| tile.threads() >= FEWEST);
        // Of the tiles that waste little the largest, and of those the widest.
        let largest = |tile: &Self| (tile.rows * tile.columns, tile.columns);
        let little = tiles.clone().filter(|tile| !wasteful(tile)).max_by_key(largest);
        let least = || tiles.min_by_key(|tile| (tile.area(channels, weights), -tile.columns));
        little.or_else(least).unwrap_or(own)
    }

    /// The elements that tiles over so many rows and columns compute.
    pub(super) fn area(self, rows: i64, columns: i64) -> i64 {
        up(rows, self.rows) * up(columns, self.columns)
    }

    /// The tile for elements of so many terms: few of them take a short step.
    pub(super) fn of_terms(self, terms: i64) -> Self {
        /// The shortest step: four neighbouring terms are read at once.
        const FEWEST: i64 = 4;
        if terms <= FEWEST { Self { terms: FEWEST, ..self } } else { self }
    }

    /// This tile, or, where more than half of what that computes is padding, the widest of those
    /// with fewer columns that waste less; else half of a wide one, if that wastes less.
    /// `area` is what a tile computes for so many elements.
    pub(super) fn narrower(self, area: impl Fn(Self) -> i64, elements: i64) -> Self {
        let columns = [self.columns, 64, 32, 16].into_iter().filter(|own| *own <= self.columns);
        let tile = |columns| match columns {
            128 => self,
            _ => Self { columns, thread_columns: 4, ..self },
        };
        let tiles = columns.map(tile);
        let little = tiles.clone().find(|tile| area(*tile) <= elements.saturating_mul(2));
        // Rows are filled by more samples; what then counts is how much a tile reuses.
        little.or_else(|| tiles.take(2).min_by_key(|tile| area(*tile))).unwrap_or(self)
    }

    fn threads(self) -> u32 {
        let threads = (self.rows / self.thread_rows) * (self.columns / self.thread_columns);
        int::<u32>(threads)
    }

    /// Defines the macros of the tile; returns the threads of a block and the tiles of a matrix.
    pub(super) fn define(self, b: &mut Builder<'_>, height: &Dim, width: &Dim) -> (u32, Dim) {
        b.define("BM", self.rows);
        b.define("BN", self.columns);
        b.define("BK", self.terms);
        b.define("TM", self.thread_rows);
        b.define("TN", self.thread_columns);
        (self.threads(), ceil_div(height, self.rows) * ceil_div(width, self.columns))
    }
}

#[cfg(test)]
mod tests {
    use super::{Tile, up};

    /// Of gradients of many weights, nearly half of what tiles compute is asked for or more, also
    /// in a batch of one sample; a tile has 512 elements at least.
    #[test]
    fn gradients_of_few_channels_take_low_tiles() {
        for channels in 1..=130 {
            for weights in [36, 64, 75, 147, 576, 1152] {
                for places in [16, 49, 64, 196, 3136] {
                    let tile = Tile::of_weights(channels, weights, places);
                    let terms = up(places, tile.terms) as f64 / places as f64;
                    let area = tile.area(channels, weights) as f64;
                    let excess = area / (channels * weights) as f64 * terms;
                    let most = if channels * weights >= 2048 { 2.3 } else { 18.0 };
                    assert!(tile.threads() >= 32, "{tile:?}");
                    assert!(excess <= most, "{channels} {weights} {places}: {tile:?} {excess}");
                }
            }
        }
    }
}
