//! Transposed convolution of `f32`, channels before spatial axes.
//!
//! The elements of the result at one phase of the strides are a convolution of the input by the
//! taps that reach them, whose chains the operator's are. Where at most one tap reaches each
//! element, the products of all elements with all taps, `[filters * taps, plane]`, are the product
//! of the transposed weights with the input as it is, and are moved to their places. With one input
//! channel to a group there is no product of matrices.

use std::ops::Range;

use rayon::prelude::*;
use smallvec::SmallVec;

use super::conv::{Channels, ConvOperands, ConvPlan};
use super::cpu_op::{CpuKernel, CpuOp, Sizes, ending_in_chain, of_f32};
use super::elementwise::{Epilogue, Steps};
use super::gemm::{Matrix, MatrixMut, multiply};
use super::im2col::{AxisPhase, SeenAxis};
use super::scratch;
use super::simd::vectorised;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::window::{WindowAxis, rows_of_tap};
use crate::op::{ConvTranspose, OpError};
use crate::types::KernelClass;
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Shape, TensorType};

/// The sizes of a transposed convolution, and how it is computed: a function of everything but the
/// batch size.
#[derive(Debug)]
pub(crate) struct SpreadPlan {
    channels: Channels,
    /// Elements of an input channel.
    plane: usize,
    /// Elements of an output channel.
    output: usize,
    taps: usize,
    /// The distance between the elements of an output channel that neighbours of a row reach by one
    /// tap.
    step: usize,
    method: Method,
    /// The output channels whose products are computed in one go.
    block: usize,
}

#[derive(Debug)]
enum Method {
    /// Each product of the only tap is an element of the output.
    Pointwise,
    /// At most one tap reaches each element: products are moved.
    Apart(Vec<Run>),
    /// One input channel to a group, or very many phases: taps are added up plane by plane.
    Planes(Vec<Run>),
    /// A convolution for each phase of the strides that a tap reaches.
    Phases(Vec<Phase>),
}

/// Neighbouring products of a tap, and where the first of them is added.
#[derive(Clone, Debug)]
struct Run {
    tap: usize,
    /// Elements of the input.
    from: Range<usize>,
    to: usize,
}

/// The elements of the result at a phase.
#[derive(Debug)]
struct Phase {
    plan: ConvPlan,
    /// The taps that reach them, ascending.
    taps: Vec<usize>,
    axes: SmallVec<[Dealt; 3]>,
}

/// Some elements of an axis.
#[derive(Clone, Copy, Debug)]
struct Dealt {
    first: usize,
    step: usize,
    count: usize,
    /// All elements of the axis.
    size: usize,
}

/// The runs of a channel, taps in row-major order. Those of one tap meet different elements, so
/// that runs which follow each other are one.
fn runs(axes: &[WindowAxis], taps: usize, step: usize) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for tap in 0..taps {
        rows_of_tap(axes, tap, &mut |to, row| match all.last_mut() {
            Some(last)
                if last.tap == tap
                    && last.from.end == row.start
                    && last.to + last.from.len() * step == to =>
            {
                last.from.end = row.end;
            }
            _ => all.push(Run { tap, from: row, to }),
        });
    }
    all
}

/// The phases that taps reach; `None` of more than [`MANY`].
fn phases(channels: Channels, axes: &[WindowAxis]) -> Option<Vec<Phase>> {
    let mut all = vec![Part { seen: SmallVec::new(), dealt: SmallVec::new(), taps: vec![0] }];
    for axis in axes {
        let own = SeenAxis::phases(axis);
        if all.len().saturating_mul(own.len()) > MANY {
            return None;
        }
        let with = |outer: &Part| own.iter().map(|own| outer.with(axis, own)).collect::<Vec<_>>();
        all = all.iter().flat_map(with).collect();
    }
    let phase = |Part { seen, dealt, taps }| {
        let plan = ConvPlan::of(channels, seen);
        Phase { plan, taps, axes: dealt }
    };
    Some(all.into_iter().map(phase).collect())
}

/// A phase on the outer axes.
struct Part {
    seen: SmallVec<[SeenAxis; 3]>,
    dealt: SmallVec<[Dealt; 3]>,
    taps: Vec<usize>,
}

