//! The gradient of a framework's operator.

use crate::op::prelude::*;

/// Builder for the gradient of a [`CustomOp`](super::CustomOp): the operator's operands,
/// its results and their gradients, and the operators that are applied to them.
pub struct GradientBuilder<'a, 'b>(pub(super) &'a mut Backward<'b>);

impl GradientBuilder<'_, '_> {
    /// Operand `i`.
    ///
    /// # Errors
    /// If there is none.
    pub fn operand(&self, i: usize) -> Result<Term, RuleError> {
        self.0.operand(i)
    }

    /// Result `i`.
    ///
    /// # Errors
    /// If there is none.
    pub fn result(&self, i: usize) -> Result<Term, RuleError> {
        self.0.result(i)
    }

    /// The gradient of result `i`, or `None` where it is 0.
    pub fn gradient(&self, i: usize) -> Option<Term> {
        self.0.gradient(i)
    }

    /// The gradient of the first result.
    ///
    /// # Errors
    /// If it is 0.
    pub fn dy(&self) -> Result<Term, RuleError> {
        self.0.dy()
    }

    /// The sizes of a value.
    pub fn shape(&self, a: Term) -> Shape {
        self.0.shape(a)
    }

    /// Applies an operator and gives its first result.
    ///
    /// # Errors
    /// If it does not take these operands.
    pub fn op(&mut self, op: impl Into<Op>, operands: &[Term]) -> Result<Term, RuleError> {
        self.0.op(op, operands)
    }

    /// Applies an operator and gives all its results.
    ///
    /// # Errors
    /// If it does not take these operands.
    pub fn ops(&mut self, op: impl Into<Op>, operands: &[Term]) -> Result<Vec<Term>, RuleError> {
        Ok(self.0.ops(op, operands)?.to_vec())
    }

    /// The sum of two values, broadcast against each other.
    ///
    /// # Errors
    /// If their types do not fit.
    pub fn add(&mut self, a: Term, b: Term) -> Result<Term, RuleError> {
        self.0.add(a, b)
    }

    /// The product of two values, element by element, broadcast against each other.
    ///
    /// # Errors
    /// If their types do not fit.
    pub fn mul(&mut self, a: Term, b: Term) -> Result<Term, RuleError> {
        self.0.mul(a, b)
    }

    /// A value times a number.
    ///
    /// # Errors
    /// If it is no float.
    pub fn scale(&mut self, a: Term, by: f64) -> Result<Term, RuleError> {
        self.0.scale(a, by)
    }

    /// The sum of `a` over the axes along which an operand of the sizes `to` was broadcast to it.
    ///
    /// # Errors
    /// If sizes are not known.
    pub fn sum_to(&mut self, a: Term, to: &Shape) -> Result<Term, RuleError> {
        self.0.sum_to(a, to)
    }
}
