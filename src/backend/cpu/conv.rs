//! Convolution of `f32`, channels before spatial axes.
//!
//! For each sample and group the output `[filters, windows]` is the product of the weights
//! `[filters, terms]` with the input unfolded to `[terms, windows]`, computed in tiles. The terms
//! are the taps, and the channels under each, as the operator orders its sums. A pointwise
//! convolution takes its input as it is; most others copy a band of rows once, not for each tap.
//! What is left is unfolded: the tiles of large inputs where they are used, a small input once, for
//! all filters. With one input channel to a group there is no product: taps are added up plane by
//! plane.

use std::ops::Range;

use rayon::prelude::*;
use smallvec::SmallVec;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, ending_in_chain, of_f32};
use super::depthwise::Depthwise;
use super::elementwise::Epilogue;
use super::ending::Ending;
use super::gemm::{MAX_TERMS, Matrix, MatrixMut, accumulate, chunks, multiply};
use super::im2col::{SeenAxis, Term, Unfold};
use super::isa;
use super::scratch::{self, LINE};
use super::tile::{Extent, Tile, tiles};
use crate::backend::host::{Each, Unsuited, crew};
use crate::lower::{Images, Support, Types};
use crate::op::{Conv, OpError};
use crate::types::invariant::invariant;
use crate::types::{DType, KernelClass, Order, Shape, TensorType};
use direct::Direct;
use images::{InImages, InOrder};
pub use operands::ConvOperands;

mod depthwise_last;
mod direct;
mod images;
mod last;
mod operands;

/// The sizes of a convolution, and how it is computed: a function of everything but the batch size.
#[derive(Debug)]
pub struct ConvPlan {
    axes: SmallVec<[SeenAxis; 3]>,
    channels: Channels,
    /// Elements of an input channel.
    plane: usize,
    /// Elements of an output channel.
    windows: usize,
    /// Terms of each sum: taps of all channels of a group.
    terms: usize,
    /// Whether windows reach outside of the image.
    reaches_outside: bool,
    method: Method,
    /// The windows of a tile.
    width: usize,
}

/// The channels of a convolution.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    pub(super) groups: usize,
    /// Those of the input in a group.
    pub(super) own: usize,
    /// Those of the output in a group.
    pub(super) filters: usize,
}

#[derive(Debug)]
enum Method {
    /// One input channel to a group: no product.
    Planes(Box<Depthwise>),
    /// One tap: the input is the operand of the product.
    Pointwise,
    /// The operand is a band of the input, copied for each tile.
    Direct(Box<Direct>),
    /// The operand is unfolded once for a sample and group, then multiplied tile by tile.
    Once,
    /// The operand is unfolded for each tile.
    ForEachTile,
}

/// Elements of an operand that is unfolded once.
const UNFOLDED: usize = 1 << 20;

/// Tiles for each thread, so that none waits long for the last one.
const TILES: usize = 4;

/// Elements of the operand of a tile that is not unfolded.
const OPERAND: usize = 1 << 16;

/// Elements of the result of a tile.
const RESULT: usize = 1 << 17;

/// Multiplications for which a task is worth its cost.
const WORTH: usize = 1 << 19;

impl ConvPlan {
    /// The plan for an input of shape `x` and weights of shape `w`, which `op` admits; the batch
    /// size is free.
    pub fn new(op: &Conv, x: &[usize], w: &[usize]) -> Result<Self, OpError> {
        let ty = |dims: &[usize]| TensorType { dtype: DType::F32, shape: Shape::from(dims) };
        let axes = op.windows(&ty(x), &ty(w))?;
        let groups = x[1] / w[1];
        let channels = Channels { groups, own: w[1], filters: w[0] / groups };
        let seen = axes.iter().map(SeenAxis::from).collect();
        if channels.own == 1 && (groups > 1 || channels.filters < 8) {
            let planes = Method::Planes(Box::new(Depthwise::new(&axes)));
            return Ok(Self::by(channels, seen, |_| planes));
        }
        Ok(Self::of(channels, seen))
    }

    /// The plan for windows that move so over the channels.
    pub(super) fn of(channels: Channels, axes: SmallVec<[SeenAxis; 3]>) -> Self {
        Self::by(channels, axes, Self::product)
    }

