//! Numbers as vectors with one element that is different.

use smallvec::smallvec;

use super::declare::op;
use super::infer::{axis, dtype, known_sizes, result, sizes, tensors, two};
use super::{
    Backward, Claims, Formula, Gradient, OpDef, OpError, Operand, Results, RuleError, SplitOperand,
    Traits, rules,
};
use crate::types::{
    Claim, Code, DType, Dim, KernelClass, Refusal, Shape, Shard, Tensor, TensorType,
};

op! {
    /// For each element of the first operand, an integer, a vector of `depth` elements along a new
    /// axis: the second element of the second operand at that position, the first one elsewhere.
    /// Negative numbers count from the end; numbers without a position give a vector of first
    /// elements.
    pub struct OneHot = "one_hot" {
        /// The new axis among those of the result, negative from the end.
        pub axis: i64 = -1,
        /// The size of the new axis.
        pub depth: Dim,
    }
}

impl OneHot {
    fn own(&self, rank: usize) -> Result<usize, OpError> {
        axis("axis", self.axis, rank + 1)
    }
}

impl OpDef for OneHot {
    fn traits(&self) -> Traits {
        Traits::FOLLOWS_BLOCKS
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let (numbers, values) = two(operands)?;
        let is_integer = |t: DType| !t.is_float() && t != DType::Bool;
        dtype(operands, 0, is_integer, "an integer")?;
        sizes("depth", std::slice::from_ref(&self.depth))?;
        if values.ty.rank() != 1 || values.ty.shape[0] != Dim::from(2) {
            let expected =
                "it must have two elements, for other positions and for the one".to_owned();
            return Err(OpError::Shape { operand: 1, found: values.ty.clone(), expected });
        }
        let mut shape = numbers.ty.shape.clone();
        shape.insert(self.own(shape.rank())?, self.depth.clone());
        result(TensorType { dtype: values.ty.dtype, shape })
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let ([numbers, _], Some((first, s))) = (operands, rules::first_shard(operands)) else {
            return rules::whole_results(results);
        };
        rules::whole(operands, 1, Code::NotPerSample, "takes its two values from samples")?;
        if self.depth.depends_on_batch() {
            let reason = format!("gives each sample {} entries", self.depth);
            return Err(rules::refuse(Code::BakedBatch, first, reason));
        }
        let own = self.own(numbers.ty.rank()).unwrap_or(0);
        let axis = s.axis + usize::from(own <= s.axis);
        Ok(smallvec![Claim::Shard(Shard { axis, ..s })])
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [numbers, values] = tensors(operands)?;
        let own = self.own(numbers.rank())?;
        let depth = known_sizes("the depth", std::slice::from_ref(&self.depth))?[0];
        let mut dims = numbers.dims().to_vec();
        dims.insert(own, depth);
        let mut y = Tensor::zeros(values.dtype(), &dims)?;
        let inner: usize = numbers.dims()[own..].iter().product();
        let width = values.dtype().bytes();
        let (off, on) = values.bytes().split_at(width);
        for element in y.bytes_mut().chunks_exact_mut(width) {
            element.copy_from_slice(off);
        }
        let limit = i64::try_from(depth).unwrap_or(i64::MAX);
        // Unsigned numbers beyond the range of i64 have no position.
        let unsigned = numbers.dtype() == DType::U64;
        for (i, number) in numbers.to_i64().unwrap_or_default().into_iter().enumerate() {
            let from_end = number < 0 && !unsigned;
            let at = if from_end { number.saturating_add(limit) } else { number };
            if let Some(at) = usize::try_from(at).ok().filter(|at| *at < depth) {
                let place = ((i / inner * depth + at) * inner + i % inner) * width;
                y.bytes_mut()[place..place + width].copy_from_slice(on);
            }
        }
        Ok(vec![y])
    }

