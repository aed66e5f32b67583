//! One value repeated along axes of size 1.

use smallvec::{SmallVec, smallvec};

use super::declare::op;
use super::infer::{
    MAX_INTS, broadcast, carried, known_sizes, one, result_with_ints, sizes, tensors,
};
use super::{
    Backward, Claims, Gradient, Known, OpDef, OpError, Operand, Results, RuleError, SplitOperand,
    Traits, rules, strided,
};
use crate::types::{Claim, Code, Dim, KernelClass, Refusal, Shape, Shard, Tensor, TensorType};

op! {
    /// Its operand broadcast together with `shape`, aligned at the right: sizes are equal, or one
    /// of them is 1.
    pub struct Expand = "expand" {
        /// The sizes wanted; 1 keeps that of the operand.
        pub shape: Vec<Dim>,
    }
}

impl OpDef for Expand {
    fn traits(&self) -> Traits {
        Traits::MOVES | Traits::CHEAP | Traits::FOLLOWS_BLOCKS
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        Some(0)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        sizes("shape", &self.shape)?;
        let wanted = Shape::from(self.shape.as_slice());
        let shape = broadcast([&x.ty.shape, &wanted].into_iter())?;
        let count = shape.elements().as_const().and_then(|c| usize::try_from(c).ok());
        let ints = match (x.ints, count) {
            _ if shape == x.ty.shape => carried(&x),
            (Some([only]), Some(count)) if count <= MAX_INTS => {
                Some(SmallVec::from_elem(only.clone(), count))
            }
            _ => None,
        };
        result_with_ints(TensorType { dtype: x.ty.dtype, shape }, ints)
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let ([x], [y]) = (operands, results) else { return rules::whole_results(results) };
        let Some(rows) = rules::batch_axis(y, 0)? else { return rules::whole_results(results) };
        // Where the operand is whole, each replica repeats it for its own rows, which are all
        // equal.
        if x.claim == Claim::Invariant && x.ty.shape.iter().any(Dim::depends_on_batch) {
            let reason = format!("repeats {}, which is whole on every replica", x.ty);
            return Err(rules::refuse(Code::BakedBatch, 0, reason));
        }
        let axis = |s: Shard| s.axis + y.rank().saturating_sub(x.ty.rank());
        let rows = x.claim.shard().map_or(rows, |s| Shard { axis: axis(s), ..s });
        Ok(smallvec![Claim::Shard(rows)])
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
        let wanted = known_sizes("the shape", &self.shape)?;
        let rank = x.rank().max(wanted.len());
        let at = |dims: &[usize], i: usize| {
            (i + dims.len()).checked_sub(rank).and_then(|i| dims.get(i).copied()).unwrap_or(1)
        };
        let from = strided::distances(x.dims());
        let axes: SmallVec<[strided::Axis; 6]> = (0..rank)
            .map(|i| match at(x.dims(), i) {
                1 => (at(&wanted, i), 0),
                size => (size, from[i + x.rank() - rank]),
            })
            .collect();
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
        at.give_sum(0, dy)
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, check_split, random, rng};
    use super::super::{Op, OpDef, Operand};
    use super::Expand;
    use crate::types::{Claim, DType, Dim, Shard, Tensor, TensorType};

    fn expand(shape: &[Dim]) -> Op {
        Expand { shape: shape.to_vec() }.into()
    }

    #[test]
    fn values() {
        let x = Tensor::new(&[2, 1], &[1i64, 2]).unwrap();
        let y = testing::eval(&expand(&[2.into(), 1.into(), 3.into()]), &[&x]);
        assert_eq!(y[0].dims(), [2, 2, 3]);
        assert_eq!(y[0].as_slice::<i64>(), [1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2]);
        assert_eq!(testing::eval(&expand(&[1.into()]), &[&x])[0], x);
        let one = Tensor::scalar(7i64);
        assert_eq!(testing::eval(&expand(&[3.into()]), &[&one])[0].as_slice::<i64>(), [7, 7, 7]);
        assert_eq!(testing::eval(&expand(&[0.into(), 1.into()]), &[&one])[0].dims(), [0, 1]);
        let ty = TensorType::new(DType::F32, [2, 3]);
        for shape in [
            vec![2.into()],
            vec![(-1).into()],
            vec![Dim::n(), 1.into()],
            vec![Dim::n() - 1, 2.into(), 3.into()],
        ] {
            assert!(Expand { shape }.infer(&[Operand { ty: &ty, ints: None }]).is_err());
        }
    }

    #[test]
    fn rows_pass_and_a_whole_value_becomes_rows() {
        let mut rng = rng(5);
        for _ in 0..200 {
            let (rank, n) = (rng.random_range(1..4), rng.random_range(0..6));
            let (axis, inner) = (rng.random_range(0..rank), rng.random_range(1..3));
            let lead = rng.random_range(0..3);
            let wanted: Vec<usize> = (0..rank).map(|_| rng.random_range(2..4)).collect();
            let mut dims: Vec<usize> =
                wanted.iter().map(|d| if rng.random_bool(0.5) { 1 } else { *d }).collect();
            let mut shape: Vec<Dim> = vec![2.into(); lead];
            shape.extend(wanted.iter().map(|d| {
                if rng.random_bool(0.2) { Dim::ONE } else { Dim::from(i64::try_from(*d).unwrap()) }
            }));
            let rows = Dim::n() * i64::try_from(inner).unwrap();
            let split = rng.random_bool(0.5);
            dims[axis] = if split { n * inner } else { 1 };
            shape[lead + axis] = if split && rng.random_bool(0.5) { Dim::ONE } else { rows };
            let x = random(&mut rng, DType::F32, &dims);
            let claim = |axis| Claim::Shard(Shard { axis, outer: 1, inner: inner as u64 });
            let own = if split { claim(axis) } else { Claim::Invariant };
            assert_eq!(check_split(&expand(&shape), &[(&x, own)], n), Ok(vec![claim(lead + axis)]));
        }
    }

    #[test]
    fn other_sizes_may_not_depend_on_the_batch() {
        let x = random(&mut rng(6), DType::F32, &[4, 1]);
        let get = |shape: &[Dim], claim| check_split(&expand(shape), &[(&x, claim)], 4);
        assert_eq!(get(&[4.into(), 3.into()], Claim::Invariant), Ok(vec![Claim::Invariant]));
        for shape in [[1.into(), Dim::n() + 1], [1.into(), Dim::n() * Dim::n()]] {
            assert_eq!(get(&shape, Claim::Invariant), Err("R0110".to_owned()));
        }
        assert_eq!(get(&[1.into(), Dim::n()], Claim::rows(0)), Err("R0110".to_owned()));
    }
}
