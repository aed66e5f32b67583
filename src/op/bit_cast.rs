//! Bits read as another type.

use super::infer::{exactly, result};
use super::prelude::*;

op! {
    /// The bits of its operand's elements, read as elements of the type `to`, which are as wide.
    pub struct BitCast = "bit_cast" is ELEMENTWISE | CHEAP | FOLLOWS_BLOCKS | JUMPS {
        /// The element type of the result; `bool` only of `bool`, which has no other bits.
        pub to: DType,
    }
}

impl OpDef for BitCast {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let (from, to) = (x.ty.dtype, self.to);
        if from.bytes() != to.bytes() || (to == DType::Bool && from != DType::Bool) {
            return Err(OpError::dtype(0, from, format!("a type whose bits are those of {to}")));
        }
        result(TensorType { dtype: to, shape: x.ty.shape.clone() })
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        Ok(vec![Tensor::from_bytes(self.to, x.dims(), x.bytes())?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("reads bits")
    }
}
