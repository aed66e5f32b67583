//! Batch normalisation by moments of the batch that are given.

use super::batch_moments::{check_numbers, read};
use super::batch_norm::{check_scales, whole_channels};
use super::batch_norm_train::rounded;
use super::infer::{count, exactly, result};
use super::numeric::setting_in;
use super::prelude::*;
use super::wide::{Moments, Wide};

op! {
    /// `(x - mean) / sqrt(var + epsilon) * scale + bias` of each channel of `x: [N, C, …]`, with
    /// `scale` and `bias`, `[C]`, and the mean and variance of the last operand, which
    /// `batch_moments` gives: the first result of `batch_norm_train` where they are those of `x`.
    ///
    /// It is computed in `f64` and rounded once.
    pub struct BatchNormApply = "batch_norm_apply" is FOLLOWS_BLOCKS {
        /// Epsilon, added to the variance.
        pub epsilon: f64 = 1e-5,
    }
}

impl OpDef for BatchNormApply {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 4, 4, "4")?;
        check_scales(&operands[..3])?;
        check_numbers(operands, 3, Moments::WIDTH)?;
        result(operands[0].ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        whole_channels(at, shard)?;
        at.keep(shard)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, scale, bias, moments] = exactly(operands)?;
        let width: usize = x.dims().iter().skip(2).product();
        let mut y = x.to_f64();
        let (scale, bias, of) = (scale.to_f64(), bias.to_f64(), read(moments));
        let epsilon = setting_in(self.epsilon, x.dtype());
        for (i, row) in y.chunks_exact_mut(width.max(1)).enumerate() {
            let c = i % of.len();
            let deviation = (of[c].variance() + epsilon).sqrt();
            for x in row {
                *x = (*x - of[c].mean) / deviation * scale[c] + bias[c];
            }
        }
        Ok(vec![rounded(x, &y)?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a part of a normalisation; gradients are taken before")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_split, eval, random, rng};
    use super::super::{BatchMoments, BatchNormTrain, Op};
    use super::BatchNormApply;
    use crate::types::{Claim, DType, Tensor};

    /// An operand of a type, the vectors of its channels, and its moments.
    fn operands(seed: u64, dtype: DType, dims: &[usize]) -> (Vec<Tensor>, Tensor) {
        let mut rng = rng(seed);
        let x = random(&mut rng, dtype, dims);
        let moments = eval(&BatchMoments {}.into(), &[&x]).remove(0);
        let vectors = (0..4).map(|_| random(&mut rng, DType::F32, &dims[1..2]));
        (std::iter::once(x.clone()).chain(vectors).collect(), moments)
    }

    #[test]
    fn own_moments_give_what_one_operator_does() {
        let shapes: [&[usize]; 4] = [&[2, 3], &[4, 3, 4], &[1, 2, 3, 2], &[0, 2, 2]];
        for (i, dims) in shapes.into_iter().cycle().take(16).enumerate() {
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i / 4];
            let (all, moments) = operands(i as u64, dtype, dims);
            let [x, scale, bias, mean, var] = &all[..] else { panic!() };
            let one: Op = BatchNormTrain { epsilon: 1e-3, local: false, momentum: 0.9 }.into();
            let apply: Op = BatchNormApply { epsilon: 1e-3 }.into();
            let whole = eval(&one, &[x, scale, bias, mean, var]).remove(0);
            assert_eq!(eval(&apply, &[x, scale, bias, &moments]).remove(0), whole, "{dims:?}");
        }
    }

    #[test]
    fn rows_stay_rows() {
        let op: Op = BatchNormApply { epsilon: 0.1 }.into();
        let (all, moments) = operands(5, DType::F32, &[7, 3, 2]);
        let [x, scale, bias, ..] = &all[..] else { panic!() };
        let (rows, whole) = (Claim::rows(0), Claim::Invariant);
        let held = [(x, rows), (scale, whole), (bias, whole), (&moments, whole)];
        assert_eq!(check_split(&op, &held, 7).unwrap(), [rows]);
        let (all, moments) = operands(6, DType::F32, &[2, 7]);
        let [x, scale, bias, ..] = &all[..] else { panic!() };
        let channels = Claim::rows(1);
        let held = [(x, channels), (scale, rows), (bias, rows), (&moments, channels)];
        assert_eq!(check_split(&op, &held, 7).unwrap_err(), "R0103");
    }
}
