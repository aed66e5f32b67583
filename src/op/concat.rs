//! Tensors joined along one axis.

use smallvec::smallvec;

use super::declare::op;
use super::infer::{axis, count, equal, result_with_ints, same_dtype};
use super::{
    Backward, Claims, Formula, Gradient, Known, OpDef, OpError, Operand, Results, RuleError,
    SplitOperand, Traits, rules,
};
use crate::types::{Claim, Code, Dim, KernelClass, Refusal, Shard, Tensor, TensorType};

op! {
    /// Its operands one after the other along `axis`; all other axes have the same sizes.
    pub struct Concat = "concat" {
        /// The axis along which they are joined, negative from the end.
        pub axis: i64,
    }
}

impl OpDef for Concat {
    fn traits(&self) -> Traits {
        Traits::MOVES | Traits::FOLLOWS_BLOCKS
    }

    fn same_as(&self, operands: &[Known<'_>], _: &TensorType) -> Option<usize> {
        (operands.len() == 1).then_some(0)
    }

    fn joined(&self) -> Option<Concat> {
        Some(self.clone())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 1, usize::MAX, "at least 1")?;
        same_dtype(operands)?;
        let Some((first, rest)) = operands.split_first() else { return Ok(Results::new()) };
        let axis = axis("axis", self.axis, first.ty.rank())?;
        let mut ty = first.ty.clone();
        for (i, x) in rest.iter().enumerate() {
            if x.ty.rank() != ty.rank() {
                let expected = format!("operand 0 has {} axes", ty.rank());
                return Err(OpError::Shape { operand: i + 1, found: x.ty.clone(), expected });
            }
            for (a, (left, right)) in first.ty.shape.iter().zip(x.ty.shape.iter()).enumerate() {
                if a != axis {
                    equal("sizes beside the joined axis", left, right)?;
                }
            }
            ty.shape[axis] = ty.shape[axis].clone() + x.ty.shape[axis].clone();
        }
        let ints = if axis == 0 && ty.rank() == 1 {
            operands.iter().map(|x| x.ints).collect::<Option<Vec<&[Dim]>>>()
        } else {
            None
        };
        result_with_ints(ty, ints.map(|parts| parts.into_iter().flatten().cloned().collect()))
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let Some((first, shard)) = rules::first_shard(operands) else {
            return rules::whole_results(results);
        };
        if operands.len() == 1 {
            return Ok(smallvec![Claim::Shard(shard)]);
        }
        let rank = results.first().map_or(0, TensorType::rank);
        let joined = axis("axis", self.axis, rank).unwrap_or(0);
        let mut whole = Shard { outer: 0, ..shard };
        for (i, x) in operands.iter().enumerate() {
            match x.claim.shard() {
                // Blocks of all rows one after the other, each with as many entries per row.
                Some(s) if joined == shard.axis && s == (Shard { outer: s.outer, ..shard }) => {
                    whole.outer = whole.outer.saturating_add(s.outer);
                }
                Some(s) if s == shard => whole.outer = s.outer,
                Some(s) if s.axis == joined => {
                    return Err(rules::refuse(
                        Code::Reorders,
                        i,
                        "joins values along the batch axis",
                    ));
                }
                Some(s) => {
                    let reason =
                        format!("joins rows on axis {} with rows on axis {}", s.axis, shard.axis);
                    return Err(rules::refuse(Code::Misaligned, i, reason));
                }
                None if joined == shard.axis => {
                    return Err(rules::refuse(
                        Code::Reorders,
                        first,
                        "joins values along the batch axis",
                    ));
                }
                None => {
                    let reason = format!(
                        "joins rows with a value whose axis {} has a fixed size",
                        shard.axis
                    );
                    return Err(rules::refuse(Code::BakedBatch, i, reason));
                }
            }
        }
        Ok(smallvec![Claim::Shard(whole)])
    }