impl Part {
    /// This and a phase of the next axis.
    fn with(&self, axis: &WindowAxis, own: &AxisPhase) -> Self {
        let (mut seen, mut dealt) = (self.seen.clone(), self.dealt.clone());
        seen.push(own.seen.clone());
        let count = own.seen.windows;
        dealt.push(Dealt { first: own.first, step: axis.stride, count, size: axis.input });
        let inner = |outer: usize| own.taps.iter().map(move |tap| outer * axis.kernel + tap);
        Self { seen, dealt, taps: self.taps.iter().flat_map(|tap| inner(*tap)).collect() }
    }
}

/// The phases that are taken apart, at most.
const MANY: usize = 1024;

/// Products that are computed in one go, at most, where one channel has not more.
const PRODUCTS: usize = 1 << 17;

/// Multiplications for which a task is worth its cost.
const WORTH: usize = 1 << 19;

impl SpreadPlan {
    /// The plan for an input of shape `x` and weights of shape `w`, which `op` admits; the batch
    /// size is free.
    pub(crate) fn new(op: &ConvTranspose, x: &[usize], w: &[usize]) -> Result<Self, OpError> {
        let ty = |dims: &[usize]| TensorType { dtype: DType::F32, shape: Shape::from(dims) };
        let axes = op.windows(&ty(x), &ty(w))?;
        let size = |f: fn(&WindowAxis) -> usize| axes.iter().map(f).product::<usize>();
        let (output, plane, taps) = (size(|a| a.input), size(|a| a.output), size(|a| a.kernel));
        let groups = int::<usize>(op.groups);
        let (own, filters) = (w[0] / groups, w[1]);
        let channels = Channels { groups, own, filters };
        let each = taps.saturating_mul(plane);
        let fitting = (PRODUCTS / each.max(1)).max(1);
        let worth = WORTH.div_ceil(each.saturating_mul(own).max(1));
        let block = filters.min(fitting.min(worth.max(filters.div_ceil(8))));
        let step = invariant(axes.last(), "that windows have a spatial axis").stride;
        let is_plain =
            |a: &WindowAxis| a.kernel == 1 && a.stride == 1 && a.before == 0 && a.output == a.input;
        let is_apart = |a: &WindowAxis| a.kernel == 1 || (a.dilation == 1 && a.kernel <= a.stride);
        let runs = || runs(&axes, taps, step);
        let method = if axes.iter().all(is_plain) {
            Method::Pointwise
        } else if own == 1 {
            Method::Planes(runs())
        } else if axes.iter().all(is_apart) {
            Method::Apart(runs())
        } else {
            phases(channels, &axes).map_or_else(|| Method::Planes(runs()), Method::Phases)
        };
        Ok(Self { channels, plane, output, taps, step, method, block })
    }

    /// The number of floats of an output sample.
    pub(crate) fn sample(&self) -> usize {
        self.channels.groups * self.channels.filters * self.output
    }

    /// Calls `f` for each element of the output that a run reaches, with what it meets in `from`
    /// at the places that `x` gives.
    fn walk(
        &self,
        runs: &[Run],
        y: &mut [f32],
        x: impl Fn(&Run) -> Range<usize>,
        from: &[f32],
        f: impl Fn(&mut f32, f32) + Copy,
    ) {
        let step = self.step;
        vectorised!(for run in runs {
            let x = &from[x(run)];
            if step == 1 {
                for (y, x) in y[run.to..][..x.len()].iter_mut().zip(x) {
                    f(y, *x);
                }
            } else {
                for (y, x) in y[run.to..].iter_mut().step_by(step).zip(x) {
                    f(y, *x);
                }
            }
        });
    }
}

/// `y = epilogue(conv_transpose(x, w) + bias)`, for as many samples as `y` has: `[N, filters,
/// spatial…]`, as in the plan; the weights are `[channels, filters / groups, kernel…]`.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn conv_transpose(plan: &SpreadPlan, operands: ConvOperands<'_>, y: &mut [f32]) {
    let SpreadPlan { channels: Channels { groups, own, filters }, plane, taps, .. } = *plan;
    if y.is_empty() || plan.sample() == 0 {
        return;
    }
    let batch = y.len() / plan.sample();
    let input = groups * own * plane;
    let expected = (batch * plan.sample(), batch * input);
    assert_eq!((y.len(), operands.x.len()), expected, "samples of {plan:?}");
    assert_eq!(operands.w.len(), groups * own * filters * taps, "weights of {plan:?}");
    assert!(operands.bias.is_none_or(|b| b.len() == groups * filters), "bias of {plan:?}");
    match &plan.method {
        Method::Pointwise => products(plan, operands, y, None),
        Method::Apart(runs) => products(plan, operands, y, Some(runs)),
        Method::Planes(runs) => planes(plan, operands, y, runs),
        Method::Phases(phases) => by_phases(plan, operands, y, phases),
    }
}

