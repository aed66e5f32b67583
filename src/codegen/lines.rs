//! Folds of lines, and how axes are taken as lines.

use super::builder::{Builder, blocks, line};
use super::kernel::Call;
use crate::lower::{BufferId, Types};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape, TensorType};

/// Threads of a block.
const THREADS: i64 = 256;

/// Elements of a line from which on a whole block folds it.
const LONG: i64 = 1024;

/// Elements of a line from which on a block has four times as many threads for it.
const VERY_LONG: i64 = 16_384;

/// Elements of a line that one thread folds, where lines lie side by side.
const SHORT: i64 = 16;

/// The most blocks that bring one long line to a scale; each of them joins what is known of all
/// parts of it.
const SLICES: i64 = 256;

/// The elements of a channel, or of a line, whose statistics the first of two launches gives.
pub(super) const PART: i64 = 2048;

/// How a block folds.
pub(super) struct Form {
    /// Threads of a block, and lanes of a line.
    threads: i64,
    lanes: i64,
    /// Whether neighbours in memory are those of a line.
    along: bool,
}

impl Form {
    /// The form for lines of `size` elements. `whole` says that a line runs through the batch: then
    /// its size, even if it is known, does not choose the form.
    pub(super) fn new(size: &Dim, along: bool, whole: bool) -> Self {
        let size = size.as_const().filter(|_| !whole);
        let (threads, lanes) = match (along, size) {
            (true, Some(size)) if size < LONG => (THREADS, 32),
            (true, Some(size)) if size >= VERY_LONG => (4 * THREADS, 4 * THREADS),
            (true, _) => (THREADS, THREADS),
            (false, Some(size)) if size <= SHORT => (THREADS, 1),
            (false, _) => (THREADS, 8),
        };
        Self { threads, lanes, along }
    }

    /// Says the form to the kernel, and finishes its call for so many lines, each in so many parts.
    pub(super) fn finish(
        self,
        mut b: Builder<'_>,
        file: &'static str,
        lines: &Dim,
        parts: &Dim,
    ) -> Call {
        let side = self.threads / self.lanes;
        b.define("LINES", side);
        b.define("LANES", self.lanes);
        b.flag("ALONG", self.along);
        b.size("COUNT", lines);
        let threads = int::<u32>(self.threads);
        let all = lines.clone() * parts.clone();
        b.finish(file, threads, String::new(), line(blocks(&all, side)))
    }
}

pub(super) fn product<'a>(sizes: impl IntoIterator<Item = &'a Dim>) -> Dim {
    sizes.into_iter().fold(Dim::ONE, |p, d| p * d.clone())
}

/// Lines along one axis or several neighbouring ones.
pub(super) struct Lines {
    /// Elements of a line, and from one of them to the next.
    pub(super) size: Dim,
    pub(super) inner: Dim,
    /// The number of lines.
    pub(super) count: Dim,
}

impl Lines {
    pub(super) fn new(shape: &Shape, axes: std::ops::Range<usize>) -> Self {
        let (size, inner) = (product(&shape[axes.clone()]), product(&shape[axes.end..]));
        let count = product(&shape[..axes.start]) * inner.clone();
        Self { size, inner, count }
    }

    /// Says the sizes to the kernel, and finishes its call.
    pub(super) fn finish(self, mut b: Builder<'_>, file: &'static str) -> Call {
        b.size("SIZE", &self.size);
        b.size("INNER", &self.inner);
        let form = Form::new(&self.size, self.inner == Dim::ONE, false);
        form.finish(b, file, &self.count, &Dim::ONE)
    }

    /// The same for a kernel that takes `parts: [.., PARTS, COUNT]`, of `part` elements each.
    pub(super) fn finish_long(
        self,
        mut b: Builder<'_>,
        file: &'static str,
        parts: BufferId,
        part: i64,
    ) -> Call {
        let shape = &b.ty(parts).shape;
        // Parts of numbers alone have no axis for them.
        let count = shape.len().checked_sub(2).map_or(Dim::ONE, |at| shape[at].clone());
        let slices = count.clone().minimum(&SLICES.into());
        b.read("parts", parts);
        b.define("PART", part);
        b.size("PARTS", &count);
        b.size("SLICES", &slices);
        b.size("SIZE", &self.size);
        b.size("INNER", &self.inner);
        // A block has elements of a part, and as many parts to join.
        let along = self.inner == Dim::ONE;
        let lanes = if along { THREADS } else { 8 };
        Form { threads: THREADS, lanes, along }.finish(b, file, &self.count, &slices)
    }
}

/// The axis that a number names, negative from the end.
pub(super) fn position(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()
}

/// The size of an axis of the first operand, negative from the end, if it is known.
pub(super) fn known_size(types: &Types<'_>, axis: i64) -> Option<i64> {
    let x = types.operands.first()?;
    x.shape.get(position(axis, x.rank())?)?.as_const()
}

/// So many numbers in `f64` for each part of channels of so many terms:
/// `[numbers, parts, channels]`.
pub(super) fn channel_parts(terms: &Dim, channels: Dim, numbers: i64) -> TensorType {
    let parts = (terms.clone() + (PART - 1)).floor_div(&PART.into());
    let shape: Shape = [numbers.into(), parts, channels].into_iter().collect();
    TensorType::new(DType::F64, shape)
}

/// The last axis of indices, which hold the coordinates of a block, and the axes before it.
pub(super) fn rows(shape: &Shape) -> (usize, &[Dim]) {
    let last = shape.split_last().and_then(|(d, rows)| Some((d.as_const()?, rows)));
    let (count, rows) = invariant(last, "that the number of coordinates is fixed");
    (int(count), rows)
}

/// Says to the kernel the lengths of the axes that coordinates run along, and the distances of
/// their entries.
pub(super) fn coordinates(b: &mut Builder<'_>, lengths: &[Dim], strides: &[Dim]) {
    b.define("COORDINATES", lengths.len());
    b.list("LENGTHS", lengths);
    b.list("STRIDES", strides);
}
