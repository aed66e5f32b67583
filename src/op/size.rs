//! The number of elements of a value.

use smallvec::smallvec;

use super::declare::op;
use super::infer::{one, result_with_ints, tensors};
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, Traits, rules};
use crate::types::{Code, DType, KernelClass, Refusal, Tensor, TensorType};

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

    fn kernel(&self) -> KernelClass {
        KernelClass::Reference
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it depends on sizes only")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::SizeOp;
    use crate::types::{Claim, DType};

    #[test]
    fn values_and_the_size_of_the_batch() {
        let (x, empty) =
            (random(&mut rng(1), DType::F32, &[6, 3]), random(&mut rng(2), DType::F32, &[6, 0]));
        let op = SizeOp {}.into();
        assert_eq!(testing::eval(&op, &[&x])[0].to_i64(), Some(vec![18]));
        assert_eq!(check_split(&op, &[(&x, Claim::rows(0))], 6), Err("R0110".to_owned()));
        assert_eq!(check_split(&op, &[(&x, Claim::Invariant)], 6), Ok(vec![Claim::Invariant]));
        assert_eq!(check_split(&op, &[(&empty, Claim::rows(0))], 6), Ok(vec![Claim::Invariant]));
    }
}
