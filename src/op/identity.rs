//! A value under another name.

use super::declare::op;
use super::infer::{carried, one, result_with_ints, tensors};
use super::{
    Backward, Claims, Gradient, Known, OpDef, OpError, Operand, Results, RuleError, SplitOperand,
    Traits, rules,
};
use crate::types::{KernelClass, Refusal, Tensor, TensorType};

op! {
    /// Its operand.
    pub struct Identity = "identity" {}
}

impl OpDef for Identity {
    fn traits(&self) -> Traits {
        Traits::VIEW | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        Some(0)
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
        KernelClass::View
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
    use super::Identity;
    use crate::types::{Claim, DType, Shard};

    #[test]
    fn the_value_and_its_claim_stay() {
        let op = Identity {}.into();
        let x = random(&mut rng(1), DType::Bf16, &[2, 6]);
        assert_eq!(testing::eval(&op, &[&x])[0], x);
        let folded = Claim::Shard(Shard { axis: 1, outer: 1, inner: 2 });
        assert_eq!(check_split(&op, &[(&x, folded)], 3), Ok(vec![folded]));
    }
}
