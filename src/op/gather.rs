//! Entries of one axis, picked by index.

use smallvec::{SmallVec, smallvec};

use super::declare::op;
use super::index::place;
use super::infer::{axis, dtype, result_with_ints, tensors, two};
use super::{
    Backward, Claims, Formula, Gradient, Lookup, OpDef, OpError, Operand, Results, RuleError,
    SplitOperand, Traits, rules,
};
use crate::types::{
    Claim, Code, DType, Dim, KernelClass, Refusal, Shape, Shard, Tensor, TensorType,
};

op! {
    /// The entries of the first operand along `axis` whose numbers are the second operand; the axes
    /// of the second stand in the place of that axis. Negative numbers count from the end.
    pub struct Gather = "gather" {
        /// The axis of the first operand, negative from its end.
        pub axis: i64 = 0,
    }
}

/// The known elements of the result where the data are a known vector.
fn picked(data: &[Dim], places: &[i64]) -> Option<SmallVec<[Dim; 8]>> {
    places.iter().map(|at| data.get(usize::try_from(*at).ok()?).cloned()).collect()
}

impl OpDef for Gather {
    fn traits(&self) -> Traits {
        Traits::FOLLOWS_BLOCKS
    }

    fn lookup(&self, operands: &[&TensorType]) -> Option<Lookup> {
        Lookup::along(operands, self.axis, 1)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let (data, indices) = two(operands)?;
        dtype(operands, 1, |t| matches!(t, DType::I64 | DType::I32), "i64 or i32")?;
        let axis = axis("axis", self.axis, data.ty.rank())?;
        let size = data.ty.shape.get(axis).and_then(Dim::as_const);
        let known: Option<Vec<i64>> =
            indices.ints.and_then(|ints| ints.iter().map(Dim::as_const).collect());
        let places = match (size, known) {
            (Some(size), Some(known)) => {
                Some(known.into_iter().map(|i| place(i, size)).collect::<Result<Vec<i64>, _>>()?)
            }
            _ => None,
        };
        let (before, after) = data.ty.shape.split_at(axis);
        let after = after.iter().skip(1);
        let shape: Shape =
            before.iter().chain(indices.ty.shape.iter()).chain(after).cloned().collect();
        let ints = match (data.ints, places) {
            (Some(ints), Some(places)) if data.ty.rank() == 1 => picked(ints, &places),
            _ => None,
        };
        result_with_ints(TensorType { dtype: data.ty.dtype, shape }, ints)
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let [data, indices] = operands else { return rules::whole_results(results) };
        let picked = axis("axis", self.axis, data.ty.rank()).unwrap_or(0);
        let claim = match (data.claim.shard(), indices.claim.shard()) {
            (None, None) => return rules::whole_results(results),
            (Some(s), _) if s.axis == picked => {
                return Err(rules::refuse(
                    Code::Reorders,
                    0,
                    "picks samples of the batch by number",
                ));
            }
            (Some(s), Some(_)) => {
                let reason = format!("picks by rows of numbers from rows on axis {}", s.axis);
                return Err(rules::refuse(Code::Misaligned, 1, reason));
            }
            (None, Some(s)) => Shard { axis: picked + s.axis, ..s },
            (Some(s), None) if s.axis > picked => {
                Shard { axis: s.axis - 1 + indices.ty.rank(), ..s }
            }
            (Some(s), None) => s,
        };
        Ok(smallvec![Claim::Shard(claim)])
    }

