//! Tensors joined along one axis.

use super::infer::{at_least, axis, count, equal, result_with_ints, same_dtype};
use super::prelude::*;

op! {
    /// Its operands one after the other along `axis`; all other axes have the same sizes.
    pub struct Concat = "concat" is MOVES | FOLLOWS_BLOCKS | WIDE_PARTS {
        /// The axis along which they are joined, negative from the end.
        pub axis: i64,
    }
}

impl OpDef for Concat {
    fn same_as(&self, operands: &[Known<'_>], _: &TensorType) -> Option<usize> {
        (operands.len() == 1).then_some(0)
    }

    fn joined(&self) -> Option<i64> {
        Some(self.axis)
    }

    fn positions(&self, operands: &[PositionOperand<'_>], y: &TensorType) -> Option<Positions> {
        let joined = axis("axis", self.axis, y.rank()).ok()?;
        let first = operands.first()?.rows.filter(|rows| rows.axis != joined)?;
        operands.iter().all(|x| x.rows == Some(first)).then_some(first)
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
                return Err(OpError::shape(i + 1, x.ty, expected));
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

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        if at.operands.len() == 1 {
            return at.keep(shard);
        }
        let rank = at.results.first().map_or(0, TensorType::rank);
        let joined = axis("axis", self.axis, rank).unwrap_or(0);
        let along = "joins values along the batch axis";
        let mut whole = Shard { outer: 0, ..shard };
        for (i, x) in at.operands.iter().enumerate() {
            match x.claim.shard() {
                // Blocks of all rows one after the other, each with as many entries per row.
                Some(s) if joined == shard.axis && s == (Shard { outer: s.outer, ..shard }) => {
                    whole.outer = whole.outer.saturating_add(s.outer);
                }
                Some(s) if s == shard => whole.outer = s.outer,
                Some(s) if s.axis == joined => return at.refuse_at(i, Code::Reorders, along),
                Some(s) => {
                    let reason =
                        format!("joins rows on axis {} with rows on axis {}", s.axis, shard.axis);
                    return at.refuse_at(i, Code::Misaligned, reason);
                }
                None if joined == shard.axis => return at.refuse(Code::Reorders, along),
                None => {
                    let axis = shard.axis;
                    let reason =
                        format!("joins rows with a value whose axis {axis} has a fixed size");
                    return at.refuse_at(i, Code::BakedBatch, reason);
                }
            }
        }
        at.keep(whole)
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        // Inference wants an operand at least.
        let rank = at.operands.first().map_or(0, |x| x.ty.rank());
        let by = rules::first_partial(at.operands).map(|(_, by)| by);
        // Components of numbers stay on the first axis.
        if by.is_some_and(Combine::is_wide) && axis("axis", self.axis, rank).is_ok_and(|a| a == 0) {
            return at.needs_whole();
        }
        match at.operands.split_first() {
            // Elements move and are not computed with: parts of one combiner, joined, are parts of
            // the joined value.
            Some((x, rest)) if rest.iter().all(|y| y.claim == x.claim) => at.give(x.claim),
            _ => at.needs_whole(),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([first], _) = at_least(operands)?;
        let axis = axis("axis", self.axis, first.rank())?;
        let mut dims = first.dims().to_vec();
        dims[axis] = operands.iter().map(|x| x.dims()[axis]).sum();
        let mut y = Tensor::zeros(first.dtype(), &dims)?;
        let outer: usize = dims[..axis].iter().product();
        let width = dims[axis + 1..].iter().product::<usize>() * first.dtype().bytes();
        // Of each of the `outer` blocks an operand has `run` consecutive bytes, the result `total`.
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

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        let axis = axis("axis", self.axis, at.ty(dy).rank())?;
        let parts: Vec<Dim> = (0..at.operands())
            .map(|i| Ok(at.shape(at.operand(i)?)[axis].clone()))
            .collect::<Result<_, RuleError>>()?;
        // Each operand gets the entries of the gradient that are its own.
        let parts = at.split(dy, self.axis, parts)?;
        for (i, part) in parts.into_iter().enumerate() {
            at.give(i, part)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check_split, random, rng};
    use super::super::{Op, SplitOperand};
    use super::Concat;
    use crate::types::{Claim, Combine, DType, Dim, Shape, TensorType};

    #[test]
    fn parts_in_components_are_joined_beside_them() {
        let ty = |channels: i64| {
            TensorType::new(DType::F64, Shape::from(&[Dim::from(3), channels.into()][..]))
        };
        let claims = |axis, by: [Combine; 2]| {
            let (types, y) = ([ty(2), ty(5)], ty(7));
            let operands = by.map(Claim::Partial).into_iter().zip(&types);
            let operands = operands.map(|(claim, ty)| SplitOperand { claim, ty });
            Op::from(Concat { axis }).split(&operands.collect::<Vec<_>>(), &[y])
        };
        let [moments, wide] = [Combine::Moments, Combine::WideSum];
        for axis in [1, -1] {
            let joined = claims(axis, [moments; 2]).unwrap();
            assert_eq!(joined.as_slice(), [Claim::Partial(moments)]);
            assert!(claims(axis, [moments, wide]).is_err());
        }
        for axis in [0, -2] {
            assert!(claims(axis, [moments; 2]).is_err());
        }
        // Sums have no components: any axis will do.
        assert_eq!(claims(0, [Combine::Sum; 2]).unwrap()[0], Claim::Partial(Combine::Sum));
        let mut rng = rng(1);
        let [a, b] = [(); 2].map(|()| random(&mut rng, DType::F32, &[3, 7]));
        let rows = Claim::rows(1);
        let both = [(&a, rows), (&b, rows)];
        assert_eq!(check_split(&Concat { axis: 0 }.into(), &both, 7), Ok(vec![rows]));
    }
}
