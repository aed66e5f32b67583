//! Numbers as `u8` with a scale that their own range decides.

use super::Quantize;
use super::infer::{count, dtype, exactly, results, sizes_of};
use super::prelude::*;

family! {
    /// Results are in `f32`: the scale is `(high - low) / 255` for `low = min(0, smallest)` and
    /// `high = max(0, largest)`, or 1 where both are 0; the zero point is `-low / scale`, the
    /// nearest of `0..=255` (the even one of two), `u8`. A range with a NaN has the scale NaN and
    /// the zero point 0.
    pub enum DynamicQuantize is FOLLOWS_BLOCKS {
        /// `x: f32` quantised by the range of all its elements: `quantize_linear` of it to `u8`,
        /// the scale `f32[]` and the zero point `u8[]`. Of nothing the scale is 1.
        Quantize = "dynamic_quantize",
        /// The scale `f32[]` and the zero point `u8[]` for numbers of which the smallest is the
        /// first operand, `f32[]`, and the largest the second, `f32[]`.
        Range = "quantize_range",
    }
}

/// The scale and the zero point for numbers between `smallest` and `largest`, computed in `f32`.
pub(crate) fn range(smallest: f32, largest: f32) -> (f32, u8) {
    // A NaN stays one.
    let low = if smallest > 0.0 { 0.0 } else { smallest };
    let high = if largest < 0.0 { 0.0 } else { largest };
    let span = high - low;
    let scale = if span == 0.0 { 1.0 } else { span / 255.0 };
    let zero = (0.0 - low / scale).clamp(0.0, 255.0).round_ties_even();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0..=255, or a NaN"
    )]
    let zero = zero as u8;
    (scale, zero)
}

/// The smallest and the largest element, infinities of nothing; a NaN among them makes both a NaN.
fn extremes(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(low, high), x| {
        (
            if *x < low || x.is_nan() { *x } else { low },
            if *x > high || x.is_nan() { *x } else { high },
        )
    })
}

impl OpDef for DynamicQuantize {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let scalars = [DType::F32, DType::U8].map(|t| TensorType::new(t, Shape::scalar()));
        match self {
            Self::Quantize => {
                let [x] = exactly(operands)?;
                dtype(operands, 0, |t| t == DType::F32, "f32")?;
                let y = TensorType { dtype: DType::U8, shape: x.ty.shape.clone() };
                results(std::iter::once(y).chain(scalars))
            }
            Self::Range => {
                count(operands, 2, 2, "2")?;
                for i in 0..2 {
                    dtype(operands, i, |t| t == DType::F32, "f32")?;
                    let [] = sizes_of(operands, i, "it must be a scalar")?;
                }
                results(scalars)
            }
        }
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        let reason = "quantises by the smallest and largest value of all samples";
        at.refuse(Code::AcrossSamples, reason)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        match self {
            Self::Quantize => {
                let [x] = exactly(operands)?;
                let (smallest, largest) = extremes(x.as_slice());
                let (scale, zero) = range(smallest, largest);
                let (scale, zero) = (Tensor::scalar(scale), Tensor::scalar(zero));
                let quantize = Quantize::Quantize { axis: 1, block: 0, to: DType::U8 };
                let mut all = quantize.eval(&[x, &scale, &zero])?;
                all.extend([scale, zero]);
                Ok(all)
            }
            Self::Range => {
                let [smallest, largest] = exactly(operands)?;
                let (scale, zero) = range(smallest.as_slice()[0], largest.as_slice()[0]);
                Ok(vec![Tensor::scalar(scale), Tensor::scalar(zero)])
            }
        }
    }

    fn jumps(&self) -> bool {
        matches!(self, Self::Quantize)
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is constant between its steps")
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, random, rng};
    use super::super::{Op, Quantize, Reduce};
    use super::{DynamicQuantize, range};
    use crate::types::{DType, Tensor};

    #[test]
    fn ranges() {
        assert_eq!(range(-1.0, 254.0), (1.0, 1));
        // The range always has 0 in it.
        assert_eq!(range(51.0, 510.0), (2.0, 0));
        assert_eq!(range(-510.0, -51.0), (2.0, 255));
        // Ties go to the even zero point.
        assert_eq!(range(-0.5, 254.5), (1.0, 0));
        assert_eq!(range(-1.5, 253.5), (1.0, 2));
        assert_eq!(range(0.0, 0.0), (1.0, 0));
        assert_eq!(range(f32::INFINITY, f32::NEG_INFINITY), (1.0, 0));
        assert_eq!(range(f32::MIN, f32::MAX), (f32::INFINITY, 0));
        for (low, high) in [(f32::NAN, 1.0), (-1.0, f32::NAN), (f32::NAN, f32::NAN)] {
            let (scale, zero) = range(low, high);
            assert!(scale.is_nan() && zero == 0);
        }
        assert_eq!(range(f32::NEG_INFINITY, 1.0), (f32::INFINITY, 0));
    }

    #[test]
    fn the_range_of_reductions_gives_the_same_bits() {
        let mut rng = rng(3);
        for round in 0..60 {
            let dims = [rng.random_range(0..4), rng.random_range(1..50)];
            let mut x = random(&mut rng, DType::F32, &dims);
            let shift = [0.0, 1.5, -3.0][round % 3];
            for x in x.as_mut_slice::<f32>() {
                *x = *x * rng.random_range(0.1f32..9.0) + shift;
            }
            if round % 10 == 9 && !x.is_empty() {
                x.as_mut_slice::<f32>()[0] = f32::NAN;
            }
            let whole = testing::eval(&DynamicQuantize::Quantize.into(), &[&x]);
            let axes = vec![0, 1];
            let low = Op::from(Reduce::Min { axes: axes.clone(), keepdims: false });
            let low = testing::eval(&low, &[&x]).remove(0);
            let high = Op::from(Reduce::Max { axes, keepdims: false });
            let high = testing::eval(&high, &[&x]).remove(0);
            let parts = testing::eval(&DynamicQuantize::Range.into(), &[&low, &high]);
            let quantize = Op::from(Quantize::Quantize { axis: 1, block: 0, to: DType::U8 });
            let y = testing::eval(&quantize, &[&x, &parts[0], &parts[1]]);
            let bytes = |all: &[Tensor]| all.iter().map(|t| t.bytes().to_vec()).collect::<Vec<_>>();
            assert_eq!(bytes(&whole), bytes(&[&y[..], &parts[..]].concat()));
        }
    }
}
