//! Batch normalisation by given statistics.

use super::infer::{at_least, count, dtype, equal, exactly, result, sizes_of};
use super::numeric::{Wide, narrow, setting_in, widen};
use super::prelude::*;

op! {
    /// `(x - mean) / sqrt(var + epsilon) * scale + bias` of each channel of `x: [N, C, …]`, with
    /// operands `scale`, `bias`, `mean` and `var` of shape `[C]` and any floating-point type.
    ///
    /// It is computed as `x * s + t` with the factors of `BatchNorm::scale_shift`, rounded after
    /// the product; `f16` and `bf16` in `f32`.
    pub struct BatchNorm = "batch_norm" is CHEAP | FOLLOWS_BLOCKS | READS_ONCE {
        /// Epsilon, added to the variance.
        pub epsilon: f64 = 1e-5,
        /// The part of the mean and variance that a step of training keeps; it changes nothing
        /// else.
        pub momentum: f64 = 0.99,
    }
}

impl Default for BatchNorm {
    fn default() -> Self {
        Self { epsilon: 1e-5, momentum: 0.99 }
    }
}

impl BatchNorm {
    /// The factor `s = scale / sqrt(var + epsilon)` and the summand `t = bias - mean * s` of each
    /// channel, computed in `f64` and rounded once.
    ///
    /// If the lists differ in length, only the channels that all of them have.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
    pub(crate) fn scale_shift(
        scale: &[f32],
        bias: &[f32],
        mean: &[f32],
        var: &[f32],
        epsilon: f64,
    ) -> (Vec<f32>, Vec<f32>) {
        let epsilon = setting_in(epsilon, DType::F32);
        let statistics = mean.iter().zip(var);
        let channels = scale.iter().zip(bias).zip(statistics);
        channels
            .map(|((scale, bias), (mean, var))| {
                let [scale, bias, mean, var] = [scale, bias, mean, var].map(|x| f64::from(*x));
                let (s, t) = factors(scale, bias, mean, var, epsilon);
                (s as f32, t as f32)
            })
            .unzip()
    }

    /// The factors of [`BatchNorm::scale_shift`] for an operand of type `dtype`, in the type in
    /// which that is computed, of `scale`, `bias`, `mean` and `var`.
    pub(crate) fn factors(
        &self,
        dtype: DType,
        operands: [&Tensor; 4],
    ) -> Result<[Tensor; 2], OpError> {
        let [scale, bias, mean, var] = operands.map(Tensor::to_f64);
        let dims = &[scale.len()];
        if dtype == DType::F64 {
            let factor = |i: usize| factors(scale[i], bias[i], mean[i], var[i], self.epsilon);
            let (s, t): (Vec<f64>, Vec<f64>) = (0..scale.len()).map(factor).unzip();
            return Ok([Tensor::new(dims, &s)?, Tensor::new(dims, &t)?]);
        }
        let [scale, bias, mean, var] = [scale, bias, mean, var].map(|c| rounded(&c));
        let (s, t) = Self::scale_shift(&scale, &bias, &mean, &var, self.epsilon);
        Ok([Tensor::new(dims, &s)?, Tensor::new(dims, &t)?])
    }
}

fn factors(scale: f64, bias: f64, mean: f64, var: f64, epsilon: f64) -> (f64, f64) {
    let s = scale / (var + epsilon).sqrt();
    (s, bias - mean * s)
}

