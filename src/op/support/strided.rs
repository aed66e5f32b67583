//! Strided reads: the memory access of transpose, slice, expand and tile.

use std::iter;

use smallvec::SmallVec;

use crate::op::OpError;
use crate::types::Tensor;

/// One axis of a reading: how many elements, and how far apart they lie, in elements; negative
/// distances run backwards, the distance 0 repeats one element.
pub(crate) type Axis = (usize, isize);

type Axes = SmallVec<[Axis; 6]>;

/// Side of the square in which two axes are exchanged: its rows and columns stay in the nearest
/// cache.
const BLOCK: usize = 32;

/// The strides of each axis of a row-major tensor with these sizes, in
/// elements.
pub(crate) fn distances(dims: &[usize]) -> SmallVec<[isize; 6]> {
    let mut distances: SmallVec<[isize; 6]> = SmallVec::from_elem(1, dims.len());
    // Saturating: a tensor with an axis of size 0 has strides that are never used, but whose
    // product may overflow.
    let mut step = 1usize;
    for (slot, d) in distances.iter_mut().zip(dims).rev() {
        *slot = step.cast_signed();
        step = step.saturating_mul(*d);
    }
    distances
}

/// Fills `to`, row-major over the sizes of `axes`, with elements of `width` bytes from `from`,
/// beginning at the element `first`.
///
/// # Panics
/// If an axis leaves `from`, or `to` is not as long as `axes` say: bugs in the caller.
pub(crate) fn read(from: &[u8], to: &mut [u8], width: usize, first: usize, axes: &[Axis]) {
    read_merged(from, to, width, first, &merged(axes));
}

/// As [`read`], along axes that are [`merged`].
pub(crate) fn read_merged(from: &[u8], to: &mut [u8], width: usize, first: usize, axes: &[Axis]) {
    if axes.iter().any(|(size, _)| *size == 0) {
        return;
    }
    // A contiguous last axis is a row of bytes: one copy for each row, whatever the element type.
    if let Some((&(run, 1), axes)) = axes.split_last() {
        let mut rows = Walk::new(first, axes);
        let at = || rows.next() * width;
        // Copies of a known size are a few moves.
        match run * width {
            16 => copies::<16>(from, to, at),
            32 => copies::<32>(from, to, at),
            64 => copies::<64>(from, to, at),
            bytes => {
                to.chunks_exact_mut(bytes).zip(iter::repeat_with(at)).for_each(|(to, at)| {
                    to.copy_from_slice(&from[at..at + bytes]);
                });
            }
        }
        return;
    }
    // Element types differ only in their width here, so four instances serve all of them, and
    // the copy of one element is a move of a constant size.
    match width {
        1 => elements::<1>(from, to, first, axes),
        2 => elements::<2>(from, to, first, axes),
        4 => elements::<4>(from, to, first, axes),
        _ => elements::<8>(from, to, first, axes),
    }
}

/// Fills `to` with runs of so many bytes, which begin at these places.
fn copies<const RUN: usize>(from: &[u8], to: &mut [u8], mut at: impl FnMut() -> usize) {
    for to in to.as_chunks_mut::<RUN>().0 {
        to.copy_from_slice(&from[at()..][..RUN]);
    }
}

/// The elements of `x` along `axes`, of which the first lies at `first`, as a tensor of these
/// sizes.
pub(in crate::op) fn taken(
    x: &Tensor,
    first: usize,
    axes: &[Axis],
    dims: &[usize],
) -> Result<Tensor, OpError> {
    let mut y = Tensor::zeros(x.dtype(), dims)?;
    read(x.bytes(), y.bytes_mut(), x.dtype().bytes(), first, axes);
    Ok(y)
}

/// The sizes and the distances of the axes of a row-major tensor.
pub(in crate::op) fn axes_of(dims: &[usize]) -> SmallVec<[Axis; 6]> {
    dims.iter().copied().zip(distances(dims)).collect()
}

/// The same reading with as few axes as possible: none of size 1, and none that goes on where the
/// next ends.
pub(crate) fn merged(axes: &[Axis]) -> Axes {
    let mut out = Axes::new();
    for (size, distance) in axes.iter().copied().filter(|(size, _)| *size != 1) {
        match out.last_mut() {
            Some(last) if last.1 == distance.saturating_mul(size.cast_signed()) => {
                *last = (last.0.saturating_mul(size), distance);
            }
            _ => out.push((size, distance)),
        }
    }
    if out.is_empty() {
        out.push((1, 1));
    }
    out
}

