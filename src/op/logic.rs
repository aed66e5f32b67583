//! Functions of truth values and of bits: `and`, `not`, `bitwise_xor`, `bit_shift`, …

use super::broadcast::Broadcast;
use super::declare::family;
use super::element::{Int, for_dtype};
use super::infer::{broadcast, count, dtype, result_with_ints, same_dtype};
use super::interval::truth;
use super::{
    Claims, Gradient, Interval, OpDef, OpError, Operand, Results, SplitOperand, Traits, ints, rules,
};
use crate::types::{DType, Dim, KernelClass, Refusal, Tensor, TensorType};

family! {
    /// A function of one or two truth values, or of the bits of one or two integers of one type,
    /// broadcast to one shape; the result has the operands' type.
    pub enum Logic {
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
            /// To the more significant side.
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
    fn traits(&self) -> Traits {
        Traits::ELEMENTWISE | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

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

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::elementwise(operands, results.first().map_or(0, TensorType::rank))
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
                let expected = "an integer or bool".to_owned();
                return Err(OpError::DType { operand: 0, expected, found: a.dtype() });
            },
            int I => each!(I),
            bool => each!(u8),
        );
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Elementwise
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no floats")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng, tensor};
    use super::super::{OpDef, Operand};
    use super::Logic;
    use crate::types::{Claim, DType, Dim, Shard, Tensor, TensorType};

    #[test]
    fn truth_values() {
        let a = tensor(DType::Bool, &[4], &[0.0, 0.0, 1.0, 1.0]);
        let b = tensor(DType::Bool, &[4], &[0.0, 1.0, 0.0, 1.0]);
        for (op, expected) in
            [(Logic::And, [0, 0, 0, 1]), (Logic::Or, [0, 1, 1, 1]), (Logic::Xor, [0, 1, 1, 0])]
        {
            assert_eq!(testing::eval(&op.into(), &[&a, &b])[0].as_slice::<u8>(), expected);
        }
        assert_eq!(testing::eval(&Logic::Not.into(), &[&a])[0].as_slice::<u8>(), [1, 1, 0, 0]);
    }

    #[test]
    fn bits() {
        let (a, b) = (Tensor::new(&[2], &[-7i16, 12]).unwrap(), Tensor::scalar(10i16));
        let eval = |op: Logic| testing::eval(&op.into(), &[&a, &b])[0].as_slice::<i16>().to_vec();
        assert_eq!(eval(Logic::BitwiseAnd), [8, 8]);
        assert_eq!(eval(Logic::BitwiseOr), [-5, 14]);
        assert_eq!(eval(Logic::BitwiseXor), [-13, 6]);
        assert_eq!(testing::eval(&Logic::BitwiseNot.into(), &[&a])[0].as_slice::<i16>(), [6, -13]);
        let x = Tensor::new(&[4], &[0b1011u8, 0x80, 255, 1]).unwrap();
        let by = Tensor::new(&[4], &[2u8, 1, 8, 255]).unwrap();
        let shift = |left| testing::eval(&Logic::BitShift { left }.into(), &[&x, &by]).remove(0);
        assert_eq!(shift(true).as_slice::<u8>(), [0b10_1100, 0, 0, 0]);
        assert_eq!(shift(false).as_slice::<u8>(), [0b10, 0x40, 0, 0]);
        let x = Tensor::new(&[2], &[u64::MAX, u64::MAX]).unwrap();
        let by = Tensor::new(&[2], &[63u64, 64]).unwrap();
        let y = testing::eval(&Logic::BitShift { left: true }.into(), &[&x, &by]);
        assert_eq!(y[0].as_slice::<u64>(), [1 << 63, 0]);
        let y = testing::eval(&Logic::BitwiseNot.into(), &[&Tensor::scalar(5u16)]);
        assert_eq!(y[0].as_slice::<u16>(), [!5]);
    }

    #[test]
    fn types_are_checked() {
        let fails = |op: Logic, dtypes: &[DType]| {
            let types: Vec<TensorType> = dtypes.iter().map(|t| TensorType::new(*t, [2])).collect();
            let operands: Vec<Operand<'_>> =
                types.iter().map(|ty| Operand { ty, ints: None }).collect();
            op.infer(&operands).is_err()
        };
        let (b, i, u) = (DType::Bool, DType::I32, DType::U32);
        assert!(fails(Logic::Not, &[b, b]) && fails(Logic::And, &[b]) && fails(Logic::Or, &[i, i]));
        assert!(fails(Logic::BitwiseAnd, &[i, u]) && fails(Logic::BitwiseNot, &[DType::F32]));
        assert!(fails(Logic::BitShift { left: true }, &[i, i]));
        assert!(!fails(Logic::BitShift { left: true }, &[u, u]) && !fails(Logic::BitwiseNot, &[i]));
        assert!(fails(Logic::Not, &[]));
        let ty = TensorType::new(b, [2]);
        let known = [Dim::ONE, Dim::n()];
        let not = Logic::Not.infer(&[Operand { ty: &ty, ints: Some(&known) }]).unwrap();
        assert_eq!(not[0].ints, None);
    }

    #[test]
    fn the_batch_passes() {
        let mut rng = rng(2);
        let claim = Claim::Shard(Shard { axis: 0, outer: 1, inner: 3 });
        let a = random(&mut rng, DType::Bool, &[12, 2]);
        let b = random(&mut rng, DType::Bool, &[1, 2]);
        assert_eq!(check_split(&Logic::Not.into(), &[(&a, claim)], 4), Ok(vec![claim]));
        for op in [Logic::And, Logic::Or, Logic::Xor] {
            let operands = [(&b, Claim::Invariant), (&a, claim)];
            assert_eq!(check_split(&op.into(), &operands, 4), Ok(vec![claim]));
        }
        let x = random(&mut rng, DType::U16, &[12, 2]);
        for op in [Logic::BitwiseAnd, Logic::BitwiseXor, Logic::BitShift { left: false }] {
            assert_eq!(check_split(&op.into(), &[(&x, claim), (&x, claim)], 4), Ok(vec![claim]));
        }
    }
}