/// Fails unless the operands are floats: `x: [N, C, …]`, and four vectors with an element for each
/// channel.
pub(super) fn check_channels(operands: &[Operand<'_>]) -> Result<(), OpError> {
    count(operands, 5, 5, "5")?;
    check_scales(operands)
}

/// [`check_channels`] for any number of vectors.
pub(super) fn check_scales(operands: &[Operand<'_>]) -> Result<(), OpError> {
    for i in 0..operands.len() {
        dtype(operands, i, DType::is_float, "a float")?;
    }
    let ([x], _) = at_least(operands)?;
    if x.ty.rank() < 2 {
        return Err(OpError::shape(0, x.ty, "it must have a batch axis and a channel axis"));
    }
    for i in 1..operands.len() {
        let [size] = sizes_of(operands, i, "it must have one axis")?;
        equal("channels", size, &x.ty.shape[1])?;
    }
    Ok(())
}

/// Fails where the batch is the channels that are normalised, or a vector of numbers for them.
pub(super) fn whole_channels(at: &Splitting<'_>, shard: Shard) -> Result<(), Refusal> {
    for i in 1..at.operands.len() {
        at.expect_whole(i, Code::WindowAxis, "scales channels by samples of the batch")?;
    }
    apart_from_channels(at, shard)
}

/// Fails where the batch is the channels that are normalised.
pub(super) fn apart_from_channels(at: &Splitting<'_>, shard: Shard) -> Result<(), Refusal> {
    if shard.axis == 1 {
        return at.refuse(Code::WindowAxis, "takes the batch for the channels it normalises");
    }
    Ok(())
}

impl OpDef for BatchNorm {
    fn is_running(&self, operand: usize) -> bool {
        operand >= 3
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        check_channels(operands)?;
        result(operands[0].ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        whole_channels(at, shard)?;
        // Given statistics are the same for every sample: elements only meet their channel's
        // numbers.
        at.keep(shard)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, scale, bias, mean, var] = exactly(operands)?;
        let mut y = widen(x)?;
        let [s, t] = self.factors(x.dtype(), [scale, bias, mean, var])?;
        if x.dtype() == DType::F64 {
            apply::<f64>(&mut y, s.as_slice(), t.as_slice());
        } else {
            apply::<f32>(&mut y, s.as_slice(), t.as_slice());
        }
        Ok(vec![narrow(y, x.dtype())?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let [x, scale, mean, var] =
            [at.operand(0)?, at.operand(1)?, at.operand(3)?, at.operand(4)?];
        let dy = at.dy()?;
        let to = at.ty(x).dtype;
        // With `d = sqrt(var + epsilon)` the result is `(x - mean) * scale / d + bias`: `dx = dy *
        // scale / d`, `dscale = sum of dy * (x - mean) / d`, `dbias = sum of dy`, `dmean = -scale /
        // d * sum of dy`, `dvar = -scale / (2 d^3) * sum of dy * (x - mean)`.
        let deviation = at.make((var + self.epsilon).sqrt())?;
        let factor = at.div(scale, deviation)?;
        let of = at.ty(scale).dtype;
        if at.wants(1) || at.wants(4) {
            let mean = at.cast(mean, to)?;
            let mean = at.channels(mean, x)?;
            let weighted = at.make(dy * (x - mean))?;
            let weighted = at.channel_sums(weighted)?;
            let sums = at.cast(weighted, of)?;
            if at.wants(1) {
                at.give(1, sums / deviation)?;
            }
            if at.wants(4) {
                // The variance enters by its power -1/2.
                at.give(4, sums * (factor / deviation.squared() * -0.5))?;
            }
        }
        if at.wants(2) || at.wants(3) {
            let dbias = at.channel_sums(dy)?;
            let dbias = at.cast(dbias, of)?;
            at.give(2, dbias)?;
            at.give(3, -(dbias * factor))?;
        }
        if at.wants(0) {
            let factor = at.cast(factor, to)?;
            let factor = at.channels(factor, x)?;
            at.give(0, dy * factor)?;
        }
        Ok(())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
fn rounded(x: &[f64]) -> Vec<f32> {
    x.iter().map(|x| *x as f32).collect()
}

/// Replaces each element of each channel by `x * s + t`.
fn apply<T: Wide>(y: &mut Tensor, s: &[T], t: &[T]) {
    let width: usize = y.dims()[2..].iter().product();
    if y.is_empty() {
        return;
    }
    for (i, row) in y.as_mut_slice::<T>().chunks_exact_mut(width).enumerate() {
        let (s, t) = (s[i % s.len()], t[i % t.len()]);
        for x in row {
            *x = *x * s + t;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{self, assert_close, indices, random, rng, tensor, tolerance};
    use super::BatchNorm;
    use crate::types::{DType, Tensor};

    /// Scale, bias, mean and a positive variance.
    fn channels(seed: u64, dtype: DType, c: usize) -> [Tensor; 4] {
        let mut rng = rng(seed);
        let [scale, bias, mean] = [(); 3].map(|()| random(&mut rng, dtype, &[c]));
        let var: Vec<f64> = (0..c).map(|_| f64::from(rng.random_range(0.1f32..3.0))).collect();
        [scale, bias, mean, tensor(dtype, &[c], &var)]
    }

    #[test]
    fn values() {
        let mut rng = rng(1);
        let shapes: [&[usize]; 6] =
            [&[2, 3], &[2, 3, 4], &[0, 3, 4], &[1, 2, 3, 2], &[2, 3, 0], &[3, 1, 1, 2, 2]];
        for i in 0..96 {
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i % 4];
            // The statistics may be of another type.
            let of = if i % 3 == 0 { DType::F32 } else { dtype };
            let dims = shapes[i % 6];
            let x = random(&mut rng, dtype, dims);
            let [scale, bias, mean, var] = channels(i as u64, of, dims[1]);
            let op = BatchNorm { epsilon: [1e-5, 1e-3][i % 2], ..BatchNorm::default() };
            let operands = [&x, &scale, &bias, &mean, &var];
            let y = &testing::eval(&op.clone().into(), &operands)[0];
            let values = operands.map(Tensor::to_f64);
            let one = |(at, index): (usize, Vec<usize>)| {
                let [x, scale, bias, mean, var] = &values;
                let c = index[1];
                let deviation = (var[c] + op.epsilon).sqrt();
                (x[at] - mean[c]) / deviation * scale[c] + bias[c]
            };
            let expected: Vec<f64> = indices(dims).into_iter().enumerate().map(one).collect();
            assert_close(y, &expected, tolerance(dtype));
        }
    }

    #[test]
    fn factors_are_those_that_evaluation_uses() {
        let [scale, bias, mean, var] = channels(7, DType::F32, 5);
        let x = random(&mut rng(8), DType::F32, &[3, 5]);
        let op = Op::from(BatchNorm::default());
        let y = &testing::eval(&op, &[&x, &scale, &bias, &mean, &var])[0];
        let [scale, bias, mean, var] = [&scale, &bias, &mean, &var].map(Tensor::as_slice::<f32>);
        let (s, t) = BatchNorm::scale_shift(scale, bias, mean, var, 1e-5);
        for (i, (x, y)) in x.as_slice::<f32>().iter().zip(y.as_slice::<f32>()).enumerate() {
            assert_eq!((x * s[i % 5] + t[i % 5]).to_bits(), y.to_bits());
        }
    }
}
