//! The number of elements of a value.

use smallvec::smallvec;

use super::declare::op;
use super::infer::{one, result_with_ints, tensors};
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, Traits, rules};
use crate::types::{Code, DType, Refusal, Tensor, TensorType};

op! {
    /// The number of elements of its operand, a scalar of `i64`.
    pub struct SizeOp = "size" {}
}

impl OpDef for SizeOp {
    fn traits(&self) -> Traits {
        Traits::FOLLOWS_BLOCKS
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        result_with_ints(TensorType::scalar(DType::I64), Some(smallvec![x.ty.shape.elements()]))
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        if let [x] = operands
            && x.ty.shape.elements().depends_on_batch()
        {
            return Err(rules::refuse(
                Code::BakedBatch,
                0,
                "counts the elements of the whole batch",
            ));
        }
        Ok(rules::invariant(results.len()))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = tensors(operands)?;
        Ok(vec![Tensor::scalar(i64::try_from(x.len()).unwrap_or(i64::MAX))])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it depends on sizes only")
    }
}
