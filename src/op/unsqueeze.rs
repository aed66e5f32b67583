//! Axes of size 1 put in.

use super::declare::op;
use super::infer::{axes, carried, one, result_with_ints, tensors};
use super::{
    Backward, Claims, Gradient, Known, OpDef, OpError, Operand, Results, RuleError, SplitOperand,
    Traits, rules,
};
use crate::types::{Dim, KernelClass, Refusal, Tensor, TensorType};

op! {
    /// Its operand with further axes of size 1.
    pub struct Unsqueeze = "unsqueeze" {
        /// Where they are in the result, negative from its end.
        pub axes: Vec<i64>,
    }
}

impl OpDef for Unsqueeze {
    fn traits(&self) -> Traits {
        Traits::VIEW | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        Some(0)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        let mut ty = x.ty.clone();
        for axis in axes("axes", &self.axes, x.ty.rank().saturating_add(self.axes.len()))? {
            ty.shape.insert(axis, Dim::ONE);
        }
        result_with_ints(ty, carried(&x))
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::regroup(operands, results)
    }

    fn partial(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::moved(operands, results)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = tensors(operands)?;
        let mut dims = x.dims().to_vec();
        for axis in axes("axes", &self.axes, dims.len() + self.axes.len())? {
            dims.insert(axis, 1);
        }
        Ok(vec![x.clone().reshaped(&dims)?])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::View
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, to) = (at.dy()?, at.shape(at.operand(0)?));
        let dx = at.reshape(dy, &to)?;
        at.give(0, dx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::super::{OpDef, Operand};
    use super::Unsqueeze;
    use crate::types::{Claim, DType, Shard, TensorType};

    #[test]
    fn axes_of_size_one_come() {
        let x = random(&mut rng(1), DType::I64, &[3, 2]);
        for (axes, dims) in [
            (vec![], [3, 2].as_slice()),
            (vec![3, 0], &[1, 3, 2, 1]),
            (vec![-1], &[3, 2, 1]),
            (vec![-2, 0], &[1, 3, 1, 2]),
        ] {
            let y = testing::eval(&Unsqueeze { axes }.into(), &[&x]);
            assert_eq!((y[0].dims(), y[0].bytes()), (dims, x.bytes()));
        }
        let ty = TensorType::new(DType::F32, [4]);
        for axes in [vec![2], vec![-3], vec![1, -2], vec![i64::MAX]] {
            assert!(Unsqueeze { axes }.infer(&[Operand { ty: &ty, ints: None }]).is_err());
        }
    }

    #[test]
    fn the_batch_axis_moves_down() {
        let x = random(&mut rng(2), DType::F32, &[10, 3]);
        let claim = |axis| Claim::Shard(Shard { axis, outer: 1, inner: 2 });
        let op = |axes: &[i64]| Unsqueeze { axes: axes.to_vec() }.into();
        assert_eq!(check_split(&op(&[0, 2]), &[(&x, claim(0))], 5), Ok(vec![claim(1)]));
        assert_eq!(check_split(&op(&[1]), &[(&x, claim(0))], 5), Ok(vec![claim(0)]));
    }
}
