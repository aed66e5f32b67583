//! Output tiles that tasks write in parallel.

use std::ops::Range;

use rayon::prelude::*;
use smallvec::SmallVec;

use crate::backend::host::{Each, crew};

/// Tiles for each thread, so that none waits long for the last one.
const TILES: usize = 4;

/// The tiles in which threads share so many multiplications, of which `worth` are worth the cost of
/// one.
pub(super) fn wanted(multiplications: usize, worth: usize) -> usize {
    match crew::sharing() {
        0 | 1 => 1,
        threads => (TILES * threads).min(multiplications / worth).max(1),
    }
}

/// The tiles of a call, and the rows of one, that take no memory of their own: a matrix of many
/// rows has tiles of whole rows in most kernels.
const FEW: usize = 8;

/// The pieces of rows that take no memory of their own.
pub(super) const PIECES: usize = 256;

/// A piece of each of some neighbouring rows, which are written in place. A list is filled where it
/// lies: to move it copies room for all of [`PIECES`].
pub(super) type Pieces<'a> = SmallVec<[&'a mut [f32]; PIECES]>;

/// Some rows and columns of a row-major matrix, to write: a piece of each of the rows.
pub(super) struct Tile<'a> {
    /// The first row.
    pub(super) row: usize,
    /// The columns.
    pub(super) columns: Range<usize>,
    /// The elements, one slice for each row.
    pub(super) pieces: SmallVec<[&'a mut [f32]; FEW]>,
}

impl Tile<'_> {
    /// The rows.
    pub(super) fn rows(&self) -> Range<usize> {
        self.row..self.row + self.pieces.len()
    }
}

/// The sizes of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// The number of rows.
    pub(super) rows: usize,
    /// The number of columns.
    pub(super) columns: usize,
}

/// A matrix with rows of `columns` elements, cut into tiles of these sizes (smaller at the ends).
/// The order is by columns, then by rows.
pub(super) fn tiles(matrix: &mut [f32], columns: usize, tile: Extent) -> SmallVec<[Tile<'_>; FEW]> {
    // `max(1)`: sizes of 0 have no tiles, and must not divide by zero.
    let rows = matrix.len() / columns.max(1);
    let (height, width) = (tile.rows.max(1), tile.columns.max(1));
    let down = rows.div_ceil(height);
    let mut all: SmallVec<[Tile<'_>; FEW]> = (0..columns.div_ceil(width))
        .flat_map(|i| (0..down).map(move |j| (i * width, j * height)))
        .map(|(column, row)| Tile {
            row,
            columns: column..(column + width).min(columns),
            pieces: SmallVec::with_capacity(height.min(rows - row)),
        })
        .collect();
    // A tile is a list of row pieces, not a pointer with a stride: so the borrow checker proves
    // that tiles do not overlap, and tasks need no `unsafe`.
    for (i, row) in matrix.chunks_exact_mut(columns.max(1)).enumerate() {
        for (j, piece) in row.chunks_mut(width).enumerate() {
            all[j * down + i / height].pieces.push(piece);
        }
    }
    all
}

/// Computes a matrix with rows of `columns` elements by tiles of these sizes: `f` computes one from
/// its first row, its columns and its pieces, and `rest` ends neighbouring elements of it, of which
/// the first is element `at` of the matrix.
pub(super) fn by_tiles(
    matrix: &mut [f32],
    columns: usize,
    extent: Extent,
    f: impl Fn(usize, &Range<usize>, &mut [&mut [f32]]) + Sync,
    rest: impl Fn(&mut [f32], usize) + Sync,
) {
    if extent.columns < columns {
        tiles(matrix, columns, extent).par_iter_mut().each(|tile| {
            f(tile.row, &tile.columns, &mut tile.pieces);
            for (row, piece) in tile.rows().zip(&mut tile.pieces) {
                rest(piece, row * columns + tile.columns.start);
            }
        });
        return;
    }
    let whole = |(i, rows): (usize, &mut [f32])| {
        let row = i * extent.rows;
        let mut pieces = Pieces::new();
        pieces.extend(rows.chunks_exact_mut(columns));
        f(row, &(0..columns), &mut pieces);
        drop(pieces);
        rest(rows, row * columns);
    };
    let size = extent.rows * columns;
    if matrix.len() <= size {
        whole((0, matrix));
        return;
    }
    matrix.par_chunks_mut(size).enumerate().each(whole);
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "the numbers are small integers")]
mod tests {
    use super::{Extent, tiles};

    #[test]
    fn tiles_cover_the_matrix_once() {
        for (rows, columns, height, width) in
            [(5, 7, 2, 3), (1, 1, 4, 4), (6, 6, 3, 3), (4, 9, 100, 2), (3, 0, 1, 1)]
        {
            let mut matrix = vec![0.0; rows * columns];
            for tile in tiles(&mut matrix, columns, Extent { rows: height, columns: width }) {
                assert!(tile.rows().len() <= height && tile.columns.len() <= width);
                for (i, piece) in tile.rows().zip(tile.pieces) {
                    assert_eq!(piece.len(), tile.columns.len());
                    for (j, x) in tile.columns.clone().zip(piece) {
                        *x += (i * columns + j + 1) as f32;
                    }
                }
            }
            assert!(matrix.iter().enumerate().all(|(i, x)| *x == (i + 1) as f32));
        }
    }
}
