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
        Self { rows, columns, thread_rows, thread_columns }
    }

    fn threads(self) -> u32 {
        let threads = (self.rows / self.thread_rows) * (self.columns / self.thread_columns);
        int::<u32>(threads)
    }

    /// Defines the macros of the tile; returns the threads of a block and the tiles of a matrix.
    pub(super) fn define(self, b: &mut Builder<'_>, height: &Dim, width: &Dim) -> (u32, Dim) {
        b.define("BM", self.rows);
        b.define("BN", self.columns);
        b.define("BK", 8);
        b.define("TM", self.thread_rows);
        b.define("TN", self.thread_columns);
        (self.threads(), ceil_div(height, self.rows) * ceil_div(width, self.columns))
    }
}