/// Output planes, tap by tap and channel by channel.
fn planes(plan: &SpreadPlan, operands: ConvOperands<'_>, y: &mut [f32], runs: &[Run]) {
    let SpreadPlan { channels: Channels { groups, own, filters }, plane, taps, .. } = *plan;
    y.par_chunks_mut(plan.output).enumerate().each(|(i, y)| {
        let (group, filter) = (i / filters, i % filters);
        let x = &operands.x[group * own * plane..][..own * plane];
        y.fill(0.0);
        for runs in runs.chunk_by(|a, b| a.tap == b.tap) {
            for (channel, x) in x.chunks_exact(plane).enumerate() {
                let row = (group % groups * own + channel) * filters + filter;
                let w = operands.w[row * taps + runs[0].tap];
                let add = |y: &mut f32, x: f32| *y = x.mul_add(w, *y);
                plan.walk(runs, y, |run| run.from.clone(), x, add);
            }
        }
        end(plan, operands, i, y);
    });
}

/// A convolution for each phase, and their results brought together.
fn by_phases(plan: &SpreadPlan, operands: ConvOperands<'_>, y: &mut [f32], phases: &[Phase]) {
    let mut offset = 0;
    let mut parts: Vec<(&Phase, Range<usize>)> = Vec::with_capacity(phases.len());
    for phase in phases {
        let part = offset..offset + phase.plan.weights();
        offset = part.end;
        parts.push((phase, part));
    }
    scratch::weights(offset, |turned| {
        for (phase, part) in &parts {
            phase.turn(plan, operands.w, &mut turned[part.clone()]);
        }
        let turned = &*turned;
        if let [(phase, _)] = parts.as_slice()
            && phase.plan.sample() == plan.sample()
        {
            return phase.plan.convolve(ConvOperands { w: turned, ..operands }, y);
        }
        let input = plan.channels.groups * plan.channels.own * plan.plane;
        y.par_chunks_mut(plan.sample()).enumerate().each(|(i, y)| {
            let operands = ConvOperands { x: &operands.x[i * input..][..input], ..operands };
            sample(plan, &parts, turned, operands, i, y);
        });
    });
}

/// The `i`-th sample, phase by phase.
fn sample(
    plan: &SpreadPlan,
    parts: &[(&Phase, Range<usize>)],
    turned: &[f32],
    operands: ConvOperands<'_>,
    i: usize,
    y: &mut [f32],
) {
    let planes = plan.channels.groups * plan.channels.filters;
    y.fill(0.0);
    for (phase, part) in parts {
        scratch::phases(phase.plan.sample(), |sums| {
            let w = &turned[part.clone()];
            let epilogue = Steps::default();
            let operands = ConvOperands { w, bias: None, epilogue, ..operands };
            phase.plan.convolve(operands, sums);
            let sums = sums.par_chunks(phase.plan.sample() / planes);
            y.par_chunks_mut(plan.output).zip(sums).each(|(y, sums)| {
                deal(&phase.axes, sums, y);
            });
        });
    }
    y.par_chunks_mut(plan.output).enumerate().each(|(channel, y)| {
        end(plan, operands, i * planes + channel, y);
    });
}

/// Adds the bias to the `i`-th output plane, counted over all samples, and ends it.
fn end(plan: &SpreadPlan, operands: ConvOperands<'_>, i: usize, y: &mut [f32]) {
    let planes = plan.channels.groups * plan.channels.filters;
    // A sum of zero is positive. The bias may be left out.
    let bias = operands.bias.map_or(0.0, |bias| bias[i % planes]);
    vectorised!(for y in y.iter_mut() {
        *y = (*y + 0.0) + bias;
    });
    operands.epilogue.apply(y, i * plan.output);
}

