//! Axes of size 1 left out.

use super::declare::op;
use super::infer::{axes, carried, one, result_with_ints, tensors};
use super::{
    Backward, Claims, Gradient, Known, OpDef, OpError, Operand, Results, RuleError, SplitOperand,
    Traits, rules,
};
use crate::types::{Dim, KernelClass, Refusal, Tensor, TensorType};

op! {
    /// Its operand without the axes named, which have size 1.
    pub struct Squeeze = "squeeze" {
        /// The axes, negative from the end.
        pub axes: Vec<i64>,
    }
}

impl OpDef for Squeeze {
    fn traits(&self) -> Traits {
        Traits::VIEW | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        Some(0)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        let mut ty = x.ty.clone();
        for axis in axes("axes", &self.axes, x.ty.rank())?.into_iter().rev() {
            if ty.shape.remove(axis) != Dim::ONE {
                let reason = format!("axis {axis} of {} has more than one entry", x.ty);
                return Err(OpError::Attribute { attr: "axes", reason });
            }
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
        for axis in axes("axes", &self.axes, x.rank())?.into_iter().rev() {
            dims.remove(axis);
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
    use super::Squeeze;
    use crate::types::{Claim, DType, Dim, Shape, Shard, TensorType};

    #[test]
    fn axes_of_size_one_go() {
        let x = random(&mut rng(1), DType::I64, &[1, 3, 1, 2]);
        for (axes, dims) in
            [(vec![], [1, 3, 1, 2].as_slice()), (vec![2, 0], &[3, 2]), (vec![-2], &[1, 3, 2])]
        {
            let y = testing::eval(&Squeeze { axes }.into(), &[&x]);
            assert_eq!((y[0].dims(), y[0].bytes()), (dims, x.bytes()));
        }
        let ty = TensorType::new(DType::F32, [Dim::n(), Dim::ONE].into_iter().collect::<Shape>());
        for axes in [vec![0], vec![2], vec![1, -1], vec![i64::MIN]] {
            assert!(Squeeze { axes }.infer(&[Operand { ty: &ty, ints: None }]).is_err());
        }
    }

    #[test]
    fn the_batch_axis_moves_up() {
        let x = random(&mut rng(2), DType::F32, &[1, 10, 1]);
        let squeeze = |axes: &[i64]| Squeeze { axes: axes.to_vec() }.into();
        let claim = |axis| Claim::Shard(Shard { axis, outer: 1, inner: 2 });
        assert_eq!(check_split(&squeeze(&[0]), &[(&x, claim(1))], 5), Ok(vec![claim(0)]));
        assert_eq!(check_split(&squeeze(&[-1]), &[(&x, claim(1))], 5), Ok(vec![claim(1)]));
    }
}
