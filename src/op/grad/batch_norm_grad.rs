//! The gradients of batch normalisation by statistics of the batch itself.

use smallvec::smallvec;

use super::batch_norm_sums::{check_gradient, rows_of_both};
use crate::op::Statistics;
use crate::op::batch_norm::check_scales;
use crate::op::batch_norm_train::{channel_sums, rounded, statistics};
use crate::op::infer::{count, exactly, results};
use crate::op::numeric::setting_in;
use crate::op::prelude::*;
use crate::op::wide::{LargeSum, Wide};

op! {
    /// The gradients of `x`, `scale` and `bias` of `batch_norm_train`, from `x: [N, C, …]`,
    /// `scale: [C]` and the gradient of its first result. With
    /// `v = (x - mean) / sqrt(var + epsilon)` of the channel that of `x` is
    /// `scale / sqrt(var + epsilon) * (dy - mean of dy - v * mean of dy * v)`, that of the scale
    /// the sum of `dy * v`, that of the bias the sum of `dy`.
    pub struct BatchNormGrad = "batch_norm_train_grad" is NONE {
        /// Epsilon, added to the variance.
        pub epsilon: f64 = 1e-5,
        /// Whether each replica normalised by the statistics of its own rows.
        pub local: bool = false,
    }
}

/// The sums of `terms` over the elements of each channel.
fn sums(
    channels: usize,
    width: usize,
    len: usize,
    terms: impl Fn(usize, usize) -> f64,
) -> Vec<f64> {
    channel_sums(channels, width, len, terms).into_iter().map(LargeSum::value).collect()
}

impl OpDef for BatchNormGrad {
    fn statistics(&self) -> Option<Statistics> {
        Some(if self.local { Statistics::OfReplica } else { Statistics::OfBatch })
    }

    fn with_statistics(&self, of: Statistics) -> Option<Op> {
        Some(Self { local: of == Statistics::OfReplica, ..self.clone() }.into())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 3, 3, "3")?;
        check_scales(&operands[..2])?;
        check_gradient(operands, 2)?;
        let (x, scale) = (operands[0].ty, operands[1].ty);
        results([x.clone(), scale.clone(), scale.clone()])
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        at.expect_whole(1, Code::WindowAxis, "scales channels by samples of the batch")?;
        let shard = rows_of_both(at, 2)?;
        if !self.local {
            return at.refuse(Code::BatchStatistics, "uses statistics of the whole batch");
        }
        // Each replica has its own statistics; the gradients of scale and bias are sums over its
        // rows.
        let sum = Claim::Partial(Combine::Sum);
        Ok(smallvec![Claim::Shard(shard), sum, sum])
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, scale, dy] = exactly(operands)?;
        let (channels, width) = (scale.len(), x.dims().iter().skip(2).product::<usize>());
        let (mut v, dy, factors) = (x.to_f64(), dy.to_f64(), scale.to_f64());
        let (mut dscale, mut dbias) = (vec![0.0; channels], vec![0.0; channels]);
        if !v.is_empty() {
            let count = (v.len() / channels) as f64;
            let epsilon = setting_in(self.epsilon, x.dtype());
            let current = statistics(&v, channels, width).into_iter();
            let (mean, deviation): (Vec<f64>, Vec<f64>) =
                current.map(|(mean, variance)| (mean, (variance + epsilon).sqrt())).unzip();
            for (i, row) in v.chunks_exact_mut(width).enumerate() {
                let c = i % channels;
                for x in row {
                    *x = (*x - mean[c]) / deviation[c];
                }
            }
            dscale = sums(channels, width, v.len(), |_, i| dy[i] * v[i]);
            dbias = sums(channels, width, v.len(), |_, i| dy[i]);
            for (i, (row, dy)) in v.chunks_exact_mut(width).zip(dy.chunks_exact(width)).enumerate()
            {
                let c = i % channels;
                let factor = factors[c] / deviation[c];
                for (v, dy) in row.iter_mut().zip(dy) {
                    *v = factor * (dy - dbias[c] / count - *v * dscale[c] / count);
                }
            }
        }
        Ok(vec![rounded(x, &v)?, rounded(scale, &dscale)?, rounded(scale, &dbias)?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a gradient itself")
    }
}
