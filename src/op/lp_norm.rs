//! Vectors brought to length 1.

use super::Reduce;
use super::element::{Float, for_float};
use super::infer::{axis, dtype, exactly, result};
use super::prelude::*;
use super::real::Real;
use super::rows::{COLUMNS, each, fold_columns, in_columns};

op! {
    /// Each element divided by the `p`-norm of the elements along `axis`: the sum of their
    /// magnitudes or the root of the sum of their squares. Where that is 0, so is the result.
    ///
    /// Floats are computed in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`; sums are
    /// taken in an order that the axis's size fixes.
    pub struct LpNorm = "lp_norm" is FOLLOWS_BLOCKS {
        /// The axis of the vectors, negative from the end.
        pub axis: i64 = -1,
        /// 1 or 2.
        pub p: i64 = 2,
    }
}

impl LpNorm {
    fn blocks<F: Float>(&self, x: &[F], y: &mut [F], size: usize, inner: usize) {
        let zero = F::Real::of(0.0);
        in_columns(x, y, size, inner, |columns, width| {
            let mut norms = [zero; COLUMNS];
            let norms = &mut norms[..width];
            if self.p == 1 {
                fold_columns(columns, norms, zero, |s, x| s + x.abs(), |a, b| a + b);
            } else {
                fold_columns(columns, norms, zero, |s, x| s + x * x, |a, b| a + b);
                for s in &mut *norms {
                    *s = s.sqrt();
                }
            }
            each(columns, norms, |x, s| *x = if *s == zero { zero } else { *x / *s });
        });
    }
}

impl OpDef for LpNorm {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        axis("axis", self.axis, x.ty.rank())?;
        if !(1..=2).contains(&self.p) {
            let reason = format!("{} is out of range; it must be 1 or 2", self.p);
            return Err(OpError::attr("p", reason));
        }
        result(x.ty.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        // A vector lies within one sample.
        let reason = "normalises over the samples of the batch";
        at.keep_beside(self.axis, shard, Code::BatchStatistics, reason)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let axis = axis("axis", self.axis, x.rank())?;
        let mut y = Tensor::zeros(x.dtype(), x.dims())?;
        let (size, inner) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
        for_float!(x.dtype(), F => self.blocks::<F>(x.as_slice(), y.as_mut_slice(), size, inner));
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, y, dy) = (at.operand(0)?, at.result(0)?, at.dy()?);
        let along = [axis("axis", self.axis, at.ty(x).rank())?];
        let (axes, keepdims) = (vec![self.axis], true);
        let norm =
            if self.p == 1 { Reduce::L1 { axes, keepdims } } else { Reduce::L2 { axes, keepdims } };
        let norm = at.op(norm, &[x])?;
        // From `y = x / n`: `dx = (dy - n' * sum of dy * y) / n`, where the slope of the norm `n'`
        // is the sign of `x` for p = 1 and `x / n = y` for p = 2.
        let sum = at.make((dy * y).sum(&along))?;
        let direction = if self.p == 1 { x.sign() } else { y.into() };
        at.give(0, ((dy - direction * sum) / norm).only(norm.above(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{assert_close, eval, random, rng, tensor, tolerance};

    use super::LpNorm;
    use crate::types::DType;

    #[test]
    fn values_follow_the_formula() {
        let mut rng = rng(1);
        for round in 0..80 {
            let dtype = [DType::F64, DType::F32, DType::F16, DType::Bf16][round % 4];
            let rank = rng.random_range(1..4);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..30)).collect();
            let axis = rng.random_range(0..rank);
            let x = random(&mut rng, dtype, &dims);
            let inner: usize = dims[axis + 1..].iter().product();
            for p in [1, 2] {
                let input = x.to_f64();
                let at = |i: usize, j: usize| {
                    let from = i / inner / dims[axis] * dims[axis] * inner + i % inner;
                    input[from + j * inner]
                };
                let expected: Vec<f64> = (0..x.len())
                    .map(|i| {
                        let column = (0..dims[axis]).map(|j| at(i, j));
                        let norm = if p == 1 {
                            column.map(f64::abs).sum::<f64>()
                        } else {
                            column.map(|x| x * x).sum::<f64>().sqrt()
                        };
                        input[i] / norm
                    })
                    .collect();
                let op = LpNorm { axis: i64::try_from(axis).unwrap(), p };
                assert_close(&eval(&op.into(), &[&x])[0], &expected, tolerance(dtype));
            }
        }
        let x = tensor(DType::F32, &[2, 2], &[0.0, 0.0, 3.0, 4.0]);
        let op = LpNorm { axis: -1, p: 2 };
        assert_eq!(
            eval(&op.into(), &[&x])[0].to_f64(),
            [0.0, 0.0, 3.0f32 / 5.0, 4.0f32 / 5.0].map(f64::from)
        );
    }
}
