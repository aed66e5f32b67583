//! Axes in another order.

use smallvec::{SmallVec, smallvec};

use super::declare::op;
use super::infer::{carried, one, result_with_ints, tensors};
use super::{
    Backward, Claims, Formula, Gradient, Known, Op, OpDef, OpError, Operand, Results, RuleError,
    SplitOperand, Traits, rules, strided,
};
use crate::types::{Claim, KernelClass, Refusal, Shard, Tensor, TensorType};

op! {
    /// Its operand with the axes in the order `perm`: axis `i` of the result is axis `perm[i]` of
    /// the operand.
    pub struct Transpose = "transpose" {
        /// Every axis of the operand once.
        pub perm: Vec<usize>,
    }
}

impl OpDef for Transpose {
    fn traits(&self) -> Traits {
        Traits::PERMUTES | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        self.perm.iter().enumerate().all(|(i, p)| i == *p).then_some(0)
    }

    fn undoes(&self, before: &Op) -> bool {
        let Op::Transpose(before) = before else { return false };
        self.perm.iter().enumerate().all(|(i, p)| before.perm.get(*p) == Some(&i))
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        let mut sorted: SmallVec<[usize; 6]> = self.perm.iter().copied().collect();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..x.ty.rank()) {
            let reason = format!("{:?} does not name every axis of {} once", self.perm, x.ty);
            return Err(OpError::Attribute { attr: "perm", reason });
        }
        let shape = self.perm.iter().filter_map(|axis| x.ty.shape.get(*axis).cloned()).collect();
        let ints = if x.ty.rank() < 2 { carried(&x) } else { None };
        result_with_ints(TensorType { dtype: x.ty.dtype, shape }, ints)
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let Some((_, shard)) = rules::first_shard(operands) else {
            return rules::whole_results(results);
        };
        let axis = self.perm.iter().position(|from| *from == shard.axis).unwrap_or(shard.axis);
        Ok(smallvec![Claim::Shard(Shard { axis, ..shard })])
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
        let distances = strided::distances(x.dims());
        let axes: SmallVec<[strided::Axis; 6]> =
            self.perm.iter().map(|axis| (x.dims()[*axis], distances[*axis])).collect();
        let dims: SmallVec<[usize; 6]> = axes.iter().map(|axis| axis.0).collect();
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        strided::read(x.bytes(), y.bytes_mut(), x.dtype().bytes(), 0, &axes);
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Move
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        let mut perm = vec![0; self.perm.len()];
        for (to, from) in self.perm.iter().enumerate() {
            perm[*from] = to;
        }
        let dx = at.op(Self { perm }, &[dy])?;
        at.give(0, dx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand::seq::SliceRandom;

    use super::super::testing::{self, check_split, random, rng};
    use super::super::{OpDef, Operand};
    use super::Transpose;
    use crate::types::{Claim, DType, Shard, Tensor, TensorType};

    #[test]
    fn values() {
        let x = Tensor::new(&[2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
        let y = testing::eval(&Transpose { perm: vec![1, 0] }.into(), &[&x]);
        assert_eq!(y[0].as_slice::<i64>(), [1, 4, 2, 5, 3, 6]);
        let x = Tensor::new(&[1, 2, 2, 2], &[0u8, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let y = testing::eval(&Transpose { perm: vec![0, 2, 3, 1] }.into(), &[&x]);
        assert_eq!(y[0].as_slice::<u8>(), [0, 4, 1, 5, 2, 6, 3, 7]);
        let ty = TensorType::new(DType::F32, [2, 3]);
        for perm in [vec![0], vec![0, 0], vec![0, 2], vec![0, 1, 2]] {
            assert!(Transpose { perm }.infer(&[Operand { ty: &ty, ints: None }]).is_err());
        }
    }

    #[test]
    fn the_batch_axis_goes_where_the_order_puts_it() {
        let mut rng = rng(2);
        for _ in 0..100 {
            let rank = rng.random_range(1..5);
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.shuffle(&mut rng);
            let (axis, inner, n) =
                (rng.random_range(0..rank), rng.random_range(1..3), rng.random_range(0..7));
            let mut dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
            dims[axis] = n * inner;
            let x = random(&mut rng, DType::F32, &dims);
            let claim = |axis| Claim::Shard(Shard { axis, outer: 1, inner: inner as u64 });
            let to = perm.iter().position(|from| *from == axis).unwrap();
            assert_eq!(
                check_split(&Transpose { perm }.into(), &[(&x, claim(axis))], n),
                Ok(vec![claim(to)])
            );
        }
    }
}
