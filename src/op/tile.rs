//! A value repeated as a whole along its axes.

use smallvec::{SmallVec, smallvec};

use super::declare::op;
use super::infer::{one, result, tensors};
use super::{
    Backward, Claims, Formula, Gradient, OpDef, OpError, Operand, Results, RuleError, SplitOperand,
    Traits, rules, strided,
};
use crate::types::{Claim, Code, Dim, KernelClass, Refusal, Shape, Shard, Tensor, TensorType};

op! {
    /// Its operand `repeats[i]` times, one after the other, along each axis `i`.
    pub struct Tile = "tile" {
        /// How often, for every axis of the operand.
        pub repeats: Vec<usize>,
    }
}

impl OpDef for Tile {
    fn traits(&self) -> Traits {
        Traits::MOVES | Traits::FOLLOWS_BLOCKS
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        if self.repeats.len() != x.ty.rank() {
            let reason = format!("{} numbers for {}", self.repeats.len(), x.ty);
            return Err(OpError::Attribute { attr: "repeats", reason });
        }
        let times = |count: &usize| Dim::from(i64::try_from(*count).unwrap_or(i64::MAX));
        let shape =
            x.ty.shape
                .iter()
                .zip(&self.repeats)
                .map(|(d, count)| d.clone() * times(count))
                .collect();
        result(TensorType { dtype: x.ty.dtype, shape })
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let Some((i, shard)) = rules::first_shard(operands) else {
            return rules::whole_results(results);
        };
        let times = self.repeats.get(shard.axis).and_then(|times| u64::try_from(*times).ok());
        match times.and_then(|times| shard.outer.checked_mul(times)) {
            Some(outer) if outer > 0 => Ok(smallvec![Claim::Shard(Shard { outer, ..shard })]),
            _ => Err(rules::refuse(Code::Reorders, i, "repeats the whole batch")),
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
        let mut axes: SmallVec<[strided::Axis; 6]> = SmallVec::new();
        let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
        for ((size, distance), count) in
            x.dims().iter().zip(strided::distances(x.dims())).zip(&self.repeats)
        {
            dims.push(size.saturating_mul(*count));
            axes.extend([(*count, 0), (*size, distance)]);
        }
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
        let (dy, shape) = (at.dy()?, at.shape(at.operand(0)?));
        let times = |count: &usize| Dim::from(i64::try_from(*count).unwrap_or(i64::MAX));
        let apart: Shape = shape
            .iter()
            .zip(&self.repeats)
            .flat_map(|(d, count)| [times(count), d.clone()])
            .collect();
        let apart = at.reshape(dy, &apart)?;
        let copies: Vec<usize> = (0..shape.len()).map(|axis| 2 * axis).collect();
        let sum = at.sum(apart, &copies)?;
        let dx = at.reshape(sum, &shape)?;
        at.give(0, dx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, rng};
    use super::super::{OpDef, Operand};
    use super::Tile;
    use crate::types::{Claim, DType, Shard, Tensor, TensorType};

    #[test]
    fn values() {
        let x = Tensor::new(&[2, 2], &[1i64, 2, 3, 4]).unwrap();
        let y = testing::eval(&Tile { repeats: vec![2, 3] }.into(), &[&x]);
        assert_eq!(y[0].dims(), [4, 6]);
        assert_eq!(y[0].as_slice::<i64>()[..12], [1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4]);
        assert_eq!(testing::eval(&Tile { repeats: vec![0, 3] }.into(), &[&x])[0].dims(), [0, 6]);
        let ty = TensorType::new(DType::F32, [2, 3]);
        for repeats in [vec![2], vec![1 << 50, 1], vec![usize::MAX, 1]] {
            assert!(Tile { repeats }.infer(&[Operand { ty: &ty, ints: None }]).is_err());
        }
    }

    #[test]
    fn the_batch_passes_unless_it_is_repeated() {
        let x = random(&mut rng(1), DType::F32, &[2, 10, 3]);
        let rows = Claim::Shard(Shard { axis: 1, outer: 1, inner: 2 });
        let tile = |repeats: &[usize]| Tile { repeats: repeats.to_vec() }.into();
        assert_eq!(check_split(&tile(&[3, 1, 2]), &[(&x, rows)], 5), Ok(vec![rows]));
        assert_eq!(check_split(&tile(&[1, 0, 1]), &[(&x, rows)], 5), Err("R0108".to_owned()));
        for (outer, times) in [(1, 2), (2, 3)] {
            let blocks = |outer, inner| Claim::Shard(Shard { axis: 1, outer, inner });
            let inner = 2 / outer;
            let got = check_split(&tile(&[1, times, 1]), &[(&x, blocks(outer, inner))], 5);
            assert_eq!(got, Ok(vec![blocks(outer * times as u64, inner)]));
        }
    }
}
