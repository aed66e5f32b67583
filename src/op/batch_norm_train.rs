//! Batch normalisation by statistics of the batch itself.

use super::batch_norm::{check_channels, whole_channels};
use super::infer::{exactly, results};
use super::numeric::setting_in;
use super::prelude::*;
use super::wide::{LargeSum, Wide};
use super::{BatchNormGrad, Statistics, converted};

op! {
    /// `(x - mean) / sqrt(var + epsilon) * scale + bias` of each channel of `x: [N, C, …]`, where
    /// `mean` and `var` are those of all elements of the channel, the variance divided by their
    /// number. Operands are `x`, `scale`, `bias` and the running mean and variance, `[C]` and of
    /// any floating-point type; further results are the new running mean and variance,
    /// `running * momentum + current * (1 - momentum)`.
    ///
    /// It is computed in `f64` and each result rounded once; reference evaluation sums the elements
    /// in row-major order, kernels in one that follows from the sizes. Where a channel has no
    /// elements, the running mean and variance stay.
    pub struct BatchNormTrain = "batch_norm_train" is CHEAP | FOLLOWS_BLOCKS {
        /// Epsilon, added to the variance.
        pub epsilon: f64 = 1e-5,
        /// Whether each replica is to normalise by the statistics of its own rows. On one device it
        /// changes nothing; replicas then give other results than one device, and the running mean
        /// and variance are the means of theirs, weighted by their rows.
        pub local: bool = false,
        /// The part of the running mean and variance that stays.
        pub momentum: f64 = 0.9,
    }
}

/// The sums of `terms` over the elements of each of `channels` channels, of `len` that lie in rows
/// of `width`: `terms(c, i)` is that of element `i`, which belongs to channel `c`.
pub(super) fn channel_sums(
    channels: usize,
    width: usize,
    len: usize,
    terms: impl Fn(usize, usize) -> f64,
) -> Vec<LargeSum> {
    let mut sums = vec![LargeSum::EMPTY; channels];
    for row in 0..len / width.max(1) {
        let c = row % channels;
        let own = row * width..(row + 1) * width;
        sums[c] = own.fold(sums[c], |sum, i| sum.with(terms(c, i)));
    }
    sums
}

/// The mean of each of `channels` channels, whose elements lie in rows of `width`, with what it
/// lacks for want of digits, and the sum of the squared distances from it.
pub(super) fn distances(x: &[f64], channels: usize, width: usize) -> Vec<([f64; 2], LargeSum)> {
    let count = (x.len() / channels.max(1)) as f64;
    let sums = channel_sums(channels, width, x.len(), |_, i| x[i]);
    let means: Vec<[f64; 2]> = sums.iter().map(|sum| sum.mean(count)).collect();
    let square = |c: usize, i: usize| (x[i] - means[c][0]) * (x[i] - means[c][0]);
    let squares = channel_sums(channels, width, x.len(), square);
    means.into_iter().zip(squares).collect()
}

/// The mean and the variance of each of `channels` channels, whose elements lie in rows of `width`.
pub(super) fn statistics(x: &[f64], channels: usize, width: usize) -> Vec<(f64, f64)> {
    let count = (x.len() / channels.max(1)) as f64;
    let of = distances(x, channels, width).into_iter();
    of.map(|([mean, _], squares)| (mean, squares.over(count))).collect()
}

/// The numbers, rounded to the type of a tensor, with its sizes.
pub(super) fn rounded(like: &Tensor, values: &[f64]) -> Result<Tensor, OpError> {
    converted(&Tensor::new(like.dims(), values)?, like.dtype())
}

impl OpDef for BatchNormTrain {
    fn is_running(&self, operand: usize) -> bool {
        operand >= 3
    }

    fn statistics(&self) -> Option<Statistics> {
        Some(if self.local { Statistics::OfReplica } else { Statistics::OfBatch })
    }

