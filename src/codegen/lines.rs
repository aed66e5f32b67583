//! Reductions of lines. A *line* is the elements along one axis or several adjacent ones (a row, if
//! they are the innermost); this file maps lines to blocks and threads.

use super::builder::{Builder, block_count, grid_x};
use super::kernel::Call;
use crate::lower::{BufferId, Types};
use crate::op::rows;
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape, TensorType};

/// Threads of a block.
const THREADS: i64 = 256;

/// The elements of a line from which on a whole block reduces it.
const LONG: i64 = 1024;

/// The elements of a line from which on the block has four times as many threads.
const VERY_LONG: i64 = 16_384;

/// The most elements of a line that one thread reduces, if adjacent elements belong to different
/// lines: then neighbouring threads load adjacent elements anyway.
const SHORT: i64 = 16;

/// The most blocks of the second pass over one long line. Each of them combines the partial results
/// of the whole line again, so more blocks would repeat more work.
const SLICES: i64 = 256;

/// The elements of a channel, or of a line, that one partial result of the first pass covers. A
/// constant, so that the order of summation does not depend on the batch or the device.
pub(super) const PART: i64 = 2048;

/// The shape of a block reduction: how its threads are divided among lines.
pub(super) struct ReductionShape {
    /// Threads of a block, and threads (lanes) of a line.
    threads: i64,
    lanes: i64,
    /// Groups of lanes that share a line.
    groups: i64,
    /// True if adjacent elements in memory belong to one line.
    along: bool,
}

impl ReductionShape {
    /// Chooses the shape for lines of `size` elements, in any order.
    fn new(size: &Dim, along: bool) -> Self {
        let (threads, lanes) = match (along, size.as_const()) {
            // Contiguous lines: a warp for a short line, a whole block for a long one.
            (true, Some(size)) if size < LONG => (THREADS, 32),
            (true, Some(size)) if size >= VERY_LONG => (4 * THREADS, 4 * THREADS),
            (true, _) => (THREADS, THREADS),
            // Adjacent elements belong to adjacent lines: loads are coalesced across lines, so few
            // lanes per line suffice.
            (false, Some(size)) if size <= SHORT => (THREADS, 1),
            (false, _) => (THREADS, 8),
        };
        Self { threads, lanes, groups: 1, along }
    }

    /// Chooses the shape for parts of `size` elements, and how many sums each has, as
    /// `op::reduce::fold` says: as many as there are elements if those are few. The parts of one
    /// line are dealt to `groups` groups.
    pub(super) fn of_parts(size: &Dim, along: bool, groups: i64) -> (Self, i64) {
        let most = int::<i64>(rows::LANES);
        let few = size.as_const().filter(|size| (1..=most).contains(size));
        let sums = few.map_or(most, |size| int(int::<u64>(size).next_power_of_two()));
        // Across lines that lie side by side, threads of a warp load neighbouring elements.
        let lanes = if along { sums } else { sums.min(8) };
        (Self { threads: THREADS, lanes, groups, along }, sums)
    }

    /// Chooses the shape for the sums of lines of `size` elements, and how many partial sums each
    /// has, as the fold of `op::rows` says: 0 if the size is known in a run only. With fewer
    /// elements than partial sums, those without elements are left out.
    fn of_sums(size: &Dim, along: bool) -> (Self, i64) {
        let (short, sums, long_sums) =
            (int::<i64>(rows::SHORT), int::<i64>(rows::LANES), int::<i64>(rows::LONG_LANES));
        let (threads, lanes, sums) = match (along, size.as_const()) {
            (true, Some(size)) if size <= short => (THREADS, 32, sums),
            (true, Some(size)) if size < VERY_LONG => (THREADS, THREADS, long_sums),
            (true, Some(_)) => (4 * THREADS, 4 * THREADS, long_sums),
            (true, None) => (THREADS, 32, 0),
            (false, Some(size)) if size <= SHORT => (THREADS, 1, SHORT),
            (false, Some(size)) if size <= short => (THREADS, 8, sums),
            (false, Some(_)) => (4 * THREADS, 32, long_sums),
            (false, None) => (4 * THREADS, 32, 0),
        };
        (Self { threads, lanes, groups: 1, along }, sums)
    }

