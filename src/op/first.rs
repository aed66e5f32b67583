//! One of several equal values.

use super::infer::{at_least, carried, count, result_with_ints};
use super::prelude::*;

op! {
    /// The first of its operands: the copies that the replicas hold of a value which is whole on
    /// each of them, in the order of the replicas.
    ///
    /// At run time the operands of replicas without rows are absent, and the first one present is
    /// taken.
    pub struct First = "first" is MOVES {}
}

impl OpDef for First {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 1, usize::MAX, "at least 1")?;
        let Some((first, rest)) = operands.split_first() else { return Ok(Results::new()) };
        for (i, x) in rest.iter().enumerate() {
            if x.ty != first.ty {
                let expected = format!("all operands are {}, as operand 0 is", first.ty);
                return Err(OpError::shape(i + 1, x.ty, expected));
            }
        }
        result_with_ints(first.ty.clone(), carried(first))
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        at.refuse(Code::Reorders, "takes the rows of one operand of several")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([first], _) = at_least(operands)?;
        Ok(vec![first.clone()])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it joins the values of replicas; gradients are taken before")
    }
}
