//! The derivatives of functions of one number.

use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

use super::{GeluForm, Unary};
use crate::op::Formula;
use crate::op::gradient::{Backward, RuleError, Term};

/// `0.5 * (1 + t)`.
fn half_above(at: &mut Backward<'_>, t: Term) -> Result<Term, RuleError> {
    let above = at.shift(t, 1.0)?;
    at.scale(above, 0.5)
}

/// `1 - a * a`.
fn one_less_square(at: &mut Backward<'_>, a: Term) -> Result<Term, RuleError> {
    let square = at.square(a)?;
    at.complement(square)
}

/// `dy` where `x` is above `bound`, else `below`.
fn above(
    at: &mut Backward<'_>,
    x: Term,
    bound: f64,
    dy: Term,
    below: Term,
) -> Result<Term, RuleError> {
    let is_above = at.is_above(x, bound)?;
    at.choose(is_above, dy, below)
}

impl Unary {
    /// The gradient of the operand: that of the result times the derivative. Where two slopes meet
    /// it is that of the side below, for `clip` 1.
    pub(super) fn derivative(&self, at: &mut Backward<'_>) -> Result<Term, RuleError> {
        let (x, y, dy) = (at.operand(0)?, at.result(0)?, at.dy()?);
        match *self {
            Self::Neg => at.neg(dy),
            Self::Relu
            | Self::Clip { .. }
            | Self::LeakyRelu { .. }
            | Self::ThresholdedRelu { .. }
            | Self::Shrink { .. }
            | Self::Elu { .. }
            | Self::Selu { .. }
            | Self::Celu { .. }
            | Self::HardSigmoid { .. } => self.pieces(at, [x, y, dy]),
            Self::Sign | Self::Floor | Self::Ceil | Self::Round => at.scale(dy, 0.0),
            // `1 / (2 sqrt(x))`, by the result.
            Self::Sqrt => {
                let twice = at.scale(y, 2.0)?;
                at.div(dy, twice)
            }
            Self::Log => at.div(dy, x),
            // `x / (1 + |x|)` has the slope `1 / (1 + |x|)^2` on both sides of 0.
            Self::Softsign => {
                let size = at.op(Self::Abs, &[x])?;
                let size = at.shift(size, 1.0)?;
                let square = at.square(size)?;
                at.div(dy, square)
            }
            Self::Asin | Self::Acos | Self::Atan | Self::Asinh | Self::Acosh | Self::Atanh => {
                let divisor = self.inverse(at, x)?;
                let dx = at.div(dy, divisor)?;
                if *self == Self::Acos { at.neg(dx) } else { Ok(dx) }
            }
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
            | Self::Swish { .. }
            | Self::HardSwish
            | Self::Mish
            | Self::Gelu { .. }
            | Self::Softplus => {
                let slope = self.slope(at, x, y)?;
                at.mul(dy, slope)
            }
        }
    }

    /// The gradient where the function is another one on each side of a corner.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others have one piece")]
    fn pieces(&self, at: &mut Backward<'_>, [x, y, dy]: [Term; 3]) -> Result<Term, RuleError> {
        match *self {
            // The result is above 0 where the operand is, which need not be kept.
            Self::Relu => at.relu_grad(y, dy),
            Self::Clip { min, max } => {
                let mut dx = dy;
                if let Some(min) = min {
                    let inside = at.is_at_least(x, min)?;
                    dx = at.only(inside, dx)?;
                }
                if let Some(max) = max {
                    let inside = at.is_at_most(x, max)?;
                    dx = at.only(inside, dx)?;
                }
                Ok(dx)
            }
            Self::LeakyRelu { alpha } => {
                let below = at.scale(dy, alpha.into())?;
                above(at, x, 0.0, dy, below)
            }
            Self::ThresholdedRelu { alpha } => {
                let is_above = at.is_above(x, alpha.into())?;
                at.only(is_above, dy)
            }
            Self::Shrink { lambd, .. } => {
                let size = at.op(Self::Abs, &[x])?;
                let is_above = at.is_above(size, lambd.into())?;
                at.only(is_above, dy)
            }
            Self::Elu { alpha } => Self::exponential(at, [x, y, dy], alpha.into(), 1.0),
            Self::Selu { alpha, gamma } => {
                let (alpha, gamma) = (f64::from(alpha), f64::from(gamma));
                Self::exponential(at, [x, y, dy], alpha * gamma, gamma)
            }
            // Below 0, `alpha * (e^(x / alpha) - 1)` has the slope `e^(x / alpha)`.
            Self::Celu { alpha } => {
                let power = at.scale(x, 1.0 / f64::from(alpha))?;
                let power = at.op(Self::Exp, &[power])?;
                let below = at.mul(dy, power)?;
                above(at, x, 0.0, dy, below)
            }
            // `clip(alpha * x + beta, 0, 1)`: by the result it is known whether the line or a bound
            // holds.
            Self::HardSigmoid { alpha, .. } => {
                let (up, down) = (at.is_above(y, 0.0)?, at.is_below(y, 1.0)?);
                let slope = at.scale(dy, alpha.into())?;
                let slope = at.only(up, slope)?;
                at.only(down, slope)
            }
            _ => Ok(dy),
        }
    }

