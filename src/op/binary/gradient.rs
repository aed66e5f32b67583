//! The gradients of functions of two numbers.

use super::Binary;
use crate::op::prelude::*;

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
    fn left(&self, [a, b, dy]: [Term; 3], at: &mut Backward<'_>) -> Result<Expr, RuleError> {
        Ok(match self {
            Self::Add | Self::Sub | Self::Mod { .. } => dy.into(),
            Self::Mul => dy * b,
            Self::Div => dy / b,
            Self::Pow => {
                // b * a^(b - 1), which is 0 for the exponent 0, also at 0.
                let to = at.ty(a).dtype;
                let b = at.cast(b, to)?;
                let (zero, one) = (at.number(b, 0.0)?, at.number(b, 1.0)?);
                let flat = at.equal(b, zero)?;
                dy * (b * a.with(Self::Pow, one.where_else(flat, b - one)))
            }
            Self::Max | Self::Min => self.chosen([a, b, dy], at)?,
            // `b` where `a` is above 0, else 0: flat in `a`, and linear in `b`.
            Self::ReluGrad => dy * 0.0,
            Self::Prelu => dy.where_else(a.above(0.0), dy * b),
        })
    }

    /// The gradient of the second operand, as [`Self::left`] gives that of the first.
    fn right(&self, [a, b, dy]: [Term; 3], at: &mut Backward<'_>) -> Result<Expr, RuleError> {
        Ok(match self {
            Self::Add => dy.into(),
            Self::Sub => -dy,
            Self::Mul => dy * a,
            // `-a / b^2`, as `-y / b`: the square could overflow where the quotient does not.
            Self::Div => -(dy * (at.result(0)? / b)),
            Self::Pow => {
                // y * ln(a), and 0 where the base is not positive.
                let base = a.where_else(a.above(0.0), 1.0).ln();
                let slope = at.make(dy * (at.result(0)? * base))?;
                let to = at.ty(b).dtype;
                at.cast(slope, to)?.into()
            }
            // The quotient, cut to its integral part, is (a - y) / b.
            Self::Mod { .. } => -(dy * ((a - at.result(0)?) / b)),
            // Ties split evenly, so the order of the operands does not matter.
            Self::Max | Self::Min => self.chosen([b, a, dy], at)?,
            Self::ReluGrad => a.with(Self::ReluGrad, dy),
            Self::Prelu => {
                let slope = at.mul(dy, a)?;
                let zero = at.number(a, 0.0)?;
                zero.where_else(a.above(0.0), slope)
            }
        })
    }

    /// The gradient of the larger (smaller) of two numbers: half of it where they are equal.
    fn chosen(
        &self,
        [own, other, dy]: [Term; 3],
        at: &mut Backward<'_>,
    ) -> Result<Expr, RuleError> {
        let wins = if *self == Self::Max { at.greater(own, other)? } else { at.less(own, other)? };
        let ties = at.equal(own, other)?;
        Ok(dy.where_else(wins, (dy * 0.5).only(ties)))
    }
}