    fn partial(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::moved(operands, results)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [data, indices] = tensors(operands)?;
        let axis = axis("axis", self.axis, data.rank())?;
        let size = data.dims()[axis];
        let limit = i64::try_from(size).unwrap_or(i64::MAX);
        let places = indices
            .to_i64()
            .unwrap_or_default()
            .into_iter()
            .map(|i| place(i, limit).map(|at| usize::try_from(at).unwrap_or(0)));
        let places = places.collect::<Result<Vec<usize>, _>>()?;
        let (before, after) = (&data.dims()[..axis], &data.dims()[axis + 1..]);
        let mut y = Tensor::zeros(data.dtype(), &[before, indices.dims(), after].concat())?;
        let width = after.iter().product::<usize>() * data.dtype().bytes();
        if y.is_empty() {
            return Ok(vec![y]);
        }
        for (o, out) in y.bytes_mut().chunks_exact_mut(places.len() * width).enumerate() {
            let block = &data.bytes()[o * size * width..(o + 1) * size * width];
            for (out, at) in out.chunks_exact_mut(width).zip(&places) {
                out.copy_from_slice(&block[at * width..(at + 1) * width]);
            }
        }
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Move
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (data, indices, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let axis = axis("axis", self.axis, at.ty(data).rank())?;
        let to = at.shape(data);
        let dx = at.gathered(dy, indices, axis, &to)?;
        at.give(0, dx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, check_split, random, rng};
    use super::super::{Op, OpDef, OpError, Operand};
    use super::Gather;
    use crate::types::{Claim, DType, Dim, Shape, Shard, Tensor, TensorType};

    fn gather(axis: i64) -> Op {
        Gather { axis }.into()
    }

    #[test]
    fn values() {
        let x = Tensor::new(&[2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
        let i = Tensor::new(&[2, 1], &[-1i32, 0]).unwrap();
        let y = testing::eval(&gather(1), &[&x, &i]);
        assert_eq!(
            (y[0].dims(), y[0].as_slice::<i64>()),
            ([2, 2, 1].as_slice(), [3, 1, 6, 4].as_slice())
        );
        let y = testing::eval(&gather(-2), &[&x, &Tensor::scalar(-1i64)]);
        assert_eq!((y[0].dims(), y[0].as_slice::<i64>()), ([3].as_slice(), [4, 5, 6].as_slice()));
        let none = Tensor::new::<i64>(&[0], &[]).unwrap();
        assert_eq!(testing::eval(&gather(0), &[&x, &none])[0].dims(), [0, 3]);
    }

    #[test]
    fn indices_outside_the_axis_are_refused_when_known_and_when_met() {
        let x = Tensor::new(&[3], &[1f32, 2.0, 3.0]).unwrap();
        let types = [x.tensor_type(), TensorType::new(DType::I64, [1])];
        for index in [3, -4, i64::MIN, i64::MAX] {
            let known = [Dim::from(index)];
            let operands = [
                Operand { ty: &types[0], ints: None },
                Operand { ty: &types[1], ints: Some(&known) },
            ];
            assert!(matches!(
                Gather { axis: 0 }.infer(&operands),
                Err(OpError::Value { operand: 1, .. })
            ));
            let met = Gather { axis: 0 }.eval(&[&x, &Tensor::new(&[1], &[index]).unwrap()]);
            assert!(matches!(met, Err(OpError::Value { operand: 1, .. })));
        }
        let floats = [Operand { ty: &types[0], ints: None }; 2];
        assert!(matches!(
            Gather { axis: 0 }.infer(&floats),
            Err(OpError::DType { operand: 1, .. })
        ));
    }

    #[test]
    fn elements_of_a_shape_stay_known() {
        let types =
            [TensorType::new(DType::I64, [2]), TensorType::new(DType::I64, Shape::scalar())];
        let (shape, index) = ([Dim::n(), 4.into()], [Dim::from(-2)]);
        let operands = [
            Operand { ty: &types[0], ints: Some(&shape) },
            Operand { ty: &types[1], ints: Some(&index) },
        ];
        let y = Gather { axis: 0 }.infer(&operands).unwrap();
        assert_eq!(y[0].ints.as_deref(), Some([Dim::n()].as_slice()));
    }

    #[test]
    fn the_batch_comes_with_the_data_or_with_the_indices() {
        let mut rng = rng(4);
        for _ in 0..300 {
            let (rank, irank, n) =
                (rng.random_range(1..4), rng.random_range(0..3), rng.random_range(0..6));
            let (axis, inner) = (rng.random_range(0..rank), rng.random_range(1..3));
            let mut dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
            let mut idims: Vec<usize> = (0..irank).map(|_| rng.random_range(1..4)).collect();
            let (mut data, mut numbers) = (Claim::Invariant, Claim::Invariant);
            let claim = |axis| Claim::Shard(Shard { axis, outer: 1, inner: inner as u64 });
            if rng.random_bool(0.5) {
                let on = rng.random_range(0..rank);
                (data, dims[on]) = (claim(on), n * inner);
            }
            if irank > 0 && rng.random_bool(0.5) {
                let on = rng.random_range(0..irank);
                (numbers, idims[on]) = (claim(on), n * inner);
            }
            let picks_rows = data == claim(axis);
            if dims[axis] == 0 {
                continue;
            }
            let size = i64::try_from(dims[axis]).unwrap();
            let count = idims.iter().product();
            let index: Vec<i64> = (0..count).map(|_| rng.random_range(-size..size)).collect();
            let (x, i) =
                (random(&mut rng, DType::F32, &dims), Tensor::new(&idims, &index).unwrap());
            let got =
                check_split(&gather(i64::try_from(axis).unwrap()), &[(&x, data), (&i, numbers)], n);
            let expected = match (data.shard(), numbers.shard()) {
                _ if picks_rows => Err("R0108".to_owned()),
                (Some(_), Some(_)) => Err("R0101".to_owned()),
                (None, Some(s)) => Ok(claim(axis + s.axis)),
                (Some(s), None) if s.axis < axis => Ok(data),
                (Some(s), None) => Ok(claim(s.axis + irank - 1)),
                (None, None) => Ok(Claim::Invariant),
            };
            assert_eq!(
                got,
                expected.map(|c| vec![c]),
                "{dims:?} {data} {idims:?} {numbers} {axis}"
            );
        }
    }
}