    /// The same, computed by this method.
    fn by(
        channels: Channels,
        axes: SmallVec<[SeenAxis; 3]>,
        method: impl FnOnce(&Self) -> Method,
    ) -> Self {
        let size = |f: fn(&SeenAxis) -> usize| axes.iter().map(f).product::<usize>();
        let (plane, windows, taps) = (size(|a| a.input), size(|a| a.windows), size(SeenAxis::taps));
        let mut plan = Self {
            channels,
            plane,
            windows,
            terms: channels.own * taps,
            reaches_outside: axes.iter().any(SeenAxis::reaches_outside),
            method: Method::ForEachTile,
            width: 0,
            axes,
        };
        plan.method = method(&plan);
        plan.width = plan.width();
        plan
    }

    /// The floats of an output sample.
    pub(super) fn sample(&self) -> usize {
        self.channels.groups * self.channels.filters * self.windows
    }

    /// The floats of an input sample.
    fn input(&self) -> usize {
        self.channels.groups * self.channels.own * self.plane
    }

    /// The floats of the weights.
    pub(super) fn weights(&self) -> usize {
        self.channels.groups * self.channels.filters * self.terms
    }

    /// Whether the order of the weights in memory makes a difference.
    fn has_orders(&self) -> bool {
        self.channels.own > 1 && self.terms > self.channels.own
    }

    /// How the products are computed.
    fn product(&self) -> Method {
        // A row of a few windows, not a multiple of a line, is worth a padded copy.
        let copied = !self.windows.is_multiple_of(LINE) && self.windows < 8 * LINE;
        if self.axes.iter().all(SeenAxis::is_plain) && !copied {
            return Method::Pointwise;
        }
        if let Some(direct) = Direct::new(&self.axes, self.channels.own) {
            return Method::Direct(Box::new(direct));
        }
        let operand = self.terms.saturating_mul(self.windows.next_multiple_of(LINE));
        let Channels { groups, filters, .. } = self.channels;
        let alone = groups == 1 && operand.saturating_mul(filters) > WORTH;
        if alone && operand <= UNFOLDED { Method::Once } else { Method::ForEachTile }
    }

    /// The windows of a tile: rows of them, or whole cache lines.
    fn width(&self) -> usize {
        let lines = self.windows.div_ceil(LINE);
        let most = match (&self.method, lines) {
            (Method::Direct(direct), _) => return direct.windows(),
            // Long pieces of a row are written quickly.
            (Method::Pointwise, _) => (OPERAND / LINE / self.terms.max(1)).clamp(4, 64),
            (_, 0..128) => 4,
            (_, 128..512) => 8,
            _ => 16,
        };
        lines.div_ceil(lines.div_ceil(most)).max(1) * LINE
    }

    /// The tiles of a group, where so many groups are computed at the same time: few, as each may
    /// have to copy its operand, but some for each thread.
    fn tile(&self, groups: usize) -> Extent {
        let (width, filters) = (self.width, self.channels.filters);
        let threads = crew::sharing();
        let wanted = if threads > 1 { TILES * threads } else { 1 };
        let blocks = if matches!(self.method, Method::ForEachTile) {
            1
        } else {
            let worth = self.terms.saturating_mul(width).saturating_mul(filters) / WORTH;
            wanted.div_ceil(self.windows.div_ceil(width) * groups).min(worth).max(1)
        };
        // Filters are multiplied six at a time.
        let rows = filters.div_ceil(blocks).next_multiple_of(6).min((RESULT / width).max(6));
        Extent { rows, columns: width }
    }

    /// These terms, with the taps outside.
    fn terms(&self, range: Range<usize>) -> impl Iterator<Item = Term> {
        let channels = self.channels.own;
        range.map(move |i| Term { channel: i % channels, tap: i / channels })
    }
}

impl ConvPlan {
    /// `y = epilogue(conv(x, w) + bias)`, for as many samples as `y` has: `[N, filters, windows…]`,
    /// as in the plan.
    ///
    /// # Panics
    /// If a slice has not the size that the plan says: a bug in the caller.
    pub fn convolve(&self, operands: ConvOperands<'_>, y: &mut [f32]) {
        if y.is_empty() || self.sample() == 0 {
            return;
        }
        let (batch, x) = (y.len() / self.sample(), operands.x.len());
        let expected = (batch * self.sample(), batch * self.input());
        assert_eq!((y.len(), x), expected, "samples of {self:?}");
        assert_eq!(operands.w.len(), self.weights(), "weights of {self:?}");
        let Channels { groups, filters, .. } = self.channels;
        assert!(operands.bias.is_none_or(|b| b.len() == groups * filters), "bias of {self:?}");
        let group = filters * self.windows;
        match &self.method {
            Method::Planes(kernel) => self.planes(kernel, operands, y),
            Method::Once => {
                for (i, y) in y.chunks_exact_mut(group).enumerate() {
                    self.group(operands, i).unfolded_once(y);
                }
            }
            Method::Pointwise | Method::Direct(_) | Method::ForEachTile => {
                self.by_tiles(operands, y);
            }
        }
    }

