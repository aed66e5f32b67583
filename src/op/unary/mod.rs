//! Functions of one number: `relu`, `exp`, `clip`, …

mod gradient;
mod interval;
mod scalar;
#[cfg(test)]
mod tests;

pub(crate) use scalar::Apply;

use super::attr::names;
use super::element::{Int, for_dtype, in_reals};
use super::infer::{dtype, exactly, result_with_ints};
use super::prelude::*;
use super::real::Real;
use super::{Ratio, ints};

names! {
    /// The formula of `gelu`.
    pub enum GeluForm {
        /// With the error function: `x/2 * (1 + erf(x/sqrt(2)))`.
        Exact = "none",
        /// With a hyperbolic tangent: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715*x^3)))`.
        Tanh = "tanh",
    }
}

family! {
    /// A function applied to every element of its operand; the result has the operand's type.
    ///
    /// Floats are computed in `f32` for `f32`, `f16` and `bf16` and in `f64` for `f64`. `abs`,
    /// `sign` and `clip` take every number, `neg` and `relu` every signed one; integers wrap. All
    /// others take floats. A NaN gives a NaN unless said otherwise.
    pub enum Unary is ELEMENTWISE | CHEAP | FOLLOWS_BLOCKS {
        /// `|x|`.
        Abs = "abs",
        /// `-x`.
        Neg = "neg",
        /// -1, 0 or 1, as `x` is below, equal to or above 0.
        Sign = "sign",
        /// `max(x, 0)`.
        Relu = "relu",
        /// `max(x, min)`, then the minimum of that and `max`.
        ///
        /// For integers a bound is an integer of the element type, or lies outside its range
        /// without effect.
        Clip = "clip" {
            /// The lower bound; absent, there is none.
            min: Option<f64>,
            /// The upper bound, which wins over the lower one; absent, there is none.
            max: Option<f64>,
        },
        /// `e^x`.
        Exp = "exp",
        /// The natural logarithm.
        Log = "log",
        /// The square root.
        Sqrt = "sqrt",
        /// `1 / x`.
        Reciprocal = "reciprocal",
        /// The largest integer not above `x`.
        Floor = "floor",
        /// The smallest integer not below `x`.
        Ceil = "ceil",
        /// The nearest integer, the even one of two.
        Round = "round",
        /// The error function.
        Erf = "erf",
        /// The sine.
        Sin = "sin",
        /// The cosine.
        Cos = "cos",
        /// The tangent.
        Tan = "tan",
        /// The inverse of the sine.
        Asin = "asin",
        /// The inverse of the cosine.
        Acos = "acos",
        /// The inverse of the tangent.
        Atan = "atan",
        /// The hyperbolic sine.
        Sinh = "sinh",
        /// The hyperbolic cosine.
        Cosh = "cosh",
        /// The hyperbolic tangent.
        Tanh = "tanh",
        /// The inverse of the hyperbolic sine.
        Asinh = "asinh",
        /// The inverse of the hyperbolic cosine.
        Acosh = "acosh",
        /// The inverse of the hyperbolic tangent.
        Atanh = "atanh",
        /// `1 / (1 + e^-x)`.
        Sigmoid = "sigmoid",
        /// `alpha * x + beta`, between 0 and 1.
        HardSigmoid = "hard_sigmoid" {
            /// The slope.
            alpha: f32 = 0.2,
            /// The value at 0.
            beta: f32 = 0.5,
        },
        /// `x * sigmoid(alpha * x)`.
        Swish = "swish" {
            /// The factor inside the sigmoid.
            alpha: f32 = 1.0,
        },
        /// `x * hard_sigmoid(x)` with the slope 1/6 and 1/2 at 0.
        HardSwish = "hard_swish",
        /// `x * tanh(softplus(x))`.
        Mish = "mish",
        /// `x` times the normal distribution function at `x`.
        Gelu = "gelu" {
            /// The formula.
            approximate: GeluForm = GeluForm::Exact,
        },
        /// `ln(1 + e^x)`.
        Softplus = "softplus",
        /// `x / (1 + |x|)`.
        Softsign = "softsign",
        /// `x` where not negative, else `alpha * x`.
        LeakyRelu = "leaky_relu" {
            /// The slope of the negative side.
            alpha: f32 = 0.01,
        },
        /// `x` where above `alpha`, else 0; also for a NaN.
        ThresholdedRelu = "thresholded_relu" {
            /// The threshold.
            alpha: f32 = 1.0,
        },
        /// `x + bias` where below `-lambd`, `x - bias` where above `lambd`, else 0; also for a NaN.
        Shrink = "shrink" {
            /// The number subtracted from the magnitude of a number that stays.
            bias: f32 = 0.0,
            /// The magnitude up to which numbers become 0.
            lambd: f32 = 0.5,
        },
        /// `x` where not negative, else `alpha * (e^x - 1)`.
        Elu = "elu" {
            /// Minus the limit of the negative side.
            alpha: f32 = 1.0,
        },
        /// `gamma` times `elu(x)`.
        Selu = "selu" {
            /// Minus the limit of the negative side, before the scale.
            alpha: f32 = 1.673_263_2,
            /// The scale.
            gamma: f32 = 1.050_701,
        },
        /// `max(x, 0) + min(0, alpha * (e^(x/alpha) - 1))`.
        Celu = "celu" {
            /// The scale of the negative side, not 0.
            alpha: f32 = 1.0,
        },
    }
}

