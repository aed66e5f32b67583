//! Normalisation of each sample's channels: `group_norm`, `instance_norm`.

#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

use super::element::{Float, for_float};
use super::gradient::Normal;
use super::infer::{dtype, equal, exactly, result, same_dtype, sizes_of};
use super::prelude::*;
use super::real::Real;
use super::rows;

family! {
    /// `(x - mean) / sqrt(variance + epsilon) * scale + bias` with the statistics of some channels
    /// of one sample: the operands are `x: [N, C, …]`, `scale: [C]` and `bias: [C]`.
    ///
    /// Floats are computed in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`, and rounded
    /// once; sums are taken in an order that their number of elements fixes.
    pub enum GroupNorm is CHEAP | FOLLOWS_BLOCKS with [
        /// Epsilon, added to the variance.
        epsilon: f64 = 1e-5,
    ] {
        /// The statistics are those of `C / groups` consecutive channels.
        Group = "group_norm" {
            /// The number of groups, which divides the number of channels.
            groups: i64,
        },
        /// The statistics are those of one channel.
        Instance = "instance_norm",
    }
}

/// The sizes of a normalisation of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupSizes {
    /// Channels that share statistics.
    pub channels: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Elements of a channel.
    pub inner: usize,
}

impl GroupNorm {
    /// The sizes for an operand with these sizes, which the operator admits.
    pub(crate) fn sizes(&self, dims: &[usize]) -> Option<GroupSizes> {
        let [_, all, spatial @ ..] = dims else { return None };
        let groups = match *self {
            Self::Group { groups, .. } => usize::try_from(groups).ok()?,
            Self::Instance { .. } => *all,
        };
        let channels = all.checked_div(groups)?;
        Some(GroupSizes { channels, groups, inner: spatial.iter().product() })
    }

    /// Normalises the channels `x` of one group, `inner > 0` elements each; `scale` and `bias` have
    /// an element for each of them.
    #[inline(always)]
    pub(crate) fn group<F: Float>(
        &self,
        x: &[F],
        y: &mut [F],
        scale: &[F],
        bias: &[F],
        inner: usize,
    ) {
        let (mean, factor) = rows::moments(x, F::Real::of(*self.common().0));
        let channels = x.chunks_exact(inner).zip(y.chunks_exact_mut(inner));
        for ((x, y), (scale, bias)) in channels.zip(scale.iter().zip(bias)) {
            let (scale, bias) = (scale.real(), bias.real());
            for (y, x) in y.iter_mut().zip(x) {
                *y = F::round((x.real() - mean) * factor * scale + bias);
            }
        }
    }

    fn all<F: Float>(&self, sizes: GroupSizes, operands: [&Tensor; 3], y: &mut Tensor) {
        let [x, scale, bias] = operands.map(Tensor::as_slice::<F>);
        let GroupSizes { channels, groups, inner } = sizes;
        let size = channels * inner;
        let blocks = x.chunks_exact(size).zip(y.as_mut_slice::<F>().chunks_exact_mut(size));
        for (i, (x, y)) in blocks.enumerate() {
            // Groups follow one another within each sample.
            let from = i % groups * channels;
            let own = from..from + channels;
            self.group(x, y, &scale[own.clone()], &bias[own], inner);
        }
    }
}