    /// All tiles of all groups.
    fn by_tiles(&self, operands: ConvOperands<'_>, y: &mut [f32]) {
        let group = self.channels.filters * self.windows;
        let extent = self.tile(y.len() / group);
        y.par_chunks_mut(group).enumerate().each(|(i, y)| {
            let group = self.group(operands, i);
            tiles(y, self.windows, extent).par_iter_mut().each(|tile| match &self.method {
                Method::Pointwise => group.pointwise(tile),
                Method::Direct(direct) => group.direct(direct, tile),
                Method::Planes(_) | Method::Once | Method::ForEachTile => group.unfolded(tile),
            });
        });
    }

    /// All output planes of groups with one input channel.
    fn planes(&self, kernel: &Depthwise, operands: ConvOperands<'_>, y: &mut [f32]) {
        let Channels { groups, filters, .. } = self.channels;
        let ending = self.ending(&operands);
        let each = (WORTH / 8 / (self.windows * self.terms)).max(1);
        y.par_chunks_mut(self.windows).with_min_len(each).enumerate().each(|(i, y)| {
            let channel = i % (groups * filters);
            let x = &operands.x[i / filters * self.plane..][..self.plane];
            let w = &operands.w[channel * self.terms..][..self.terms];
            let at = i * self.windows;
            kernel.plane(x, w, ending.of(at), y);
            ending.rest(y, at);
        });
    }
}

/// One group of channels of one sample.
struct Group<'a> {
    plan: &'a ConvPlan,
    /// `[channels, plane]`.
    x: &'a [f32],
    /// `[filters, terms]`.
    weights: Matrix<'a>,
    /// The position of the group's first element in the output.
    first: usize,
    ending: Ending<'a>,
}

impl ConvPlan {
    /// The `i`-th group, counted over all samples.
    fn group<'a>(&'a self, operands: ConvOperands<'a>, i: usize) -> Group<'a> {
        let Channels { groups, own, filters } = self.channels;
        let input = own * self.plane;
        let (g, weights) = (i % groups, filters * self.terms);
        let w = &operands.w[g * weights..][..weights];
        Group {
            plan: self,
            x: &operands.x[i * input..][..input],
            weights: Matrix::contiguous(w, filters, self.terms),
            first: i * filters * self.windows,
            ending: self.ending(&operands),
        }
    }

    /// What the sums of all channels end with.
    fn ending<'a>(&self, operands: &ConvOperands<'a>) -> Ending<'a> {
        Ending::new(operands.bias, operands.epilogue, self.windows)
    }
}

