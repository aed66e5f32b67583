//! One value everywhere.

use smallvec::{SmallVec, smallvec};

use super::declare::op;
use super::infer::{MAX_INTS, count, known_sizes, result_with_ints, sizes};
use super::{
    Claims, Gradient, Interval, OpDef, OpError, Operand, Results, SplitOperand, Traits, rules,
    strided,
};
use crate::types::{Claim, DType, Dim, KernelClass, Refusal, Shape, Tensor, TensorType};

op! {
    /// A tensor of `shape` whose elements are all the one element of `value`.
    pub struct ConstantOfShape = "constant_of_shape" {
        /// The sizes of the result.
        pub shape: Vec<Dim>,
        /// The element, as a tensor with one.
        pub value: Tensor,
    }
}

impl OpDef for ConstantOfShape {
    fn traits(&self) -> Traits {
        Traits::empty()
    }

    fn interval(&self, _: DType, _: &[Option<Interval>]) -> Option<Interval> {
        Interval::of_tensor(&self.value)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 0, 0, "0")?;
        sizes("shape", &self.shape)?;
        if self.value.len() != 1 {
            let reason =
                format!("{} has {} elements, not 1", self.value.tensor_type(), self.value.len());
            return Err(OpError::Attribute { attr: "value", reason });
        }
        let ty = TensorType::new(self.value.dtype(), Shape::from(self.shape.as_slice()));
        let count = ty.shape.elements().as_const().and_then(|c| usize::try_from(c).ok());
        let element = self.value.to_i64().and_then(|ints| ints.first().copied());
        // An unsigned number above the range of i64 has no known value.
        let element = element.filter(|i| *i >= 0 || ty.dtype != DType::U64);
        let ints = match (element, count.filter(|c| *c <= MAX_INTS)) {
            (Some(i), Some(count)) => Some(SmallVec::from_elem(Dim::from(i), count)),
            _ => None,
        };
        result_with_ints(ty, ints)
    }

    fn split(&self, _: &[SplitOperand<'_>], results: &[TensorType]) -> Result<Claims, Refusal> {
        let [y] = results else { return rules::whole_results(results) };
        let claim = rules::batch_axis(y, 0)?.map_or(Claim::Invariant, Claim::Shard);
        Ok(smallvec![claim])
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let dims = known_sizes("the shape", &self.shape)?;
        let mut y = Tensor::zeros(self.value.dtype(), &dims)?;
        let all = [(y.len(), 0)];
        strided::read(self.value.bytes(), y.bytes_mut(), self.value.dtype().bytes(), 0, &all);
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Reference
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no operand")
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::super::{Op, OpDef};
    use super::ConstantOfShape;
    use crate::types::{Claim, DType, Dim, Shard, Tensor};

    fn op(shape: &[Dim], value: &Tensor) -> Op {
        ConstantOfShape { shape: shape.to_vec(), value: value.clone() }.into()
    }

    #[test]
    fn values() {
        for dtype in DType::ALL {
            let value = random(&mut rng(1), dtype, &[1]);
            for dims in [[2usize, 3], [1, 1], [0, 4]] {
                let y = testing::eval(&op(&testing::sizes(&dims), &value), &[]);
                assert_eq!((y[0].dims(), y[0].dtype()), (dims.as_slice(), dtype));
                assert!(y[0].bytes().chunks(dtype.bytes()).all(|e| e == value.bytes()));
            }
        }
        assert_eq!(testing::eval(&op(&[], &Tensor::scalar(3i64)), &[])[0], Tensor::scalar(3i64));
        let one = Tensor::scalar(1f32);
        for (shape, value) in [
            (vec![Dim::from(-1)], one.clone()),
            (vec![Dim::n() - 1], one.clone()),
            (vec![(1 << 40).into(), (1 << 40).into()], one),
            (vec![2.into()], Tensor::zeros(DType::F32, &[2]).unwrap()),
        ] {
            assert!(ConstantOfShape { shape, value }.infer(&[]).is_err());
        }
    }

    #[test]
    fn an_axis_of_the_batch_size_is_rows() {
        let value = Tensor::scalar(2.5f32);
        for n in [0, 1, 7] {
            let get = |shape: &[Dim]| check_split(&op(shape, &value), &[], n);
            assert_eq!(get(&[2.into(), 3.into()]), Ok(vec![Claim::Invariant]));
            assert_eq!(get(&[2.into(), Dim::n()]), Ok(vec![Claim::rows(1)]));
            let folded = Claim::Shard(Shard { axis: 0, outer: 1, inner: 3 });
            assert_eq!(get(&[Dim::n() * 3, 2.into()]), Ok(vec![folded]));
            for shape in [[Dim::n() + 1, 2.into()], [Dim::n(), Dim::n()]] {
                assert_eq!(get(&shape), Err("R0110".to_owned()));
            }
        }
    }
}
