//! Arithmetic of two numbers: `add`, `mul`, `pow`, …

mod gradient;
mod interval;
mod scalar;
#[cfg(test)]
mod tests;

use std::cell::Cell;

pub(crate) use scalar::Apply2;

use super::broadcast::Broadcast;
use super::element::{Float, Int, for_dtype, in_reals, reals};
use super::infer::{broadcast, dtype, exactly, result_with_ints, same_dtype};
use super::prelude::*;
use super::real::Real;
use super::{Ratio, ints};

family! {
    /// A function of two numbers, applied to operands that are broadcast to one shape.
    ///
    /// The operands have one element type, which is that of the result; only the exponent of `pow`
    /// may have another. Floats are computed in `f32` for `f32`, `f16` and `bf16` and in `f64` for
    /// `f64`; integers wrap.
    pub enum Binary is ELEMENTWISE | CHEAP | FOLLOWS_BLOCKS {
        /// `a + b`.
        Add = "add",
        /// `a - b`.
        Sub = "sub",
        /// `a * b`.
        Mul = "mul",
        /// `a / b`; of integers towards 0, an error where `b` is 0.
        Div = "div",
        /// `a` to the power `b`, in the type of `a`.
        ///
        /// Operands of two types are computed in `f64`, unless both are integers. An integer result
        /// is the integral part of the power; 0 to a negative integer power is an error.
        Pow = "pow",
        /// The remainder of `a / b`; of integers an error where `b` is 0.
        Mod = "mod" {
            /// Whether it has the sign of `a`. Otherwise it has that of `b`, and the operands are
            /// integers.
            fmod: bool = false,
        },
        /// The larger one; a NaN if one is a NaN.
        Max = "max",
        /// The smaller one; a NaN if one is a NaN.
        Min = "min",
        /// `a` where not negative, else `a * b`; `b` is broadcast to the shape of `a`.
        Prelu = "prelu",
        /// `b` where `a` is above 0, else 0: the gradient of the operand of `relu`, from its result
        /// and that one's gradient.
        ReluGrad = "relu_grad",
    }
}

/// Whether it is 1, without axes, of a type in which a product with it is exact.
fn is_one(value: &Tensor) -> bool {
    let exact = matches!(value.dtype(), DType::F32 | DType::F64);
    value.rank() == 0 && exact && value.to_f64() == [1.0]
}

impl OpDef for Binary {
    fn interval(&self, dtype: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let [Some(a), Some(b)] = *operands else { return None };
        interval::binary(self, dtype, a, b)
    }

    fn ratio(&self, dtype: DType, operands: &[Ratio]) -> Option<Ratio> {
        let [a, b] = operands else { return None };
        match self {
            Self::Add => a.joined(b, |a, b| a + b),
            Self::Sub => a.joined(b, |a, b| a - b),
            Self::Mul => a.times(b),
            Self::Div if dtype.is_float() => a.over(b),
            Self::Div => a.over(b)?.truncated(),
            Self::Min => a.joined(b, |a, b| a.minimum(&b)),
            Self::Max => a.joined(b, |a, b| a.maximum(&b)),
            Self::Pow | Self::Mod { .. } | Self::Prelu | Self::ReluGrad => None,
        }
    }

