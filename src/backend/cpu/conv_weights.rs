//! The gradient of a convolution's kernel, `f32`, channels before spatial axes.
//!
//! For each group the gradient `[filters, terms]` is the sum over samples of the products of the
//! output's gradient `[filters, windows]` with the input unfolded, `[terms, windows]`. It is
//! computed transposed, in tiles: the windows of some samples lie side by side, so that each
//! product has enough terms. Small gradients are summed over a few groups of neighbouring samples
//! at a time, whose sums are then added in their order.
//!
//! The groups of samples and the order of each sum follow from the sizes alone, not from threads or
//! tiles. Where a group has few filters there is no product: rows of the planes are multiplied and
//! added up in lanes.

use std::ops::Range;

use rayon::prelude::*;
use smallvec::SmallVec;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use super::gemm::{MAX_TERMS, Matrix, MatrixMut, chunks, multiply};
use super::im2col::{SeenAxis, Term, Unfold};
use super::scratch::{self, LINE};
use super::simd::vectorised;
use super::tile::{Extent, Tile, tiles};
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::window::{WindowAxis, Windows, rows_of_tap};
use crate::op::{ConvWeightGrad, OpError};
use crate::types::KernelClass;
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Shape, TensorType};

/// The sizes of the gradient of a kernel, and how it is computed: a function of everything but the
/// batch size.
#[derive(Clone, Debug)]
pub(crate) struct ConvWeightsPlan {
    axes: Windows,
    seen: SmallVec<[SeenAxis; 3]>,
    groups: usize,
    /// Input channels of a group.
    channels: usize,
    /// Output channels of a group.
    filters: usize,
    /// Elements of an input channel.
    plane: usize,
    /// Elements of an output channel.
    windows: usize,
    /// Taps of a channel.
    taps: usize,
    /// Samples side by side in a product.
    samples: usize,
    /// The filters and terms of a tile.
    tile: Extent,
    /// The number of groups of samples, where there are as many samples.
    parts: usize,
}

/// The filters, and the terms, of a tile at most.
const SIDE: usize = 256;

/// Tiles of all groups of samples that are enough for some threads.
const TASKS: usize = 8;

/// Fewer filters or terms of a group make no matrix product.
const FEW: usize = 4;

/// The sums kept apart in a sum of products.
const LANES: usize = 16;

impl ConvWeightsPlan {
    /// The plan for an input of shape `x` and a gradient of shape `dy`, which `op` admits; the
    /// batch size is free.
    pub(crate) fn new(op: &ConvWeightGrad, x: &[usize], dy: &[usize]) -> Result<Self, OpError> {
        let axes = op.windows(&TensorType { dtype: DType::F32, shape: Shape::from(x) })?;
        let size = |f: fn(&WindowAxis) -> usize| axes.iter().map(f).product::<usize>();
        let groups = int::<usize>(op.groups).max(1);
        let (plane, windows, taps) = (size(|a| a.input), size(|a| a.output), size(|a| a.kernel));
        let (channels, filters) = (x[1] / groups, dy[1] / groups);
        let terms = channels * taps;
        let evenly = |n: usize| n.div_ceil(n.div_ceil(SIDE).max(1)).next_multiple_of(6);
        let tile = Extent { rows: evenly(filters), columns: evenly(terms) };
        let count = filters.div_ceil(tile.rows) * terms.div_ceil(tile.columns) * groups;
        Ok(Self {
            groups,
            channels,
            filters,
            plane,
            windows,
            taps,
            samples: (MAX_TERMS / windows).max(1),
            tile,
            parts: (TASKS / count).max(1),
            seen: axes.iter().map(SeenAxis::from).collect(),
            axes,
        })
    }

    /// The number of floats of the gradient.
    pub(crate) fn size(&self) -> usize {
        self.groups * self.filters * self.terms()
    }

    /// Terms of each sum of the convolution: taps of all channels of a group.
    fn terms(&self) -> usize {
        self.channels * self.taps
    }
}

