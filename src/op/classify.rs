//! What kind of number a float is: `is_nan`, `is_inf`.

use super::declare::family;
use super::element::{Float, for_dtype};
use super::infer::{dtype, one, result};
use super::real::Real;
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, Traits, rules};
use crate::types::{DType, KernelClass, Refusal, Tensor, TensorType};

family! {
    /// Whether each element of a floating-point operand is of a kind; the result is `bool`.
    pub enum Classify {
        /// Not a number.
        IsNan = "is_nan",
        /// Infinite.
        IsInf = "is_inf" {
            /// Whether minus infinity counts.
            negative: bool = true,
            /// Whether plus infinity counts.
            positive: bool = true,
        },
    }
}

impl Classify {
    /// Whether `x` is of the kind: the definition that every CPU kernel shares.
    #[inline]
    pub fn holds<R: Real>(&self, x: R) -> bool {
        match *self {
            Self::IsNan => x.is_nan(),
            Self::IsInf { negative, positive } => {
                (positive && x == R::of(f64::INFINITY))
                    || (negative && x == R::of(f64::NEG_INFINITY))
            }
        }
    }
}

impl OpDef for Classify {
    fn traits(&self) -> Traits {
        Traits::ELEMENTWISE | Traits::FOLLOWS_BLOCKS
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        result(TensorType { dtype: DType::Bool, shape: x.ty.shape.clone() })
    }

    fn split(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        rules::elementwise(operands, operands.first().map_or(0, |x| x.ty.rank()))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = operands else {
            return Err(OpError::Operands { expected: "1", found: operands.len() });
        };
        let wrong =
            || OpError::DType { operand: 0, expected: "a float".to_owned(), found: x.dtype() };
        let mut y = Tensor::zeros(DType::Bool, x.dims())?;
        for_dtype!(
            x.dtype(),
            float F => for (y, x) in y.as_mut_slice::<u8>().iter_mut().zip(x.as_slice::<F>()) {
                *y = self.holds(x.real()).into();
            },
            int _I => return Err(wrong()),
            bool => return Err(wrong()),
        );
        Ok(vec![y])
    }

    fn jumps(&self) -> bool {
        true
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Elementwise
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("its result is a truth value")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng, tensor};
    use super::super::{OpDef, Operand};
    use super::Classify;
    use crate::types::{Claim, DType, TensorType};

    #[test]
    fn values_in_every_float() {
        let x = [1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];
        for dtype in [DType::F64, DType::F32, DType::F16, DType::Bf16] {
            let x = tensor(dtype, &[5], &x);
            let eval = |op: Classify| testing::eval(&op.into(), &[&x])[0].as_slice::<u8>().to_vec();
            let inf = |negative, positive| Classify::IsInf { negative, positive };
            assert_eq!(eval(Classify::IsNan), [0, 1, 0, 0, 0]);
            assert_eq!(eval(inf(true, true)), [0, 0, 1, 1, 0]);
            assert_eq!(eval(inf(false, true)), [0, 0, 1, 0, 0]);
            assert_eq!(eval(inf(true, false)), [0, 0, 0, 1, 0]);
        }
        let ty = TensorType::new(DType::I32, [1]);
        assert!(Classify::IsNan.infer(&[Operand { ty: &ty, ints: None }]).is_err());
    }

    #[test]
    fn the_batch_passes() {
        let x = random(&mut rng(1), DType::F16, &[2, 6]);
        assert_eq!(
            check_split(&Classify::IsNan.into(), &[(&x, Claim::rows(1))], 6),
            Ok(vec![Claim::rows(1)])
        );
    }
}