    fn positions(&self, operands: &[PositionOperand<'_>], y: &TensorType) -> Option<Positions> {
        let [a, b] = operands else { return None };
        interval::positions(self, a, b, y)
    }

    fn same_as(&self, operands: &[Known<'_>], _: &TensorType) -> Option<usize> {
        let one = |i: usize| operands.get(i).and_then(|x| x.value).is_some_and(is_one);
        if matches!(self, Self::Mul | Self::Div) && one(1) {
            return Some(0);
        }
        (*self == Self::Mul && one(0)).then_some(1)
    }

    fn scale_of(&self, operand: usize) -> Option<usize> {
        match (self, operand) {
            (Self::Mul | Self::Div, 0) => Some(1),
            (Self::Mul, 1) => Some(0),
            _ => None,
        }
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [a, b] = exactly(operands)?;
        for i in 0..2 {
            dtype(operands, i, |t| t != DType::Bool, "a number")?;
        }
        if *self != Self::Pow {
            same_dtype(operands)?;
        }
        if *self == (Self::Mod { fmod: false }) && a.ty.dtype.is_float() {
            let reason = format!("the remainder of {} has the sign of the dividend", a.ty.dtype);
            return Err(OpError::attr("fmod", reason));
        }
        let shape = broadcast([&a.ty.shape, &b.ty.shape].into_iter())?;
        if *self == Self::Prelu && shape != a.ty.shape {
            return Err(OpError::shape(1, b.ty, format!("it must broadcast to {}", a.ty.shape)));
        }
        let known = ints::zip(&shape, &a, &b, |x, y| self.known(a.ty.dtype, x, y));
        result_with_ints(TensorType { dtype: a.ty.dtype, shape }, known)
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let [a, b] = at.operands else { return at.needs_whole() };
        let sum = Claim::Partial(Combine::Sum);
        // Integers wrap, so that sums may be taken in any order. Of floats a part can be rounded,
        // or overflow, or meet a factor that is infinite or a divisor that is 0, where the whole
        // does not.
        let exact = !a.ty.dtype.is_float() && !b.ty.dtype.is_float();
        let linear = match (self, a.claim, b.claim) {
            (Self::Add | Self::Sub, of_a, of_b) => of_a == sum && of_b == sum,
            (Self::Mul, of_a, Claim::Invariant) => of_a == sum,
            (Self::Mul, Claim::Invariant, of_b) => of_b == sum,
            _ => false,
        };
        if exact && linear { at.give(sum) } else { at.needs_whole() }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [a, b] = exactly(operands)?;
        let (plan, dims) = Broadcast::of([a.dims(), b.dims()]);
        let mut y = Tensor::zeros(a.dtype(), &dims)?;
        if a.dtype() != b.dtype() {
            self.eval_mixed(&plan, a, b, &mut y)?;
            return Ok(vec![y]);
        }
        for_dtype!(
            a.dtype(),
            float F => {
                let (a, b) = (reals(a.as_slice::<F>()), reals(b.as_slice::<F>()));
                let zip = |y: &mut [_]| self.visit(Zip { plan: &plan, a: &a, b: &b, y });
                in_reals(y.as_mut_slice::<F>(), zip);
            },
            int I => {
                let (a, b) = (a.as_slice::<I>(), b.as_slice::<I>());
                self.integers(&plan, a, b, Int::wide, y.as_mut_slice::<I>())?;
            },
            bool => return Err(OpError::not_a_number()),
        );
        Ok(vec![y])
    }

    fn jumps(&self) -> bool {
        matches!(self, Self::Mod { .. } | Self::ReluGrad)
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        self.gradients(at)
    }
}

impl Binary {
    /// Integers, those of `b` read by `wide`.
    fn integers<A: Int, B: Copy>(
        &self,
        plan: &Broadcast<2>,
        a: &[A],
        b: &[B],
        wide: impl Fn(B) -> i128,
        y: &mut [A],
    ) -> Result<(), OpError> {
        let failed = Cell::new(None);
        plan.zip(a, b, y, |a, b| {
            A::wrap(self.int(a.wide(), wide(b)).unwrap_or_else(|reason| {
                failed.set(Some(reason));
                0
            }))
        });
        match failed.get() {
            Some(reason) => Err(OpError::value(1, reason.to_owned())),
            None => Ok(()),
        }
    }

    /// Operands of two types: integers as such, all others in `f64`.
    fn eval_mixed(
        &self,
        plan: &Broadcast<2>,
        a: &Tensor,
        b: &Tensor,
        y: &mut Tensor,
    ) -> Result<(), OpError> {
        if a.dtype().is_integer() && b.dtype().is_integer() {
            let b: Vec<i128> = for_dtype!(
                b.dtype(),
                float _F => return Err(OpError::not_a_number()),
                int B => b.as_slice::<B>().iter().map(|b| b.wide()).collect(),
                bool => return Err(OpError::not_a_number()),
            );
            return for_dtype!(
                a.dtype(),
                float _F => Err(OpError::not_a_number()),
                int A => {
                    self.integers(plan, a.as_slice::<A>(), &b, |b| b, y.as_mut_slice::<A>())
                },
                bool => Err(OpError::not_a_number()),
            );
        }
        let mut wide = vec![0.0; y.len()];
        plan.zip(&a.to_f64(), &b.to_f64(), &mut wide, |a, b| self.f64(a, b));
        for_dtype!(
            y.dtype(),
            float F => for (y, x) in y.as_mut_slice::<F>().iter_mut().zip(wide) {
                *y = F::of_f64(x);
            },
            int I => for (y, x) in y.as_mut_slice::<I>().iter_mut().zip(wide) {
                *y = I::truncate(x);
            },
            bool => return Err(OpError::not_a_number()),
        );
        Ok(())
    }
}

/// The loop over two operands.
struct Zip<'a, R> {
    plan: &'a Broadcast<2>,
    a: &'a [R],
    b: &'a [R],
    y: &'a mut [R],
}

impl<R: Real> Apply2<R> for Zip<'_, R> {
    type Output = ();

    #[inline]
    fn apply(self, f: impl Fn(R, R) -> R) {
        self.plan.zip(self.a, self.b, self.y, f);
    }
}
