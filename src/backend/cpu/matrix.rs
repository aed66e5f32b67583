//! Matrices of `f32` in memory, to read and to write, and their blocks.

use std::ops::Range;

use super::simd::vectorised;
use super::square::{self, SIDE, Square, Squares};
use crate::types::Order;
use crate::types::invariant::invariant;

/// A matrix to read: element `(i, j)` is `data[i * row_stride + j * column_stride]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

/// A matrix to read that lies in panels of its columns, which are the rows of
/// [`Order::RowPanels`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels<'a> {
    data: &'a [f32],
    /// The rows and columns of the whole matrix.
    whole: [usize; 2],
    /// The first row, and the rows from it on.
    first_row: usize,
    rows: usize,
    /// The first column, which begins a panel, and the columns from it on.
    first_column: usize,
    columns: usize,
}

impl<'a> Panels<'a> {
    /// The matrix of so many rows and columns whose elements are `data`.
    ///
    /// # Panics
    /// If `data` has not so many: a bug in the caller.
    pub(crate) fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "elements of panels");
        Self { data, whole: [rows, columns], first_row: 0, rows, first_column: 0, columns }
    }

    /// The elements in these rows and columns, of which the first begins a panel.
    fn block(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && columns.end <= self.columns, "{rows:?} {columns:?}");
        assert!(columns.start.is_multiple_of(Order::PANEL), "column {}", columns.start);
        let (first_row, first_column) =
            (self.first_row + rows.start, self.first_column + columns.start);
        Self { first_row, first_column, rows: rows.len(), columns: columns.len(), ..self }
    }

    /// For each panel its columns, counted from the first, the elements from the first row on, and
    /// the distance between rows.
    pub(super) fn panels(self) -> impl Iterator<Item = (Range<usize>, &'a [f32], usize)> {
        let Self { data, whole: [rows, columns], first_row, first_column, .. } = self;
        steps(0..self.columns, Order::PANEL).map(move |own| {
            let first = first_column + own.start;
            let stride = Order::PANEL.min(columns - first);
            (own, &data[first * rows + first_row * stride..], stride)
        })
    }
}

/// The right operand of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Right<'a> {
    Matrix(Matrix<'a>),
    Panels(Panels<'a>),
}

impl<'a> From<Matrix<'a>> for Right<'a> {
    fn from(matrix: Matrix<'a>) -> Self {
        Self::Matrix(matrix)
    }
}

impl Right<'_> {
    /// The number of rows.
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::Matrix(matrix) => matrix.rows,
            Self::Panels(panels) => panels.rows,
        }
    }

    /// The number of columns.
    pub(super) fn columns(&self) -> usize {
        match self {
            Self::Matrix(matrix) => matrix.columns,
            Self::Panels(panels) => panels.columns,
        }
    }

    /// The elements in these rows and columns; of panels the first column begins one.
    #[must_use]
    pub(super) fn block(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        match self {
            Self::Matrix(matrix) => Self::Matrix(matrix.block(rows, columns)),
            Self::Panels(panels) => Self::Panels(panels.block(rows, columns)),
        }
    }
}

/// A matrix to write, whose rows are contiguous: element `(i, j)` is `data[i * row_stride + j]`.
#[derive(Debug)]
pub(crate) struct MatrixMut<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
}

/// The layout of a matrix in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// The number of rows.
    pub rows: usize,
    /// The number of columns.
    pub columns: usize,
    /// The distance between rows.
    pub row_stride: usize,
    /// The distance between columns.
    pub column_stride: usize,
}

impl Layout {
    /// True if a slice of `elements` holds the matrix.
    fn fits(&self, elements: usize) -> bool {
        let last = || {
            let row = (self.rows - 1).checked_mul(self.row_stride)?;
            row.checked_add((self.columns - 1).checked_mul(self.column_stride)?)
        };
        self.rows == 0 || self.columns == 0 || last().is_some_and(|last| last < elements)
    }
}

impl<'a> Matrix<'a> {
    /// The matrix whose elements lie so in `data`.
    ///
    /// # Panics
    /// If `data` ends before the last element: a bug in the caller.
    pub(crate) fn new(data: &'a [f32], layout: Layout) -> Self {
        assert!(layout.fits(data.len()), "{layout:?} in {} elements", data.len());
        let Layout { rows, columns, row_stride, column_stride } = layout;
        Self { data, rows, columns, row_stride, column_stride }
    }

    /// The matrix whose rows lie one behind the other.
    ///
    /// # Panics
    /// If `data` is too short: a bug in the caller.
    pub(crate) fn contiguous(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::new(data, Layout { rows, columns, row_stride: columns, column_stride: 1 })
    }

    /// The number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// The transpose.
    #[must_use]
    pub(crate) fn transposed(self) -> Self {
        let Self { data, rows, columns, row_stride, column_stride } = self;
        Self {
            data,
            rows: columns,
            columns: rows,
            row_stride: column_stride,
            column_stride: row_stride,
        }
    }

    /// The elements in these rows and columns.
    ///
    /// # Panics
    /// If the matrix does not have them: a bug in the caller.
    #[must_use]
    pub(crate) fn block(self, rows: Range<usize>, columns: Range<usize>) -> Self {
        assert!(rows.end <= self.rows && columns.end <= self.columns, "{rows:?} {columns:?}");
        let first = if rows.is_empty() || columns.is_empty() {
            self.data.len()
        } else {
            rows.start * self.row_stride + columns.start * self.column_stride
        };
        Self { data: &self.data[first..], rows: rows.len(), columns: columns.len(), ..self }
    }

