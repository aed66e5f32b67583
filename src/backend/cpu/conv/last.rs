//! Convolution of images whose channels are last in memory.
//!
//! The lanes of vectors are filters. A row of the left operand is what a window sees: runs of
//! neighbouring elements, one for each row of its taps, where they lie in the image. Windows that
//! reach outside of it see a band of the image, copied with zeros around it. The right operand are
//! the weights, in panels of filters.

use std::ops::Range;

use smallvec::SmallVec;

use super::super::ending_last::{Ended, EndingLast};
use super::super::gemm::{MAX_TERMS, Part, RowPlaces, Rows, Run, Windows, sum_rows};
use super::super::matrix::steps;
use super::super::scratch;
use super::super::tile::{self, Extent, by_tiles};
use super::operands::ConvOperands;
use crate::op::window::WindowAxis;
use crate::types::Order;
use crate::types::invariant::invariant;

/// The windows of a tile, about; half as many where the weights stay in a core's cache anyway, so
/// that the sums of a panel do.
const WINDOWS: usize = 256;

/// Where windows begin.
type Places = SmallVec<[usize; MAX_TERMS]>;

/// Multiplications for which a task is worth its cost.
const WORTH: usize = 1 << 17;

/// Weights that stay in a core's cache.
const WEIGHTS: usize = 1 << 16;

/// The windows whose sums are made for all filters one after the other, where weights and terms are
/// few: what is written of them, and added to them, is neighbours in memory.
const TOGETHER: usize = 48;

/// The most elements of a band, beside a single row of windows.
const BAND: usize = 1 << 16;

/// A band of a whole image has at most this many times its elements, beside [`BAND`].
const GROWTH: usize = 4;

/// The most elements of the band of one row of windows.
const ROW_BAND: usize = 1 << 19;

/// The sizes of a convolution of images with the channels last, and how it reads them.
#[derive(Debug)]
pub(super) struct Last {
    /// The rows and columns of windows.
    axes: [WindowAxis; 2],
    channels: usize,
    filters: usize,
    /// Whether windows reach outside of the image.
    padded: bool,
    /// The elements between the rows of the image or band that windows see.
    row: usize,
    parts: Vec<Terms>,
}

/// At most [`MAX_TERMS`] terms.
#[derive(Debug)]
struct Terms {
    /// The first, among all.
    first: usize,
    runs: SmallVec<[Run; 4]>,
}

/// The elements of an axis between the first that so many windows see and the last, with both.
fn extent(axis: &WindowAxis, windows: usize) -> Option<usize> {
    let first = (windows - 1).checked_mul(axis.stride)?;
    first.checked_add((axis.kernel - 1).checked_mul(axis.dilation)?)?.checked_add(1)
}

impl Last {
    /// For windows over these axes, from a number of channels to one of filters; `None` of more
    /// than two axes, unless each window is one element, and where a row of windows sees too much.
    pub(super) fn new(axes: &[WindowAxis], channels: usize, filters: usize) -> Option<Self> {
        let is_plain = |a: &WindowAxis| a.kernel == 1 && a.stride == 1 && a.input == a.output;
        let axes = match axes {
            // Windows of one axis are rows of one window each, so that tiles take some of them.
            [axis] => [*axis, WindowAxis::UNIT],
            [rows, columns] if !(is_plain(rows) && is_plain(columns)) => [*rows, *columns],
            all if all.iter().all(|a| is_plain(a) && !a.reaches_outside()) => {
                let size = all.iter().try_fold(1usize, |n, a| n.checked_mul(a.input))?;
                [WindowAxis { input: size, output: size, ..WindowAxis::UNIT }, WindowAxis::UNIT]
            }
            _ => return None,
        };
        let padded = axes.iter().any(WindowAxis::reaches_outside);
        let width = if padded { extent(&axes[1], axes[1].output)? } else { axes[1].input };
        let row = width.checked_mul(channels)?;
        let taps = axes[0].kernel.checked_mul(axes[1].kernel)?;
        taps.checked_mul(channels)?.checked_mul(filters)?;
        let seen = extent(&axes[0], 1)?.checked_mul(row)?;
        if channels == 0 || filters == 0 || seen > ROW_BAND {
            return None;
        }
        if padded {
            // Of an image that is mostly padding a band would be much larger than the image.
            let image = axes[0].input.checked_mul(axes[1].input)?.checked_mul(channels)?;
            let band = extent(&axes[0], axes[0].output)?.checked_mul(row)?;
            (band <= image.saturating_mul(GROWTH).saturating_add(BAND)).then_some(())?;
        }
        let tap = |(down, along): (usize, usize)| {
            down * axes[0].dilation * row + along * axes[1].dilation * channels
        };
        let taps = (0..axes[0].kernel).flat_map(|i| (0..axes[1].kernel).map(move |j| (i, j)));
        let parts = parts(taps.map(tap), channels);
        Some(Self { axes, channels, filters, padded, row, parts })
    }