    /// `factor * dy` above 0, below it `(y + limit) * dy`, where `y` is `limit * (e^x - 1)`.
    fn exponential(
        at: &mut Backward<'_>,
        [x, y, dy]: [Term; 3],
        limit: f64,
        factor: f64,
    ) -> Result<Term, RuleError> {
        let power = at.shift(y, limit)?;
        let below = at.mul(dy, power)?;
        let scaled = if factor.to_bits() == 1.0f64.to_bits() { dy } else { at.scale(dy, factor)? };
        above(at, x, 0.0, scaled, below)
    }

    /// One over the derivative of an inverse function, but for its sign.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the inverses of sine, cosine and hyperbolic tangent"
    )]
    fn inverse(&self, at: &mut Backward<'_>, x: Term) -> Result<Term, RuleError> {
        // asin, acos (but for its sign): `sqrt(1 - x^2)`; atan: `1 + x^2`; atanh: `1 - x^2`; asinh:
        // `sqrt(x^2 + 1)`; acosh: `sqrt(x^2 - 1)`.
        let square = at.square(x)?;
        let (rest, root) = match self {
            Self::Atan => (at.shift(square, 1.0)?, false),
            Self::Asinh => (at.shift(square, 1.0)?, true),
            Self::Acosh => (at.shift(square, -1.0)?, true),
            _ => {
                let less = at.neg(square)?;
                (at.shift(less, 1.0)?, *self != Self::Atanh)
            }
        };
        if root { at.op(Self::Sqrt, &[rest]) } else { Ok(rest) }
    }

    /// The derivative.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the others are written where gradients are"
    )]
    fn slope(&self, at: &mut Backward<'_>, x: Term, y: Term) -> Result<Term, RuleError> {
        match *self {
            Self::Abs => at.op(Self::Sign, &[x]),
            // `-1 / x^2 = -y^2`.
            Self::Reciprocal => {
                let square = at.square(y)?;
                at.neg(square)
            }
            // `2 / sqrt(pi) * e^(-x^2)`.
            Self::Erf => {
                let square = at.square(x)?;
                let less = at.neg(square)?;
                let power = at.op(Self::Exp, &[less])?;
                at.scale(power, FRAC_2_SQRT_PI)
            }
            Self::Sin => at.op(Self::Cos, &[x]),
            Self::Cos => {
                let sine = at.op(Self::Sin, &[x])?;
                at.neg(sine)
            }
            // `1 / cos(x)^2 = 1 + y^2`.
            Self::Tan => {
                let square = at.square(y)?;
                at.shift(square, 1.0)
            }
            Self::Sinh => at.op(Self::Cosh, &[x]),
            Self::Cosh => at.op(Self::Sinh, &[x]),
            Self::Tanh => one_less_square(at, y),
            // `y * (1 - y)`.
            Self::Sigmoid => {
                let square = at.square(y)?;
                at.sub(y, square)
            }
            Self::Swish { .. } | Self::HardSwish | Self::Mish => self.gate(at, x),
            Self::Gelu { approximate } => gelu(at, x, approximate),
            Self::Softplus => at.op(Self::Sigmoid, &[x]),
            // The exponential is its own derivative.
            _ => Ok(y),
        }
    }

    /// The derivative of a product of the operand and of a function of it between 0 and 1.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are no such product")]
    fn gate(&self, at: &mut Backward<'_>, x: Term) -> Result<Term, RuleError> {
        match *self {
            Self::Swish { alpha } => {
                // s + alpha * x * s * (1 - s)
                let inside = at.scale(x, alpha.into())?;
                let s = at.op(Self::Sigmoid, &[inside])?;
                let square = at.square(s)?;
                let bell = at.sub(s, square)?;
                let rest = at.mul(inside, bell)?;
                at.add(s, rest)
            }
            // `x * s` with `s = clip(x / 6 + 1 / 2, 0, 1)`: `s + x / 6` between the corners, where
            // the slope of `s` is 1 / 6, and `s` outside.
            Self::HardSwish => {
                let gate = Self::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 };
                let s = at.op(gate, &[x])?;
                let sixth = at.scale(x, 1.0 / 6.0)?;
                let (up, down) = (at.is_above(s, 0.0)?, at.is_below(s, 1.0)?);
                let sloped = at.only(up, sixth)?;
                let sloped = at.only(down, sloped)?;
                at.add(s, sloped)
            }
            // `x * t` with `t = tanh(softplus(x))`: `t + x * (1 - t^2) * sigmoid(x)`, as the slope
            // of softplus is the sigmoid.
            Self::Mish => {
                let plus = at.op(Self::Softplus, &[x])?;
                let t = at.op(Self::Tanh, &[plus])?;
                let bell = one_less_square(at, t)?;
                let s = at.op(Self::Sigmoid, &[x])?;
                let rest = at.mul(bell, s)?;
                let rest = at.mul(x, rest)?;
                at.add(t, rest)
            }
            _ => Ok(x),
        }
    }
}

