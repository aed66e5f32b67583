//! Views: operators whose result has the elements of the operand, in their order.

use crate::op::OpText;
use crate::op::infer::{carried, exactly, known_sizes, result_with_ints};
use crate::op::prelude::*;

/// Declarations of a view; the rest follows because its elements do not change.
pub(in crate::op) trait View: OpText {
    /// Whether it is the operand itself where the types are equal.
    const IS_OPERAND: bool = true;

    /// The shape of the result.
    fn shape(&self, x: &TensorType) -> Result<Shape, OpError>;
}

/// The operand, of which nothing changes.
pub(in crate::op) fn unchanged(operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
    let [x] = exactly(operands)?;
    Ok(vec![x.clone()])
}

/// The gradient of the result as that of the first operand.
pub(in crate::op) fn passed_on(at: &mut Backward<'_>) -> Result<(), RuleError> {
    let dy = at.dy()?;
    at.give(0, dy)
}

impl<V: View> OpDef for V {
    fn traits(&self) -> Traits {
        Traits::VIEW | self.facts()
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        V::IS_OPERAND.then_some(0)
    }

    fn positions(&self, operands: &[PositionOperand<'_>], y: &TensorType) -> Option<Positions> {
        let [x] = operands else { return None };
        x.rows?.viewed(&x.ty.shape, &y.shape)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        result_with_ints(TensorType::new(x.ty.dtype, self.shape(x.ty)?), carried(&x))
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        match (at.operands, at.results) {
            ([x], [y]) if x.ty == y => at.give(x.claim),
            _ => rules::regroup(at),
        }
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        rules::moved(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let dims = known_sizes("the shape", &self.shape(&x.tensor_type())?)?;
        Ok(vec![x.clone().reshaped(&dims)?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, to) = (at.dy()?, at.shape(at.operand(0)?));
        let dx = at.reshape(dy, &to)?;
        at.give(0, dx)
    }
}
