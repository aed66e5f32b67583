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
use super::simd::take;
use crate::op::window::WindowAxis;

/// The windows that are computed in one go: their 2 KiB of sums stay in the L1 cache over all taps.
const BLOCK: usize = 512;

/// A plane taken apart has at most this many times the elements of the plane, beside [`SMALL`].
const GROWTH: usize = 4;

/// The number of elements up to which any growth is allowed.
const SMALL: usize = 1 << 14;

/// The plan that splits planes of one size.
#[derive(Debug)]
pub(super) struct Phases {
    axes: [WindowAxis; 2],
    /// The phases of each axis that a tap meets.
    met: [SmallVec<[usize; 4]>; 2],
    /// The rows and columns of a phase.
    rows: usize,
    columns: usize,
    /// For each tap, row-major, the position of what it meets in the first window.
    taps: Vec<usize>,
}

/// The axis of windows that adds nothing to a plane of one axis.
const UNIT: WindowAxis =
    WindowAxis { input: 1, kernel: 1, stride: 1, dilation: 1, before: 0, after: 0, output: 1 };

/// For each tap of an axis the position of its phase and the steps in it; and the phases.
fn split(axis: &WindowAxis) -> (Vec<(usize, usize)>, SmallVec<[usize; 4]>) {
    let mut phases: SmallVec<[usize; 4]> = SmallVec::new();
    let at = |tap: usize| {
        let (steps, phase) = (tap * axis.dilation / axis.stride, tap * axis.dilation % axis.stride);
        let known = phases.iter().position(|p| *p == phase);
        let i = known.unwrap_or_else(|| {
            phases.push(phase);
            phases.len() - 1
        });
        (i, steps)
    };
    ((0..axis.kernel).map(at).collect(), phases)
}

impl Phases {
    /// For windows over one or two axes; `None` for more, or where padding or a wide kernel would
    /// make it costly.
    pub(super) fn new(axes: &[WindowAxis]) -> Option<Self> {
        let axes = match axes {
            [columns] => [UNIT, *columns],
            [rows, columns] => [*rows, *columns],
            _ => return None,
        };
        let extent = |axis: &WindowAxis| {
            let steps = (axis.kernel - 1).checked_mul(axis.dilation)? / axis.stride;
            axis.output.checked_add(steps)
        };
        let (rows, columns) = (extent(&axes[0])?, extent(&axes[1])?);
        let most = axes[0].input.saturating_mul(axes[1].input).saturating_mul(GROWTH) + SMALL;
        let phases = |a: &WindowAxis| a.stride.min(a.kernel);
        let each = rows.checked_mul(columns)?.checked_mul(phases(&axes[0]))?;
        if each.checked_mul(phases(&axes[1]))? > most {
            return None;
        }
        let ((row_taps, row_phases), (column_taps, column_phases)) =
            (split(&axes[0]), split(&axes[1]));
        let place = |(row_phase, down): (usize, usize), (column_phase, along): (usize, usize)| {
            let phase = row_phase * column_phases.len() + column_phase;
            (phase * rows + down) * columns + along
        };
        let taps = row_taps.iter().flat_map(|r| column_taps.iter().map(move |c| place(*r, *c)));
        let taps = taps.collect();
        Some(Self { axes, met: [row_phases, column_phases], rows, columns, taps })
    }

    /// The elements of a plane taken apart, and those that its windows take with what lies between
    /// them.
    pub(super) fn memory(&self) -> (usize, usize) {
        let phases = self.met[0].len() * self.met[1].len();
        let apart = phases * self.rows * self.columns;
        (apart.next_multiple_of(LINE), self.windows())
    }

    fn windows(&self) -> usize {
        (self.axes[0].output - 1) * self.columns + self.axes[1].output
    }

    /// Takes the plane `x` apart, with `pad` for what lies beside it.
    pub(super) fn fill(&self, x: &[f32], pad: f32, to: &mut [f32]) {
        let [rows, columns] = &self.axes;
        let mut all = to.chunks_exact_mut(self.columns);
        for row_phase in &self.met[0] {
            for column_phase in &self.met[1] {
                let seen = inside(columns, *column_phase, self.columns);
                let first = seen.start * columns.stride + column_phase;
                for (i, to) in all.by_ref().take(self.rows).enumerate() {
                    let row = (i * rows.stride + row_phase).checked_sub(rows.before);
                    match row.filter(|r| *r < rows.input && !seen.is_empty()) {
                        Some(row) => {
                            to[..seen.start].fill(pad);
                            let x = &x[row * columns.input + first - columns.before..];
                            take(x, columns.stride, &mut to[seen.clone()]);
                            to[seen.end..].fill(pad);
                        }
                        None => to.fill(pad),
                    }
                }
            }
        }
    }

    /// Sets what all windows take to `start`, then calls `f` for each tap in row-major order with
    /// some consecutive ones of them and with the elements that they meet under that tap.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
    pub(super) fn slide(
        &self,
        apart: &[f32],
        windows: &mut [f32],
        start: f32,
        f: impl Fn(usize, &mut [f32], &[f32]),
    ) {
        for (i, windows) in windows.chunks_mut(BLOCK).enumerate() {
            windows.fill(start);
            for (tap, at) in self.taps.iter().enumerate() {
                f(tap, windows, &apart[at + i * BLOCK..][..windows.len()]);
            }
        }
    }

    /// The windows of each row, of those that [`Self::slide`] gives.
    pub(super) fn rows<'a>(&self, windows: &'a [f32]) -> impl Iterator<Item = &'a [f32]> {
        let width = self.axes[1].output;
        windows.chunks(self.columns).map(move |row| &row[..width])
    }
}

/// The elements of a phase of `len` elements that lie in the input.
fn inside(axis: &WindowAxis, phase: usize, len: usize) -> Range<usize> {
    let first = axis.before.saturating_sub(phase).div_ceil(axis.stride).min(len);
    let end = (axis.before + axis.input).saturating_sub(phase).div_ceil(axis.stride).min(len);
    first..end.max(first)
}
