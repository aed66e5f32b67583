//! Transposed convolution of `f32`, channels before spatial axes.
//!
//! For each sample and group the products of all elements with all taps, `[filters * taps, plane]`,
//! are the product of the transposed weights with the input as it is. The products under each tap,
//! taps in row-major order, are then added to the elements of the output that they reach. Where
//! there is one tap for each element they are the output.

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, ending_in_chain, of_f32};
use super::elementwise::Epilogue;
use super::gemm::{Matrix, MatrixMut, multiply};
use super::scratch;
use super::simd::vectorised;
use crate::backend::host::Unsuited;
use crate::lower::{Support, Types};
use crate::op::window::{WindowAxis, Windows, rows_of_tap};
use crate::op::{ConvTranspose, OpError};
use crate::types::KernelClass;
use crate::types::invariant::int;
use crate::types::{DType, Shape, TensorType};

/// The sizes of a transposed convolution, and how it is computed: a function of everything but the
/// batch size.
#[derive(Clone, Debug)]
pub(crate) struct SpreadPlan {
    axes: Windows,
    groups: usize,
    /// Input channels of a group.
    channels: usize,
    /// Output channels of a group.
    filters: usize,
    /// Elements of an input channel.
    plane: usize,
    /// Elements of an output channel.
    output: usize,
    taps: usize,
    /// Whether each product is an element of the output.
    pointwise: bool,
    /// The targets of the products of a channel, taps in row-major order.
    runs: Vec<Run>,
    /// The output channels whose products are computed in one go.
    block: usize,
}

/// Neighbouring products, and where the first of them is added.
#[derive(Clone, Debug)]
struct Run {
    from: usize,
    to: usize,
    len: usize,
}

/// The runs of a channel. Those of one tap meet different elements, so that runs which follow each
/// other are one.
fn runs(axes: &[WindowAxis], taps: usize, plane: usize) -> Vec<Run> {
    // Without axes there is one element.
    let step = axes.last().map_or(1, |a| a.stride);
    let mut all: Vec<Run> = Vec::new();
    for tap in 0..taps {
        let first = all.len();
        rows_of_tap(axes, tap, &mut |to, row| {
            let run = Run { from: tap * plane + row.start, to, len: row.len() };
            match all[first..].last_mut() {
                Some(last)
                    if last.from + last.len == run.from && last.to + last.len * step == run.to =>
                {
                    last.len += run.len;
                }
                _ => all.push(run),
            }
        });
    }
    all
}

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
        let (channels, filters) = (w[0] / groups, w[1]);
        let each = taps.saturating_mul(plane);
        let fitting = (PRODUCTS / each.max(1)).max(1);
        let worth = WORTH.div_ceil(each.saturating_mul(channels).max(1));
        let block = filters.min(fitting.min(worth.max(filters.div_ceil(8))));
        let runs = runs(&axes, taps, plane);
        let pointwise = axes
            .iter()
            .all(|a| a.kernel == 1 && a.stride == 1 && a.before == 0 && a.output == a.input);
        Ok(Self { axes, groups, channels, filters, plane, output, taps, pointwise, runs, block })
    }

    /// The number of floats of an output sample.
    pub(crate) fn sample(&self) -> usize {
        self.groups * self.filters * self.output
    }

    /// Adds to an output channel the products of an input plane with each tap.
    fn gather(&self, products: &[f32], y: &mut [f32]) {
        // Without axes there is one element.
        let step = self.axes.last().map_or(1, |a| a.stride);
        if step > 1 {
            for Run { from, to, len } in &self.runs {
                let products = &products[*from..][..*len];
                for (y, x) in y[*to..].iter_mut().step_by(step).zip(products) {
                    *y += x;
                }
            }
            return;
        }
        vectorised!(for Run { from, to, len } in &self.runs {
            let products = &products[*from..][..*len];
            for (y, x) in y[*to..][..*len].iter_mut().zip(products) {
                *y += x;
            }
        });
    }
}

