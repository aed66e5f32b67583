//! The derivatives of the elementwise functions, as formulas of the operand and of the result.

use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

use super::{GeluForm, Unary};
use crate::op::prelude::*;

/// `1 - a * a`.
fn one_less_square(a: Term) -> Expr {
    -a.squared() + 1.0
}

/// `a` where `x` is between 0 and 1.
fn inside(at: &mut Backward<'_>, x: Term, a: impl Into<Expr>) -> Result<Term, RuleError> {
    let (up, down) = (at.is_above(x, 0.0)?, at.is_below(x, 1.0)?);
    at.make(a.into().only(up).only(down))
}

impl Op {
    /// Whether no element of its result is below 0, and its operand has no gradient where that is
    /// 0, whatever gradient the result has.
    pub(crate) fn is_masked(&self) -> bool {
        matches!(self, Self::Unary(Unary::Relu))
    }
}

impl Unary {
    /// The gradient of the operand: that of the result times the derivative. Where two slopes meet
    /// it is that of the side below, for `clip` 1.
    pub(super) fn derivative(&self, at: &mut Backward<'_>) -> Result<Expr, RuleError> {
        let (x, y, dy) = (at.operand(0)?, at.result(0)?, at.dy()?);
        Ok(match *self {
            Self::Neg => -dy,
            // The result is above 0 where the operand is, which need not be kept.
            Self::Relu => at.relu_grad(y, dy)?.into(),
            Self::Clip { .. }
            | Self::LeakyRelu { .. }
            | Self::ThresholdedRelu { .. }
            | Self::Shrink { .. }
            | Self::Elu { .. }
            | Self::Selu { .. }
            | Self::Celu { .. } => self.pieces([x, y, dy]),
            // `clip(alpha * x + beta, 0, 1)`: by the result it is known whether the line or a bound
            // holds.
            Self::HardSigmoid { alpha, .. } => inside(at, y, dy * f64::from(alpha))?.into(),
            Self::Sign | Self::Floor | Self::Ceil | Self::Round => dy * 0.0,
            // `1 / (2 sqrt(x))`, by the result.
            Self::Sqrt => dy / (y * 2.0),
            Self::Log => dy / x,
            // `x / (1 + |x|)` has the slope `1 / (1 + |x|)^2` on both sides of 0.
            Self::Softsign => dy / (x.abs() + 1.0).squared(),
            Self::Acos => -(dy / self.inverse(x)),
            Self::Asin | Self::Atan | Self::Asinh | Self::Acosh | Self::Atanh => {
                dy / self.inverse(x)
            }
            Self::Swish { .. } | Self::HardSwish | Self::Mish => dy * self.gate(at, x)?,
            Self::Gelu { approximate } => dy * gelu(at, x, approximate)?,
            Self::Abs
            | Self::Exp
            | Self::Reciprocal
            | Self::Erf
            | Self::Sin
            | Self::Cos
            | Self::Tan
            | Self::Sinh
            | Self::Cosh
            | Self::Tanh
            | Self::Sigmoid
            | Self::Softplus => dy * self.slope(x, y),
        })
    }

    /// The gradient where the function is another one on each side of a corner.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others have one piece")]
    fn pieces(&self, [x, y, dy]: [Term; 3]) -> Expr {
        match *self {
            Self::Clip { min, max } => {
                let mut dx = Expr::from(dy);
                if let Some(min) = min {
                    dx = dx.only(x.at_least(min));
                }
                if let Some(max) = max {
                    dx = dx.only(x.at_most(max));
                }
                dx
            }
            Self::LeakyRelu { alpha } => dy.where_else(x.above(0.0), dy * f64::from(alpha)),
            Self::ThresholdedRelu { alpha } => dy.only(x.above(alpha.into())),
            Self::Shrink { lambd, .. } => dy.only(x.abs().above(lambd.into())),
            // Below 0 it is `y = alpha * (e^x - 1)`, with the slope `y + alpha`.
            Self::Elu { alpha } => dy.where_else(x.above(0.0), dy * (y + f64::from(alpha))),
            Self::Selu { alpha, gamma } => {
                let (alpha, gamma) = (f64::from(alpha), f64::from(gamma));
                let above =
                    if gamma.to_bits() == 1.0f64.to_bits() { dy.into() } else { dy * gamma };
                above.where_else(x.above(0.0), dy * (y + alpha * gamma))
            }
            // Below 0, `alpha * (e^(x / alpha) - 1)` has the slope `e^(x / alpha)`.
            Self::Celu { alpha } => {
                let power = (x * (1.0 / f64::from(alpha))).exp();
                dy.where_else(x.above(0.0), dy * power)
            }
            _ => dy.into(),
        }
    }