impl Group<'_> {
    /// Ends a tile whose product, `stride` floats to a row, is `result`.
    fn store(&self, tile: &mut Tile<'_>, result: &[f32], stride: usize) {
        let (rows, start) = (tile.rows(), tile.columns.start);
        let rows = rows.zip(&mut tile.pieces).zip(result.chunks(stride));
        for ((row, y), sums) in rows {
            let at = self.first + row * self.plan.windows + start;
            let sums = &sums[..y.len()];
            self.ending.of(at).end(std::iter::once((&mut **y, sums)));
            self.ending.rest(y, at);
        }
    }

    /// Whether all weights of these filters are finite.
    fn is_finite(&self, filters: Range<usize>) -> bool {
        let weights = self.weights.block(filters, 0..self.plan.terms);
        (0..weights.rows()).all(|i| weights.row(i).iter().all(|w| w.is_finite()))
    }

    /// A tile of a pointwise convolution. The last one reaches back, so that it has whole lines.
    fn pointwise(&self, tile: &mut Tile<'_>) {
        let (terms, windows) = (self.plan.terms, self.plan.windows);
        let x = Matrix::contiguous(self.x, terms, windows);
        let stride = tile.columns.len().next_multiple_of(LINE);
        let start = tile.columns.start.min(windows.saturating_sub(stride));
        let columns = start..(start + stride).min(windows);
        scratch::own(tile.pieces.len() * stride, |result| {
            let weights = self.weights.block(tile.rows(), 0..terms);
            let mut product = MatrixMut::new(result, tile.pieces.len(), columns.len(), stride);
            let x = x.block(0..terms, columns).into();
            accumulate(isa::arch(), weights, x, &mut product, false);
            let skipped = tile.columns.start - start;
            self.store(tile, &result[skipped..], stride);
        });
    }

    /// A tile that is a band of the image.
    fn direct(&self, direct: &Direct, tile: &mut Tile<'_>) {
        let (plan, width) = (self.plan, direct.width());
        let rows = tile.columns.start / width..tile.columns.end / width;
        let (filters, stride) = (tile.rows(), direct.stride(rows.len()));
        let has_nan = scratch::own(direct.band() + filters.len() * stride, |memory| {
            let (band, result) = memory.split_at_mut(direct.band());
            let weights = self.weights.block(filters.clone(), 0..plan.terms);
            direct.multiply(self.x, weights, &rows, band, result);
            let mut has_nan = false;
            for ((row, y), sums) in filters.zip(&mut tile.pieces).zip(result.chunks_exact(stride)) {
                let sums = sums.chunks(direct.distance()).map(|sums| &sums[..width]);
                let at = self.first + row * plan.windows + tile.columns.start;
                has_nan |= self.ending.of(at).end(y.chunks_exact_mut(width).zip(sums));
                self.ending.rest(y, at);
            }
            has_nan
        });
        // What lies outside of the image is no term, but was multiplied as a 0.
        if has_nan && plan.reaches_outside && !self.is_finite(tile.rows()) {
            self.unfolded(tile);
        }
    }

    /// A tile whose operand is unfolded here, part by part.
    fn unfolded(&self, tile: &mut Tile<'_>) {
        let (plan, stride) = (self.plan, tile.columns.len().next_multiple_of(LINE));
        let unfold = Unfold::new(&plan.axes, tile.columns.clone(), stride);
        let operand = MAX_TERMS.min(plan.terms) * stride;
        scratch::own(operand + tile.pieces.len() * stride, |memory| {
            let (operand, result) = memory.split_at_mut(operand);
            let mut product = Product { rows: tile.rows(), result, stride, has_nan: false };
            for part in chunks(plan.terms) {
                unfold.fill(self.x, plan.terms(part.clone()), operand);
                self.multiply(part, operand, &mut product);
            }
            self.leave_out(&unfold, &mut product);
            self.store(tile, result, stride);
        });
    }

    /// Adds to the result of a tile the terms `part`, of which `operand` has the rows.
    fn multiply(&self, part: Range<usize>, operand: &[f32], to: &mut Product<'_>) {
        let (height, stride) = (to.rows.len(), to.stride);
        let weights = self.weights.block(to.rows.clone(), part.clone());
        let operand = Matrix::contiguous(operand, part.len(), stride);
        let product = MatrixMut::new(to.result, height, stride, stride);
        to.has_nan = multiply(weights, operand, product, part.start > 0);
    }

    /// Computes a tile again, from terms inside of the image alone, where its products with what
    /// lies outside are no numbers: where some weights are not finite.
    fn leave_out(&self, unfold: &Unfold, to: &mut Product<'_>) {
        let plan = self.plan;
        let weights = self.weights.block(to.rows.clone(), 0..plan.terms);
        if !(plan.reaches_outside && to.has_nan) || self.is_finite(to.rows.clone()) {
            return;
        }
        let (inside, mut seen) = (vec![1.0; plan.plane], vec![0.0; to.stride]);
        let mut is_inside = seen.clone();
        to.result.fill(0.0);
        for (i, term) in plan.terms(0..plan.terms).enumerate() {
            unfold.fill(&inside, std::iter::once(Term { channel: 0, ..term }), &mut is_inside);
            unfold.fill(self.x, std::iter::once(term), &mut seen);
            for (row, sums) in to.result.chunks_exact_mut(to.stride).enumerate() {
                let w = weights.row(row)[i];
                for ((sum, x), is_inside) in sums.iter_mut().zip(&seen).zip(&is_inside) {
                    *sum = if *is_inside > 0.0 { x.mul_add(w, *sum) } else { *sum };
                }
            }
        }
        for sum in to.result.iter_mut() {
            *sum = if sum.is_nan() { f32::NAN } else { *sum + 0.0 };
        }
    }

    /// All tiles of the group, whose operand is first unfolded: for each tile its rows, one behind
    /// the other.
    fn unfolded_once(&self, y: &mut [f32]) {
        let (plan, terms) = (self.plan, self.plan.terms);
        let width = plan.width;
        let operands: Vec<(usize, Unfold)> = (0..plan.windows)
            .step_by(width)
            .map(|start| {
                let windows = start..(start + width).min(plan.windows);
                let stride = windows.len().next_multiple_of(LINE);
                (stride, Unfold::new(&plan.axes, windows, stride))
            })
            .collect();
        scratch::shared(plan.windows.next_multiple_of(LINE) * terms, |memory| {
            let rows = (WORTH / 16 / width).max(1);
            memory.par_chunks_mut(width * terms).zip(&operands).each(|(to, (stride, unfold))| {
                to.par_chunks_mut(rows * stride).enumerate().each(|(i, to)| {
                    let part = i * rows..terms.min((i + 1) * rows);
                    unfold.fill(self.x, plan.terms(part), to);
                });
            });
            tiles(y, plan.windows, plan.tile(1)).par_iter_mut().each(|tile| {
                let operand = &memory[tile.columns.start * terms..];
                let (stride, unfold) = &operands[tile.columns.start / width];
                scratch::own(tile.pieces.len() * stride, |result| {
                    let (rows, stride) = (tile.rows(), *stride);
                    let mut product = Product { rows, result, stride, has_nan: false };
                    for part in chunks(terms) {
                        let operand = &operand[part.start * stride..part.end * stride];
                        self.multiply(part, operand, &mut product);
                    }
                    self.leave_out(unfold, &mut product);
                    self.store(tile, result, stride);
                });
            });
        });
    }
}

