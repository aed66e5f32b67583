//! Planes split into phases of the stride (polyphase decomposition) so that under every tap of all
//! windows lie consecutive elements.
//!
//! With a stride of `s` the elements of a padded axis are dealt to `s` phases, of which a tap meets
//! one. Rows of a phase have the same length for all taps, so that the windows of all rows are
//! computed in one go; the elements between the last window of a row and the first of the next
//! belong to no window and are left out at the end.

use std::ops::Range;

use smallvec::SmallVec;

use super::scratch::LINE;
use super::simd::{take, vectorised};
use crate::op::window::WindowAxis;
use crate::types::invariant::invariant;

/// The windows that are computed in one go: what they take stays in registers over all taps.
const BLOCK: usize = 64;

/// A plane taken apart has at most this many times the elements of the plane, beside [`SMALL`].
const GROWTH: usize = 4;

/// The number of elements up to which any growth is allowed.
const SMALL: usize = 1 << 14;

/// An axis of windows that is taken apart.
#[derive(Clone, Debug)]
pub(super) struct PhaseAxis {
    /// Elements of the input.
    pub(super) input: usize,
    /// Elements between neighbouring windows.
    pub(super) stride: usize,
    /// Elements of padding before the input.
    pub(super) before: usize,
    /// Windows.
    pub(super) output: usize,
    /// What the first window meets under each tap, counted from the padding on.
    pub(super) taps: Vec<usize>,
}

impl PhaseAxis {
    /// The axis of windows that adds nothing to a plane of one axis.
    fn unit() -> Self {
        Self { input: 1, stride: 1, before: 0, output: 1, taps: vec![0] }
    }

    /// The elements of a phase.
    fn extent(&self) -> Option<usize> {
        self.output.checked_add(self.taps.iter().max()? / self.stride)
    }

    /// For each tap the position of its phase and the steps in it; and the phases.
    fn split(&self) -> (Vec<(usize, usize)>, SmallVec<[usize; 4]>) {
        let mut phases: SmallVec<[usize; 4]> =
            self.taps.iter().map(|tap| tap % self.stride).collect();
        phases.sort_unstable();
        phases.dedup();
        let at = |tap: &usize| {
            let i = phases.partition_point(|phase| *phase < tap % self.stride);
            (i, tap / self.stride)
        };
        (self.taps.iter().map(at).collect(), phases)
    }
}

impl From<&WindowAxis> for PhaseAxis {
    fn from(axis: &WindowAxis) -> Self {
        let WindowAxis { input, stride, before, output, .. } = *axis;
        let taps = (0..axis.kernel).map(|tap| tap * axis.dilation).collect();
        Self { input, stride, before, output, taps }
    }
}

/// The plan that splits planes of one size.
#[derive(Debug)]
pub(super) struct Phases {
    axes: [PhaseAxis; 2],
    /// The phases of each axis that a tap meets.
    met: [SmallVec<[usize; 4]>; 2],
    /// The rows and columns of a phase.
    rows: usize,
    columns: usize,
    /// For each tap, row-major, the position of what it meets in the first window.
    taps: Vec<usize>,
}

impl Phases {
    /// For windows over one or two axes; `None` for more, or where padding or a wide kernel would
    /// make it costly.
    pub(super) fn new(axes: &[WindowAxis]) -> Option<Self> {
        // Windows without weights, as those of pools, may have taps beyond number.
        let taps = axes.iter().map(|a| a.kernel).try_fold(1usize, usize::checked_mul)?;
        let inputs = axes.iter().map(|a| a.input).try_fold(1usize, usize::checked_mul)?;
        if taps > inputs.saturating_mul(GROWTH).saturating_add(SMALL) {
            return None;
        }
        Self::of(&axes.iter().map(PhaseAxis::from).collect::<SmallVec<[PhaseAxis; 3]>>())
    }

