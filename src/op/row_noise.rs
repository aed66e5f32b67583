//! Random numbers of rows, for training.

use super::element::{Float, for_float};
use super::infer::{count, dtype, equal, result, sizes_of};
use super::prelude::*;
use super::random::digits;
use super::real::Real;
use super::row_hash::{hash, row_key};
use crate::types::invariant::invariant;

family! {
    /// A random number for each element of `x: [N, …]`, whatever that is. It is a function of the
    /// seed, of the third operand (the step, an `i64` without axes), of the number of its row,
    /// which the second operand `[N]`, `i64`, has for each row, and of its row-major position in
    /// the row, so that a row has the same numbers wherever they are drawn. The hash is that of
    /// `dropout_train`; a fraction is its upper binary digits.
    ///
    /// Without a seed it has one operand and is 0 everywhere; training gives it a seed, the numbers
    /// of rows and the step.
    pub enum RowNoise is NONE with [
        /// The seed.
        seed: Option<i64> = None,
    ] {
        /// A random fraction for each element of `x`, all as likely: a multiple of 2 to the power
        /// -53 (`f64`), -24 (`f32`), -11 (`f16`) or -8 (`bf16`), at least 0 and below 1.
        Uniform = "row_uniform",
        /// A random number of the normal distribution for each element of `x`, with mean 0 and
        /// deviation 1: `sqrt(-2 ln u) * cos(2 pi v)`, where `1 - u` and `v` are fractions with 53
        /// digits, of the positions `2 * i` and `2 * i + 1`: the method of Box and Muller, in
        /// `f64`.
        Normal = "row_normal",
    }
}

/// The first binary digits of a hash as a fraction.
fn fraction(hash: u64, digits: u32) -> f64 {
    (hash >> (64 - digits)) as f64 / (1u64 << digits) as f64
}

impl RowNoise {
    /// The number at a position of a row.
    fn number(&self, key: u64, position: u64, digits: u32) -> f64 {
        match self {
            Self::Uniform { .. } => fraction(hash(key, position), digits),
            Self::Normal { .. } => {
                let first = position.wrapping_mul(2);
                let u = 1.0 - fraction(hash(key, first), 53);
                let v = fraction(hash(key, first.wrapping_add(1)), 53);
                Real::sqrt(-2.0 * Real::ln(u)) * Real::cos(v * std::f64::consts::TAU)
            }
        }
    }

    /// The seed, if it draws.
    pub(crate) const fn seed(&self) -> Option<i64> {
        *self.common().0
    }

    /// The binary digits of a fraction of this type.
    pub(crate) const fn digits(dtype: DType) -> u32 {
        digits(dtype)
    }
}

impl OpDef for RowNoise {
    fn traits(&self) -> Traits {
        // Two that do not draw yet are two draws.
        if self.seed().is_some() { Traits::CHEAP } else { Traits::TRAINS | Traits::UNREPEATABLE }
    }

