//! All rows from the rows that the replicas hold.

use super::concat::Concat;
use super::prelude::*;

op! {
    /// Its operands, the rows of the replicas in order, one after the other along `axis`. Of one
    /// operand it is the identity.
    ///
    /// Elsewhere: all-gather (XLA); `all_gather` (PyTorch).
    pub struct AllGather = "all_gather" is MOVES | COLLECTIVE {
        /// The axis that carries the batch.
        pub axis: i64,
    }
}

impl AllGather {
    /// The combination of its operands.
    pub(crate) fn concat(&self) -> Concat {
        Concat { axis: self.axis }
    }
}

impl OpDef for AllGather {
    fn joined(&self) -> Option<i64> {
        Some(self.axis)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        self.concat().infer(operands)
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let rank = at.results.first().map_or(0, TensorType::rank);
        let axis = super::infer::axis("axis", self.axis, rank).ok();
        match at.operands {
            [x] if x.claim == Claim::Invariant
                || x.claim.shard().is_some_and(|s| Some(s.axis) == axis) =>
            {
                at.whole()
            }
            _ => Err(rules::refuse(Code::Misaligned, 0, "gathers rows on an axis that has none")),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        self.concat().eval(operands)
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it joins the values of replicas; gradients are taken before")
    }
}
