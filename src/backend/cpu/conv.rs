//! Convolution of `f32`, channels before spatial axes.
//!
//! For each sample and group the output `[filters, windows]` is the product of the weights
//! `[filters, terms]` with the input unfolded to `[terms, windows]`, computed in tiles. A pointwise
//! convolution takes its input as it is. The tiles of large inputs are unfolded where they are
//! used; a small input is unfolded once, for all filters. With one input channel to a group there
//! is no product: taps are added up plane by plane.

use std::ops::Range;

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, ending_in_chain, of_f32};
use super::depthwise::Depthwise;
use super::elementwise::Epilogue;
use super::gemm::{Matrix, MatrixMut, chunks, multiply};
use super::im2col::Unfold;
use super::scratch::{self, LINE};
use super::simd::vectorised;
use super::tile::{Computed, Extent, Origin, Tile, store, tiles};
use crate::backend::host::Unsuited;
use crate::lower::{Support, Types};
use crate::op::window::{WindowAxis, Windows};
use crate::op::{Conv, OpError};
use crate::types::KernelClass;
use crate::types::{DType, Shape, TensorType};

/// The sizes of a convolution, and how it is computed: a function of everything but the batch size.
#[derive(Clone, Debug)]
pub struct ConvPlan {
    axes: Windows,
    groups: usize,
    /// Input channels of a group.
    channels: usize,
    /// Output channels of a group.
    filters: usize,
    /// Elements of an input channel.
    plane: usize,
    /// Elements of an output channel.
    windows: usize,
    /// Terms of each sum: taps of all channels of a group.
    terms: usize,
    method: Method,
    /// The filters and windows of a tile; the windows are a multiple of a cache line.
    tile: Extent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// One input channel to a group: no product.
    Planes,
    /// One tap: the input is the operand of the product.
    Pointwise,
    /// The operand is unfolded once for a sample and group, then multiplied tile by tile.
    Once,
    /// The operand is unfolded for each tile.
    ForEachTile,
}

/// Elements of an operand that is unfolded once.
const UNFOLDED: usize = 1 << 20;

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
        let size = |f: fn(&WindowAxis) -> usize| axes.iter().map(f).product::<usize>();
        let groups = x[1] / w[1];
        let (plane, windows, taps) = (size(|a| a.input), size(|a| a.output), size(|a| a.kernel));
        let mut plan = Self {
            groups,
            channels: w[1],
            filters: w[0] / groups,
            plane,
            windows,
            terms: w[1] * taps,
            method: Method::ForEachTile,
            tile: Extent { rows: 0, columns: 0 },
            axes,
        };
        plan.method = plan.method();
        plan.tile = plan.tile();
        Ok(plan)
    }

    /// The number of floats of an output sample.
    pub fn sample(&self) -> usize {
        self.groups * self.filters * self.windows
    }

    fn method(&self) -> Method {
        let is_plain =
            |a: &WindowAxis| a.kernel == 1 && a.stride == 1 && a.before == 0 && a.after == 0;
        if self.channels == 1 && (self.groups > 1 || self.filters < 8) {
            return Method::Planes;
        }
        // A row of a few windows, not a multiple of a line, is worth a padded copy.
        let copied = !self.windows.is_multiple_of(LINE) && self.windows < 8 * LINE;
        if self.axes.iter().all(is_plain) && !copied {
            return Method::Pointwise;
        }
        let operand = self.terms.saturating_mul(self.windows.next_multiple_of(LINE));
        let alone = self.groups == 1 && operand.saturating_mul(self.filters) > WORTH;
        if alone && operand <= UNFOLDED { Method::Once } else { Method::ForEachTile }
    }

    fn tile(&self) -> Extent {
        let lines = self.windows.div_ceil(LINE);
        let most = match lines {
            0..128 => 4,
            128..512 => 8,
            _ => 16,
        };
        let count = lines.div_ceil(most);
        let width = lines.div_ceil(count).max(1) * LINE;
        // Filters are multiplied six at a time. Eight tiles are enough for some threads.
        let most = (RESULT / width).max(6);
        let height = if self.method == Method::ForEachTile {
            self.filters
        } else {
            let each = self.terms.saturating_mul(width).max(1);
            let blocks = (8usize.div_ceil(count)).min(self.filters * each / WORTH).max(1);
            self.filters.div_ceil(blocks).next_multiple_of(6)
        };
        Extent { rows: height.min(most), columns: width }
    }
}

/// The operands of a convolution.
#[derive(Clone, Copy)]
struct Operands<'a> {
    x: &'a [f32],
    w: &'a [f32],
    bias: Option<&'a [f32]>,
    epilogue: &'a Epilogue<'a>,
}