impl OpDef for GroupNorm {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x, _, _] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        same_dtype(operands)?;
        let Some(channels) = x.ty.shape.get(1) else {
            return Err(OpError::shape(0, x.ty, "it must have a batch axis and a channel axis"));
        };
        if let Self::Group { groups, .. } = *self {
            let fits =
                groups > 0 && channels.as_const().is_some_and(|c| c.checked_rem(groups) == Some(0));
            if !fits {
                let reason = format!("{groups} groups do not divide {channels} channels");
                return Err(OpError::attr("groups", reason));
            }
        }
        for i in 1..3 {
            let [size] = sizes_of(operands, i, "it must have one axis")?;
            equal("channels and the elements of scale or bias", channels, size)?;
        }
        result(x.ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let across = "takes its statistics over the samples of the batch";
        // The statistics are those of a group of channels of one sample.
        if at.carrier() > 0 || shard.axis > 0 {
            return at.refuse(Code::BatchStatistics, across);
        }
        for i in 1..at.operands.len() {
            at.expect_whole(i, Code::BatchStatistics, across)?;
        }
        at.keep(shard)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let all: [&Tensor; 3] = exactly(operands)?;
        let x = all[0];
        let mut y = Tensor::zeros(x.dtype(), x.dims())?;
        let Some(sizes) = self.sizes(x.dims()).filter(|_| !x.is_empty()) else {
            return Ok(vec![y]);
        };
        for_float!(x.dtype(), F => self.all::<F>(sizes, all, &mut y));
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, scale, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let shape = at.shape(x);
        let channels = shape[1].clone();
        let (groups, epsilon) = match *self {
            Self::Group { epsilon, groups } => (Dim::from(groups), epsilon),
            Self::Instance { epsilon } => (channels.clone(), epsilon),
        };
        let each = channels.exact_div(&groups).unwrap_or(channels);
        let behind = shape.iter().skip(2).fold(each, |n, d| n * d.clone());
        // A group of a sample is a line: the gradient is that of a layer normalisation of lines,
        // with the scale, which belongs to the channel, applied before.
        let lines: Shape = [shape[0].clone(), groups, behind].into_iter().collect();
        let grouped = at.reshape(x, &lines)?;
        let normal = Normal::new(at, grouped, &[2], true, epsilon)?;
        if at.wants(1) {
            let value = at.reshape(normal.value, &shape)?;
            let scaled = at.mul(dy, value)?;
            let sums = at.channel_sums(scaled)?;
            at.give(1, sums)?;
        }
        if at.wants(2) {
            let sums = at.channel_sums(dy)?;
            at.give(2, sums)?;
        }
        if at.wants(0) {
            let scale = at.channels(scale, x)?;
            let inner = at.mul(dy, scale)?;
            let inner = at.reshape(inner, &lines)?;
            let dx = normal.gradient(at, inner)?;
            let dx = at.reshape(dx, &shape)?;
            at.give(0, dx)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::many_single_char_names, reason = "the letters of the formulas")]
mod tests {
    use rand::Rng;

    use super::super::testing::{assert_close, eval, random, rng, tensor, tolerance};

    use super::GroupNorm;
    use crate::types::DType;

    #[test]
    fn values_follow_the_formula() {
        let mut rng = rng(1);
        for round in 0..100 {
            let dtype = [DType::F64, DType::F32, DType::F16, DType::Bf16][round % 4];
            let (groups, own) = (rng.random_range(1..4), rng.random_range(1..4));
            let channels = groups * own;
            let mut dims = vec![rng.random_range(1..4), channels];
            dims.extend((0..rng.random_range(0..3)).map(|_| rng.random_range(1..6)));
            let inner: usize = dims[2..].iter().product();
            let x = random(&mut rng, dtype, &dims);
            let scale = random(&mut rng, dtype, &[channels]);
            let bias = random(&mut rng, dtype, &[channels]);
            let op = if own == 1 && round % 8 < 4 {
                GroupNorm::Instance { epsilon: 0.5 }
            } else {
                GroupNorm::Group { epsilon: 0.5, groups: i64::try_from(groups).unwrap() }
            };
            let (s, b) = (scale.to_f64(), bias.to_f64());
            let mut expected = Vec::new();
            for (i, group) in x.to_f64().chunks(own * inner).enumerate() {
                let n = group.len() as f64;
                let mean = group.iter().sum::<f64>() / n;
                let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                for (j, x) in group.iter().enumerate() {
                    let c = i % groups * own + j / inner;
                    expected.push((x - mean) / (variance + 0.5).sqrt() * s[c] + b[c]);
                }
            }
            let near = tolerance(dtype).max(1e-5);
            assert_close(&eval(&op.into(), &[&x, &scale, &bias])[0], &expected, near);
        }
        let empty = tensor(DType::F32, &[2, 4, 0], &[]);
        let vector = tensor(DType::F32, &[4], &[1.0; 4]);
        let op = GroupNorm::Group { epsilon: 0.5, groups: 2 };
        assert!(eval(&op.into(), &[&empty, &vector, &vector])[0].is_empty());
    }
}