/// The gradient `dw: [filters, channels / groups, kernel…]` from `x: [N, channels, spatial…]` and
/// `dy: [N, filters, windows…]`, as in the plan.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn conv_weights(plan: &ConvWeightsPlan, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let input = plan.groups * plan.channels * plan.plane;
    let output = plan.groups * plan.filters * plan.windows;
    assert_eq!(dw.len(), plan.size(), "elements of {plan:?}");
    if dw.is_empty() {
        return;
    }
    let batch = x.len() / input;
    assert_eq!((x.len(), dy.len()), (batch * input, batch * output), "samples of {plan:?}");
    // Products with padding are not part of the sum; in those of matrices they are 0 if all factors
    // are numbers.
    let outside = plan.axes.iter().any(WindowAxis::reaches_outside);
    let products = !outside || dy.iter().all(|x| x.is_finite());
    if plan.filters.min(plan.terms()) < FEW || !products {
        return lanes(plan, x, dy, dw);
    }
    let each = batch.div_ceil(plan.parts).max(1);
    if each >= batch {
        return part(plan, x, dy, dw);
    }
    let size = dw.len();
    scratch::shared(batch.div_ceil(each) * size, |parts| {
        let samples = x.par_chunks(each * input).zip(dy.par_chunks(each * output));
        parts.par_chunks_mut(size).zip(samples).each(|(dw, (x, dy))| part(plan, x, dy, dw));
        dw.par_chunks_mut(MAX_TERMS).enumerate().each(|(i, dw)| {
            dw.fill(0.0);
            for part in parts.chunks_exact(size) {
                let part = &part[i * MAX_TERMS..][..dw.len()];
                vectorised!(for (sum, x) in dw.iter_mut().zip(part) {
                    *sum += x;
                });
            }
        });
    });
}

/// The sum over these samples.
fn part(plan: &ConvWeightsPlan, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let terms = plan.terms();
    let pieces: Vec<Range<usize>> = chunks(plan.windows).collect();
    let unfolds: Vec<Unfold> =
        pieces.iter().map(|p| Unfold::new(&plan.seen, p.clone(), p.len())).collect();
    dw.par_chunks_mut(plan.filters * terms).enumerate().each(|(group, dw)| {
        tiles(dw, terms, plan.tile).par_iter_mut().each(|tile| {
            let group = Group { plan, number: group, x, dy };
            group.tile(tile, &pieces, &unfolds);
        });
    });
}

/// One group of channels of some samples.
struct Group<'a> {
    plan: &'a ConvWeightsPlan,
    number: usize,
    x: &'a [f32],
    dy: &'a [f32],
}

impl Group<'_> {
    /// The group's channels of a sample: those of the input, and those of the output's gradient.
    fn sample(&self, i: usize) -> (&[f32], &[f32]) {
        let ConvWeightsPlan { groups, channels, filters, plane, windows, .. } = *self.plan;
        let (input, output) = (channels * plane, filters * windows);
        let at = i * groups + self.number;
        (&self.x[at * input..][..input], &self.dy[at * output..][..output])
    }

    /// A tile, whose rows are filters and whose columns are terms.
    fn tile(&self, tile: &mut Tile<'_>, pieces: &[Range<usize>], unfolds: &[Unfold]) {
        let plan = self.plan;
        let (filters, terms) = (tile.rows(), tile.columns.clone());
        let width = filters.len().next_multiple_of(LINE);
        let most = if pieces.len() > 1 { MAX_TERMS } else { plan.samples * plan.windows };
        let sizes = (terms.len() * most, most * width, terms.len() * width);
        let batch = self.dy.len() / (plan.groups * plan.filters * plan.windows);
        scratch::own(sizes.0 + sizes.1 + sizes.2, |memory| {
            let (unfolded, memory) = memory.split_at_mut(sizes.0);
            let (turned, result) = memory.split_at_mut(sizes.1);
            // Columns behind the last filter are multiplied too, and left out.
            turned.fill(0.0);
            let mut first = true;
            for start in (0..batch).step_by(plan.samples) {
                let samples = start..(start + plan.samples).min(batch);
                for (piece, unfold) in pieces.iter().zip(unfolds) {
                    let row = samples.len() * piece.len();
                    for (i, sample) in samples.clone().enumerate() {
                        let (x, dy) = self.sample(sample);
                        let at = i * piece.len();
                        let term = |i| Term { channel: i / plan.taps, tap: i % plan.taps };
                        let rows = terms.clone().map(term);
                        unfold.fill_rows(x, rows, &mut unfolded[at..], row);
                        let dy = Matrix::contiguous(dy, plan.filters, plan.windows);
                        let dy = dy.block(filters.clone(), piece.clone());
                        dy.pack_transposed(&mut turned[at * width..], width);
                    }
                    let a = Matrix::contiguous(unfolded, terms.len(), row);
                    let b = Matrix::contiguous(turned, row, width);
                    let c = MatrixMut::new(result, terms.len(), width, width);
                    multiply(a, b, c, !first);
                    first = false;
                }
            }
            for (filter, piece) in tile.pieces.iter_mut().enumerate() {
                for (to, row) in piece.iter_mut().zip(result.chunks_exact(width)) {
                    *to = row[filter];
                }
            }
        });
    }
}

