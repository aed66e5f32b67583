//! Batch normalisation by statistics of the batch, and its gradients, for `f32`.
//!
//! Each channel is computed by one task, in `f64`, so that its elements stay in the cache from pass
//! to pass. The terms of a sum are dealt to lanes by their places in a row, and the lanes added up
//! at the end: an order that the sizes fix. Each result is rounded once.

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use super::simd::vectorised;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::{BatchNormGrad, BatchNormTrain, setting_in};
use crate::types::{DType, KernelClass};

/// The sums kept apart in a sum.
const LANES: usize = 32;

/// Elements for which a task is worth its cost.
const WORTH: usize = 1 << 14;

/// The channels of a batch: `[N, channels, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelSizes {
    /// The number of channels.
    pub channels: usize,
    /// The elements of a channel of a sample.
    pub width: usize,
}

impl ChannelSizes {
    /// The sizes of an operand with these, none 0; `None` where there is no channel axis.
    pub(crate) fn new(dims: &[usize]) -> Option<Self> {
        let [_, channels, behind @ ..] = dims else { return None };
        Some(Self { channels: *channels, width: behind.iter().product() })
    }

    /// The rows of a channel, one of each sample.
    pub(super) fn rows(self, x: &[f32], channel: usize) -> impl Iterator<Item = &[f32]> + Clone {
        x.chunks_exact(self.width).skip(channel).step_by(self.channels)
    }

    /// The rows of every channel.
    pub(super) fn by_channel(self, y: &mut [f32]) -> Vec<Vec<&mut [f32]>> {
        let samples = y.len() / (self.channels * self.width);
        let mut all: Vec<Vec<&mut [f32]>> =
            (0..self.channels).map(|_| Vec::with_capacity(samples)).collect();
        for (i, row) in y.chunks_exact_mut(self.width).enumerate() {
            all[i % self.channels].push(row);
        }
        all
    }

    /// Channels for a task.
    pub(super) fn each(self, len: usize) -> usize {
        (WORTH * self.channels / len.max(1)).max(1)
    }
}

/// The sum of a function of the elements of some rows.
#[inline]
fn sum<'a>(rows: impl Iterator<Item = &'a [f32]>, f: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    vectorised!(for row in rows {
        let (whole, rest) = row.as_chunks::<LANES>();
        for row in whole {
            for (lane, x) in lanes.iter_mut().zip(row) {
                *lane += f(f64::from(*x));
            }
        }
        for (lane, x) in lanes.iter_mut().zip(rest) {
            *lane += f(f64::from(*x));
        }
    });
    lanes.iter().sum()
}

/// The mean of the elements of some rows, `count` in all, and the sum of the squared distances from
/// it.
pub(super) fn distances<'a>(
    rows: &(impl Iterator<Item = &'a [f32]> + Clone),
    count: f64,
) -> (f64, f64) {
    let mean = sum(rows.clone(), |x| x) / count;
    (mean, sum(rows.clone(), |x| (x - mean) * (x - mean)))
}

/// The mean and the variance of the elements of some rows, `count` in all.
fn statistics<'a>(rows: &(impl Iterator<Item = &'a [f32]> + Clone), count: f64) -> (f64, f64) {
    let (mean, squares) = distances(rows, count);
    (mean, squares / count)
}

/// Writes `(x - mean) * factor + bias` of the elements of some rows.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
pub(super) fn normalise<'a>(
    rows: impl Iterator<Item = &'a [f32]>,
    to: Vec<&mut [f32]>,
    mean: f64,
    [factor, bias]: [f64; 2],
) {
    vectorised!(for (x, y) in rows.zip(to) {
        for (x, y) in x.iter().zip(y) {
            *y = ((f64::from(*x) - mean) * factor + bias) as f32;
        }
    });
}

/// Writes the gradients `factor * (dy - shift - normal(x) * slope)` of the elements of some rows.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
pub(super) fn differentiate<'a>(
    rows: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    to: Vec<&mut [f32]>,
    normal: impl Fn(f32) -> f64,
    [factor, shift, slope]: [f64; 3],
) {
    vectorised!(for ((x, dy), dx) in rows.zip(to) {
        for ((x, dy), dx) in x.iter().zip(dy).zip(dx) {
            *dx = (factor * (f64::from(*dy) - shift - normal(*x) * slope)) as f32;
        }
    });
}

/// The operands of [`batch_norm_train`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Normalised<'a> {
    /// The operand, `[N, channels, width]`.
    pub x: &'a [f32],
    /// A factor for each channel.
    pub scale: &'a [f32],
    /// The value added to each channel.
    pub bias: &'a [f32],
    /// The running means.
    pub mean: &'a [f32],
    /// The running variances.
    pub var: &'a [f32],
}

