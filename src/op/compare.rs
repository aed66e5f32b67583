//! Comparisons of two elements: `equal`, `less`, …

use super::broadcast::Broadcast;
use super::declare::family;
use super::element::for_dtype;
use super::infer::{broadcast, dtype, result_with_ints, same_dtype, two};
use super::interval::truth;
use super::{
    Claims, Gradient, Interval, OpDef, OpError, Operand, Results, SplitOperand, Traits, ints, rules,
};
use crate::types::{DType, Dim, KernelClass, Refusal, Tensor, TensorType};

family! {
    /// Whether a relation holds between elements of two operands of one type, broadcast to one
    /// shape; the result is `bool`. With a NaN none holds.
    pub enum Compare {
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
    pub fn holds<T: PartialOrd>(&self, a: &T, b: &T) -> bool {
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
            Self::LessOrEqual => !ints::less(b, a)?,
            Self::Greater => ints::less(b, a)?,
            Self::GreaterOrEqual => !ints::less(a, b)?,
        };
        Some(ints::truth(holds))
    }
}

impl OpDef for Compare {
    fn traits(&self) -> Traits {
        Traits::ELEMENTWISE | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

    fn interval(&self, _: DType, operands: &[Option<Interval>]) -> Option<Interval> {
        let [Some(a), Some(b)] = *operands else { return None };
        Some(match self {
            Self::Equal => {
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
        let (a, b) = two(operands)?;
        if *self != Self::Equal {
            dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        }
        same_dtype(operands)?;
        let shape = broadcast([&a.ty.shape, &b.ty.shape].into_iter())?;
        let known = ints::zip(&shape, &a, &b, |x, y| self.known(x, y));
        result_with_ints(TensorType { dtype: DType::Bool, shape }, known)
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::elementwise(operands, results.first().map_or(0, TensorType::rank))
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [a, b] = operands else {
            return Err(OpError::Operands { expected: "2", found: operands.len() });
        };
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

    fn jumps(&self) -> bool {
        true
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Elementwise
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("its result is a truth value")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::super::{OpDef, Operand};
    use super::Compare;
    use crate::types::{Claim, DType, Dim, Shard, Tensor, TensorType};

    const ALL: [Compare; 5] = [
        Compare::Equal,
        Compare::Less,
        Compare::LessOrEqual,
        Compare::Greater,
        Compare::GreaterOrEqual,
    ];

    fn bools(op: &Compare, a: &Tensor, b: &Tensor) -> Vec<u8> {
        testing::eval(&op.clone().into(), &[a, b])[0].as_slice::<u8>().to_vec()
    }

    #[test]
    fn values() {
        let a = Tensor::new(&[4], &[1.0f32, 2.0, f32::NAN, -0.0]).unwrap();
        let b = Tensor::new(&[4], &[2.0f32, 1.0, f32::NAN, 0.0]).unwrap();
        let expected = [[0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 1], [0, 1, 0, 0], [0, 1, 0, 1]];
        for (op, expected) in ALL.iter().zip(expected) {
            assert_eq!(bools(op, &a, &b), expected, "{op:?}");
        }
        let a = Tensor::new(&[2, 1], &[u64::MAX, 3]).unwrap();
        let b = Tensor::new(&[2], &[1u64, 3]).unwrap();
        assert_eq!(bools(&Compare::Greater, &a, &b), [1, 1, 1, 0]);
        let truth = Tensor::new(&[2], &[0u8, 1]).unwrap().reinterpreted(DType::Bool);
        let yes = Tensor::new(&[], &[1u8]).unwrap().reinterpreted(DType::Bool);
        assert_eq!(bools(&Compare::Equal, &truth, &yes), [0, 1]);
        for dtype in DType::ALL.into_iter().filter(|t| *t != DType::Bool) {
            let (a, b) = (random(&mut rng(1), dtype, &[3, 4]), random(&mut rng(2), dtype, &[4]));
            let less = bools(&Compare::Less, &a, &b);
            for (i, (x, less)) in a.to_f64().iter().zip(less).enumerate() {
                assert_eq!(less == 1, *x < b.to_f64()[i % 4], "{dtype}");
            }
        }
    }

    #[test]
    fn known_elements() {
        let ty = TensorType::new(DType::I64, [3]);
        let scalar = TensorType::scalar(DType::I64);
        let (left, right) = ([Dim::n(), Dim::from(-1), Dim::from(4)], [Dim::from(-1)]);
        let a = Operand { ty: &ty, ints: Some(&left) };
        let b = Operand { ty: &scalar, ints: Some(&right) };
        let known =
            |op: Compare| op.infer(&[a, b]).unwrap()[0].ints.as_deref().map(<[Dim]>::to_vec);
        let bits = |bits: [i64; 3]| Some(bits.map(Dim::from).to_vec());
        assert_eq!(known(Compare::Equal), bits([0, 1, 0]));
        assert_eq!(known(Compare::Greater), bits([1, 0, 1]));
        assert_eq!(known(Compare::LessOrEqual), bits([0, 1, 0]));
        let sevens = [Dim::from(7)];
        let b = Operand { ty: &scalar, ints: Some(&sevens) };
        assert_eq!(Compare::Equal.infer(&[a, b]).unwrap()[0].ints, None);
    }

    #[test]
    fn types_are_checked() {
        let of = |dtype, dims: [i64; 1]| TensorType::new(dtype, dims);
        let fails = |op: Compare, a: &TensorType, b: &TensorType| {
            op.infer(&[Operand { ty: a, ints: None }, Operand { ty: b, ints: None }]).is_err()
        };
        let (floats, ints, bools) =
            (of(DType::F32, [2]), of(DType::I32, [2]), of(DType::Bool, [2]));
        assert!(fails(Compare::Equal, &floats, &ints) && fails(Compare::Less, &bools, &bools));
        assert!(!fails(Compare::Equal, &bools, &bools));
        assert!(fails(Compare::Equal, &floats, &of(DType::F32, [3])));
    }

    #[test]
    fn the_batch_passes_where_operands_align() {
        let mut rng = rng(3);
        let shard = |axis, inner| Claim::Shard(Shard { axis, outer: 1, inner });
        for op in ALL {
            let a = random(&mut rng, DType::I8, &[3, 8]);
            let b = random(&mut rng, DType::I8, &[8]);
            let both = [(&a, shard(1, 2)), (&b, shard(0, 2))];
            assert_eq!(check_split(&op.clone().into(), &both, 4), Ok(vec![shard(1, 2)]));
            let baked = [(&a, shard(0, 1)), (&b, Claim::Invariant)];
            assert_eq!(check_split(&op.into(), &baked, 3), Ok(vec![shard(0, 1)]));
        }
    }
}
