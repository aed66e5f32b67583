//! Bits read as another type.

use super::declare::op;
use super::infer::{one, result, tensors};
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, Traits, rules};
use crate::types::{DType, Refusal, Tensor, TensorType};

op! {
    /// The bits of its operand's elements, read as elements of the type `to`, which are as wide.
    pub struct BitCast = "bit_cast" {
        /// The element type of the result; `bool` only of `bool`, which has no other bits.
        pub to: DType,
    }
}

impl OpDef for BitCast {
    fn traits(&self) -> Traits {
        Traits::ELEMENTWISE | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        let (from, to) = (x.ty.dtype, self.to);
        if from.bytes() != to.bytes() || (to == DType::Bool && from != DType::Bool) {
            let expected = format!("a type whose bits are those of {to}");
            return Err(OpError::DType { operand: 0, expected, found: from });
        }
        result(TensorType { dtype: to, shape: x.ty.shape.clone() })
    }

    fn split(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        rules::elementwise(operands, operands.first().map_or(0, |x| x.ty.rank()))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = tensors(operands)?;
        Ok(vec![Tensor::from_bytes(self.to, x.dims(), x.bytes())?])
    }

    fn jumps(&self) -> bool {
        true
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("reads bits")
    }
}