/// The product of a tile.
struct Product<'a> {
    /// Its filters.
    rows: Range<usize>,
    result: &'a mut [f32],
    /// The floats of a row.
    stride: usize,
    /// Whether an element is no number.
    has_nan: bool,
}

/// A convolution whose weights lie in an order.
#[derive(Debug)]
struct Ordered {
    plan: ConvPlan,
    order: Order,
}

impl CpuOp for Conv {
    fn supports(&self, types: &Types<'_>) -> Support {
        let support = ending_in_chain(of_f32(KernelClass::Conv, types));
        let in_images = match types.operands.as_slice() {
            [x, w, ..] => {
                let axes = self.windows(x, w);
                axes.is_ok_and(|axes| InImages::new(&axes, x, w).is_some())
            }
            _ => false,
        };
        let weights = if in_images { Order::RowPanels } else { Order::ChannelsLast };
        Support { weights, ..support }.with_images(Images::ChannelsLast, in_images)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let ([x, w, ..], [_, order, ..]) = (at.operands.as_slice(), at.orders.as_slice()) else {
            return None;
        };
        let order = *order;
        // Images of one channel or one place have the same bytes in both orders.
        if at.images == Order::ChannelsLast || order == Order::RowPanels {
            let ty = |dims: &[usize]| TensorType { dtype: DType::F32, shape: Shape::from(dims) };
            let plan = InImages::new(&self.windows(&ty(x), &ty(w)).ok()?, &ty(x), &ty(w));
            let plan = invariant(plan, "that images have their channels last where a kernel does");
            return Some(Box::new(InOrder { plan, order, channels: w[1] }));
        }
        Some(Box::new(Ordered { plan: ConvPlan::new(self, x, w).ok()?, order }))
    }
}

impl CpuKernel for Ordered {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, w, bias @ ..], [y]) = (operands, results) else { return Err(Unsuited) };
        let (plan, bias) = (&self.plan, bias.first().copied());
        let operands = ConvOperands { x, w, bias, epilogue: chain.steps() };
        if self.order == Order::ChannelsLast || !plan.has_orders() {
            plan.convolve(operands, y);
            return Ok(());
        }
        let (channels, terms) = (plan.channels.own, plan.terms);
        scratch::weights(w.len(), |turned| {
            let rows = turned.par_chunks_mut(terms).zip(w.par_chunks(terms));
            rows.each(|(to, from)| {
                Matrix::contiguous(from, channels, terms / channels).pack_transposed(to, channels);
            });
            plan.convolve(ConvOperands { w: turned, ..operands }, y);
        });
        Ok(())
    }

    fn ends_in_chain(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests;