/// `y = epilogue(conv(x, w) + bias)`, for as many samples as `y` has.
///
/// `x` is `[N, channels, spatial…]`, `w` `[filters, channels / groups, kernel…]`, `bias`
/// `[filters]` and `y` `[N, filters, windows…]`, as in the plan.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub fn conv(
    plan: &ConvPlan,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let input = plan.groups * plan.channels * plan.plane;
    if y.is_empty() || plan.sample() == 0 {
        return;
    }
    let batch = y.len() / plan.sample();
    assert_eq!((y.len(), x.len()), (batch * plan.sample(), batch * input), "samples of {plan:?}");
    assert_eq!(w.len(), plan.groups * plan.filters * plan.terms, "weights of {plan:?}");
    assert!(bias.is_none_or(|b| b.len() == plan.groups * plan.filters), "bias of {plan:?}");
    let operands = Operands { x, w, bias, epilogue };
    let group = plan.filters * plan.windows;
    match plan.method {
        Method::Planes => planes(plan, operands, y),
        Method::Once => {
            for (i, y) in y.chunks_exact_mut(group).enumerate() {
                plan.group(operands, i).unfolded_once(y);
            }
        }
        Method::Pointwise | Method::ForEachTile => {
            y.par_chunks_mut(group).enumerate().for_each(|(i, y)| {
                let group = plan.group(operands, i);
                tiles(y, plan.windows, plan.tile).into_par_iter().for_each(|tile| {
                    if plan.method == Method::Pointwise {
                        group.pointwise(tile);
                    } else {
                        group.unfolded(tile);
                    }
                });
            });
        }
    }
}

/// All output planes of groups with one input channel.
fn planes(plan: &ConvPlan, operands: Operands<'_>, y: &mut [f32]) {
    let kernel = Depthwise::new(&plan.axes);
    let each = (WORTH / 8 / (plan.windows * plan.terms)).max(1);
    y.par_chunks_mut(plan.windows).with_min_len(each).enumerate().for_each(|(i, y)| {
        let channel = i % (plan.groups * plan.filters);
        let x = &operands.x[i / plan.filters * plan.plane..][..plan.plane];
        let w = &operands.w[channel * plan.terms..][..plan.terms];
        // The bias may be left out.
        kernel.plane(x, w, operands.bias.map_or(0.0, |b| b[channel]), y);
        operands.epilogue.apply(y, i * plan.windows);
    });
}

/// One group of channels of one sample.
struct Group<'a> {
    plan: &'a ConvPlan,
    /// `[channels, plane]`.
    x: &'a [f32],
    /// `[filters, terms]`.
    weights: Matrix<'a>,
    /// `[filters]`.
    bias: Option<&'a [f32]>,
    /// The position of the group's first element in the output.
    first: usize,
    epilogue: &'a Epilogue<'a>,
}

impl ConvPlan {
    /// The `i`-th group, counted over all samples.
    fn group<'a>(&'a self, operands: Operands<'a>, i: usize) -> Group<'a> {
        let input = self.channels * self.plane;
        let (g, weights) = (i % self.groups, self.filters * self.terms);
        let w = &operands.w[g * weights..][..weights];
        Group {
            plan: self,
            x: &operands.x[i * input..][..input],
            weights: Matrix::contiguous(w, self.filters, self.terms),
            bias: operands.bias.map(|b| &b[g * self.filters..][..self.filters]),
            first: i * self.filters * self.windows,
            epilogue: operands.epilogue,
        }
    }
}