    /// The elements of an input sample.
    fn input(&self) -> usize {
        self.axes[0].input * self.axes[1].input * self.channels
    }

    /// The windows of a sample.
    fn windows(&self) -> usize {
        self.axes[0].output * self.axes[1].output
    }

    /// The terms of each sum.
    pub(super) fn terms(&self) -> usize {
        self.axes[0].kernel * self.axes[1].kernel * self.channels
    }

    /// The windows and the filters of a tile, of all samples with so many rows of windows: many
    /// windows, so that reading the weights costs little, but some tiles for each thread.
    fn tile(&self, rows: usize) -> Extent {
        let width = self.axes[1].output;
        let panels = self.filters.div_ceil(Order::PANEL);
        let seen = self.axes[0].stride.saturating_mul(self.row);
        let fitting = if self.padded { BAND / seen } else { usize::MAX };
        let few = self.terms() * self.filters <= WEIGHTS;
        let most = if few { WINDOWS / 2 } else { WINDOWS };
        let most = (most / width).min(fitting).clamp(1, rows);
        let sums = self.terms().saturating_mul(self.filters).saturating_mul(width * rows);
        let wanted = tile::wanted(sums, WORTH);
        // Filters are shared before rows: each tile reads the weights of its own.
        let across = rows.div_ceil(most).max(wanted.div_ceil(panels)).min(rows);
        let each = rows.div_ceil(across);
        let blocks = wanted.div_ceil(rows.div_ceil(each)).clamp(1, panels);
        Extent { rows: each * width, columns: panels.div_ceil(blocks) * Order::PANEL }
    }

    /// `y = epilogue(conv(x, w) + bias)` for all samples, `w` in panels of filters.
    pub(super) fn convolve(&self, operands: ConvOperands<'_>, y: &mut [f32]) {
        let batch = y.len() / (self.windows() * self.filters);
        let expected = (batch * self.input(), self.terms() * self.filters);
        assert_eq!((operands.x.len(), operands.w.len()), expected, "samples of {self:?}");
        if y.is_empty() {
            return;
        }
        let extent = self.tile(batch * self.axes[0].output);
        let ending = EndingLast::new(operands.bias, operands.epilogue, self.filters);
        let ending = &ending.among(operands.x.len() + y.len());
        let compute = |first: usize, filters: &Range<usize>, pieces: &mut [&mut [f32]]| {
            let (windows, filters) = (first..first + pieces.len(), filters.clone());
            Patch { plan: self, operands, ending, windows, filters }.compute(pieces);
        };
        by_tiles(y, self.filters, extent, compute, |y, at| ending.rest(y, at));
    }