/// Writes the elements of a phase to their places.
fn deal(axes: &[Dealt], from: &[f32], to: &mut [f32]) {
    let Some((axis, inner)) = axes.split_first() else { return };
    if inner.is_empty() {
        for (to, from) in to[axis.first..].iter_mut().step_by(axis.step).zip(from) {
            *to = *from;
        }
        return;
    }
    let size = |f: fn(&Dealt) -> usize| inner.iter().map(f).product::<usize>();
    let (count, plane) = (size(|a| a.count), size(|a| a.size));
    for (i, from) in from.chunks_exact(count).enumerate() {
        deal(inner, from, &mut to[(axis.first + i * axis.step) * plane..][..plane]);
    }
}

impl Phase {
    /// The weights of the phase's convolution, `[filters, taps, channels]`.
    fn turn(&self, plan: &SpreadPlan, w: &[f32], to: &mut [f32]) {
        let SpreadPlan { channels: Channels { own, filters, .. }, taps, .. } = *plan;
        to.par_chunks_mut(self.taps.len() * own).enumerate().each(|(i, to)| {
            let (group, filter) = (i / filters, i % filters);
            for c in 0..own {
                let w = &w[((group * own + c) * filters + filter) * taps..][..taps];
                for (k, tap) in self.taps.iter().enumerate() {
                    to[k * own + c] = w[*tap];
                }
            }
        });
    }
}

/// By the products of all elements with all taps, which `runs` are moved to their places; without
/// them the products are the result.
fn products(plan: &SpreadPlan, operands: ConvOperands<'_>, y: &mut [f32], runs: Option<&[Run]>) {
    let SpreadPlan { channels: Channels { groups, own, filters }, .. } = *plan;
    let SpreadPlan { plane, output, taps, block, .. } = *plan;
    let (inputs, weights) = (own * plane, own * filters * taps);
    y.par_chunks_mut(filters * output).enumerate().each(|(i, y)| {
        let group = i % groups;
        let x = Matrix::contiguous(&operands.x[i * inputs..][..inputs], own, plane);
        let w = &operands.w[group * weights..][..weights];
        let w = Matrix::contiguous(w, own, filters * taps).transposed();
        y.par_chunks_mut(block * output).enumerate().each(|(j, y)| {
            let first = j * block;
            let rows = first * taps..first * taps + y.len() / output * taps;
            let w = w.block(rows.clone(), 0..own);
            let Some(runs) = runs else {
                multiply(w, x, MatrixMut::new(y, rows.len(), plane, plane), false);
                for (filter, y) in (first..).zip(y.chunks_exact_mut(output)) {
                    end(plan, operands, i * filters + filter, y);
                }
                return;
            };
            scratch::own(rows.len() * plane, |products| {
                let to = MatrixMut::new(products, rows.len(), plane, plane);
                multiply(w, x, to, false);
                let parts = products.chunks_exact(taps * plane);
                for (filter, (y, products)) in (first..).zip(y.chunks_exact_mut(output).zip(parts))
                {
                    y.fill(0.0);
                    let of = |run: &Run| {
                        let first = run.tap * plane;
                        first + run.from.start..first + run.from.end
                    };
                    plan.walk(runs, y, of, products, |y, x| *y = x);
                    end(plan, operands, i * filters + filter, y);
                }
            });
        });
    });
}

impl CpuOp for ConvTranspose {
    fn supports(&self, types: &Types<'_>) -> Support {
        ending_in_chain(of_f32(KernelClass::Conv, types))
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x, w, ..] = at.operands.as_slice() else { return None };
        Some(Box::new(SpreadPlan::new(self, x, w).ok()?))
    }
}

