//! Comparisons of two elements: `equal`, `less`, …

use super::broadcast::Broadcast;
use super::element::for_dtype;
use super::infer::{broadcast, dtype, exactly, result_with_ints, same_dtype};
use super::interval::truth;
use super::ints;
use super::prelude::*;

family! {
    /// Whether a relation holds between elements of two operands of one type, broadcast to one
    /// shape; the result is `bool`. With a NaN none holds.
    pub enum Compare is ELEMENTWISE | CHEAP | FOLLOWS_BLOCKS | JUMPS {
        /// `a == b`; also of `bool`.
        Equal = "equal",
        /// `a < b`.
        Less = "less",
        /// `a <= b`.
        LessOrEqual = "less_or_equal",
        /// `a > b`.
        Greater = "greater",
        /// `a >= b`.
        GreaterOrEqual = "greater_or_equal",
    }
}

impl Compare {
    /// Whether the relation holds: the definition that every CPU kernel shares.
    #[inline]
    pub(crate) fn holds<T: PartialOrd>(&self, a: &T, b: &T) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Less => a < b,
            Self::LessOrEqual => a <= b,
            Self::Greater => a > b,
            Self::GreaterOrEqual => a >= b,
        }
    }

    /// Whether it holds for known elements, where that is the same for every batch size.
    fn known(&self, a: &Dim, b: &Dim) -> Option<Dim> {
        let holds = match self {
            Self::Equal => ints::equal(a, b)?,
            Self::Less => ints::less(a, b)?,
            // Sizes are totally ordered: what is not greater is less or equal.
            Self::LessOrEqual => !ints::less(b, a)?,
            Self::Greater => ints::less(b, a)?,
            Self::GreaterOrEqual => !ints::less(a, b)?,
        };
        Some(ints::truth(holds))
    }
}

impl OpDef for Compare {
    fn interval(&self, _: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let [Some(a), Some(b)] = *operands else { return None };
        Some(match self {
            Self::Equal => {
                // Intervals prove equality of single numbers only, but inequality of any that do
                // not meet.
                let same = a.constant().is_some() && a == b;
                truth(same, a.high < b.low || b.high < a.low)
            }
            Self::Less => truth(a.high < b.low, a.low >= b.high),
            Self::LessOrEqual => truth(a.high <= b.low, a.low > b.high),
            Self::Greater => truth(a.low > b.high, a.high <= b.low),
            Self::GreaterOrEqual => truth(a.low >= b.high, a.high < b.low),
        })
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [a, b] = exactly(operands)?;
        if *self != Self::Equal {
            dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        }
        same_dtype(operands)?;
        let shape = broadcast([&a.ty.shape, &b.ty.shape].into_iter())?;
        let known = ints::zip(&shape, &a, &b, |x, y| self.known(x, y));
        result_with_ints(TensorType { dtype: DType::Bool, shape }, known)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [a, b] = exactly(operands)?;
        let (plan, dims) = Broadcast::of([a.dims(), b.dims()]);
        let mut result = Tensor::zeros(DType::Bool, &dims)?;
        let y = result.as_mut_slice::<u8>();
        macro_rules! compare {
            ($t:ty) => {
                plan.zip(a.as_slice::<$t>(), b.as_slice::<$t>(), y, |a, b| {
                    self.holds(&a, &b).into()
                })
            };
        }
        for_dtype!(a.dtype(), float F => compare!(F), int I => compare!(I), bool => compare!(u8));
        Ok(vec![result])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("its result is a truth value")
    }
}