/// The normalised elements, and the new running means and variances.
///
/// # Panics
/// If a slice has not the size that the others and `sizes` say: a bug in the caller.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
pub(crate) fn batch_norm_train(
    op: &BatchNormTrain,
    sizes: ChannelSizes,
    operands: Normalised<'_>,
    [y, mean, var]: [&mut [f32]; 3],
) {
    let Normalised { x, scale, bias, .. } = operands;
    assert_eq!(x.len(), y.len(), "elements");
    let count = (x.len() / sizes.channels) as f64;
    let [epsilon, stays] = [op.epsilon, op.momentum].map(|x| setting_in(x, DType::F32));
    let channels = sizes.by_channel(y).into_par_iter().zip(mean.par_iter_mut().zip(var));
    channels.with_min_len(sizes.each(x.len())).enumerate().each(|(c, (y, (mean, var)))| {
        let rows = sizes.rows(x, c);
        let own = statistics(&rows, count);
        let factor = f64::from(scale[c]) / (own.1 + epsilon).sqrt();
        normalise(rows, y, own.0, [factor, f64::from(bias[c])]);
        let next =
            |running: f32, own: f64| (f64::from(running) * stays + own * (1.0 - stays)) as f32;
        *mean = next(operands.mean[c], own.0);
        *var = next(operands.var[c], own.1);
    });
}

/// The operands of the gradients.
#[derive(Clone, Copy)]
pub(crate) struct Differentiated<'a> {
    /// The operand of the normalisation.
    pub x: &'a [f32],
    /// The scales.
    pub scale: &'a [f32],
    /// The gradient of the normalised elements.
    pub dy: &'a [f32],
}

/// The gradients of the operand, of the scales and of what is added, from `dy`, that of the
/// normalised elements.
///
/// # Panics
/// If a slice has not the size that the others and `sizes` say: a bug in the caller.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
pub(crate) fn batch_norm_grad(
    op: &BatchNormGrad,
    sizes: ChannelSizes,
    Differentiated { x, scale, dy }: Differentiated<'_>,
    [dx, dscale, dbias]: [&mut [f32]; 3],
) {
    assert_eq!((x.len(), x.len()), (dy.len(), dx.len()), "elements");
    let count = (x.len() / sizes.channels) as f64;
    let epsilon = setting_in(op.epsilon, DType::F32);
    let channels = sizes.by_channel(dx).into_par_iter().zip(dscale.par_iter_mut().zip(dbias));
    channels.with_min_len(sizes.each(x.len())).enumerate().each(|(c, (dx, (dscale, dbias)))| {
        let (x, dy) = (sizes.rows(x, c), sizes.rows(dy, c));
        let (mean, var) = statistics(&x, count);
        let inverse = 1.0 / (var + epsilon).sqrt();
        let normal = |x: f32| (f64::from(x) - mean) * inverse;
        let (by_scale, by_bias) = sums(x.clone().zip(dy.clone()), |x, dy| dy * normal(x));
        let factor = f64::from(scale[c]) * inverse;
        let (slope, shift) = (by_scale / count, by_bias / count);
        differentiate(x.zip(dy), dx, normal, [factor, shift, slope]);
        (*dscale, *dbias) = (by_scale as f32, by_bias as f32);
    });
}

/// The sums of a function of pairs of elements and of the second ones.
#[inline]
pub(super) fn sums<'a>(
    rows: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    f: impl Fn(f32, f64) -> f64,
) -> (f64, f64) {
    const LANES: usize = 16;
    let mut lanes = [[0.0; LANES]; 2];
    vectorised!({
        let [products, seconds] = &mut lanes;
        for (x, dy) in rows {
            let ((whole, rest), (own, others)) = (x.as_chunks::<LANES>(), dy.as_chunks::<LANES>());
            let whole = whole.iter().map(<[f32; LANES]>::as_slice).zip(own);
            for (x, dy) in whole.map(|(x, dy)| (x, dy.as_slice())).chain([(rest, others)]) {
                let sums = products.iter_mut().zip(seconds.iter_mut());
                for ((product, second), (x, dy)) in sums.zip(x.iter().zip(dy)) {
                    let dy = f64::from(*dy);
                    *product += f(*x, dy);
                    *second += dy;
                }
            }
        }
    });
    (lanes[0].iter().sum(), lanes[1].iter().sum())
}