impl CpuKernel for SpreadPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, w, bias @ ..], [y]) = (operands, results) else { return Err(Unsuited) };
        let bias = bias.first().copied();
        conv_transpose(self, ConvOperands { x, w, bias, epilogue: chain.steps() }, y);
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

    use super::{ConvOperands, SpreadPlan, conv_transpose};
    use crate::backend::cpu::elementwise::{Epilogue, Steps};
    use crate::backend::cpu::testing::{assert_bits, in_pools, misaligned, random, rng, spoil};
    use crate::lower::{Access, Chain, ChainStep};
    use crate::op::{Binary, ConvTranspose, OpDef, Unary};
    use crate::types::Tensor;

    /// Evaluates one for five samples in every way that must give the same bits, the reference
    /// among them; some weights are not finite if `wild`.
    fn check(rng: &mut ChaCha8Rng, op: &ConvTranspose, x: &[usize], w: &[usize], wild: bool) {
        const BATCH: usize = 5;
        let x_dims = [&[BATCH], x].concat();
        let plan = SpreadPlan::new(op, &x_dims, w).unwrap();
        let data = random(rng, x_dims.iter().product());
        let mut weights = random(rng, w.iter().product());
        if wild {
            spoil(rng, &mut weights);
        }
        let filters = w[1] * usize::try_from(op.groups).unwrap();
        let bias = rng.random_bool(0.7).then(|| random(rng, filters));
        let bias = bias.as_deref();
        let residual = random(rng, BATCH * plan.sample());
        let add =
            ChainStep::Binary { op: Binary::Add, operand: 0, access: Access::Full, swapped: true };
        let chain = Chain { steps: vec![add, ChainStep::Unary(Unary::Relu)] };
        let run = |x: &[f32], w: &[f32], rows: std::ops::Range<usize>| {
            let residual = &residual[rows.start * plan.sample()..rows.end * plan.sample()];
            let epilogue = Epilogue::new(&chain, &[residual]).unwrap();
            let mut y = vec![f32::NAN; rows.len() * plan.sample()];
            conv_transpose(&plan, ConvOperands { x, w, bias, epilogue: epilogue.steps() }, &mut y);
            y
        };
        let what = format!("{op:?} {x:?} {w:?}");
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
        operands.extend(bias.map(|b| Tensor::new(&[filters], b).unwrap()));
        let expected = op.eval(&operands.iter().collect::<Vec<_>>()).unwrap().remove(0);
        let mut expected = expected.as_slice::<f32>().to_vec();
        Epilogue::new(&chain, &[&residual]).unwrap().apply(&mut expected, 0);
        assert_bits(&y, &expected, &what);
    }

    #[test]
    fn random_settings() {
        let mut rng = rng(1);
        for i in 0..120 {
            let rank = rng.random_range(1..=3usize);
            let groups = rng.random_range(1..=3usize);
            let (c, m) = (groups * rng.random_range(1..=5usize), rng.random_range(1..=7usize));
            let mut list = |from: i64, to: i64, n: usize| -> Vec<i64> {
                (0..n).map(|_| rng.random_range(from..=to)).collect()
            };
            let op = ConvTranspose {
                strides: list(1, 3, rank),
                dilations: list(1, 2, rank),
                pads: list(0, 2, 2 * rank),
                output_padding: list(0, 2, rank),
                groups: i64::try_from(groups).unwrap(),
            };
            let (mut x, mut w) = (vec![c], vec![c, m]);
            x.extend((0..rank).map(|_| 5 + rng.random_range(0..=4usize)));
            w.extend((0..rank).map(|_| rng.random_range(1..=3usize)));
            check(&mut rng, &op, &x, &w, i % 4 == 0);
        }
    }

    #[test]
    fn the_usual_sizes() {
        let mut rng = rng(2);
        let op = |stride: i64, pads: i64, groups: i64| ConvTranspose {
            strides: vec![stride; 2],
            pads: vec![pads; 4],
            groups,
            ..ConvTranspose::default()
        };
        for wild in [false, true] {
            check(&mut rng, &op(2, 0, 1), &[64, 8, 8], &[64, 32, 2, 2], wild);
            check(&mut rng, &op(2, 1, 1), &[16, 30, 34], &[16, 24, 4, 4], wild);
            check(&mut rng, &op(2, 1, 8), &[8, 17, 15], &[8, 1, 4, 4], wild);
            check(&mut rng, &op(1, 0, 1), &[600, 1, 1], &[600, 10, 4, 4], wild);
            check(&mut rng, &op(2, 0, 1), &[4, 80, 90], &[4, 5, 3, 3], wild);
            check(&mut rng, &op(1, 0, 1), &[40, 7, 7], &[40, 30, 1, 1], wild);
            check(&mut rng, &op(1, 0, 2), &[6, 5, 4], &[6, 3, 1, 1], wild);
        }
    }

    #[test]
    fn no_samples() {
        let plan = SpreadPlan::new(&ConvTranspose::default(), &[0, 2, 5], &[2, 3, 2]).unwrap();
        let (x, w, epilogue) = (&[], &[1.0; 12], Steps::default());
        conv_transpose(&plan, ConvOperands { x, w, bias: None, epilogue }, &mut []);
        assert_eq!(plan.sample(), 18);
    }
}
