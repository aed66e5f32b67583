//! A replica's rows of a value that it holds whole.

use smallvec::smallvec;

use super::declare::op;
use super::infer::{axis, carried, one, result_with_ints};
use super::{
    Backward, Claims, Gradient, OpDef, OpError, Operand, Results, RuleError, SplitOperand, Traits,
    rules,
};
use crate::types::{Claim, Code, Refusal, Tensor, TensorType};

op! {
    /// The rows of its operand that belong to the replica which runs it: on one device all of them.
    /// The pass replaces it by the slice that each replica takes.
    ///
    /// Elsewhere: dynamic slice (XLA); local shard (PyTorch).
    pub struct OwnRows = "own_rows" {
        /// The axis that has the batch.
        pub axis: i64,
    }
}

impl OpDef for OwnRows {
    fn traits(&self) -> Traits {
        Traits::VIEW
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        let axis = axis("axis", self.axis, x.ty.rank())?;
        if !x.ty.shape[axis].is_const() && !x.ty.shape[axis].depends_on_batch() {
            let expected = format!("axis {axis} holds the batch");
            return Err(OpError::Shape { operand: 0, found: x.ty.clone(), expected });
        }
        result_with_ints(x.ty.clone(), carried(&x))
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let ([x], [y]) = (operands, results) else { return rules::whole_results(results) };
        let own = axis("axis", self.axis, y.rank()).ok();
        match rules::batch_axis(y, 0)? {
            Some(shard) if x.claim == Claim::Invariant && Some(shard.axis) == own => {
                Ok(smallvec![Claim::Shard(shard)])
            }
            _ => Err(rules::refuse(Code::Misaligned, 0, "takes own rows of a value without any")),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = super::infer::tensors(operands)?;
        Ok(vec![x.clone()])
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
