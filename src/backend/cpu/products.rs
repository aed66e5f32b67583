//! Products of matrices of `f32`, and of stacks of them.
//!
//! The result is computed in tiles, whose shape changes no bit: every element is one chain over its
//! terms in ascending order.

use std::ops::Range;

use rayon::prelude::*;

use super::ending_last::{Ended, EndingLast};
use super::gemm::{MAX_TERMS, Matrix, Right, Stack, sum};
use super::isa;
use super::matrix::Layout;
use super::tile::{self, Extent, PIECES, Pieces, by_tiles};
use crate::backend::host::{Each, crew};
use crate::types::Order;
use crate::types::invariant::invariant;

/// A tensor to read.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The sizes of its axes.
    pub dims: &'a [usize],
    /// Its elements.
    pub data: &'a [f32],
    /// The order in which they lie: operands of stacks may lie by heads, a right one that is taken
    /// transposed in panels.
    pub order: Order,
}

impl<'a> View<'a> {
    /// A tensor whose elements lie row-major.
    pub fn new(dims: &'a [usize], data: &'a [f32]) -> Self {
        Self { dims, data, order: Order::RowMajor }
    }
}

/// The rows of a tile, at most: for many, reading the right operand and copying it costs little.
/// Few in unit tests.
const HEIGHT: usize = if cfg!(test) { 256 } else { 1024 };

/// The fewest rows of a tile, beside which reading the right operand again costs little.
const LOW: usize = 48;

/// The fewest rows of heads in a task.
const FEW: usize = 16;

/// Multiplications for which a task is worth its cost.
const WORTH: usize = 1 << 16;

/// As many rows as are multiplied in the time in which a row of the right operand is read.
const READ: usize = 4;

/// A product of two matrices, and what becomes of it.
pub(super) struct Product<'a> {
    pub(super) a: Matrix<'a>,
    pub(super) b: Right<'a>,
    pub(super) ending: &'a EndingLast<'a>,
}

/// The size of an axis counted from the last; one that is not there broadcasts as 1.
pub(super) fn size(dims: &[usize], axis: usize) -> usize {
    // Missing axes broadcast.
    dims.len().checked_sub(axis).map_or(1, |at| dims[at])
}

/// The positions of the matrices, in two stacks with these axes that broadcast, of which matrix `i`
/// of the result is the product.
fn places(mut i: usize, a: &[usize], b: &[usize]) -> (usize, usize) {
    let (mut at, mut strides) = ((0, 0), (1, 1));
    for axis in 1..=a.len().max(b.len()) {
        let (a, b) = (size(a, axis), size(b, axis));
        let both = if a == 1 { b } else { a };
        let index = i % both.max(1);
        at.0 += if a == 1 { 0 } else { index * strides.0 };
        at.1 += if b == 1 { 0 } else { index * strides.1 };
        strides = (strides.0 * a, strides.1 * b);
        i /= both.max(1);
    }
    at
}

