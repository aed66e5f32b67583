//! A value on another device.

use super::declare::op;
use super::infer::{carried, one, result_with_ints, tensors};
use super::{
    Backward, Claims, Gradient, OpDef, OpError, Operand, Results, RuleError, SplitOperand, Traits,
    rules,
};
use crate::types::{KernelClass, Refusal, Tensor, TensorType};

op! {
    /// Its operand, bit for bit, on the device of this operation, wherever the operand lives.
    pub struct CopyOp = "copy" {}
}

impl OpDef for CopyOp {
    fn traits(&self) -> Traits {
        Traits::VIEW | Traits::FOLLOWS_BLOCKS | Traits::WIDE_PARTS
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        result_with_ints(x.ty.clone(), carried(&x))
    }

    fn split(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        Ok(rules::same(operands, 1))
    }

    fn partial(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::moved(operands, results)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = tensors(operands)?;
        Ok(vec![x.clone()])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Copy
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        at.give(0, dy);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::CopyOp;
    use crate::types::{Claim, DType, Shard};

    #[test]
    fn every_value_and_every_claim_stays() {
        let op = CopyOp {}.into();
        for dtype in DType::ALL {
            let x = random(&mut rng(1), dtype, &[6, 2]);
            assert_eq!(testing::eval(&op, &[&x])[0], x);
        }
        let x = random(&mut rng(2), DType::F32, &[2, 6]);
        for claim in
            [Claim::Invariant, Claim::rows(1), Claim::Shard(Shard { axis: 1, outer: 1, inner: 2 })]
        {
            let rows = if claim == Claim::rows(1) { 6 } else { 3 };
            assert_eq!(check_split(&op, &[(&x, claim)], rows), Ok(vec![claim]));
        }
    }
}