    fn drawn(&self, seed: i64) -> Option<Op> {
        let mut drawn = self.clone();
        let (own,) = drawn.common_mut();
        *own = Some(seed);
        self.seed().is_none().then(|| drawn.into())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let draws = self.seed().is_some();
        let expected = if draws { (3, "3") } else { (1, "1") };
        count(operands, expected.0, expected.0, expected.1)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        let x = operands[0].ty;
        if draws {
            for i in 1..3 {
                dtype(operands, i, |t| t == DType::I64, "i64")?;
            }
            let rows = x.shape.first().ok_or_else(|| OpError::shape(0, x, "it must have rows"))?;
            let [numbers] = sizes_of(operands, 1, "it must have one axis")?;
            equal("rows and their numbers", rows, numbers)?;
            let [] = sizes_of(operands, 2, "it must have no axis")?;
        }
        result(x.clone())
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        if self.seed().is_none() {
            return at.keep(shard);
        }
        rules::by_row_numbers(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let x = operands.first().ok_or(OpError::Operands { expected: "1", found: 0 })?;
        let mut y = Tensor::zeros(x.dtype(), x.dims())?;
        let (Some(seed), [_, rows, step]) = (self.seed(), operands) else { return Ok(vec![y]) };
        let step = invariant(step.as_slice::<i64>().first(), "that the step is a number");
        let width: usize = x.dims().iter().skip(1).product();
        let digits = digits(x.dtype());
        if width > 0 {
            for_float!(x.dtype(), F => {
                let of_rows = y.as_mut_slice::<F>().chunks_exact_mut(width);
                for (y, row) in of_rows.zip(rows.as_slice::<i64>()) {
                    let key = row_key(seed, *step, *row);
                    for (position, y) in (0u64..).zip(y) {
                        *y = F::of_f64(self.number(key, position, digits));
                    }
                }
            });
        }
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("its numbers do not depend on the operand")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split};
    use super::RowNoise;
    use crate::types::{Claim, DType, Tensor};

    const SEED: Option<i64> = Some(5);

    fn drawn(op: RowNoise, dtype: DType, rows: std::ops::Range<i64>, width: usize) -> Vec<f64> {
        let rows: Vec<i64> = rows.collect();
        let x = Tensor::zeros(dtype, &[rows.len(), width]).unwrap();
        let (rows, step) = (Tensor::new(&[rows.len()], &rows).unwrap(), Tensor::scalar(3i64));
        testing::eval(&op.into(), &[&x, &rows, &step]).remove(0).to_f64()
    }

    #[test]
    fn a_row_has_the_same_numbers_wherever_it_is() {
        for op in [RowNoise::Uniform { seed: SEED }, RowNoise::Normal { seed: SEED }] {
            let all = drawn(op.clone(), DType::F32, 0..8, 5);
            assert_eq!(drawn(op.clone(), DType::F32, 3..8, 5), all[15..]);
            let rows = (Tensor::new(&[5], &[3i64, 4, 5, 6, 7]).unwrap(), Tensor::scalar(2i64));
            let x = testing::random(&mut testing::rng(1), DType::F32, &[5, 4]);
            let split =
                [(&x, Claim::rows(0)), (&rows.0, Claim::rows(0)), (&rows.1, Claim::Invariant)];
            assert_eq!(check_split(&op.into(), &split, 5), Ok(vec![Claim::rows(0)]));
        }
        let op = RowNoise::Normal { seed: None }.into();
        let x = testing::random(&mut testing::rng(1), DType::F32, &[5, 4]);
        assert_eq!(check_split(&op, &[(&x, Claim::rows(0))], 5), Ok(vec![Claim::rows(0)]));
        assert!(testing::eval(&op, &[&x]).remove(0).to_f64().iter().all(|y| *y == 0.0));
    }

    /// The mean, and the first moments about it, of 250000 numbers; the errors of the last are
    /// about `sqrt(96 / 250000)`.
    #[test]
    fn moments_are_those_of_the_distributions() {
        for (op, expected) in [
            (RowNoise::Uniform { seed: SEED }, [0.5, 1.0 / 12.0, 0.0, 1.0 / 80.0]),
            (RowNoise::Normal { seed: SEED }, [0.0, 1.0, 0.0, 3.0]),
        ] {
            let all = drawn(op, DType::F32, 0..500, 500);
            let count = all.len() as f64;
            let mean = all.iter().sum::<f64>() / count;
            assert!((mean - expected[0]).abs() < 0.01, "{mean}");
            for (power, expected) in (2..5).zip(&expected[1..]) {
                let moment = all.iter().map(|x| (x - mean).powi(power)).sum::<f64>() / count;
                assert!((moment - expected).abs() < 0.06, "{power}: {moment}");
            }
            // Numbers beside each other, and of rows below each other, are not related.
            for lag in [1, 500] {
                let pairs = all.iter().zip(&all[lag..]);
                let sum: f64 = pairs.map(|(a, b)| (a - mean) * (b - mean)).sum();
                assert!((sum / count / expected[1]).abs() < 0.01, "{lag}");
            }
        }
    }
}
