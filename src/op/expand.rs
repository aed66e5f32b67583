//! One value repeated along axes of size 1.

use smallvec::SmallVec;

use super::infer::{MAX_INTS, broadcast, carried, exactly, known_sizes, result_with_ints, sizes};
use super::prelude::*;
use super::strided;

op! {
    /// Its operand broadcast together with `shape`, aligned at the right: sizes are equal, or one
    /// of them is 1.
    pub struct Expand = "expand" is MOVES | CHEAP | FOLLOWS_BLOCKS {
        /// The sizes wanted; 1 keeps that of the operand.
        pub shape: Vec<Dim>,
    }
}

impl OpDef for Expand {
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
        let [x] = exactly(operands)?;
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

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let ([x], [y]) = (at.operands, at.results) else { return at.whole() };
        let Some(rows) = rules::batch_axis(y, 0)? else { return at.whole() };
        // Where the operand is whole, each replica repeats it for its own rows, which are all
        // equal.
        if x.claim == Claim::Invariant && x.ty.shape.iter().any(Dim::depends_on_batch) {
            let reason = format!("repeats {}, which is whole on every replica", x.ty);
            return at.refuse(Code::BakedBatch, reason);
        }
        // Shapes are aligned at the right: new axes come in front.
        let axis = |s: Shard| s.axis + y.rank().saturating_sub(x.ty.rank());
        at.keep(x.claim.shard().map_or(rows, |s| Shard { axis: axis(s), ..s }))
    }

    fn partial(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        rules::moved(at)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let wanted = known_sizes("the shape", &self.shape)?;
        let rank = x.rank().max(wanted.len());
        let at = |dims: &[usize], i: usize| {
            (i + dims.len()).checked_sub(rank).and_then(|i| dims.get(i).copied()).unwrap_or(1)
        };
        let from = strided::axes_of(x.dims());
        let axes: SmallVec<[strided::Axis; 6]> = (0..rank)
            .map(|i| match at(x.dims(), i) {
                // A distance of 0 reads the one element again and again.
                1 => (at(&wanted, i), 0),
                _ => from[i + x.rank() - rank],
            })
            .collect();
        let dims: SmallVec<[usize; 6]> = axes.iter().map(|axis| axis.0).collect();
        Ok(vec![strided::taken(x, 0, &axes, &dims)?])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let dy = at.dy()?;
        at.give_sum(0, dy)
    }
}
