//! Views: operators whose result has the elements of the operand, in their order.

use crate::op::infer::{carried, known_sizes, one, result_with_ints, tensors};
use crate::op::{
    Backward, Claims, Formula, Gradient, Known, OpDef, OpError, OpText, Operand, PositionOperand,
    Positions, Results, RuleError, SplitOperand, Traits, rules,
};
use crate::types::{Refusal, Shape, Tensor, TensorType};

/// Declarations of a view; the rest follows because its elements do not change.
pub(in crate::op) trait View: OpText {
    /// Traits besides [`Traits::VIEW`].
    const TRAITS: Traits;
    /// Whether it is the operand itself where the types are equal.
    const IS_OPERAND: bool = true;

    /// The shape of the result.
    fn shape(&self, x: &TensorType) -> Result<Shape, OpError>;
}

impl<V: View> OpDef for V {
    fn traits(&self) -> Traits {
        Traits::VIEW | V::TRAITS
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        V::IS_OPERAND.then_some(0)
    }

    fn positions(&self, operands: &[PositionOperand<'_>], y: &TensorType) -> Option<Positions> {
        let [x] = operands else { return None };
        x.rows?.viewed(&x.ty.shape, &y.shape)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        result_with_ints(TensorType::new(x.ty.dtype, self.shape(x.ty)?), carried(&x))
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        match (operands, results) {
            ([x], [y]) if x.ty == y => Ok(rules::same(operands, 1)),
            _ => rules::regroup(operands, results),
        }
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
        let dims = known_sizes("the shape", &self.shape(&x.tensor_type())?)?;
        Ok(vec![x.clone().reshaped(&dims)?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, to) = (at.dy()?, at.shape(at.operand(0)?));
        let dx = at.reshape(dy, &to)?;
        at.give(0, dx);
        Ok(())
    }
}