    /// Copies the elements to `to`, rows one behind the other at a distance of `width`.
    pub(crate) fn pack(&self, to: &mut [f32], width: usize) {
        for (i, to) in to.chunks_exact_mut(width).take(self.rows).enumerate() {
            // None: rows without elements may start behind the end of `data`.
            let row = self.data.get(i * self.row_stride..).unwrap_or_default();
            if self.column_stride == 1 {
                to[..self.columns].copy_from_slice(&row[..self.columns]);
            } else {
                for (j, to) in to.iter_mut().take(self.columns).enumerate() {
                    *to = row[j * self.column_stride];
                }
            }
        }
    }

    /// As [`Self::pack`], also quickly where the elements of a column are neighbours.
    pub(crate) fn pack_rows(&self, to: &mut [f32], width: usize) {
        if self.has_contiguous_rows() || self.row_stride > 1 {
            self.pack(to, width);
        } else {
            self.transposed().pack_transposed(to, width);
        }
    }

    /// Copies the elements of the transpose to `to`, its rows one behind the other at a distance of
    /// `width`.
    ///
    /// # Panics
    /// If rows are not contiguous, or `to` is too short: a bug in the caller.
    pub(crate) fn pack_transposed(&self, to: &mut [f32], width: usize) {
        assert!(self.column_stride == 1 || self.columns < 2, "rows that are not contiguous");
        square::dispatch(Transposed { from: *self, to, width });
    }

    /// Whether the elements of a row are neighbours.
    pub(super) fn has_contiguous_rows(&self) -> bool {
        (self.column_stride == 1 || self.columns < 2)
            && (self.row_stride >= self.columns || self.rows < 2)
    }

    /// The elements of a row, which are neighbours.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]
    pub(super) fn row(&self, i: usize) -> &'a [f32] {
        &self.data[i * self.row_stride..][..self.columns]
    }
}

/// A matrix whose rows are contiguous, and where its columns become rows of this width.
struct Transposed<'a> {
    from: Matrix<'a>,
    to: &'a mut [f32],
    width: usize,
}

impl Squares for Transposed<'_> {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]
    fn run(self, turned: impl Fn([&[f32; SIDE]; SIDE]) -> Square) {
        let Self { from: Matrix { data, rows, columns, row_stride, .. }, to, width } = self;
        for j in steps(0..columns, SIDE) {
            for i in steps(0..rows, SIDE) {
                if (i.len(), j.len()) == (SIDE, SIDE) {
                    // Rows of a known length have no rests.
                    let first = &data[i.start * row_stride + j.start..];
                    let mut rows = [&[0.0; SIDE]; SIDE];
                    for (row, own) in rows.iter_mut().enumerate() {
                        let has = "that a matrix has the elements of its rows";
                        *own = invariant(first[row * row_stride..].first_chunk(), has);
                    }
                    let square = turned(rows);
                    for (column, from) in j.clone().zip(&square) {
                        to[column * width + i.start..][..SIDE].copy_from_slice(from);
                    }
                    continue;
                }
                let mut square = [[0.0; SIDE]; SIDE];
                for (row, own) in i.clone().zip(&mut square) {
                    own[..j.len()].copy_from_slice(&data[row * row_stride..][j.clone()]);
                }
                let square = turned(square.each_ref());
                for (column, from) in j.clone().zip(&square) {
                    to[column * width..][i.clone()].copy_from_slice(&from[..i.len()]);
                }
            }
        }
    }
}

impl<'a> MatrixMut<'a> {
    /// The matrix of `rows` by `columns` elements, `row_stride` between its rows.
    ///
    /// # Panics
    /// If `data` ends before the last element, or rows overlap: a bug in the caller.
    pub(crate) fn new(data: &'a mut [f32], rows: usize, columns: usize, row_stride: usize) -> Self {
        let layout = Layout { rows, columns, row_stride, column_stride: 1 };
        assert!(layout.fits(data.len()), "{layout:?} in {} elements", data.len());
        assert!(row_stride >= columns || rows < 2, "rows of {columns} by {row_stride}");
        Self { data, rows, columns, row_stride }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0 || self.columns == 0
    }

    pub(super) fn clear(&mut self) {
        for i in 0..self.rows {
            self.data[i * self.row_stride..][..self.columns].fill(0.0);
        }
    }

    /// Makes every NaN the same one, and tells whether there is any: which of two that meet in a
    /// sum is kept follows from the order of an instruction's operands, which differs among the
    /// loops for different blocks.
    pub(super) fn unify_nans(&mut self) -> bool {
        vectorised!({
            let mut any = 0u32;
            for i in 0..self.rows {
                for x in &mut self.data[i * self.row_stride..][..self.columns] {
                    any |= u32::from(x.is_nan());
                    *x = if x.is_nan() { f32::NAN } else { *x };
                }
            }
            any > 0
        })
    }
}

/// `range` in pieces of `size`, the last one shorter.
pub(super) fn steps(
    range: Range<usize>,
    size: usize,
) -> impl Iterator<Item = Range<usize>> + Clone {
    range.clone().step_by(size).map(move |i| i..(i + size).min(range.end))
}