/// The gradient without matrix products.
fn lanes(plan: &ConvWeightsPlan, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let ConvWeightsPlan { groups, channels, filters, plane, windows, taps, .. } = *plan;
    let step = invariant(plan.axes.last(), "that windows have a spatial axis").stride;
    dw.par_chunks_mut(taps).enumerate().each(|(i, dw)| {
        let (filter, channel) = (i / channels, i % channels);
        let channel = filter / filters * channels + channel;
        let planes = x.chunks_exact(groups * channels * plane);
        let outputs = dy.chunks_exact(groups * filters * windows);
        for (tap, dw) in dw.iter_mut().enumerate() {
            let mut sums = [0.0; LANES];
            for (x, dy) in planes.clone().zip(outputs.clone()) {
                let x = &x[channel * plane..][..plane];
                let dy = &dy[filter * windows..][..windows];
                rows_of_tap(&plan.axes, tap, &mut |at, row| {
                    add_products(&mut sums, &x[at..], step, &dy[row]);
                });
            }
            *dw = sums.iter().sum();
        }
    });
}

/// Adds to the lanes, in turn, the products of `dy` and the elements of `x` at a distance of
/// `step`.
fn add_products(sums: &mut [f32; LANES], x: &[f32], step: usize, dy: &[f32]) {
    if step > 1 {
        for (i, (x, dy)) in x.iter().step_by(step).zip(dy).enumerate() {
            sums[i % LANES] += x * dy;
        }
        return;
    }
    vectorised!({
        let (whole, rest) = dy.as_chunks::<LANES>();
        let (own, others) = x[..dy.len()].as_chunks::<LANES>();
        for (x, dy) in own.iter().zip(whole) {
            for ((sum, x), dy) in sums.iter_mut().zip(x).zip(dy) {
                *sum += x * dy;
            }
        }
        for ((sum, x), dy) in sums.iter_mut().zip(others).zip(rest) {
            *sum += x * dy;
        }
    });
}

impl CpuOp for ConvWeightGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Training, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x, dy] = at.operands.as_slice() else { return None };
        Some(Box::new(ConvWeightsPlan::new(self, x, dy).ok()?))
    }
}

