//! The tiles of matrix products and of what is computed as one.

use super::builder::{Builder, ceil_div};
use crate::types::Dim;
use crate::types::invariant::int;

/// The sizes of the tile that a block computes, and of the part of it that a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    rows: i64,
    columns: i64,
    thread_rows: i64,
    thread_columns: i64,
}

impl Tile {
    /// The tile for so many rows of one sample, and so many columns. No result depends on it.
    pub(super) fn new(rows: i64, columns: i64) -> Self {
        let (columns, thread_columns) = match columns {
            ..=32 => (32, 4),
            33..=64 => (64, 4),
            _ => (128, 8),
        };
        let rows = if rows > 64 { 128 } else { 64 };
        let thread_rows = if rows == 64 && columns < 128 { 4 } else { 8 };
        Self { rows, columns, thread_rows, thread_columns }
    }

    fn threads(self) -> u32 {
        let threads = (self.rows / self.thread_rows) * (self.columns / self.thread_columns);
        int::<u32>(threads)
    }

    /// Says the sizes to the kernel; gives the threads of a block and the tiles of a matrix.
    pub(super) fn define(self, b: &mut Builder<'_>, height: &Dim, width: &Dim) -> (u32, Dim) {
        b.define("BM", self.rows);
        b.define("BN", self.columns);
        b.define("BK", 8);
        b.define("TM", self.thread_rows);
        b.define("TN", self.thread_columns);
        (self.threads(), ceil_div(height, self.rows) * ceil_div(width, self.columns))
    }
}
