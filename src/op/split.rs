//! One axis cut into consecutive parts.

use smallvec::SmallVec;

use super::declare::op;
use super::infer::{axis, equal, known_sizes, one, result_with_ints, results, sizes, tensors};
use super::{
    Backward, Claims, Formula, Gradient, OpDef, OpError, Operand, Results, RuleError, SplitOperand,
    Term, Traits, rules,
};
use crate::types::{Claim, Code, Dim, KernelClass, Refusal, Shard, Tensor, TensorType};

op! {
    /// The parts of its operand along `axis`, one result for each.
    pub struct SplitOp = "split" {
        /// The axis that is cut, negative from the end.
        pub axis: i64 = 0,
        /// The sizes of the parts, at least one; together that of the axis.
        pub sizes: Vec<Dim>,
    }
}

/// The known elements of the parts of a known vector.
fn known_parts(ints: &[Dim], sizes: &[Dim]) -> Option<Vec<SmallVec<[Dim; 8]>>> {
    let mut rest = ints;
    let part = |size: &Dim| {
        let (part, after) = rest.split_at_checked(usize::try_from(size.as_const()?).ok()?)?;
        rest = after;
        Some(part.iter().cloned().collect())
    };
    sizes.iter().map(part).collect()
}

impl OpDef for SplitOp {
    fn traits(&self) -> Traits {
        Traits::MOVES | Traits::FOLLOWS_BLOCKS
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        let axis = axis("axis", self.axis, x.ty.rank())?;
        if self.sizes.is_empty() {
            let reason = "there is no part".to_owned();
            return Err(OpError::Attribute { attr: "sizes", reason });
        }
        sizes("sizes", &self.sizes)?;
        let all = self.sizes.iter().fold(Dim::ZERO, |sum, d| sum + d.clone());
        equal("the sizes of all parts and of the axis", &all, &x.ty.shape[axis])?;
        let types = self.sizes.iter().map(|size| {
            let mut ty = x.ty.clone();
            ty.shape[axis] = size.clone();
            ty
        });
        match x.ints.filter(|_| x.ty.rank() == 1).and_then(|ints| known_parts(ints, &self.sizes)) {
            None => results(types),
            Some(parts) => {
                let each = types.zip(parts).map(|(ty, ints)| result_with_ints(ty, Some(ints)));
                Ok(each.collect::<Result<Vec<Results>, _>>()?.into_iter().flatten().collect())
            }
        }
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let Some((i, shard)) = rules::first_shard(operands) else {
            return rules::whole_results(results);
        };
        let rank = operands.get(i).map_or(0, |x| x.ty.rank());
        match axis("axis", self.axis, rank) {
            Ok(axis) if axis == shard.axis => {
                let part = |size: &Dim| {
                    let outer = shard.blocks(size).filter(|blocks| *blocks > 0)?;
                    Some(Claim::Shard(Shard { outer, ..shard }))
                };
                let parts = self.sizes.iter().map(part).collect::<Option<Claims>>();
                parts.ok_or_else(|| rules::refuse(Code::Reorders, i, "cuts the batch into parts"))
            }
            _ if self.sizes.iter().any(Dim::depends_on_batch) => {
                let reason = "cuts another axis at places that depend on the batch size";
                Err(rules::refuse(Code::BakedBatch, i, reason))
            }
            _ => Ok(SmallVec::from_elem(Claim::Shard(shard), results.len())),
        }
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
        let axis = axis("axis", self.axis, x.rank())?;
        let width = x.dims()[axis + 1..].iter().product::<usize>() * x.dtype().bytes();
        let whole = x.dims()[axis] * width;
        let mut at = 0;
        let mut parts = Vec::with_capacity(self.sizes.len());
        for size in known_sizes("the sizes", &self.sizes)? {
            let mut dims = x.dims().to_vec();
            dims[axis] = size;
            let mut part = Tensor::zeros(x.dtype(), &dims)?;
            let run = size * width;
            if run > 0 {
                let blocks = x.bytes().chunks_exact(whole);
                for (out, block) in part.bytes_mut().chunks_exact_mut(run).zip(blocks) {
                    out.copy_from_slice(&block[at..at + run]);
                }
            }
            at += run;
            parts.push(part);
        }
        Ok(parts)
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Move
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let like = at.operand(0)?;
        let parts: Vec<Term> = (0..self.sizes.len())
            .map(|i| {
                if let Some(dy) = at.gradient(i) {
                    return Ok(dy);
                }
                let shape = at.shape(at.result(i)?);
                at.zeros(like, &shape)
            })
            .collect::<Result<_, RuleError>>()?;
        let dx = at.concat(&parts, self.axis)?;
        at.give(0, dx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, check_split, random, rng, sizes};
    use super::super::{Op, OpDef, OpError, Operand};
    use super::SplitOp;
    use crate::types::{Claim, DType, Dim, Shard, Tensor, TensorType};

    fn split(axis: i64, sizes: &[Dim]) -> Op {
        SplitOp { axis, sizes: sizes.to_vec() }.into()
    }

    #[test]
    fn values() {
        let x = Tensor::new(&[2, 3], &[1i64, 2, 3, 4, 5, 6]).unwrap();
        let y = testing::eval(&split(-1, &[1.into(), 0.into(), 2.into()]), &[&x]);
        assert_eq!(y[0].as_slice::<i64>(), [1, 4]);
        assert_eq!(y[1].dims(), [2, 0]);
        assert_eq!(
            (y[2].dims(), y[2].as_slice::<i64>()),
            ([2, 2].as_slice(), [2, 3, 5, 6].as_slice())
        );
        let line = Tensor::new(&[3], &[7i64, 8, 9]).unwrap();
        let y = testing::eval(&split(0, &[2.into(), 1.into()]), &[&line]);
        assert_eq!(y[1].as_slice::<i64>(), [9]);
        let ty = TensorType::new(DType::I64, [2]);
        let ints = [Dim::n(), 4.into()];
        let known =
            split(0, &[1.into(), 1.into()]).infer(&[Operand { ty: &ty, ints: Some(&ints) }]);
        assert_eq!(known.unwrap()[0].ints.as_deref(), Some([Dim::n()].as_slice()));
    }

    #[test]
    fn sizes_fill_the_axis() {
        let ty = TensorType::new(DType::F32, [4]);
        let infer = |sizes: &[Dim]| {
            SplitOp { axis: 0, sizes: sizes.to_vec() }.infer(&[Operand { ty: &ty, ints: None }])
        };
        assert!(matches!(infer(&[1.into(), 2.into()]), Err(OpError::SizesDiffer { .. })));
        assert!(matches!(infer(&[]), Err(OpError::Attribute { .. })));
        assert!(matches!(infer(&[5.into(), (-1).into()]), Err(OpError::Attribute { .. })));
        assert!(matches!(infer(&[Dim::n(), -Dim::n() + 4]), Err(OpError::Attribute { .. })));
    }

    #[test]
    fn the_batch_passes_beside_the_cut() {
        let mut rng = rng(2);
        for _ in 0..100 {
            let (rank, n) = (rng.random_range(1..4), rng.random_range(0..7));
            let (axis, cut, inner) =
                (rng.random_range(0..rank), rng.random_range(0..rank), rng.random_range(1..3));
            let mut dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..6)).collect();
            dims[axis] = n * inner;
            let first = rng.random_range(0..=dims[cut]);
            let mut parts = sizes(&[first, dims[cut] - first]);
            if cut == axis {
                parts = vec![Dim::n() * i64::try_from(inner).unwrap()];
                if rng.random_bool(0.5) {
                    parts.push(Dim::ZERO);
                }
            }
            let x = random(&mut rng, DType::F32, &dims);
            let claim = Claim::Shard(Shard { axis, outer: 1, inner: inner as u64 });
            let op = split(i64::try_from(cut).unwrap(), &parts);
            let expected = if cut == axis && parts.len() > 1 {
                Err("R0108".to_owned())
            } else {
                Ok(vec![claim; parts.len()])
            };
            assert_eq!(check_split(&op, &[(&x, claim)], n), expected);
        }
        let x = random(&mut rng, DType::F32, &[6, 4]);
        let blocks = |outer, inner| Claim::Shard(Shard { axis: 0, outer, inner });
        let views = split(0, &[Dim::n() * 2, Dim::n()]);
        assert_eq!(
            check_split(&views, &[(&x, blocks(3, 1))], 2),
            Ok(vec![blocks(2, 1), blocks(1, 1)])
        );
        assert_eq!(check_split(&views, &[(&x, blocks(1, 3))], 2), Err("R0108".to_owned()));
        let some = Dim::n().minimum(&4.into());
        let by_size = split(1, &[some.clone(), -some + 4]);
        assert_eq!(check_split(&by_size, &[(&x, Claim::rows(0))], 6), Err("R0110".to_owned()));
    }
}