/// A normalisation by statistics of the batch.
#[derive(Debug)]
struct TrainPlan(BatchNormTrain, ChannelSizes);

/// Its gradients.
#[derive(Debug)]
struct GradPlan(BatchNormGrad, ChannelSizes);

impl CpuKernel for TrainPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, scale, bias, mean, var], [y, means, vars]) = (operands, results) else {
            return Err(Unsuited);
        };
        let operands = Normalised { x, scale, bias, mean, var };
        batch_norm_train(&self.0, self.1, operands, [y, means, vars]);
        Ok(())
    }
}

impl CpuKernel for GradPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, scale, dy], [dx, dscale, dbias]) = (operands, results) else {
            return Err(Unsuited);
        };
        batch_norm_grad(&self.0, self.1, Differentiated { x, scale, dy }, [dx, dscale, dbias]);
        Ok(())
    }
}

impl CpuOp for BatchNormTrain {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Training, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(TrainPlan(self.clone(), ChannelSizes::new(at.operands.first()?)?)))
    }
}

impl CpuOp for BatchNormGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Training, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(GradPlan(self.clone(), ChannelSizes::new(at.operands.first()?)?)))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{ChannelSizes, Differentiated, Normalised, batch_norm_grad, batch_norm_train};
    use crate::backend::cpu::testing::{assert_close, in_pools, misaligned, random, rng};
    use crate::op::{BatchNormGrad, BatchNormTrain, OpDef};
    use crate::types::Tensor;

    fn cut(all: &mut [f32], channels: usize) -> [&mut [f32]; 3] {
        let (y, rest) = all.split_at_mut(all.len() - 2 * channels);
        let (a, b) = rest.split_at_mut(channels);
        [y, a, b]
    }

    #[test]
    fn normalised_as_the_operators_do() {
        let mut rng = rng(1);
        for case in 0..60 {
            let channels = rng.random_range(1..7usize);
            let mut dims = vec![rng.random_range(1..9usize), channels];
            let wide = if case % 4 == 0 { 40 } else { 9 };
            dims.extend((0..case % 3).map(|_| rng.random_range(1..wide)));
            let shift = if case % 5 == 0 { 1000.0 } else { 0.0 };
            let x: Vec<f32> = random(&mut rng, dims.iter().product());
            let x: Vec<f32> = x.into_iter().map(|x| x + shift).collect();
            let dy = random(&mut rng, x.len());
            let [scale, bias, mean, var] = [(); 4].map(|()| random(&mut rng, channels));
            let sizes = ChannelSizes::new(&dims).unwrap();
            let what = format!("{dims:?}");
            let tensor = |dims: &[usize], data: &[f32]| Tensor::new(dims, data).unwrap();
            let vectors = [&scale, &bias, &mean, &var].map(|v| tensor(&[channels], v));
            let (x_tensor, dy_tensor) = (tensor(&dims, &x), tensor(&dims, &dy));
            let (x, dy) = (misaligned(&x), misaligned(&dy));
            let (x, dy) = (&x[1..], &dy[1..]);
            let check = |got: &[f32], expected: &[Tensor]| {
                let mut at = 0;
                for expected in expected {
                    let own = &got[at..at + expected.len()];
                    assert_close(own, expected.as_slice(), &what);
                    at += expected.len();
                }
                assert_eq!(at, got.len());
            };
            let op = BatchNormTrain { epsilon: 1e-3, local: false, momentum: 0.9 };
            let got = in_pools(|| {
                let mut all = vec![f32::NAN; x.len() + 2 * channels];
                let operands = Normalised { x, scale: &scale, bias: &bias, mean: &mean, var: &var };
                batch_norm_train(&op, sizes, operands, cut(&mut all, channels));
                all
            });
            let operands: Vec<&Tensor> = std::iter::once(&x_tensor).chain(&vectors).collect();
            check(&got, &op.eval(&operands).unwrap());
            let op = BatchNormGrad { epsilon: 1e-3, local: false };
            let got = in_pools(|| {
                let mut all = vec![f32::NAN; x.len() + 2 * channels];
                let operands = Differentiated { x, scale: &scale, dy };
                batch_norm_grad(&op, sizes, operands, cut(&mut all, channels));
                all
            });
            check(&got, &op.eval(&[&x_tensor, &vectors[0], &dy_tensor]).unwrap());
        }
    }

    #[test]
    fn a_channel_axis_is_needed() {
        assert_eq!(ChannelSizes::new(&[3]), None);
        assert_eq!(ChannelSizes::new(&[3, 2]), Some(ChannelSizes { channels: 2, width: 1 }));
    }
}
