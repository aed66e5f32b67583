//! The number of elements of a value.

use smallvec::smallvec;

use super::infer::{exactly, result_with_ints};
use super::prelude::*;

op! {
    /// The number of elements of its operand, a scalar of `i64`.
    pub struct SizeOp = "size" is FOLLOWS_BLOCKS {}
}

impl OpDef for SizeOp {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        result_with_ints(TensorType::scalar(DType::I64), Some(smallvec![x.ty.shape.elements()]))
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        if let [x] = at.operands
            && x.ty.shape.elements().depends_on_batch()
        {
            return at.refuse(Code::BakedBatch, "counts the elements of the whole batch");
        }
        at.whole()
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        Ok(vec![Tensor::scalar(i64::try_from(x.len()).unwrap_or(i64::MAX))])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it depends on sizes only")
    }
}