impl CpuKernel for ConvWeightsPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, dy], [y]) = (operands, results) else { return Err(Unsuited) };
        conv_weights(self, x, dy, y);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::{ConvWeightsPlan, conv_weights};
    use crate::backend::cpu::testing::{
        assert_bits, assert_close, in_pools, misaligned, random, rng,
    };
    use crate::op::{ConvWeightGrad, OpDef};
    use crate::types::{DType, Shape, Tensor, TensorType};

    /// Evaluates one in every way that must give the same bits, and against the reference.
    fn check(rng: &mut ChaCha8Rng, op: &ConvWeightGrad, x: &[usize], filters: usize) {
        let windows = op.windows(&TensorType { dtype: DType::F32, shape: Shape::from(x) }).unwrap();
        let mut dy_dims = vec![x[0], filters];
        dy_dims.extend(windows.iter().map(|a| a.output));
        let plan = ConvWeightsPlan::new(op, x, &dy_dims).unwrap();
        let data = random(rng, x.iter().product());
        let dy = random(rng, dy_dims.iter().product());
        let run = |x: &[f32], dy: &[f32]| {
            let mut dw = vec![f32::NAN; plan.size()];
            conv_weights(&plan, x, dy, &mut dw);
            dw
        };
        let what = format!("{op:?} {x:?} {filters}");
        let dw = in_pools(|| run(&data, &dy));
        let (x_shifted, dy_shifted) = (misaligned(&data), misaligned(&dy));
        assert_bits(&dw, &run(&x_shifted[1..], &dy_shifted[1..]), &what);
        let operands = [Tensor::new(x, &data).unwrap(), Tensor::new(&dy_dims, &dy).unwrap()];
        let expected = op.eval(&operands.iter().collect::<Vec<_>>()).unwrap().remove(0);
        assert_close(&dw, expected.as_slice(), &what);
    }

    #[test]
    fn random_kernels() {
        let mut rng = rng(1);
        for case in 0..100 {
            let rank = rng.random_range(1..=3usize);
            let groups = rng.random_range(1..=3usize);
            let each = rng.random_range(1..=5usize);
            let filters = groups * rng.random_range(1..=7usize);
            let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
                (0..n).map(|_| rng.random_range(from..=to)).collect()
            };
            let op = ConvWeightGrad {
                strides: list(1, 3, rank),
                dilations: list(1, 2, rank),
                pads: list(0, 3, 2 * rank),
                groups: i64::try_from(groups).unwrap(),
                kernel: list(1, 3, rank),
            };
            let mut x = vec![1 + case % 11, groups * each];
            x.extend((0..rank).map(|_| 5 + rng.random_range(0..=7usize)));
            check(&mut rng, &op, &x, filters);
        }
    }

    /// Padding is no term: beside it an infinite gradient stays infinite.
    #[test]
    fn infinite_gradients_at_borders() {
        let op = ConvWeightGrad {
            strides: vec![1; 2],
            pads: vec![1; 4],
            kernel: vec![3; 2],
            dilations: vec![],
            groups: 1,
        };
        let plan = ConvWeightsPlan::new(&op, &[2, 8, 6, 6], &[2, 9, 6, 6]).unwrap();
        let (x, mut dy) = (vec![1.0; 2 * 8 * 36], vec![0.5; 2 * 9 * 36]);
        dy[0] = f32::INFINITY;
        let mut dw = vec![f32::NAN; plan.size()];
        conv_weights(&plan, &x, &dy, &mut dw);
        let x = Tensor::new(&[2, 8, 6, 6], &x).unwrap();
        let dy = Tensor::new(&[2, 9, 6, 6], &dy).unwrap();
        let expected = op.eval(&[&x, &dy]).unwrap().remove(0);
        assert_eq!(dw, expected.as_slice::<f32>());
    }

    #[test]
    fn the_usual_sizes() {
        let mut rng = rng(2);
        let op = |kernel: i64, stride: i64, pads: i64, groups: i64| ConvWeightGrad {
            strides: vec![stride; 2],
            pads: vec![pads; 4],
            kernel: vec![kernel; 2],
            dilations: vec![],
            groups,
        };
        check(&mut rng, &op(3, 1, 1, 1), &[9, 3, 32, 32], 96);
        check(&mut rng, &op(3, 2, 0, 1), &[17, 40, 15, 15], 30);
        check(&mut rng, &op(1, 1, 0, 1), &[5, 300, 7, 7], 280);
        check(&mut rng, &op(1, 1, 0, 2), &[3, 16, 1, 1], 10);
        check(&mut rng, &op(3, 1, 1, 24), &[6, 24, 21, 19], 24);
        check(&mut rng, &op(3, 2, 1, 12), &[6, 12, 30, 31], 24);
        check(&mut rng, &op(3, 1, 1, 1), &[2, 1, 40, 50], 5);
    }
}