impl Unary {
    /// Fails unless the operand's type is one that the function takes.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all others take floats only")]
    fn check(&self, operands: &[Operand<'_>], found: DType) -> Result<(), OpError> {
        match self {
            Self::Abs | Self::Sign => dtype(operands, 0, |t| t != DType::Bool, "a number"),
            Self::Neg | Self::Relu => dtype(operands, 0, DType::is_signed, "a signed number"),
            Self::Clip { min, max } => {
                dtype(operands, 0, |t| t != DType::Bool, "a number")?;
                bound("min", *min, found, true)?;
                bound("max", *max, found, false)
            }
            Self::Celu { alpha } if *alpha == 0.0 => Err(OpError::attr("alpha", "it is 0")),
            _ => dtype(operands, 0, DType::is_float, "a float"),
        }
    }
}

/// Fails unless `value` can bound elements of type `dtype` from below (or above).
fn bound(attr: &'static str, value: Option<f64>, dtype: DType, below: bool) -> Result<(), OpError> {
    let Some(x) = value else { return Ok(()) };
    let wrong = |reason: String| Err(OpError::attr(attr, reason));
    if x.is_nan() {
        return wrong("it is not a number".to_owned());
    }
    for_dtype!(
        dtype,
        float _F => Ok(()),
        int I => {
            let element = <I as Int>::truncate(x);
            let without_effect = element == if below { I::MIN } else { I::MAX };
            if without_effect || element.wide() as f64 - x == 0.0 {
                Ok(())
            } else {
                wrong(format!("{x} is not of type {dtype}"))
            }
        },
        bool => Ok(()),
    )
}

impl OpDef for Unary {
    fn traits(&self) -> Traits {
        self.facts() | if *self == Self::Neg { Traits::NEGATES } else { Traits::empty() }
    }

    fn interval(&self, dtype: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let [Some(x)] = *operands else { return None };
        interval::unary(self, dtype, x)
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "nothing is said of the others")]
    fn is_nonnegative(&self, _: &[bool]) -> bool {
        match self {
            Self::Abs | Self::Relu | Self::Exp | Self::Sqrt | Self::Sigmoid | Self::Softplus => {
                true
            }
            Self::Clip { min, max } => {
                // Where the bounds cross, the upper one wins.
                min.is_some_and(|least| least >= 0.0) && max.is_none_or(|most| most >= 0.0)
            }
            _ => matches!(self, Self::ThresholdedRelu { alpha } if *alpha >= 0.0),
        }
    }

    fn ratio(&self, _: DType, operands: &[Ratio]) -> Option<Ratio> {
        let [x] = operands else { return None };
        if *self == Self::Neg {
            x.negated()
        } else if *self == Self::Floor {
            x.floor()
        } else if *self == Self::Ceil {
            x.negated()?.floor()?.negated()
        } else {
            x.integer().filter(|_| *self == Self::Round).and(Some(x.clone()))
        }
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        self.check(operands, x.ty.dtype)?;
        result_with_ints(x.ty.clone(), ints::map(&x, |d| self.known(x.ty.dtype, d)))
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let is_float = at.operands.first().is_some_and(|x| x.ty.dtype.is_float());
        match (self, rules::first_partial(at.operands).map(|(_, by)| by)) {
            (Self::Neg, Some(by @ (Combine::Sum | Combine::Mean))) => at.give(Claim::Partial(by)),
            // Integers wrap when negated.
            (Self::Neg, Some(Combine::Max)) if is_float => at.give(Claim::Partial(Combine::Min)),
            (Self::Neg, Some(Combine::Min)) if is_float => at.give(Claim::Partial(Combine::Max)),
            _ => at.needs_whole(),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let mut y = (*x).clone();
        for_dtype!(
            x.dtype(),
            float F => in_reals(y.as_mut_slice::<F>(), |y| self.visit(Each(y))),
            int I => for v in y.as_mut_slice::<I>() {
                *v = I::wrap(self.int(v.wide()).ok_or_else(|| OpError::not_a_float(x.dtype()))?);
            },
            bool => return Err(OpError::not_a_number()),
        );
        Ok(vec![y])
    }

    fn jumps(&self) -> bool {
        matches!(
            self,
            Self::Sign
                | Self::Floor
                | Self::Ceil
                | Self::Round
                | Self::ThresholdedRelu { .. }
                | Self::Shrink { .. }
        )
    }

    fn gradient(&self) -> Gradient {
        if matches!(self, Self::Sign | Self::Floor | Self::Ceil | Self::Round) {
            Gradient::Zero("it is constant between its steps")
        } else {
            Gradient::Defined
        }
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dx = self.derivative(at)?;
        at.give(0, dx)
    }
}

/// The loop over elements in place.
struct Each<'a, R>(&'a mut [R]);

impl<R: Real> Apply<R> for Each<'_, R> {
    type Output = ();

    #[inline]
    fn apply(self, f: impl Fn(R) -> R) {
        for v in self.0 {
            *v = f(*v);
        }
    }
}
