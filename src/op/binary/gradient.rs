//! The gradients of functions of two numbers.

use super::Binary;
use crate::op::Formula;
use crate::op::gradient::{Backward, RuleError, Term};

impl Binary {
    /// Gives both operands their gradients.
    pub(super) fn gradients(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (a, b, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        if at.wants(0) {
            let da = self.left([a, b, dy], at)?;
            at.give_sum(0, da)?;
        }
        if at.wants(1) {
            let db = self.right([a, b, dy], at)?;
            at.give_sum(1, db)?;
        }
        Ok(())
    }

    /// The gradient of the first operand, in the shape of the result: the caller sums it over the
    /// axes that were broadcast.
    fn left(&self, [a, b, dy]: [Term; 3], at: &mut Backward<'_>) -> Result<Term, RuleError> {
        match self {
            Self::Add | Self::Sub | Self::Mod { .. } => Ok(dy),
            Self::Mul => at.mul(dy, b),
            Self::Div => at.div(dy, b),
            Self::Pow => {
                // b * a^(b - 1), which is 0 for the exponent 0, also at 0.
                let to = at.ty(a).dtype;
                let b = at.cast(b, to)?;
                let (zero, one) = (at.number(b, 0.0)?, at.number(b, 1.0)?);
                let flat = at.equal(b, zero)?;
                let less = at.sub(b, one)?;
                let less = at.choose(flat, one, less)?;
                let power = at.op(Self::Pow, &[a, less])?;
                let slope = at.mul(b, power)?;
                at.mul(dy, slope)
            }
            Self::Max | Self::Min => self.chosen([a, b, dy], at),
            // `b` where `a` is above 0, else 0: flat in `a`, and linear in `b`.
            Self::ReluGrad => at.scale(dy, 0.0),
            Self::Prelu => {
                let below = at.mul(dy, b)?;
                let is_above = at.is_above(a, 0.0)?;
                at.choose(is_above, dy, below)
            }
        }
    }

    /// The gradient of the second operand, as [`Self::left`] gives that of the first.
    fn right(&self, [a, b, dy]: [Term; 3], at: &mut Backward<'_>) -> Result<Term, RuleError> {
        match self {
            Self::Add => Ok(dy),
            Self::Sub => at.neg(dy),
            Self::Mul => at.mul(dy, a),
            // `-a / b^2`, as `-y / b`: the square could overflow where the quotient does not.
            Self::Div => {
                let y = at.result(0)?;
                let share = at.div(y, b)?;
                let share = at.mul(dy, share)?;
                at.neg(share)
            }
            Self::Pow => {
                // y * ln(a), and 0 where the base is not positive.
                let y = at.result(0)?;
                let positive = at.is_above(a, 0.0)?;
                let one = at.number(a, 1.0)?;
                let base = at.choose(positive, a, one)?;
                let log = at.log(base)?;
                let slope = at.mul(y, log)?;
                let slope = at.mul(dy, slope)?;
                let to = at.ty(b).dtype;
                at.cast(slope, to)
            }
            Self::Mod { .. } => {
                // The quotient, cut to its integral part, is (a - y) / b.
                let y = at.result(0)?;
                let multiple = at.sub(a, y)?;
                let quotient = at.div(multiple, b)?;
                let quotient = at.mul(dy, quotient)?;
                at.neg(quotient)
            }
            // Ties split evenly, so the order of the operands does not matter.
            Self::Max | Self::Min => self.chosen([b, a, dy], at),
            Self::ReluGrad => at.op(Self::ReluGrad, &[a, dy]),
            Self::Prelu => {
                let slope = at.mul(dy, a)?;
                let zero = at.number(a, 0.0)?;
                let is_above = at.is_above(a, 0.0)?;
                at.choose(is_above, zero, slope)
            }
        }
    }

    /// The gradient of the larger (smaller) of two numbers: half of it where they are equal.
    fn chosen(
        &self,
        [own, other, dy]: [Term; 3],
        at: &mut Backward<'_>,
    ) -> Result<Term, RuleError> {
        let wins = if *self == Self::Max { at.greater(own, other)? } else { at.less(own, other)? };
        let ties = at.equal(own, other)?;
        let half = at.scale(dy, 0.5)?;
        let shared = at.only(ties, half)?;
        at.choose(wins, dy, shared)
    }
}
