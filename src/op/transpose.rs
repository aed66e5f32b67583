//! Axes in another order.

use smallvec::SmallVec;

use super::infer::{carried, exactly, result_with_ints};
use super::prelude::*;
use super::strided;

op! {
    /// Its operand with the axes in the order `perm`: axis `i` of the result is axis `perm[i]` of
    /// the operand.
    pub struct Transpose = "transpose" is PERMUTES | CHEAP | FOLLOWS_BLOCKS {
        /// Every axis of the operand once.
        pub perm: Vec<usize>,
    }
}

impl OpDef for Transpose {
    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        self.perm.iter().enumerate().all(|(i, p)| i == *p).then_some(0)
    }

    fn undoes(&self, before: &Op) -> bool {
        let Op::Transpose(before) = before else { return false };
        self.perm.iter().enumerate().all(|(i, p)| before.perm.get(*p) == Some(&i))
    }

    fn positions(&self, operands: &[PositionOperand<'_>], _: &TensorType) -> Option<Positions> {
        let rows = operands.first()?.rows?;
        let axis = self.perm.iter().position(|from| *from == rows.axis)?;
        Some(Positions { axis, ..rows })
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        let mut sorted: SmallVec<[usize; 6]> = self.perm.iter().copied().collect();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..x.ty.rank()) {
            let reason = format!("{:?} does not name every axis of {} once", self.perm, x.ty);
            return Err(OpError::attr("perm", reason));
        }
        let shape = self.perm.iter().filter_map(|axis| x.ty.shape.get(*axis).cloned()).collect();
        let ints = if x.ty.rank() < 2 { carried(&x) } else { None };
        result_with_ints(TensorType { dtype: x.ty.dtype, shape }, ints)
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let axis = self.perm.iter().position(|from| *from == shard.axis).unwrap_or(shard.axis);
        at.keep(Shard { axis, ..shard })
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        rules::moved(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let own = strided::axes_of(x.dims());
        let axes: SmallVec<[strided::Axis; 6]> = self.perm.iter().map(|axis| own[*axis]).collect();
        let dims: SmallVec<[usize; 6]> = axes.iter().map(|axis| axis.0).collect();
        Ok(vec![strided::taken(x, 0, &axes, &dims)?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        let mut perm = vec![0; self.perm.len()];
        for (to, from) in self.perm.iter().enumerate() {
            // The inverse permutation.
            perm[*from] = to;
        }
        at.give(0, dy.apply(Self { perm }))
    }
}