/// The reading where the last axis is not contiguous.
fn elements<const W: usize>(from: &[u8], to: &mut [u8], first: usize, axes: &[Axis]) {
    let (from, to) = (from.as_chunks::<W>().0, to.as_chunks_mut::<W>().0);
    match axes {
        // A transposition: read row by row it would load a cache line for each element. Blocks
        // use every element of a line before the line is evicted.
        [outer @ .., rows @ (_, 1), columns] => {
            let mut planes = Walk::new(first, outer);
            for plane in to.chunks_exact_mut(rows.0 * columns.0) {
                exchange(from, plane, planes.next(), rows.0, *columns);
            }
        }
        [outer @ .., (size, distance)] => {
            let mut rows = Walk::new(first, outer);
            for row in to.chunks_exact_mut(*size) {
                let mut at = rows.next();
                for out in row {
                    *out = from[at];
                    at = at.wrapping_add_signed(*distance);
                }
            }
        }
        [] => {}
    }
}

/// Writes a matrix of `rows` rows whose columns lie contiguous in `from`, block by block.
fn exchange<T: Copy>(from: &[T], to: &mut [T], first: usize, rows: usize, columns: Axis) {
    let (columns, distance) = columns;
    for r in (0..rows).step_by(BLOCK) {
        for c in (0..columns).step_by(BLOCK) {
            for r in r..rows.min(r + BLOCK) {
                let mut at =
                    (first + r).wrapping_add_signed(distance.wrapping_mul(c.cast_signed()));
                for out in &mut to[r * columns + c..r * columns + columns.min(c + BLOCK)] {
                    *out = from[at];
                    at = at.wrapping_add_signed(distance);
                }
            }
        }
    }
}

/// The position of the first element of every row, in row-major order of the axes outside it.
pub(crate) struct Walk<'a> {
    axes: &'a [Axis],
    index: SmallVec<[usize; 6]>,
    at: usize,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(first: usize, axes: &'a [Axis]) -> Self {
        Self { axes, index: SmallVec::from_elem(0, axes.len()), at: first }
    }

    /// The position of this row; the next call gives that of the row after it.
    pub(crate) fn next(&mut self) -> usize {
        let now = self.at;
        for (i, (size, distance)) in self.index.iter_mut().zip(self.axes).rev() {
            *i += 1;
            self.at = self.at.wrapping_add_signed(*distance);
            if *i < *size {
                break;
            }
            // Wrapping: the step past the end of a reversed axis may lead below 0 before it is
            // taken back here.
            let back = distance.wrapping_mul(size.cast_signed()).wrapping_neg();
            self.at = self.at.wrapping_add_signed(back);
            *i = 0;
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{Axis, distances, read};
    use crate::op::testing::rng;

    /// The definition, one element at a time.
    fn plain(from: &[u16], first: usize, axes: &[Axis]) -> Vec<u16> {
        match axes {
            [] => vec![from[first]],
            [(size, distance), rest @ ..] => (0..*size)
                .flat_map(|i| {
                    plain(from, first.wrapping_add_signed(distance * i.cast_signed()), rest)
                })
                .collect(),
        }
    }

    #[test]
    fn every_reading_equals_its_definition() {
        let mut rng = rng(3);
        for case in 0..600 {
            let rank = rng.random_range(0..5);
            let top = if case % 50 == 0 { 70 } else { 5 };
            let dims: Vec<usize> =
                (0..rank).map(|i| rng.random_range(1..if i < 2 { top } else { 4 })).collect();
            let total: usize = dims.iter().product();
            let from: Vec<u16> = (0..total).map(|i| u16::try_from(i % 65_536).unwrap()).collect();
            let mut first = 0usize;
            let mut axes: Vec<Axis> = Vec::new();
            for (size, distance) in dims.iter().zip(distances(&dims)) {
                match rng.random_range(0..4) {
                    0 => {
                        first = first.wrapping_add_signed(distance * (size - 1).cast_signed());
                        axes.push((*size, -distance));
                    }
                    1 => axes.push((rng.random_range(0..4), 0)),
                    2 => axes.push((size.div_ceil(2), 2 * distance)),
                    _ => axes.push((*size, distance)),
                }
            }
            for i in (1..axes.len()).rev() {
                axes.swap(i, rng.random_range(0..=i));
            }
            let expected = plain(&from, first, &axes);
            let mut to = vec![0u16; expected.len()];
            read(bytemuck::cast_slice(&from), bytemuck::cast_slice_mut(&mut to), 2, first, &axes);
            assert_eq!(to, expected, "{dims:?} {first} {axes:?}");
        }
    }
}
