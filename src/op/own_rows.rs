//! A replica's rows of a value that it holds whole.

use super::infer::{axis, carried, exactly, result_with_ints};
use super::prelude::*;
use super::view;

op! {
    /// The rows of its operand that belong to the replica which runs it: on one device all of them.
    /// The pass replaces it by the slice that each replica takes.
    ///
    /// Elsewhere: dynamic slice (XLA); local shard (PyTorch).
    pub struct OwnRows = "own_rows" is VIEW | MEETS_WHOLE {
        /// The axis that has the batch.
        pub axis: i64,
    }
}

impl OpDef for OwnRows {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let axis = axis("axis", self.axis, x.ty.rank())?;
        if !x.ty.shape[axis].is_const() && !x.ty.shape[axis].depends_on_batch() {
            return Err(OpError::shape(0, x.ty, format!("axis {axis} holds the batch")));
        }
        result_with_ints(x.ty.clone(), carried(&x))
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let ([x], [y]) = (at.operands, at.results) else { return at.whole() };
        let own = axis("axis", self.axis, y.rank()).ok();
        match rules::batch_axis(y, 0)? {
            Some(shard) if x.claim == Claim::Invariant && Some(shard.axis) == own => at.keep(shard),
            _ => at.refuse_at(0, Code::Misaligned, "takes own rows of a value that has none"),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        view::unchanged(operands)
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        view::passed_on(at)
    }
}