    fn jumps(&self) -> bool {
        true
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Index
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (indices, values, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let ends = at.zero_and_one()?;
        let to = at.ty(values).dtype;
        let ends = at.cast(ends, to)?;
        let hot = at.op(self.clone(), &[indices, ends])?;
        let axes: Vec<usize> = (0..at.ty(dy).rank()).collect();
        let on = at.mul(dy, hot)?;
        let (on, all) = (at.sum(on, &axes)?, at.sum(dy, &axes)?);
        let off = at.sub(all, on)?;
        let one: Shape = [Dim::ONE].into_iter().collect();
        let (off, on) = (at.reshape(off, &one)?, at.reshape(on, &one)?);
        let both = at.concat(&[off, on], 0)?;
        at.give(1, both);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, check_split, random, refusal, rng, tensor};
    use super::super::{Op, OpDef, OpError, Operand};
    use super::OneHot;
    use crate::types::{Claim, DType, Dim, Shard, Tensor, TensorType};

    fn one_hot(axis: i64, depth: i64) -> Op {
        OneHot { axis, depth: depth.into() }.into()
    }

    #[test]
    fn one_position_differs() {
        let values = Tensor::new(&[2], &[-1f32, 5.0]).unwrap();
        let numbers = Tensor::new(&[4], &[1i32, -1, 3, -4]).unwrap();
        let y = testing::eval(&one_hot(-1, 3), &[&numbers, &values]).remove(0);
        assert_eq!(y.dims(), [4, 3]);
        let (o, x) = (-1f32, 5f32);
        assert_eq!(y.as_slice::<f32>(), [o, x, o, o, o, x, o, o, o, o, o, o]);
        let numbers = Tensor::new(&[1, 2], &[0u64, u64::MAX]).unwrap();
        let bools = tensor(DType::Bool, &[2], &[1.0, 0.0]);
        let y = testing::eval(&one_hot(1, 2), &[&numbers, &bools]).remove(0);
        assert_eq!((y.dims(), y.to_f64()), ([1, 2, 2].as_slice(), vec![0.0, 1.0, 1.0, 1.0]));
        let none = Tensor::new::<i64>(&[0], &[]).unwrap();
        assert_eq!(testing::eval(&one_hot(0, 2), &[&none, &values])[0].dims(), [2, 0]);
    }

    #[test]
    fn operands_that_do_not_fit_are_refused() {
        let infer = |op: OneHot, a: TensorType, b: TensorType| {
            op.infer(&[Operand { ty: &a, ints: None }, Operand { ty: &b, ints: None }])
        };
        let (numbers, values) =
            (TensorType::new(DType::I64, [3]), TensorType::new(DType::F32, [2]));
        let op = |axis, depth: i64| OneHot { axis, depth: depth.into() };
        assert!(infer(op(-2, 0), numbers.clone(), values.clone()).is_ok());
        for wrong in [op(2, 1), op(-3, 1), op(0, -1)] {
            let error = infer(wrong, numbers.clone(), values.clone());
            assert!(matches!(error, Err(OpError::Attribute { .. })));
        }
        assert!(infer(op(0, 1), values.clone(), values.clone()).is_err());
        assert!(infer(op(0, 1), numbers.clone(), TensorType::new(DType::F32, [3])).is_err());
    }

    #[test]
    fn the_batch_stays_with_its_numbers() {
        let mut rng = rng(1);
        let values = Tensor::new(&[2], &[0f32, 1.0]).unwrap();
        for n in 1..6 {
            let numbers = random(&mut rng, DType::I64, &[2, 3 * n]);
            let rows = |axis| Claim::Shard(Shard { axis, outer: 1, inner: 3 });
            for (axis, to) in [(0, 2), (1, 2), (2, 1), (-1, 1)] {
                let operands = [(&numbers, rows(1)), (&values, Claim::Invariant)];
                let got = check_split(&one_hot(axis, rng.random_range(0..4)), &operands, n);
                assert_eq!(got, Ok(vec![rows(to)]));
            }
        }
        let numbers = random(&mut rng, DType::I64, &[2]);
        let op: Op = one_hot(0, 3);
        assert_eq!(
            refusal(&op, &[(&numbers, Claim::Invariant), (&values, Claim::rows(0))]),
            "R0111"
        );
        let op: Op = OneHot { axis: 0, depth: Dim::n() }.into();
        assert_eq!(
            refusal(&op, &[(&numbers, Claim::rows(0)), (&values, Claim::Invariant)]),
            "R0110"
        );
    }
}