    fn with_statistics(&self, of: Statistics) -> Option<Op> {
        Some(Self { local: of == Statistics::OfReplica, ..self.clone() }.into())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        check_channels(operands)?;
        results([0, 3, 4].into_iter().filter_map(|i| operands.get(i)).map(|x| x.ty.clone()))
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        whole_channels(at, shard)?;
        if !self.local {
            return at.refuse(Code::BatchStatistics, "uses statistics of the whole batch");
        }
        let running = Claim::Partial(Combine::Mean);
        Ok([Claim::Shard(shard), running, running].into_iter().collect())
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, scale, bias, mean, var] = exactly(operands)?;
        let width: usize = x.dims().iter().skip(2).product();
        let channels = scale.len();
        let mut y = x.to_f64();
        let (mut means, mut vars) = (mean.to_f64(), var.to_f64());
        if !y.is_empty() {
            let current = statistics(&y, channels, width);
            let epsilon = setting_in(self.epsilon, x.dtype());
            let (scale, bias) = (scale.to_f64(), bias.to_f64());
            for (i, row) in y.chunks_exact_mut(width).enumerate() {
                let c = i % channels;
                let (mean, var) = current[c];
                let deviation = (var + epsilon).sqrt();
                for x in row {
                    *x = (*x - mean) / deviation * scale[c] + bias[c];
                }
            }
            let stays = setting_in(self.momentum, mean.dtype());
            for (c, (mean, var)) in current.into_iter().enumerate() {
                means[c] = means[c] * stays + mean * (1.0 - stays);
                vars[c] = vars[c] * stays + var * (1.0 - stays);
            }
        }
        Ok(vec![rounded(x, &y)?, rounded(mean, &means)?, rounded(var, &vars)?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        if at.gradient(1).is_some() || at.gradient(2).is_some() {
            return Err(RuleError::Undefined("its running statistics are used"));
        }
        let (x, scale, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let rule = BatchNormGrad { epsilon: self.epsilon, local: self.local };
        let gradients = at.ops(rule, &[x, scale, dy])?;
        for (i, gradient) in gradients.into_iter().enumerate() {
            at.give(i, gradient)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::Op;
    use super::super::testing::{self, assert_close, indices, random, rng, tolerance};
    use super::BatchNormTrain;
    use crate::types::{DType, Tensor};

    fn op(epsilon: f64, momentum: f64) -> Op {
        BatchNormTrain { local: false, epsilon, momentum }.into()
    }

    #[test]
    fn values_by_the_definition() {
        let mut rng = rng(1);
        let shapes: [&[usize]; 5] =
            [&[2, 3], &[4, 3, 4], &[1, 2, 3, 2], &[3, 1, 1, 2, 2], &[5, 2, 1]];
        for i in 0..60 {
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
            // The statistics may be of another type.
            let of = if i % 3 == 0 { DType::F32 } else { dtype };
            let dims = shapes[i % 5];
            let x = random(&mut rng, dtype, dims);
            let [scale, bias, mean, var] = [(); 4].map(|()| random(&mut rng, of, &dims[1..2]));
            let (epsilon, momentum) = ([1e-5, 1e-2][i % 2], [0.9, 0.25, 1.0][i % 3]);
            let operands = [&x, &scale, &bias, &mean, &var];
            let y = testing::eval(&op(epsilon, momentum), &operands);
            let [x, scale, bias, mean, var] = operands.map(Tensor::to_f64);
            let all: Vec<(usize, f64)> =
                indices(dims).into_iter().zip(x).map(|(index, x)| (index[1], x)).collect();
            let moments: Vec<(f64, f64)> = (0..dims[1])
                .map(|c| {
                    let own: Vec<f64> =
                        all.iter().filter(|(of, _)| *of == c).map(|(_, x)| *x).collect();
                    let count = own.len() as f64;
                    let mean = own.iter().sum::<f64>() / count;
                    (mean, own.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count)
                })
                .collect();
            let expected: Vec<f64> = all
                .iter()
                .map(|(c, x)| {
                    let (mean, var) = moments[*c];
                    (x - mean) / (var + epsilon).sqrt() * scale[*c] + bias[*c]
                })
                .collect();
            assert_close(&y[0], &expected, tolerance(dtype));
            let stays = momentum;
            let next = |running: &[f64], current: &dyn Fn(usize) -> f64| {
                let all = running.iter().enumerate();
                all.map(|(c, x)| x * stays + current(c) * (1.0 - stays)).collect::<Vec<f64>>()
            };
            assert_close(&y[1], &next(&mean, &|c| moments[c].0), tolerance(of));
            assert_close(&y[2], &next(&var, &|c| moments[c].1), tolerance(of));
        }
    }
}
