//! The gradient of the operand of batch normalisation, by sums over the batch that are given.

use super::batch_norm_sums::{SUMS, check_gradient, rows_of_both};
use crate::op::batch_moments::{check_numbers, read};
use crate::op::batch_norm::check_scales;
use crate::op::batch_norm_train::rounded;
use crate::op::infer::{count, exactly, result};
use crate::op::numeric::setting_in;
use crate::op::prelude::*;
use crate::op::wide::{Moments, Wide};

op! {
    /// The gradient of `x: [N, C, …]` in batch normalisation, from `x`, `scale: [C]`, the gradient
    /// `dy` of what is normalised, the moments that `batch_moments` gives and the sums that
    /// `batch_norm_sums` gives: the first result of `batch_norm_train_grad` where they are those of
    /// `x` and `dy`.
    ///
    /// It is computed in `f64` and rounded once.
    pub struct BatchNormApplyGrad = "batch_norm_apply_grad" is FOLLOWS_BLOCKS {
        /// Epsilon, added to the variance.
        pub epsilon: f64 = 1e-5,
    }
}

impl OpDef for BatchNormApplyGrad {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 5, 5, "5")?;
        check_scales(&operands[..2])?;
        check_gradient(operands, 2)?;
        check_numbers(operands, 3, Moments::WIDTH)?;
        check_numbers(operands, 4, SUMS)?;
        result(operands[0].ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        for i in [1, 3, 4] {
            at.expect_whole(i, Code::WindowAxis, "scales channels by samples of the batch")?;
        }
        at.keep(rows_of_both(at, 2)?)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, scale, dy, moments, sums] = exactly(operands)?;
        let width = x.dims().iter().skip(2).product::<usize>().max(1);
        let (mut dx, dy, factors) = (x.to_f64(), dy.to_f64(), scale.to_f64());
        let (of, sums) = (read(moments), sums.as_slice::<f64>());
        let (given, products) = sums.split_at(of.len());
        let epsilon = setting_in(self.epsilon, x.dtype());
        let rows = dx.chunks_exact_mut(width).zip(dy.chunks_exact(width));
        for (i, (row, dy)) in rows.enumerate() {
            let c = i % of.len();
            let Moments { count, mean, .. } = of[c];
            let deviation = (of[c].variance() + epsilon).sqrt();
            let (factor, scale_sum) = (factors[c] / deviation, products[c] / deviation);
            for (x, dy) in row.iter_mut().zip(dy) {
                let normal = (*x - mean) / deviation;
                *x = factor * (dy - given[c] / count - normal * scale_sum / count);
            }
        }
        Ok(vec![rounded(x, &dx)?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a gradient itself")
    }
}

#[cfg(test)]
mod tests {
    use crate::op::testing::{assert_close, check_split, eval, random, rng, tolerance};
    use crate::op::{BatchMoments, BatchNormApplyGrad, BatchNormGrad, BatchNormSums, Op};
    use crate::types::{Claim, DType, Tensor};

    /// The operands, for values of a type and these sizes.
    fn operands(seed: u64, dtype: DType, dims: &[usize]) -> [Tensor; 5] {
        let mut rng = rng(seed);
        let [x, dy] = [(); 2].map(|()| random(&mut rng, dtype, dims));
        let scale = random(&mut rng, DType::F32, &dims[1..2]);
        let moments = eval(&BatchMoments {}.into(), &[&x]).remove(0);
        let sums = eval(&BatchNormSums {}.into(), &[&x, &dy, &moments]).remove(0);
        [x, scale, dy, moments, sums]
    }

    #[test]
    fn own_sums_give_what_one_operator_does() {
        let shapes: [&[usize]; 4] = [&[2, 3], &[4, 3, 4], &[1, 2, 3, 2], &[0, 2, 2]];
        for (i, dims) in shapes.into_iter().cycle().take(16).enumerate() {
            let dtype = [DType::F32, DType::F64, DType::F16, DType::Bf16][i / 4];
            let all = operands(i as u64, dtype, dims);
            let one: Op = BatchNormGrad { epsilon: 1e-3, local: false }.into();
            let apply: Op = BatchNormApplyGrad { epsilon: 1e-3 }.into();
            let whole = eval(&one, &[&all[0], &all[1], &all[2]]).remove(0);
            let own = eval(&apply, &all.each_ref()).remove(0);
            assert_close(&own, &whole.to_f64(), tolerance(dtype));
        }
    }

    #[test]
    fn rows_stay_rows() {
        let op: Op = BatchNormApplyGrad { epsilon: 0.1 }.into();
        let all = operands(7, DType::F32, &[7, 3, 2]);
        let (rows, whole) = (Claim::rows(0), Claim::Invariant);
        let claims = [rows, whole, rows, whole, whole];
        let held: Vec<(&Tensor, Claim)> = all.iter().zip(claims).collect();
        assert_eq!(check_split(&op, &held, 7).unwrap(), [rows]);
    }
}
