//! Classes of floats: `is_nan`, `is_inf`.

use super::element::{Float, for_float};
use super::infer::{dtype, exactly, result};
use super::prelude::*;
use super::real::Real;

family! {
    /// Whether each element of a floating-point operand is of a kind; the result is `bool`.
    pub enum Classify is ELEMENTWISE | FOLLOWS_BLOCKS | JUMPS {
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
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        result(TensorType { dtype: DType::Bool, shape: x.ty.shape.clone() })
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let mut y = Tensor::zeros(DType::Bool, x.dims())?;
        let to = y.as_mut_slice::<u8>().iter_mut();
        for_float!(x.dtype(), F => {
            let pairs = to.zip(x.as_slice::<F>());
            match self {
                // A loop of its own, which has no branches.
                Self::IsNan => pairs.for_each(|(y, x)| *y = Self::IsNan.holds(x.real()).into()),
                Self::IsInf { .. } => pairs.for_each(|(y, x)| *y = self.holds(x.real()).into()),
            }
        });
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("its result is a truth value")
    }
}
