//! Functions of one element: `relu`, `exp`, `neg`, …

use super::declare::family;
use super::infer::{dtype, one, result_with_ints};
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, rules};
use crate::types::{DType, KernelClass, Refusal, Tensor, TensorType};

family! {
    /// A function applied to every element of its operand; the result has the operand's type.
    ///
    /// Floating-point functions are evaluated in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`.
    pub enum Unary {
        /// `max(x, 0)`; a NaN stays.
        Relu = "relu",
        /// `-x`; integers wrap.
        Neg = "neg",
        /// `e^x`.
        Exp = "exp",
        /// `x` where positive, else `alpha * x`.
        LeakyRelu = "leaky_relu" {
            /// The slope of the negative side.
            alpha: f32 = 0.01,
        },
    }
}

impl Unary {
    /// The function on one `f32`: the definition that every CPU kernel shares.
    #[inline]
    pub fn f32(&self, x: f32) -> f32 {
        match self {
            Self::Relu => if x < 0.0 { 0.0 } else { x },
            Self::Neg => -x,
            Self::Exp => x.exp(),
            Self::LeakyRelu { alpha } => if x < 0.0 { alpha * x } else { x },
        }
    }
}

impl OpDef for Unary {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        result_with_ints(x.ty.clone(), None)
    }

    fn split(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        rules::elementwise(operands, operands.first().map_or(0, |x| x.ty.rank()))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = operands else { return Err(OpError::Operands { expected: "1", found: operands.len() }) };
        let mut y = (*x).clone();
        for v in y.as_mut_slice::<f32>() {
            *v = self.f32(*v);
        }
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Elementwise
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_split, random, rng, tensor};
    use super::super::{Op, testing};
    use super::Unary;
    use crate::types::{Claim, DType};

    #[test]
    fn values() {
        let x = tensor(DType::F32, &[3], &[-1.0, 0.0, 2.0]);
        let y = testing::eval(&Op::from(Unary::LeakyRelu { alpha: 0.5 }), &[&x]);
        assert_eq!(y[0].as_slice::<f32>(), [-0.5, 0.0, 2.0]);
    }

    #[test]
    fn the_batch_passes() {
        let x = random(&mut rng(1), DType::F32, &[7, 3]);
        assert_eq!(check_split(&Unary::Relu.into(), &[(&x, Claim::rows(0))], 7), Ok(vec![Claim::rows(0)]));
        assert_eq!(check_split(&Unary::Exp.into(), &[(&x, Claim::Invariant)], 7), Ok(vec![Claim::Invariant]));
    }
}