impl Product<'_> {
    /// Computes all elements; `y` begins at position `first` of the whole output.
    pub(super) fn compute(&self, y: &mut [f32], first: usize) {
        let (rows, columns, terms) = (self.a.rows(), self.b.columns(), self.a.columns());
        assert_eq!(y.len(), rows * columns, "elements of a product");
        if y.is_empty() {
            return;
        }
        let compute = |row: usize, own: &Range<usize>, pieces: &mut [&mut [f32]]| {
            let a = self.a.block(row..row + pieces.len(), 0..terms);
            let b = self.b.block(0..terms, own.clone());
            let (row, channel) = (first / columns + row, own.start);
            let mut sums = Ended { ending: self.ending, row, channel, pieces, has_nan: false };
            if terms == 0 {
                sums.end_empty();
                return;
            }
            sum(isa::arch(), a, b, &mut sums, false);
        };
        let rest = |y: &mut [f32], at: usize| self.ending.rest(y, first + at);
        by_tiles(y, columns, self.extent(), compute, rest);
    }

    /// The sizes of a tile, which change no result: an element is the same chain of sums in every
    /// tile. Columns are shared before rows, as each tile reads all of its part of the right
    /// operand.
    fn extent(&self) -> Extent {
        let (rows, columns, terms) = (self.a.rows(), self.b.columns(), self.a.columns());
        let work = rows.max(READ).saturating_mul(columns).saturating_mul(terms);
        // Of few rows a thread has one tile, the same in every run: it finds in its cache what it
        // read before.
        let most = if rows < READ { crew::sharing() } else { usize::MAX };
        let wanted = tile::wanted(work, WORTH).min(most);
        if wanted == 1 && rows <= HEIGHT {
            return Extent { rows, columns };
        }
        let panels = columns.div_ceil(Order::PANEL);
        let least = if panels < crew::sharing() { 1 } else { LOW };
        let down = wanted.div_ceil(panels).min(rows.div_ceil(least));
        let down = down.max(rows.div_ceil(HEIGHT));
        let height = rows.div_ceil(down);
        let across = wanted.div_ceil(rows.div_ceil(height)).clamp(1, panels);
        Extent { rows: height, columns: panels.div_ceil(across) * Order::PANEL }
    }
}

/// The matrices of the last two axes of a tensor.
pub(super) struct Matrices<'a> {
    pub(super) data: &'a [f32],
    /// The axes before them.
    pub(super) outer: &'a [usize],
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// The matrices whose rows take turns: heads, or 1.
    heads: usize,
}

impl<'a> Matrices<'a> {
    /// Those of a tensor; one with a single axis is a matrix of these rows and columns.
    pub(super) fn new(of: View<'a>, alone: [usize; 2]) -> Self {
        let (outer, [rows, columns]) = match of.dims {
            [outer @ .., rows, columns] => (outer, [*rows, *columns]),
            [] | [_] => (&[][..], alone),
        };
        let heads = match of.order {
            Order::RowMajor => Some(1),
            Order::Heads => outer.last().copied(),
            Order::ChannelsLast | Order::RowPanels | Order::GatePanels => None,
        };
        let heads = invariant(heads, "that matrices lie as their product takes them");
        Self { data: of.data, outer, rows, columns, heads }
    }

    /// The distance between the rows of a matrix.
    fn stride(&self) -> usize {
        self.heads * self.columns
    }

    /// Where the matrix with this number begins.
    fn start(&self, at: usize) -> usize {
        let (first, head) = (at / self.heads * self.heads, at % self.heads);
        first * self.rows * self.columns + head * self.columns
    }

    /// The matrix with this number.
    pub(super) fn matrix(&self, at: usize) -> Matrix<'a> {
        let (rows, columns, row_stride) = (self.rows, self.columns, self.stride());
        let layout = Layout { rows, columns, row_stride, column_stride: 1 };
        Matrix::new(&self.data[self.start(at)..], layout)
    }
}

/// The products of two stacks of matrices, whose outer axes broadcast.
pub(super) struct Products<'a> {
    pub(super) left: Matrices<'a>,
    pub(super) right: Matrices<'a>,
    pub(super) ending: &'a EndingLast<'a>,
}