impl Group<'_> {
    /// Ends a tile whose product, `stride` floats to a row, is `result`.
    fn store(&self, tile: Tile<'_>, result: &[f32], stride: usize) {
        let origin = Origin { first: self.first, columns: self.plan.windows };
        let computed = Computed { data: result, stride };
        store(tile, computed, origin, self.epilogue, |row, y, sums| match self.bias {
            Some(bias) => {
                let bias = bias[row];
                vectorised!(for (y, sum) in y.iter_mut().zip(sums) {
                    *y = sum + bias;
                });
            }
            None => y.copy_from_slice(sums),
        });
    }

    /// A tile of a pointwise convolution. The last one reaches back, so that it has whole lines.
    fn pointwise(&self, tile: Tile<'_>) {
        let (terms, windows) = (self.plan.terms, self.plan.windows);
        let x = Matrix::contiguous(self.x, terms, windows);
        let stride = tile.columns.len().next_multiple_of(LINE);
        let start = tile.columns.start.min(windows.saturating_sub(stride));
        let columns = start..(start + stride).min(windows);
        scratch::own(tile.pieces.len() * stride, |result| {
            let weights = self.weights.block(tile.rows(), 0..terms);
            let product = MatrixMut::new(result, tile.pieces.len(), columns.len(), stride);
            multiply(weights, x.block(0..terms, columns), product, false);
            let skipped = tile.columns.start - start;
            self.store(tile, &result[skipped..], stride);
        });
    }

    /// A tile whose operand is unfolded here, part by part.
    fn unfolded(&self, tile: Tile<'_>) {
        let stride = tile.columns.len().next_multiple_of(LINE);
        let unfold = Unfold::new(&self.plan.axes, tile.columns.clone(), stride);
        let operand = super::gemm::MAX_TERMS.min(self.plan.terms) * stride;
        scratch::own(operand + tile.pieces.len() * stride, |memory| {
            let (operand, result) = memory.split_at_mut(operand);
            for part in chunks(self.plan.terms) {
                unfold.fill(self.x, part.clone(), operand);
                self.multiply_part(&tile, part, operand, result, stride);
            }
            self.store(tile, result, stride);
        });
    }

    /// Adds to the result of a tile the terms `part`, of which `operand` has the rows.
    fn multiply_part(
        &self,
        tile: &Tile<'_>,
        part: Range<usize>,
        operand: &[f32],
        result: &mut [f32],
        stride: usize,
    ) {
        let weights = self.weights.block(tile.rows(), part.clone());
        let product = MatrixMut::new(result, tile.pieces.len(), stride, stride);
        multiply(weights, Matrix::contiguous(operand, part.len(), stride), product, part.start > 0);
    }

    /// All tiles of the group, whose operand is first unfolded: for each tile its rows, one behind
    /// the other.
    fn unfolded_once(&self, y: &mut [f32]) {
        let (plan, terms) = (self.plan, self.plan.terms);
        let width = plan.tile.columns;
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
            memory.par_chunks_mut(width * terms).zip(&operands).for_each(
                |(to, (stride, unfold))| {
                    to.par_chunks_mut(rows * stride).enumerate().for_each(|(i, to)| {
                        unfold.fill(self.x, i * rows..terms.min((i + 1) * rows), to);
                    });
                },
            );
            tiles(y, plan.windows, plan.tile).into_par_iter().for_each(|tile| {
                let operand = &memory[tile.columns.start * terms..];
                let stride = operands[tile.columns.start / width].0;
                scratch::own(tile.pieces.len() * stride, |result| {
                    for part in chunks(terms) {
                        let operand = &operand[part.start * stride..part.end * stride];
                        self.multiply_part(&tile, part, operand, result, stride);
                    }
                    self.store(tile, result, stride);
                });
            });
        });
    }
}

impl CpuOp for Conv {
    fn supports(&self, types: &Types<'_>) -> Support {
        ending_in_chain(of_f32(KernelClass::Conv, types))
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x, w, ..] = at.operands.as_slice() else { return None };
        Some(Box::new(ConvPlan::new(self, x, w).ok()?))
    }
}