    /// One over the derivative of an inverse function, but for its sign.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the inverses of sine, cosine and hyperbolic tangent"
    )]
    fn inverse(&self, x: Term) -> Expr {
        // asin, acos (but for its sign): `sqrt(1 - x^2)`; atan: `1 + x^2`; atanh: `1 - x^2`; asinh:
        // `sqrt(x^2 + 1)`; acosh: `sqrt(x^2 - 1)`.
        match self {
            Self::Atan => x.squared() + 1.0,
            Self::Asinh => (x.squared() + 1.0).sqrt(),
            Self::Acosh => (x.squared() + -1.0).sqrt(),
            Self::Atanh => one_less_square(x),
            _ => one_less_square(x).sqrt(),
        }
    }

    /// The derivative.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the others are written where gradients are"
    )]
    fn slope(&self, x: Term, y: Term) -> Expr {
        match *self {
            Self::Abs => x.sign(),
            // `-1 / x^2 = -y^2`.
            Self::Reciprocal => -y.squared(),
            // `2 / sqrt(pi) * e^(-x^2)`.
            Self::Erf => (-x.squared()).exp() * FRAC_2_SQRT_PI,
            Self::Sin => x.apply(Self::Cos),
            Self::Cos => -x.apply(Self::Sin),
            // `1 / cos(x)^2 = 1 + y^2`.
            Self::Tan => y.squared() + 1.0,
            Self::Sinh => x.apply(Self::Cosh),
            Self::Cosh => x.apply(Self::Sinh),
            Self::Tanh => one_less_square(y),
            // `y * (1 - y)`.
            Self::Sigmoid => y - y.squared(),
            Self::Softplus => x.apply(Self::Sigmoid),
            // The exponential is its own derivative.
            _ => y.into(),
        }
    }

    /// The derivative of a product of the operand and of a function of it between 0 and 1.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are no such product")]
    fn gate(&self, at: &mut Backward<'_>, x: Term) -> Result<Expr, RuleError> {
        Ok(match *self {
            Self::Swish { alpha } => {
                // s + alpha * x * s * (1 - s)
                let inner = at.make(x * f64::from(alpha))?;
                let s = at.make(inner.apply(Self::Sigmoid))?;
                s + inner * (s - s.squared())
            }
            // `x * s` with `s = clip(x / 6 + 1 / 2, 0, 1)`: `s + x / 6` between the corners, where
            // the slope of `s` is 1 / 6, and `s` outside.
            Self::HardSwish => {
                let s = at.make(x.apply(Self::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 }))?;
                let sixth = at.make(x * (1.0 / 6.0))?;
                s + inside(at, s, sixth)?
            }
            // `x * t` with `t = tanh(softplus(x))`: `t + x * (1 - t^2) * sigmoid(x)`, as the slope
            // of softplus is the sigmoid.
            Self::Mish => {
                let t = at.make(x.apply(Self::Softplus).apply(Self::Tanh))?;
                t + x * (one_less_square(t) * x.apply(Self::Sigmoid))
            }
            _ => x.into(),
        })
    }
}

/// The derivative of the product of `x` and the normal distribution function.
fn gelu(at: &mut Backward<'_>, x: Term, form: GeluForm) -> Result<Expr, RuleError> {
    Ok(match form {
        // `x * P(x)` with the distribution function `P(x) = (1 + erf(x / sqrt(2))) / 2`: `P(x) + x
        // * p(x)` with the density `p(x) = e^(-x^2 / 2) / sqrt(2 pi)`.
        GeluForm::Exact => {
            let share = ((x * (1.0 / SQRT_2)).apply(Unary::Erf) + 1.0) * 0.5;
            let density = (x.squared() * -0.5).exp() * (1.0 / (2.0 * PI).sqrt());
            share + x * density
        }
        // `x * (1 + t) / 2` with `t = tanh(r * (x + c * x^3))`, `r = sqrt(2 / pi)` and `c =
        // 0.044715` (Hendrycks and Gimpel 2016): `(1 + t) / 2 + x * (1 - t^2) * r * (1 + 3 c x^2) /
        // 2`.
        GeluForm::Tanh => {
            const CUBIC: f64 = 0.044_715;
            let root = (2.0 / PI).sqrt();
            let square = at.make(x.squared())?;
            let t = at.make((x * (square * CUBIC + 1.0) * root).apply(Unary::Tanh))?;
            let slope = (square * (3.0 * CUBIC) + 1.0) * (0.5 * root);
            (t + 1.0) * 0.5 + x * one_less_square(t) * slope
        }
    })
}