    /// Defines the macros of the shape, and finishes the call for `lines` lines of `parts` parts
    /// each.
    pub(super) fn finish(
        self,
        mut b: Builder<'_>,
        file: &'static str,
        lines: &Dim,
        parts: &Dim,
    ) -> Call {
        let side = self.threads / (self.lanes * self.groups);
        b.define("LINES", side);
        b.define("LANES", self.lanes);
        b.flag("ALONG", self.along);
        b.size("COUNT", lines);
        // A block processes so many lines at once; the grid covers all lines and parts.
        let threads = int::<u32>(self.threads);
        let all = lines.clone() * parts.clone();
        b.finish(file, threads, String::new(), grid_x(block_count(&all, side)))
    }
}

pub(super) fn product<'a>(sizes: impl IntoIterator<Item = &'a Dim>) -> Dim {
    sizes.into_iter().fold(Dim::ONE, |p, d| p * d.clone())
}

/// Lines along one axis or several neighbouring ones.
pub(super) struct Lines {
    /// The elements of a line, and the stride between them.
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

    /// Defines the macros of the sizes, and finishes the call.
    pub(super) fn finish(self, mut b: Builder<'_>, file: &'static str) -> Call {
        b.size("SIZE", &self.size);
        b.size("INNER", &self.inner);
        let form = ReductionShape::new(&self.size, self.inner == Dim::ONE);
        form.finish(b, file, &self.count, &Dim::ONE)
    }

    /// As [`Self::finish`], for a kernel that sums up lines.
    pub(super) fn finish_sums(self, mut b: Builder<'_>, file: &'static str) -> Call {
        b.size("SIZE", &self.size);
        b.size("INNER", &self.inner);
        let (form, sums) = ReductionShape::of_sums(&self.size, self.inner == Dim::ONE);
        b.define("SUMS", sums);
        form.finish(b, file, &self.count, &Dim::ONE)
    }

    /// Finishes the call of the second pass, which reads the partial results
    /// `parts: [.., PARTS, COUNT]`, each of `part` elements.
    pub(super) fn finish_second_pass(
        self,
        mut b: Builder<'_>,
        file: &'static str,
        parts: BufferId,
        part: i64,
    ) -> Call {
        let shape = &b.ty(parts).shape;
        // The partials of a full reduction to one number may have no axis of parts.
        let count = shape.len().checked_sub(2).map_or(Dim::ONE, |at| shape[at].clone());
        // Every block combines all partial results before it normalises its slice, so more slices
        // than parts would only repeat that work.
        let slices = count.clone().minimum(&SLICES.into());
        b.read("parts", parts);
        b.define("PART", part);
        b.size("PARTS", &count);
        b.size("SLICES", &slices);
        b.size("SIZE", &self.size);
        b.size("INNER", &self.inner);
        // A block processes the elements of a part and combines as many partial results.
        let along = self.inner == Dim::ONE;
        let lanes = if along { THREADS } else { 8 };
        let form = ReductionShape { threads: THREADS, lanes, groups: 1, along };
        form.finish(b, file, &self.count, &slices)
    }
}

/// Normalizes an axis number, negative from the end.
pub(super) fn normalize_axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()
}

/// The size of an axis of the first operand, if it is constant; negative axes count from the end.
pub(super) fn known_size(types: &Types<'_>, axis: i64) -> Option<i64> {
    let x = types.operands.first()?;
    x.shape.get(normalize_axis(axis, x.rank())?)?.as_const()
}

/// The type of partial results per channel: `f64[numbers, parts, channels]` for channels of `terms`
/// elements.
pub(super) fn channel_partials(terms: &Dim, channels: Dim, numbers: i64) -> TensorType {
    let parts = (terms.clone() + (PART - 1)).floor_div(&PART.into());
    let shape: Shape = [numbers.into(), parts, channels].into_iter().collect();
    TensorType::new(DType::F64, shape)
}

/// Splits the shape of an index tensor of tuples: the length of a tuple (the last axis) and the
/// axes before it.
pub(super) fn index_tuples(shape: &Shape) -> (usize, &[Dim]) {
    let last = shape.split_last().and_then(|(d, rows)| Some((d.as_const()?, rows)));
    let (count, rows) = invariant(last, "that the number of coordinates is fixed");
    (int(count), rows)
}

/// Defines the macros of indexed axes: their lengths and strides.
pub(super) fn define_coordinates(b: &mut Builder<'_>, lengths: &[Dim], strides: &[Dim]) {
    b.define("COORDINATES", lengths.len());
    b.list("LENGTHS", lengths);
    b.list("STRIDES", strides);
}
