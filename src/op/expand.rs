//! One value repeated along axes of size 1.

use smallvec::{SmallVec, smallvec};

use super::declare::op;
use super::infer::{
    MAX_INTS, broadcast, carried, known_sizes, one, result_with_ints, sizes, tensors,
};
use super::{
    Backward, Claims, Gradient, Known, OpDef, OpError, Operand, PositionOperand, Positions,
    Results, RuleError, SplitOperand, Traits, rules, strided,
};
use crate::types::{Claim, Code, Dim, Refusal, Shape, Shard, Tensor, TensorType};

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

    /// What is repeated for each row numbers none, or all alike.
    fn positions(&self, operands: &[PositionOperand<'_>], y: &TensorType) -> Option<Positions> {
        let [x] = operands else { return None };
        let repeated = || {
            let whole = !x.ty.shape.iter().any(Dim::depends_on_batch);
            let axis = y.shape.iter().position(|size| *size == Dim::n()).filter(|_| whole)?;
            Some(Positions { axis, each: 1, stride: 0 })
        };
        Positions::aligned(x, y.rank()).or_else(repeated)
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
        // Shapes are aligned at the right: new axes come in front.
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
                // A distance of 0 reads the one element again and again.
                1 => (at(&wanted, i), 0),
                size => (size, from[i + x.rank() - rank]),
            })
            .collect();
        let dims: SmallVec<[usize; 6]> = axes.iter().map(|axis| axis.0).collect();
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        strided::read(x.bytes(), y.bytes_mut(), x.dtype().bytes(), 0, &axes);
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        at.give_sum(0, dy)
    }
}
