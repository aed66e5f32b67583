//! Convolution as a matrix product: the operand of which each column holds what one window sees.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::phases::PhaseAxis;
use super::simd::{take, vectorised};
use crate::op::window::WindowAxis;

/// One spatial axis of a convolution, as its windows see it.
#[derive(Clone, Debug)]
pub(super) struct SeenAxis {
    /// Elements of the input.
    pub(super) input: usize,
    /// Windows.
    pub(super) windows: usize,
    /// Elements of the input between what neighbouring windows meet.
    step: usize,
    taps: Vec<Reach>,
}

/// The windows that meet the input under a tap, and the position that the first of them meets.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reach {
    windows: Range<usize>,
    from: usize,
}

/// The elements of an axis at a phase of the stride: one at `first`, and at every stride behind it.
pub(super) struct AxisPhase {
    pub(super) first: usize,
    /// What they see.
    pub(super) seen: SeenAxis,
    /// The taps that reach them, ascending.
    pub(super) taps: Vec<usize>,
}

/// A term of the sums of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// A channel of the input.
    pub(super) channel: usize,
    /// A tap, counted in row-major order.
    pub(super) tap: usize,
}

impl From<&WindowAxis> for SeenAxis {
    fn from(axis: &WindowAxis) -> Self {
        let reach = |tap| {
            let windows = axis.outputs(tap);
            let from = if windows.is_empty() { 0 } else { axis.position(windows.start, tap) };
            Reach { windows, from }
        };
        let taps = (0..axis.kernel).map(reach).collect();
        Self { input: axis.input, windows: axis.output, step: axis.stride, taps }
    }
}

impl SeenAxis {
    /// The elements of the result of a transposed convolution as windows over its operand, whose
    /// elements are the windows of `axis`: for each phase of the stride that a tap reaches.
    pub(super) fn phases(axis: &WindowAxis) -> Vec<AxisPhase> {
        let WindowAxis { input, stride, output, .. } = *axis;
        let mut phases: BTreeMap<usize, AxisPhase> = BTreeMap::new();
        for tap in 0..axis.kernel {
            let elements = axis.outputs(tap);
            if elements.is_empty() {
                continue;
            }
            let at = axis.position(elements.start, tap);
            let (first, start) = (at % stride, at / stride);
            let phase = phases.entry(first).or_insert_with(|| {
                let windows = (input - first).div_ceil(stride);
                let seen = Self { input: output, windows, step: 1, taps: Vec::new() };
                AxisPhase { first, seen, taps: Vec::new() }
            });
            let windows = start..start + elements.len();
            phase.seen.taps.push(Reach { windows, from: elements.start });
            phase.taps.push(tap);
        }
        phases.into_values().collect()
    }

    /// The taps of a window.
    pub(super) fn taps(&self) -> usize {
        self.taps.len()
    }

    /// True if each window is one element of the input.
    pub(super) fn is_plain(&self) -> bool {
        let one = Reach { windows: 0..self.input, from: 0 };
        self.step == 1 && self.windows == self.input && self.taps == [one]
    }

    /// True if some windows reach outside of the input.
    pub(super) fn reaches_outside(&self) -> bool {
        self.taps.iter().any(|tap| tap.windows != (0..self.windows))
    }

    /// The axis for windows that are taken apart; `None` if a tap meets nothing.
    pub(super) fn as_phases(&self) -> Option<PhaseAxis> {
        // What the first window meets, or would if the input went on.
        let first = |Reach { windows, from }: &Reach| {
            let skipped = windows.start.checked_mul(self.step)?.cast_signed();
            (!windows.is_empty()).then(|| from.cast_signed() - skipped)
        };
        let taps: Vec<isize> = self.taps.iter().map(first).collect::<Option<_>>()?;
        let before = taps.iter().min()?.min(&0).unsigned_abs();
        let taps = taps.iter().map(|tap| before.wrapping_add_signed(*tap)).collect();
        Some(PhaseAxis { input: self.input, stride: self.step, before, output: self.windows, taps })
    }

    /// The position that a window meets under a tap that lies inside of the input for it.
    fn position(&self, window: usize, tap: usize) -> usize {
        let Reach { windows, from } = &self.taps[tap];
        from + (window - windows.start) * self.step
    }
}

/// How the elements that some consecutive windows see are taken from a channel of the input.
pub(super) struct Unfold {
    /// The elements of a row: the windows and zeros behind them.
    width: usize,
    /// The elements of an input channel.
    plane: usize,
    /// The distance between the elements of a run in the input.
    step: usize,
    taps: Vec<Tap>,
}

/// The elements of all windows under one tap, a row: runs of the input, with zeros in between.
#[derive(Default)]
struct Tap {
    runs: SmallVec<[Run; 4]>,
    /// Written after the runs.
    zeros: SmallVec<[Range<usize>; 8]>,
}

struct Run {
    from: usize,
    to: Range<usize>,
}

impl Unfold {
    /// For the windows with the row-major positions `windows`, written to rows of `width` elements.
    pub(super) fn new(axes: &[SeenAxis], windows: Range<usize>, width: usize) -> Self {
        let (last, outer) = axes.split_last().expect("invariant: there is a spatial axis");
        let outer_taps: usize = outer.iter().map(SeenAxis::taps).product();
        let mut taps: Vec<Tap> = Vec::with_capacity(outer_taps * last.taps());
        for outer_tap in 0..outer_taps {
            for tap in 0..last.taps() {
                // The windows of a row of the image that meet no padding under this tap.
                let inside = &last.taps[tap].windows;
                let mut all = Tap::default();
                // The windows may begin and end within a row of the output.
                let mut at = windows.start;
                while at < windows.end {
                    let (row, start) = (at / last.windows, at % last.windows);
                    let end = last.windows.min(start + windows.end - at);
                    let seen = inside.start.max(start)..inside.end.min(end);
                    if let Some(from) = row_of(outer, row, outer_tap)
                        && !seen.is_empty()
                    {
                        let to = at + seen.start - start - windows.start;
                        let from = from * last.input + last.position(seen.start, tap);
                        all.push(Run { from, to: to..to + seen.len() }, last.step);
                    }
                    at += end - start;
                }
                all.end(width);
                taps.push(all);
            }
        }
        let plane = axes.iter().map(|a| a.input).product();
        Self { width, plane, step: last.step, taps }
    }

