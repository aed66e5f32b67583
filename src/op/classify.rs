//! Classes of floats: `is_nan`, `is_inf`.

use super::declare::family;
use super::element::{Float, for_dtype};
use super::infer::{dtype, one, result};
use super::real::Real;
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, Traits, rules};
use crate::types::{DType, Refusal, Tensor, TensorType};

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
    pub(crate) fn holds<R: Real>(&self, x: R) -> bool {
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

    fn gradient(&self) -> Gradient {
        Gradient::Zero("its result is a truth value")
    }
}