    /// The samples that rows of windows, counted over all, are of, with the rows of each.
    fn samples(&self, rows: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + Clone {
        let each = self.axes[0].output;
        (rows.start / each..rows.end.div_ceil(each)).map(move |sample| {
            let first = sample * each;
            (sample, rows.start.max(first) - first..rows.end.min(first + each) - first)
        })
    }

    /// The elements of the band that so many rows of windows see.
    fn band(&self, rows: usize) -> usize {
        let rows = extent(&self.axes[0], rows);
        invariant(rows, "that a part of an axis is no longer than it") * self.row
    }

    /// Copies what rows of windows of a sample see, with zeros outside of it.
    fn fill(&self, x: &[f32], rows: &Range<usize>, band: &mut [f32]) {
        let [down, along] = self.axes;
        let (width, before) = (along.input * self.channels, along.before * self.channels);
        for (i, to) in (rows.start * down.stride..).zip(band.chunks_exact_mut(self.row)) {
            let Some(from) = i.checked_sub(down.before).filter(|i| *i < down.input) else {
                to.fill(0.0);
                continue;
            };
            let (left, to) = to.split_at_mut(before.min(to.len()));
            let (inside, right) = to.split_at_mut(width.min(to.len()));
            left.fill(0.0);
            inside.copy_from_slice(&x[from * width..][..inside.len()]);
            right.fill(0.0);
        }
    }

    /// Adds to `places` where rows of windows of a sample begin, of which the first does at `base`.
    fn place(&self, rows: usize, base: usize, places: &mut Places) {
        let [down, along] = self.axes;
        let (first, step) = (places.len(), along.stride * self.channels);
        places.resize(first + rows * along.output, base);
        // In a loop over memory that is there, several to an instruction.
        let own = places[first..].chunks_exact_mut(along.output).enumerate();
        own.for_each(|(row, places)| {
            let base = base + row * down.stride * self.row;
            places.iter_mut().enumerate().for_each(|(i, place)| *place = base + i * step);
        });
    }
}

/// The runs of terms of windows whose taps lie at these places, of so many elements each, in parts.
fn parts(taps: impl Iterator<Item = usize>, channels: usize) -> Vec<Terms> {
    let mut runs: Vec<Run> = Vec::new();
    for from in taps {
        match runs.last_mut() {
            Some(run) if run.from + run.terms == from => run.terms += channels,
            _ => runs.push(Run { from, terms: channels }),
        }
    }
    let mut parts: Vec<Terms> = Vec::new();
    let (mut first, mut room) = (0, 0);
    let all: usize = runs.iter().map(|run| run.terms).sum();
    let most = all.div_ceil(all.div_ceil(MAX_TERMS).max(1));
    for Run { mut from, mut terms } in runs {
        while terms > 0 {
            if room == 0 {
                parts.push(Terms { first, runs: SmallVec::new() });
                room = most;
            }
            let taken = terms.min(room);
            if let Some(Terms { runs, .. }) = parts.last_mut() {
                runs.push(Run { from, terms: taken });
            }
            (from, terms, room, first) = (from + taken, terms - taken, room - taken, first + taken);
        }
    }
    parts
}

/// Some windows, of whole rows, and some filters, which begin a panel.
struct Patch<'a> {
    plan: &'a Last,
    operands: ConvOperands<'a>,
    ending: &'a EndingLast<'a>,
    /// Counted over all samples.
    windows: Range<usize>,
    filters: Range<usize>,
}

