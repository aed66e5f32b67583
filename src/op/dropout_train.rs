//! Dropout in training.

use super::dropout::check_rate;
use super::element::{Float, for_float};
use super::infer::{count, dtype, equal, exactly, result, sizes_of};
use super::prelude::*;
use super::real::Real;
use super::row_hash::{hash, row_key};
use crate::types::invariant::invariant;

op! {
    /// The operand `x: [N, …]` of which a part of the elements, `rate`, is replaced by 0, and the
    /// others are divided by `1 - rate`.
    ///
    /// Whether an element stays is a function of the seed, of the third operand (the step, an `i64`
    /// without axes), of the number of its row, which the second operand `[N]`, `i64`, has for each
    /// row, and of its row-major position in the row: it stays if the upper 24 bits of a hash of
    /// these, as a fraction, are not below `rate`. So a row loses the same elements wherever it is
    /// computed. The hash is the finalizer of `SplitMix64`, applied to the seed, the step and the
    /// row in turn, and to the sum of that and the position's multiple of 2^64 divided by the
    /// golden ratio.
    pub struct DropoutTrain = "dropout_train" is CHEAP {
        /// The part of the elements that is dropped, at least 0 and below 1.
        pub rate: f32,
        /// The seed.
        pub seed: i64,
    }
}

/// The digits of a hash that are compared with the rate.
const DIGITS: u32 = 24;

impl DropoutTrain {
    /// Drops elements of a row in place.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
    pub(crate) fn row<F: Float>(&self, y: &mut [F], step: i64, row: i64) {
        let (key, factor) = (row_key(self.seed, step, row), 1.0 / (1.0 - f64::from(self.rate)));
        // Exact in `f64`; a whole number is below it exactly if it is below the next one up.
        #[expect(clippy::cast_possible_truncation, reason = "a rate is at least 0 and below 1")]
        let least =
            ((f64::from(self.rate) * f64::from(1u32 << DIGITS)).ceil() as i64).cast_unsigned();
        for (position, y) in (0u64..).zip(y) {
            let stays = hash(key, position) >> (u64::BITS - DIGITS) >= least;
            *y = F::of_f64(if stays { y.real().to_f64() * factor } else { 0.0 });
        }
    }
}

impl OpDef for DropoutTrain {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 3, 3, "3")?;
        check_rate(self.rate)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        for i in 1..3 {
            dtype(operands, i, |t| t == DType::I64, "i64")?;
        }
        let x = operands[0].ty;
        let rows = x.shape.first().ok_or_else(|| OpError::shape(0, x, "it must have rows"))?;
        let [numbers] = sizes_of(operands, 1, "it must have one axis")?;
        equal("rows and their numbers", rows, numbers)?;
        let [] = sizes_of(operands, 2, "it must have no axis")?;
        result(x.clone())
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        rules::by_row_numbers(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, rows, step] = exactly(operands)?;
        let mut y = x.clone();
        let step = *invariant(step.as_slice::<i64>().first(), "that the step is a number");
        let width: usize = x.dims().iter().skip(1).product();
        if width > 0 {
            for_float!(x.dtype(), F => {
                let of_rows = y.as_mut_slice::<F>().chunks_exact_mut(width);
                of_rows.zip(rows.as_slice::<i64>()).for_each(|(y, row)| self.row(y, step, *row));
            });
        }
        Ok(vec![y])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (rows, step, dy) = (at.operand(1)?, at.operand(2)?, at.dy()?);
        let dx = at.op(self.clone(), &[dy, rows, step])?;
        at.give(0, dx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split};
    use super::DropoutTrain;
    use crate::types::{Claim, DType, Tensor};

    fn drop(rate: f32, seed: i64, rows: &[i64], step: i64, width: usize) -> Tensor {
        let x = testing::tensor(DType::F64, &[rows.len(), width], &vec![1.0; rows.len() * width]);
        let (rows, step) = (Tensor::new(&[rows.len()], rows).unwrap(), Tensor::scalar(step));
        testing::eval(&DropoutTrain { rate, seed }.into(), &[&x, &rows, &step]).remove(0)
    }

    #[test]
    fn a_row_loses_the_same_elements_wherever_it_is() {
        let all = drop(0.5, 7, &[0, 1, 2, 3], 4, 50).to_f64();
        assert_eq!(drop(0.5, 7, &[2, 3], 4, 50).to_f64(), all[100..]);
        assert_ne!(drop(0.5, 7, &[0, 1, 2, 3], 5, 50).to_f64(), all);
        assert_ne!(drop(0.5, 8, &[0, 1, 2, 3], 4, 50).to_f64(), all);
        assert_ne!(all[..50], all[50..100]);
        let rows = (Tensor::new(&[5], &[3i64, 4, 5, 6, 7]).unwrap(), Tensor::scalar(2i64));
        let x = testing::random(&mut testing::rng(1), DType::F32, &[5, 4]);
        let op = DropoutTrain { rate: 0.25, seed: 1 }.into();
        let split = [(&x, Claim::rows(0)), (&rows.0, Claim::rows(0)), (&rows.1, Claim::Invariant)];
        assert_eq!(check_split(&op, &split, 5), Ok(vec![Claim::rows(0)]));
    }

    #[test]
    fn the_part_that_stays_keeps_the_mean() {
        for rate in [0.0f32, 0.1, 0.5, 0.9] {
            let y = drop(rate, 3, &(0..200).collect::<Vec<i64>>(), 0, 200).to_f64();
            let kept = y.iter().filter(|y| **y != 0.0).count() as f64 / y.len() as f64;
            assert!((kept - 1.0 + f64::from(rate)).abs() < 0.01, "{kept}");
            assert!(
                y.iter().all(|y| *y == 0.0 || (*y * (1.0 - f64::from(rate)) - 1.0).abs() < 1e-12)
            );
        }
    }
}