/// The derivative of the product of `x` and the normal distribution function.
fn gelu(at: &mut Backward<'_>, x: Term, form: GeluForm) -> Result<Term, RuleError> {
    match form {
        // `x * P(x)` with the distribution function `P(x) = (1 + erf(x / sqrt(2))) / 2`: `P(x) + x
        // * p(x)` with the density `p(x) = e^(-x^2 / 2) / sqrt(2 pi)`.
        GeluForm::Exact => {
            let inside = at.scale(x, 1.0 / SQRT_2)?;
            let erf = at.op(Unary::Erf, &[inside])?;
            let share = half_above(at, erf)?;
            let square = at.square(x)?;
            let power = at.scale(square, -0.5)?;
            let power = at.exp(power)?;
            let density = at.scale(power, 1.0 / (2.0 * PI).sqrt())?;
            let rest = at.mul(x, density)?;
            at.add(share, rest)
        }
        // `x * (1 + t) / 2` with `t = tanh(r * (x + c * x^3))`, `r = sqrt(2 / pi)` and `c =
        // 0.044715` (Hendrycks and Gimpel 2016): `(1 + t) / 2 + x * (1 - t^2) * r * (1 + 3 c x^2) /
        // 2`.
        GeluForm::Tanh => {
            const CUBIC: f64 = 0.044_715;
            let root = (2.0 / PI).sqrt();
            let square = at.square(x)?;
            let bent = at.scale(square, CUBIC)?;
            let bent = at.shift(bent, 1.0)?;
            let inside = at.mul(x, bent)?;
            let inside = at.scale(inside, root)?;
            let t = at.tanh(inside)?;
            let share = half_above(at, t)?;
            let bell = one_less_square(at, t)?;
            let slope = at.scale(square, 3.0 * CUBIC)?;
            let slope = at.shift(slope, 1.0)?;
            let slope = at.scale(slope, 0.5 * root)?;
            let rest = at.mul(x, bell)?;
            let rest = at.mul(rest, slope)?;
            at.add(share, rest)
        }
    }
}