impl Patch<'_> {
    /// Computes the patch, of which `pieces` has the filters of each window.
    fn compute(&self, pieces: &mut [&mut [f32]]) {
        let (plan, x, input) = (self.plan, self.operands.x, self.plan.input());
        let width = plan.axes[1].output;
        let samples = plan.samples(self.windows.start / width..self.windows.end / width);
        let band =
            if plan.padded { samples.clone().map(|(_, r)| plan.band(r.len())).sum() } else { 0 };
        scratch::own(band, |band| {
            let (mut places, mut at) = (Places::new(), 0);
            for (sample, rows) in samples {
                let first = if plan.padded {
                    let end = at + plan.band(rows.len());
                    plan.fill(&x[sample * input..][..input], &rows, &mut band[at..end]);
                    std::mem::replace(&mut at, end)
                } else {
                    sample * input + rows.start * plan.axes[0].stride * plan.row
                };
                plan.place(rows.len(), first, &mut places);
            }
            let seen = if plan.padded { band } else { x };
            let (ending, channel) = (self.ending, self.filters.start);
            let is_short = plan.parts.len() == 1 && plan.terms() * plan.filters <= WEIGHTS;
            let height = if is_short { TOGETHER } else { places.len() };
            for rows in steps(0..places.len(), height) {
                let (row, pieces) = (self.windows.start + rows.start, &mut pieces[rows.clone()]);
                let (windows, places) = (row..row + rows.len(), &places[rows]);
                for filters in steps(self.filters.clone(), Order::PANEL) {
                    let mut sums = Ended { ending, row, channel, pieces, has_nan: false };
                    let panel = Self { filters, windows: windows.clone(), ..*self };
                    panel.sum(seen, places, &mut sums);
                    // What lies outside of the image is no term, but was multiplied as a 0.
                    if sums.has_nan && plan.padded && !panel.is_finite() {
                        panel.sum_inside(&mut sums);
                    }
                }
            }
        });
    }

    /// The sums of all windows and of the filters of a panel, `seen` being what windows see and
    /// `places` where.
    fn sum(&self, seen: &[f32], places: &[usize], sums: &mut Ended<'_, '_>) {
        let (columns, last) = (self.filters.len(), self.plan.parts.len() - 1);
        let (weights, stride) = self.panel(self.filters.start);
        for (i, Terms { first, runs }) in self.plan.parts.iter().enumerate() {
            let a = Windows { data: seen, places, runs };
            let terms = runs.iter().map(|run| run.terms).sum();
            let (data, places) = (&weights[first * stride..], RowPlaces::Every(stride));
            let b = Rows { data, terms, columns, places };
            let part = Part { goes_on: *first > 0, is_last: i == last };
            sum_rows(a, b, sums, self.filters.start - sums.channel, part);
        }
    }

    /// The weights from the panel of a filter on, and the filters of that panel.
    fn panel(&self, filter: usize) -> (&[f32], usize) {
        let first = filter - filter % Order::PANEL;
        let stride = Order::PANEL.min(self.plan.filters - first);
        (&self.operands.w[first * self.plan.terms()..], stride)
    }

    /// Whether all weights of the filters of a panel are finite.
    fn is_finite(&self) -> bool {
        let (weights, stride) = self.panel(self.filters.start);
        weights[..stride * self.plan.terms()].iter().all(|w| w.is_finite())
    }

    /// The sums of all windows, from terms inside of the image alone.
    fn sum_inside(&self, sums: &mut Ended<'_, '_>) {
        let plan = self.plan;
        let [down, along] = plan.axes;
        let first = self.filters.start - sums.channel;
        let columns = first..first + self.filters.len();
        for (i, window) in self.windows.clone().enumerate() {
            let mut block = [0.0; Order::PANEL];
            let (row, column) = (window / along.output, window % along.output);
            let (sample, row) = (row / down.output, row % down.output);
            let x = &self.operands.x[sample * plan.input()..][..plan.input()];
            for (filter, sum) in self.filters.clone().zip(&mut block) {
                let ((weights, stride), own) = (self.panel(filter), filter % Order::PANEL);
                for (i, j) in down.taps(row).flat_map(|i| along.taps(column).map(move |j| (i, j))) {
                    let at = down.position(row, i) * along.input + along.position(column, j);
                    let first = (i * along.kernel + j) * plan.channels;
                    for (c, x) in x[at * plan.channels..][..plan.channels].iter().enumerate() {
                        *sum = x.mul_add(weights[(first + c) * stride + own], *sum);
                    }
                }
                // A zero at the end of a chain is positive.
                *sum += 0.0;
            }
            sums.end_row(i, columns.clone(), &mut block);
        }
    }
}