impl Products<'_> {
    /// The multiplications of one product.
    fn work(&self) -> usize {
        self.left.rows.saturating_mul(self.left.columns).saturating_mul(self.right.columns)
    }

    /// The products of a task, where each is too small for one; 1 where not.
    fn each(&self) -> usize {
        let each = (WORTH / self.work().max(1)).min(PIECES / self.left.rows.max(1));
        if (1..=MAX_TERMS).contains(&self.left.columns) { each.max(1) } else { 1 }
    }

    /// The numbers of the two matrices of which the one with this number is the product.
    fn operands(&self, at: usize) -> (usize, usize) {
        places(at, self.left.outer, self.right.outer)
    }

    /// Computes all, one behind the other.
    pub(super) fn compute(&self, y: &mut [f32]) {
        let columns = self.right.columns;
        let (size, each) = ((self.left.rows * columns).max(1), self.each());
        if each == 1 {
            y.par_chunks_mut(size).enumerate().each(|(i, y)| {
                let (a, b) = self.operands(i);
                let (a, b) = (self.left.matrix(a), self.right.matrix(b).into());
                Product { a, b, ending: self.ending }.compute(y, i * size);
            });
            return;
        }
        y.par_chunks_mut(each * size).enumerate().each(|(task, y)| {
            let mut pieces = Pieces::new();
            pieces.extend(y.chunks_exact_mut(columns));
            self.sum(&mut pieces, task * each);
            drop(pieces);
            self.ending.rest(y, task * each * size);
        });
    }

    /// The sums of products from this one on into the pieces of their rows.
    fn sum(&self, pieces: &mut [&mut [f32]], first: usize) {
        let (left, right, ending) = (&self.left, &self.right, self.ending);
        let (rows, strides) = (left.rows, [left.stride(), right.stride()]);
        let sizes = [rows, right.columns, left.columns];
        let stack = Stack { a: left.data, b: right.data, sizes, strides };
        stack.sum(pieces.chunks_exact_mut(rows).zip(first..).map(|(pieces, at)| {
            let (a, b) = self.operands(at);
            let sums = Ended { ending, row: at * rows, channel: 0, pieces, has_nan: false };
            ([left.start(a), right.start(b)], sums)
        }));
    }

    /// Computes all, in the order [`Order::Heads`]; no chain is applied.
    pub(super) fn compute_heads(&self, y: &mut [f32]) {
        let heads = self.left.outer.last().filter(|heads| self.right.outer.last() == Some(heads));
        let heads = *invariant(heads, "that both operands have the heads of a product");
        let (rows, columns) = (self.left.rows, self.right.columns);
        let (sample, width) = (heads * rows * columns, heads * columns);
        let each = self.each().div_ceil(heads).min(PIECES / (heads * rows));
        if each == 0 || self.each() == 1 {
            let samples = y.len() / sample;
            let of_row = |(i, y): (usize, &mut [f32])| self.heads_of_row(i * heads, samples, y);
            y.par_chunks_mut(sample).enumerate().each(of_row);
            return;
        }
        y.par_chunks_mut(each * sample).enumerate().each(|(task, y)| {
            let mut pieces = Pieces::new();
            pieces.resize_with(y.len() / columns, Default::default);
            let own = pieces.chunks_exact_mut(heads * rows);
            for (pieces, y) in own.zip(y.chunks_exact_mut(sample)) {
                for (row, y) in y.chunks_exact_mut(width).enumerate() {
                    for (head, piece) in y.chunks_exact_mut(columns).enumerate() {
                        pieces[head * rows + row] = piece;
                    }
                }
            }
            self.sum(&mut pieces, task * each * heads);
        });
    }

    /// Computes the products of one of so many rows of the batch; the first has this number.
    fn heads_of_row(&self, first: usize, samples: usize, y: &mut [f32]) {
        let (rows, columns, terms) = (self.left.rows, self.right.columns, self.left.columns);
        let width = y.len() / rows;
        let heads = width / columns;
        let work = self.work().saturating_mul(heads).saturating_mul(samples);
        let parts = tile::wanted(work, WORTH).div_ceil(samples).min(rows.div_ceil(FEW));
        let height = rows.div_ceil(parts.max(rows.div_ceil(PIECES)));
        y.par_chunks_mut(height * width).enumerate().each(|(part, y)| {
            let own = part * height..part * height + y.len() / width;
            for head in 0..heads {
                let mut pieces = Pieces::new();
                pieces
                    .extend(y.chunks_exact_mut(width).map(|y| &mut y[head * columns..][..columns]));
                let (a, b) = self.operands(first + head);
                let a = self.left.matrix(a).block(own.clone(), 0..terms);
                let (ending, pieces) = (self.ending, &mut pieces[..]);
                let mut sums = Ended { ending, row: own.start, channel: 0, pieces, has_nan: false };
                sum(isa::arch(), a, self.right.matrix(b).into(), &mut sums, false);
            }
        });
    }
}
