//! Functions of truth values and of bits: `and`, `not`, `bitwise_xor`, `bit_shift`, …

use super::broadcast::Broadcast;
use super::element::{Int, for_dtype};
use super::infer::{broadcast, count, dtype, result_with_ints, same_dtype};
use super::interval::truth;
use super::ints;
use super::prelude::*;

family! {
    /// A function of one or two truth values, or of the bits of one or two integers of one type,
    /// broadcast to one shape; the result has the operands' type.
    pub enum Logic is ELEMENTWISE | CHEAP | FOLLOWS_BLOCKS {
        /// True if the operand is false.
        Not = "not",
        /// True if both are.
        And = "and",
        /// True if one is, or both.
        Or = "or",
        /// True if one is and the other is not.
        Xor = "xor",
        /// Every bit of an integer inverted.
        BitwiseNot = "bitwise_not",
        /// The bits that both have.
        BitwiseAnd = "bitwise_and",
        /// The bits that one has, or both.
        BitwiseOr = "bitwise_or",
        /// The bits that one has and the other has not.
        BitwiseXor = "bitwise_xor",
        /// The bits of an unsigned `a` moved by `b` places; those moved out are lost, those moved
        /// in are 0.
        BitShift = "bit_shift" {
            /// Shift to the more significant side.
            left: bool,
        },
    }
}

impl Logic {
    fn is_unary(&self) -> bool {
        matches!(self, Self::Not | Self::BitwiseNot)
    }

    /// The function on two elements, truth values being 0 and 1; one operand is given twice.
    fn int(&self, a: i128, b: i128) -> i128 {
        match self {
            Self::Not => i128::from(a == 0),
            Self::BitwiseNot => !a,
            Self::And | Self::BitwiseAnd => a & b,
            Self::Or | Self::BitwiseOr => a | b,
            Self::Xor | Self::BitwiseXor => a ^ b,
            Self::BitShift { .. } if b >= 64 => 0,
            Self::BitShift { left: true } => a << b,
            Self::BitShift { left: false } => a >> b,
        }
    }

    fn known(&self, dtype: DType, a: &Dim, b: &Dim) -> Option<Dim> {
        let (a, b) = (a.as_const()?, b.as_const()?);
        let value = self.int(a.into(), b.into());
        // An inverted unsigned integer leaves its range, a shifted one may.
        for_dtype!(
            dtype,
            float _F => None,
            int I => ints::constant(dtype, I::wrap(value).wide()),
            bool => ints::constant(dtype, value),
        )
    }
}

impl OpDef for Logic {
    fn interval(&self, dtype: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        if dtype != DType::Bool {
            return None;
        }
        let all: Vec<Interval> = operands.iter().copied().collect::<Option<_>>()?;
        Some(match (self, all.as_slice()) {
            (Self::Not, [x]) => Interval { low: 1 - x.high, high: 1 - x.low },
            (Self::And, [a, b]) => Interval { low: a.low.min(b.low), high: a.high.min(b.high) },
            (Self::Or, [a, b]) => Interval { low: a.low.max(b.low), high: a.high.max(b.high) },
            (Self::Xor, [a, b]) => truth(
                a.constant().zip(b.constant()).is_some_and(|(a, b)| a != b),
                a.constant().is_some() && a == b,
            ),
            _ => return None,
        })
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let (n, expected) = if self.is_unary() { (1, "1") } else { (2, "2") };
        count(operands, n, n, expected)?;
        match self {
            Self::Not | Self::And | Self::Or | Self::Xor => {
                dtype(operands, 0, |t| t == DType::Bool, "bool")?;
            }
            Self::BitShift { .. } => {
                let test = |t: DType| t.is_integer() && !t.is_signed();
                dtype(operands, 0, test, "an unsigned integer")?;
            }
            Self::BitwiseNot | Self::BitwiseAnd | Self::BitwiseOr | Self::BitwiseXor => {
                dtype(operands, 0, DType::is_integer, "an integer")?;
            }
        }
        let dtype = same_dtype(operands)?;
        let shape = broadcast(operands.iter().map(|x| &x.ty.shape))?;
        let known = match operands {
            [a, .., b] | [a @ b] => ints::zip(&shape, a, b, |x, y| self.known(dtype, x, y)),
            [] => None,
        };
        result_with_ints(TensorType { dtype, shape }, known)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([a, .., b] | [a @ b]) = operands else {
            return Err(OpError::Operands { expected: "1 or 2", found: operands.len() });
        };
        let (plan, dims) = Broadcast::of([a.dims(), b.dims()]);
        let mut y = Tensor::zeros(a.dtype(), &dims)?;
        macro_rules! each {
            ($t:ty) => {
                plan.zip(a.as_slice::<$t>(), b.as_slice::<$t>(), y.as_mut_slice::<$t>(), |a, b| {
                    <$t>::wrap(self.int(a.wide(), b.wide()))
                })
            };
        }
        for_dtype!(
            a.dtype(),
            float _F => {
                return Err(OpError::dtype(0, a.dtype(), "an integer or bool"));
            },
            int I => each!(I),
            bool => each!(u8),
        );
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no floats")
    }
}