/// `y = epilogue(conv_transpose(x, w) + bias)`, for as many samples as `y` has.
///
/// `x` is `[N, channels, spatial…]`, `w` `[channels, filters / groups, kernel…]`, `bias`
/// `[filters]` and `y` `[N, filters, spatial…]`, as in the plan.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn conv_transpose(
    plan: &SpreadPlan,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    epilogue: &Epilogue<'_>,
) {
    let SpreadPlan { groups, channels, filters, plane, output, taps, block, .. } = *plan;
    if y.is_empty() || plan.sample() == 0 {
        return;
    }
    let batch = y.len() / plan.sample();
    let (inputs, weights) = (channels * plane, channels * filters * taps);
    assert_eq!(
        (y.len(), x.len()),
        (batch * plan.sample(), batch * groups * inputs),
        "samples of {plan:?}"
    );
    assert_eq!(w.len(), groups * weights, "weights of {plan:?}");
    assert!(bias.is_none_or(|b| b.len() == groups * filters), "bias of {plan:?}");
    y.par_chunks_mut(filters * output).enumerate().for_each(|(i, y)| {
        let group = i % groups;
        let x = Matrix::contiguous(&x[i * inputs..][..inputs], channels, plane);
        let w = Matrix::contiguous(&w[group * weights..][..weights], channels, filters * taps);
        let w = w.transposed();
        y.par_chunks_mut(block * output).enumerate().for_each(|(j, y)| {
            let first = j * block;
            let rows = first * taps..first * taps + y.len() / output * taps;
            let w = w.block(rows.clone(), 0..channels);
            let end = |filter: usize, y: &mut [f32]| {
                if let Some(bias) = bias {
                    let bias = bias[group * filters + filter];
                    vectorised!(for y in y.iter_mut() {
                        *y += bias;
                    });
                }
                epilogue.apply(y, (i * filters + filter) * output);
            };
            if plan.pointwise {
                multiply(w, x, MatrixMut::new(y, rows.len(), plane, plane), false);
                for (filter, y) in (first..).zip(y.chunks_exact_mut(output)) {
                    end(filter, y);
                }
                return;
            }
            scratch::own(rows.len() * plane, |products| {
                let to = MatrixMut::new(products, rows.len(), plane, plane);
                multiply(w, x, to, false);
                let parts = products.chunks_exact(taps * plane);
                for (filter, (y, products)) in (first..).zip(y.chunks_exact_mut(output).zip(parts))
                {
                    y.fill(0.0);
                    plan.gather(products, y);
                    end(filter, y);
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
        conv_transpose(self, x, w, bias.first().copied(), y, chain);
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

    use super::{SpreadPlan, conv_transpose};
    use crate::backend::cpu::elementwise::Epilogue;
    use crate::backend::cpu::testing::{
        assert_bits, assert_close, in_pools, misaligned, random, rng,
    };
    use crate::lower::{Access, Chain, ChainStep};
    use crate::op::{Binary, ConvTranspose, OpDef, Unary};
    use crate::types::Tensor;

    /// Evaluates one for five samples in every way that must give the same bits, and against the
    /// reference.
    fn check(rng: &mut ChaCha8Rng, op: &ConvTranspose, x: &[usize], w: &[usize]) {
        const BATCH: usize = 5;
        let x_dims = [&[BATCH], x].concat();
        let plan = SpreadPlan::new(op, &x_dims, w).unwrap();
        let data = random(rng, x_dims.iter().product());
        let weights = random(rng, w.iter().product());
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
            conv_transpose(&plan, x, w, bias, &mut y, &epilogue);
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
        assert_close(&y, &expected, &what);
    }

    #[test]
    fn random_settings() {
        let mut rng = rng(1);
        for _ in 0..80 {
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
            check(&mut rng, &op, &x, &w);
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
        check(&mut rng, &op(2, 0, 1), &[64, 8, 8], &[64, 32, 2, 2]);
        check(&mut rng, &op(2, 1, 1), &[16, 30, 34], &[16, 24, 4, 4]);
        check(&mut rng, &op(2, 1, 8), &[8, 17, 15], &[8, 1, 4, 4]);
        check(&mut rng, &op(1, 0, 1), &[600, 1, 1], &[600, 10, 4, 4]);
        check(&mut rng, &op(2, 0, 1), &[4, 80, 90], &[4, 5, 3, 3]);
        check(&mut rng, &op(1, 0, 1), &[40, 7, 7], &[40, 30, 1, 1]);
        check(&mut rng, &op(1, 0, 2), &[6, 5, 4], &[6, 3, 1, 1]);
    }

    #[test]
    fn no_samples() {
        let plan = SpreadPlan::new(&ConvTranspose::default(), &[0, 2, 5], &[2, 3, 2]).unwrap();
        conv_transpose(&plan, &[], &[1.0; 12], None, &mut [], &Epilogue::default());
        assert_eq!(plan.sample(), 18);
    }
}