    /// Fills rows of the operand, one for each term.
    pub(super) fn fill(&self, x: &[f32], terms: impl Iterator<Item = Term>, to: &mut [f32]) {
        self.fill_rows(x, terms, to, self.width);
    }

    /// As [`Self::fill`], with a distance between rows that is not less than their width.
    pub(super) fn fill_rows(
        &self,
        x: &[f32],
        terms: impl Iterator<Item = Term>,
        to: &mut [f32],
        distance: usize,
    ) {
        for (Term { channel, tap }, to) in terms.zip(to.chunks_mut(distance)) {
            let x = &x[channel * self.plane..][..self.plane];
            let tap = &self.taps[tap];
            vectorised!(for Run { from, to: range } in &tap.runs {
                take(&x[*from..], self.step, &mut to[range.clone()]);
            });
            for zeros in &tap.zeros {
                to[zeros.clone()].fill(0.0);
            }
        }
    }
}

impl Tap {
    /// Adds a run behind the others. Where it goes on where the last one would, both become one,
    /// and the elements between them are overwritten.
    fn push(&mut self, run: Run, step: usize) {
        let end = self.written();
        if run.to.start > end {
            self.zeros.push(end..run.to.start);
        }
        match self.runs.last_mut() {
            // Source and destination advance alike, so one copy over both is right up to the gap,
            // which the zeros then overwrite.
            Some(last) if step == 1 && run.from + last.to.start == last.from + run.to.start => {
                last.to.end = run.to.end;
            }
            _ => self.runs.push(run),
        }
    }

    /// The end of the last run.
    fn written(&self) -> usize {
        // Before the first run nothing is written.
        self.runs.last().map_or(0, |r| r.to.end)
    }

    fn end(&mut self, width: usize) {
        let end = self.written();
        if end < width {
            self.zeros.push(end..width);
        }
    }
}

/// The input row, among all of a channel, that the row-major tap `tap` of the row-major output row
/// `row` meets; none in the padding.
fn row_of(outer: &[SeenAxis], mut row: usize, mut tap: usize) -> Option<usize> {
    let (mut at, mut stride) = (0, 1);
    for axis in outer.iter().rev() {
        let (o, t) = (row % axis.windows, tap % axis.taps());
        if !axis.taps[t].windows.contains(&o) {
            return None;
        }
        at += axis.position(o, t) * stride;
        stride *= axis.input;
        row /= axis.windows;
        tap /= axis.taps();
    }
    Some(at)
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "elements are moved")]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::{SeenAxis, Term, Unfold};
    use crate::op::window::{Sliding, WindowAxis};

    /// The element of window `window` under tap `tap` of a channel, both row-major.
    fn seen(axes: &[WindowAxis], x: &[f32], mut window: usize, mut tap: usize) -> f32 {
        let (mut at, mut stride) = (0, 1);
        for axis in axes.iter().rev() {
            let (o, t) = (window % axis.output, tap % axis.kernel);
            if !axis.taps(o).contains(&t) {
                return 0.0;
            }
            at += axis.position(o, t) * stride;
            stride *= axis.input;
            window /= axis.output;
            tap /= axis.kernel;
        }
        x[at]
    }

    #[test]
    fn columns_hold_what_windows_see() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for _ in 0..400 {
            let rank = rng.random_range(1..=3usize);
            let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
                (0..n).map(|_| rng.random_range(from..=to)).collect()
            };
            let (strides, dilations) = (list(1, 3, rank), list(1, 2, rank));
            let (pads, kernel) = (list(0, 3, 2 * rank), list(1, 3, rank));
            let input: Vec<i64> =
                kernel.iter().zip(list(0, 4, rank)).map(|(k, r)| 2 * k + r).collect();
            let sliding =
                Sliding { strides: &strides, dilations: &dilations, pads: &pads, ceil_mode: false };
            let axes = sliding.over("kernel", &input, &kernel).unwrap();
            let count = |f: fn(&WindowAxis) -> usize| axes.iter().map(f).product::<usize>();
            let (outputs, taps, plane) =
                (count(|a| a.output), count(|a| a.kernel), count(|a| a.input));
            let x: Vec<f32> = (0..2 * plane).map(|i| i as f32 + 1.0).collect();
            let start = rng.random_range(0..outputs);
            let end = rng.random_range(start + 1..=outputs);
            let first = rng.random_range(0..2 * taps);
            let width = end - start + rng.random_range(0..3);
            let mut to = vec![-1.0; (2 * taps - first) * width];
            let own: Vec<SeenAxis> = axes.iter().map(SeenAxis::from).collect();
            let terms = (first..2 * taps).map(|i| Term { channel: i / taps, tap: i % taps });
            Unfold::new(&own, start..end, width).fill(&x, terms, &mut to);
            for (term, row) in (first..).zip(to.chunks(width)) {
                for (i, got) in row.iter().enumerate() {
                    let x = &x[term / taps * plane..];
                    let expected =
                        if start + i < end { seen(&axes, x, start + i, term % taps) } else { 0.0 };
                    assert!(*got == expected, "{axes:?}: term {term}, window {}", start + i);
                }
            }
        }
    }
}