    fn partial(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        match operands.split_first() {
            Some((x, rest)) if rest.iter().all(|y| y.claim == x.claim) => Ok(smallvec![x.claim]),
            _ => Err(rules::needs_whole(operands)),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let first =
            operands.first().ok_or(OpError::Operands { expected: "at least 1", found: 0 })?;
        let axis = axis("axis", self.axis, first.rank())?;
        let mut dims = first.dims().to_vec();
        dims[axis] = operands.iter().map(|x| x.dims()[axis]).sum();
        let mut y = Tensor::zeros(first.dtype(), &dims)?;
        let outer: usize = dims[..axis].iter().product();
        let width = dims[axis + 1..].iter().product::<usize>() * first.dtype().bytes();
        let (total, out) = (dims[axis] * width, y.bytes_mut());
        let mut at = 0;
        for x in operands {
            let run = x.dims()[axis] * width;
            for o in 0..outer {
                out[o * total + at..o * total + at + run]
                    .copy_from_slice(&x.bytes()[o * run..(o + 1) * run]);
            }
            at += run;
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
        let dy = at.dy()?;
        let axis = axis("axis", self.axis, at.ty(dy).rank())?;
        let parts: Vec<Dim> = (0..at.operands())
            .map(|i| Ok(at.shape(at.operand(i)?)[axis].clone()))
            .collect::<Result<_, RuleError>>()?;
        let parts = at.split(dy, self.axis, parts)?;
        for (i, part) in parts.into_iter().enumerate() {
            at.give(i, part);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, check_split, random, rng};
    use super::Concat;
    use crate::types::{Claim, DType, Shard, Tensor};

    #[test]
    fn values() {
        let a = Tensor::new(&[2, 1], &[1i64, 2]).unwrap();
        let b = Tensor::new(&[2, 2], &[3i64, 4, 5, 6]).unwrap();
        let y = testing::eval(&Concat { axis: -1 }.into(), &[&a, &b]);
        assert_eq!(y[0].as_slice::<i64>(), [1, 3, 4, 2, 5, 6]);
    }

    #[test]
    fn the_batch_passes_beside_the_joined_axis() {
        let (a, b) =
            (random(&mut rng(1), DType::F32, &[5, 2]), random(&mut rng(2), DType::F32, &[5, 3]));
        let rows = Claim::rows(0);
        assert_eq!(
            check_split(&Concat { axis: 1 }.into(), &[(&a, rows), (&b, rows)], 5),
            Ok(vec![rows])
        );
        let twice = [(&a, rows), (&a, rows)];
        let blocks = |outer, inner| Claim::Shard(Shard { axis: 0, outer, inner });
        assert_eq!(check_split(&Concat { axis: 0 }.into(), &twice, 5), Ok(vec![blocks(2, 1)]));
        let more = random(&mut rng(3), DType::F32, &[15, 2]);
        let joined =
            |claim| check_split(&Concat { axis: 0 }.into(), &[(&more, claim), (&a, rows)], 5);
        assert_eq!(joined(blocks(3, 1)), Ok(vec![blocks(4, 1)]));
        assert_eq!(joined(blocks(1, 3)), Err("R0108".to_owned()));
    }

    #[test]
    fn random_parts_beside_the_batch() {
        let mut rng = rng(3);
        for _ in 0..200 {
            let (rank, n) = (rng.random_range(1..4), rng.random_range(0..7));
            let (batch, joined, inner) =
                (rng.random_range(0..rank), rng.random_range(0..rank), rng.random_range(1..3));
            let mut dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..4)).collect();
            dims[batch] = n * inner;
            let parts: Vec<Tensor> = (0..rng.random_range(1..4))
                .map(|_| {
                    if joined != batch {
                        dims[joined] = rng.random_range(0..4);
                    }
                    random(&mut rng, DType::F32, &dims)
                })
                .collect();
            let claim = Claim::Shard(Shard { axis: batch, outer: 1, inner: inner as u64 });
            let operands: Vec<(&Tensor, Claim)> = parts.iter().map(|x| (x, claim)).collect();
            let op = Concat { axis: i64::try_from(joined).unwrap() }.into();
            let outer = if joined == batch { parts.len() as u64 } else { 1 };
            let expected = Claim::Shard(Shard { axis: batch, outer, inner: inner as u64 });
            assert_eq!(check_split(&op, &operands, n), Ok(vec![expected]));
        }
    }

    #[test]
    fn rows_meet_only_rows_of_the_same_axis() {
        let x = random(&mut rng(4), DType::F32, &[4, 4, 2]);
        let refused = |axis, a, b| check_split(&Concat { axis }.into(), &[(&x, a), (&x, b)], 4);
        let (whole, rows) = (Claim::Invariant, Claim::rows(0));
        assert_eq!(refused(0, whole, rows), Err("R0108".to_owned()));
        let folded = random(&mut rng(5), DType::F32, &[8, 1]);
        let two = Claim::Shard(Shard { axis: 0, outer: 1, inner: 2 });
        let got = check_split(&Concat { axis: 1 }.into(), &[(&folded, two), (&folded, two)], 4);
        assert_eq!(got, Ok(vec![two]));
    }
}
