//! All rows from the rows that the replicas hold.

use super::concat::Concat;
use super::declare::op;
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, Traits, rules};
use crate::types::{Claim, Code, KernelClass, Refusal, Tensor, TensorType};

op! {
    /// Its operands, the rows of the replicas in order, one after the other along `axis`. Of one
    /// operand it is the identity.
    pub struct AllGather = "all_gather" {
        /// The axis that carries the batch.
        pub axis: i64,
    }
}

impl AllGather {
    /// What it does to its operands.
    pub fn joined(&self) -> Concat {
        Concat { axis: self.axis }
    }
}

impl OpDef for AllGather {
    fn traits(&self) -> Traits {
        Traits::MOVES | Traits::COLLECTIVE
    }

    fn joined(&self) -> Option<Concat> {
        Some(self.joined())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        self.joined().infer(operands)
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let rank = results.first().map_or(0, TensorType::rank);
        let axis = super::infer::axis("axis", self.axis, rank).ok();
        match operands {
            [x] if x.claim == Claim::Invariant
                || x.claim.shard().is_some_and(|s| Some(s.axis) == axis) =>
            {
                Ok(rules::invariant(results.len()))
            }
            _ => Err(rules::refuse(Code::Misaligned, 0, "gathers rows on an axis without any")),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        self.joined().eval(operands)
    }

    fn kernel(&self) -> KernelClass {
        self.joined().kernel()
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it joins the values of replicas; gradients are taken before")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, random, rng};
    use super::super::{Op, SplitOperand};
    use super::AllGather;
    use crate::types::{Claim, DType, Dim, Tensor, TensorType};

    #[test]
    fn rows_of_all_replicas() {
        let mut rng = rng(1);
        let parts = [random(&mut rng, DType::F32, &[2, 3]), random(&mut rng, DType::F32, &[1, 3])];
        let op: Op = AllGather { axis: 0 }.into();
        let whole = testing::eval(&op, &[&parts[0], &parts[1]]);
        let bytes = [parts[0].bytes(), parts[1].bytes()].concat();
        assert_eq!(whole[0], Tensor::from_bytes(DType::F32, &[3, 3], &bytes).unwrap());
        let ty = TensorType::new(
            DType::F32,
            [Dim::n(), 3.into()].into_iter().collect::<crate::types::Shape>(),
        );
        let claims = |axis| {
            let operands = [SplitOperand { claim: Claim::rows(0), ty: &ty }];
            Op::from(AllGather { axis }).split(&operands, std::slice::from_ref(&ty))
        };
        assert_eq!(claims(0).unwrap()[0], Claim::Invariant);
        assert!(claims(1).is_err());
    }
}