impl CpuKernel for ConvPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, w, bias @ ..], [y]) = (operands, results) else { return Err(Unsuited) };
        conv(self, x, w, bias.first().copied(), y, chain);
        Ok(())
    }

    fn ends_in_chain(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::{ConvPlan, Method, conv};
    use crate::backend::cpu::elementwise::Epilogue;
    use crate::backend::cpu::testing::{
        assert_bits, assert_close, in_pools, misaligned, random, rng,
    };
    use crate::lower::{Access, Chain, ChainStep};
    use crate::op::{Binary, Conv, OpDef, Unary};
    use crate::types::Tensor;

    /// Evaluates a convolution of five samples in every way that must give the same bits, and
    /// against the reference.
    fn check(rng: &mut ChaCha8Rng, op: &Conv, x: &[usize], w: &[usize]) -> Method {
        const BATCH: usize = 5;
        let x_dims = [&[BATCH], x].concat();
        let plan = ConvPlan::new(op, &x_dims, w).unwrap();
        let data = random(rng, x_dims.iter().product());
        let weights = random(rng, w.iter().product());
        let bias = rng.random_bool(0.7).then(|| random(rng, w[0]));
        let bias = bias.as_deref();
        let residual = random(rng, BATCH * plan.sample());
        let chain = Chain {
            steps: vec![
                ChainStep::Binary {
                    op: Binary::Add,
                    operand: 0,
                    access: Access::Full,
                    swapped: true,
                },
                ChainStep::Unary(Unary::Relu),
            ],
        };
        let run = |x: &[f32], w: &[f32], rows: std::ops::Range<usize>| {
            let residual = &residual[rows.start * plan.sample()..rows.end * plan.sample()];
            let epilogue = Epilogue::new(&chain, &[residual]).unwrap();
            let mut y = vec![f32::NAN; rows.len() * plan.sample()];
            conv(&plan, x, w, bias, &mut y, &epilogue);
            y
        };
        let what = format!("{op:?} {x:?} {w:?} {:?}", plan.method);
        let y = in_pools(|| run(&data, &weights, 0..BATCH));
        let (x_shifted, w_shifted) = (misaligned(&data), misaligned(&weights));
        assert_bits(&y, &run(&x_shifted[1..], &w_shifted[1..], 0..BATCH), &what);
        let sample = data.len() / BATCH;
        for i in 0..BATCH {
            let alone = run(&data[i * sample..][..sample], &weights, i..i + 1);
            assert_bits(&y[i * plan.sample()..][..plan.sample()], &alone, &what);
        }
        let mut operands =
            vec![Tensor::new(&x_dims, &data).unwrap(), Tensor::new(w, &weights).unwrap()];
        operands.extend(bias.map(|b| Tensor::new(&w[..1], b).unwrap()));
        let expected = op.eval(&operands.iter().collect::<Vec<_>>()).unwrap().remove(0);
        let mut expected = expected.as_slice::<f32>().to_vec();
        Epilogue::new(&chain, &[&residual]).unwrap().apply(&mut expected, 0);
        match plan.method {
            Method::Planes | Method::Pointwise => assert_bits(&y, &expected, &what),
            // Their sums run over the channels, and over the taps of each.
            Method::Once | Method::ForEachTile => assert_close(&y, &expected, &what),
        }
        plan.method
    }

    #[test]
    fn random_convolutions() {
        let mut rng = rng(1);
        for _ in 0..80 {
            let rank = rng.random_range(1..=3usize);
            let (each, groups) = (rng.random_range(1..=4usize), rng.random_range(1..=3usize));
            let m = groups * rng.random_range(1..=7usize);
            let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
                (0..n).map(|_| rng.random_range(from..=to)).collect()
            };
            let (strides, dilations) = (list(1, 3, rank), list(1, 2, rank));
            let (pads, kernel) = (list(0, 3, 2 * rank), list(1, 3, rank));
            let op = Conv { strides, dilations, pads, groups: i64::try_from(groups).unwrap() };
            let kernel: Vec<usize> = kernel.iter().map(|k| usize::try_from(*k).unwrap()).collect();
            let (mut x, mut w) = (vec![groups * each], vec![m, each]);
            x.extend(kernel.iter().map(|k| 2 * k - 1 + rng.random_range(0..=7usize)));
            w.extend(&kernel);
            check(&mut rng, &op, &x, &w);
        }
    }

    #[test]
    fn every_method() {
        let mut rng = rng(2);
        let op = |pads: i64, stride: i64, groups: i64| Conv {
            pads: vec![pads; 4],
            strides: vec![stride; 2],
            groups,
            ..Conv::default()
        };
        let cases = [
            (op(1, 1, 12), [12, 19, 21], [24, 1, 3, 3], Method::Planes),
            (op(1, 2, 6), [6, 40, 37], [6, 1, 3, 3], Method::Planes),
            (op(2, 1, 9), [9, 7, 7], [9, 1, 5, 5], Method::Planes),
            (op(0, 1, 1), [40, 17, 13], [70, 40, 1, 1], Method::Pointwise),
            (op(0, 1, 2), [600, 16, 10], [12, 300, 1, 1], Method::Pointwise),
            (op(1, 1, 1), [130, 7, 7], [64, 130, 3, 3], Method::Once),
            (op(0, 1, 1), [530, 7, 7], [62, 530, 1, 1], Method::Once),
            (op(3, 2, 1), [3, 65, 61], [20, 3, 7, 7], Method::Once),
            (op(1, 1, 1), [64, 50, 45], [14, 64, 3, 3], Method::ForEachTile),
            (op(1, 2, 2), [128, 30, 33], [24, 64, 3, 3], Method::ForEachTile),
        ];
        for (op, x, w, method) in cases {
            assert_eq!(check(&mut rng, &op, &x, &w), method, "{op:?} {x:?} {w:?}");
        }
    }

    #[test]
    fn no_samples() {
        let plan = ConvPlan::new(&Conv::default(), &[0, 2, 5], &[3, 2, 2]).unwrap();
        conv(&plan, &[], &[1.0; 12], None, &mut [], &Epilogue::default());
        assert_eq!(plan.sample(), 12);
    }
}