    /// For windows over such axes, in the same way.
    pub(super) fn of(axes: &[PhaseAxis]) -> Option<Self> {
        let axes = match axes {
            [columns] => [PhaseAxis::unit(), columns.clone()],
            [rows, columns] => [rows.clone(), columns.clone()],
            _ => return None,
        };
        let (rows, columns) = (axes[0].extent()?, axes[1].extent()?);
        let inputs = axes[0].input.saturating_mul(axes[1].input);
        let most = inputs.saturating_mul(GROWTH).saturating_add(SMALL);
        let phases = |a: &PhaseAxis| a.stride.min(a.taps.len());
        let each = rows.checked_mul(columns)?.checked_mul(phases(&axes[0]))?;
        if each.checked_mul(phases(&axes[1]))? > most {
            return None;
        }
        let ((row_taps, row_phases), (column_taps, column_phases)) =
            (axes[0].split(), axes[1].split());
        let place = |(row_phase, down): (usize, usize), (column_phase, along): (usize, usize)| {
            let phase = row_phase * column_phases.len() + column_phase;
            (phase * rows + down) * columns + along
        };
        let taps = row_taps.iter().flat_map(|r| column_taps.iter().map(move |c| place(*r, *c)));
        let taps = taps.collect();
        Some(Self { axes, met: [row_phases, column_phases], rows, columns, taps })
    }

    /// The elements of a plane taken apart.
    pub(super) fn apart(&self) -> usize {
        let phases = self.met[0].len() * self.met[1].len();
        (phases * self.rows * self.columns).next_multiple_of(LINE)
    }

    /// The windows of a plane with those that lie between its rows and do not exist.
    pub(super) fn windows(&self) -> usize {
        (self.axes[0].output - 1) * self.columns + self.axes[1].output
    }

    /// The elements of a plane taken apart and of its windows, as [`Self::slide`] takes them.
    pub(super) fn memory(&self) -> (usize, usize) {
        (self.apart() + BLOCK, self.windows().next_multiple_of(BLOCK))
    }

    /// Where the elements lie in a plane taken apart that the first window meets, one for each tap
    /// in row-major order.
    pub(super) fn taps(&self) -> &[usize] {
        &self.taps
    }

    /// The distance between rows of windows.
    pub(super) fn columns(&self) -> usize {
        self.columns
    }

    /// Takes the plane `x` apart, with `pad` for what lies beside it; its first row of windows is
    /// the one with number `from`.
    pub(super) fn fill(&self, x: &[f32], pad: f32, from: usize, to: &mut [f32]) {
        let [rows, columns] = &self.axes;
        vectorised!({
            let mut all = to.chunks_exact_mut(self.rows * self.columns);
            for row_phase in &self.met[0] {
                let met = inside(rows, *row_phase, from + self.rows);
                let met = met.start.max(from) - from..met.end.max(from) - from;
                for column_phase in &self.met[1] {
                    let phase = invariant(all.next(), "that a plane apart has all its phases");
                    let seen = inside(columns, *column_phase, self.columns);
                    let met = if seen.is_empty() { 0..0 } else { met.clone() };
                    let (before, others) = phase.split_at_mut(met.start * self.columns);
                    let (phase, behind) = others.split_at_mut(met.len() * self.columns);
                    before.fill(pad);
                    behind.fill(pad);
                    let first = seen.start * columns.stride + column_phase;
                    for (i, to) in met.zip(phase.chunks_exact_mut(self.columns)) {
                        let row = (from + i) * rows.stride + row_phase - rows.before;
                        let x = &x[row * columns.input + first - columns.before..];
                        to[..seen.start].fill(pad);
                        take(x, columns.stride, &mut to[seen.clone()]);
                        to[seen.end..].fill(pad);
                    }
                }
            }
        });
    }

    /// Folds what each window meets, from `start` on, by `f` with the number of the tap, in
    /// row-major order of the taps.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
    pub(super) fn slide(
        &self,
        apart: &[f32],
        windows: &mut [f32],
        start: f32,
        f: impl Fn(usize, f32, f32) -> f32,
    ) {
        for (i, windows) in windows.chunks_exact_mut(BLOCK).enumerate() {
            let mut block = [start; BLOCK];
            for (tap, at) in self.taps.iter().enumerate() {
                let x = &apart[at + i * BLOCK..][..BLOCK];
                for (y, x) in block.iter_mut().zip(x) {
                    *y = f(tap, *y, *x);
                }
            }
            windows.copy_from_slice(&block);
        }
    }

    /// The windows of each row, of those that [`Self::slide`] gives.
    pub(super) fn rows<'a>(&self, windows: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
        let [rows, columns] = &self.axes;
        let width = columns.output;
        windows.chunks(self.columns).take(rows.output).map(move |row| &row[..width])
    }
}

/// The elements of a phase of `len` elements that lie in the input.
fn inside(axis: &PhaseAxis, phase: usize, len: usize) -> Range<usize> {
    let first = axis.before.saturating_sub(phase).div_ceil(axis.stride).min(len);
    let end = (axis.before + axis.input).saturating_sub(phase).div_ceil(axis.stride).min(len);
    first..end.max(first)
}
