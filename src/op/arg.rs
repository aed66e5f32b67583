//! The position of an extreme along an axis: `arg_max`, `arg_min`.

use smallvec::smallvec;

use super::declare::family;
use super::element::for_dtype;
use super::infer::{axis, dtype, one, result};
use super::{Claims, Gradient, OpDef, OpError, Operand, Results, SplitOperand, Traits, rules};
use crate::types::{Claim, Code, DType, Dim, Refusal, Shard, Tensor, TensorType};

family! {
    /// The position along `axis` of the largest or the smallest element, as `i64`. A NaN counts as
    /// the extreme.
    pub enum Arg {
        /// The index of the largest element.
        Max = "arg_max" {
            /// The axis, negative from the end; not of size 0.
            axis: i64,
            /// Whether the axis stays, with size 1.
            keepdims: bool,
            /// Whether ties take the last index; otherwise the first.
            select_last_index: bool = false,
        },
        /// The index of the smallest element.
        Min = "arg_min" {
            /// The axis, negative from the end; not of size 0.
            axis: i64,
            /// Whether the axis stays, with size 1.
            keepdims: bool,
            /// Whether ties take the last index; otherwise the first.
            select_last_index: bool = false,
        },
    }
}

impl Arg {
    /// The axis as listed, whether it stays, and whether the last of several is chosen.
    fn parts(&self) -> (i64, bool, bool) {
        match *self {
            Self::Max { axis, keepdims, select_last_index }
            | Self::Min { axis, keepdims, select_last_index } => {
                (axis, keepdims, select_last_index)
            }
        }
    }

    /// Whether the element `x` takes the place of the extreme `best` among those before it.
    #[inline]
    fn takes<T: PartialOrd>(&self, x: &T, best: &T) -> bool {
        #[expect(clippy::eq_op, reason = "a NaN is what differs from itself")]
        let (nan, best_nan) = (x != x, best != best);
        let beyond = match self {
            Self::Max { .. } => x > best,
            Self::Min { .. } => x < best,
        };
        let equal = x == best || (nan && best_nan);
        // Once a NaN is found nothing is beyond it; a later one counts as a tie.
        (!best_nan && (beyond || nan)) || (equal && self.parts().2)
    }

    /// Finds the extremes of blocks of `size` rows with `inner` columns, one for each column.
    pub(super) fn find<T: PartialOrd>(
        &self,
        x: &[T],
        places: &mut [usize],
        size: usize,
        inner: usize,
    ) {
        if inner == 0 {
            return;
        }
        for (x, places) in x.chunks_exact(size * inner).zip(places.chunks_exact_mut(inner)) {
            places.fill(0);
            // Row by row, so that memory is read in order; a column remembers where its best one
            // was.
            for (i, row) in x.chunks_exact(inner).enumerate() {
                for (column, (value, place)) in row.iter().zip(places.iter_mut()).enumerate() {
                    if self.takes(value, &x[*place * inner + column]) {
                        *place = i;
                    }
                }
            }
        }
    }
}

impl OpDef for Arg {
    fn traits(&self) -> Traits {
        Traits::FOLLOWS_BLOCKS
    }

    fn takes(&self, operands: &[&TensorType]) -> Option<(Dim, Dim)> {
        let (Self::Max { axis: along, .. } | Self::Min { axis: along, .. }, [x]) = (self, operands)
        else {
            return None;
        };
        let axis = axis("axis", *along, x.rank()).ok()?;
        Some((x.shape.get(axis)?.clone(), Dim::ONE))
    }

    fn places(&self, result: usize) -> Option<i64> {
        (result == 0).then_some(self.parts().0)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        let (listed, keepdims, _) = self.parts();
        let axis = axis("axis", listed, x.ty.rank())?;
        if x.ty.shape[axis] == Dim::ZERO {
            let expected = format!("axis {axis} must have elements");
            return Err(OpError::Shape { operand: 0, found: x.ty.clone(), expected });
        }
        let mut shape = x.ty.shape.clone();
        if keepdims {
            shape[axis] = Dim::ONE;
        } else {
            shape.remove(axis);
        }
        result(TensorType { dtype: DType::I64, shape })
    }

    fn split(&self, operands: &[SplitOperand<'_>], _: &[TensorType]) -> Result<Claims, Refusal> {
        let Some((i, shard @ Shard { axis: batch, .. })) = rules::first_shard(operands) else {
            return Ok(rules::invariant(1));
        };
        let (listed, keepdims, _) = self.parts();
        let rank = operands.get(i).map_or(0, |x| x.ty.rank());
        match axis("axis", listed, rank) {
            Ok(own) if own != batch => {
                // An axis that goes moves those behind it.
                let axis = if own < batch && !keepdims { batch - 1 } else { batch };
                Ok(smallvec![Claim::Shard(Shard { axis, ..shard })])
            }
            _ => Err(rules::refuse(Code::GlobalIndex, i, "gives a position among all samples")),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = operands else {
            return Err(OpError::Operands { expected: "1", found: operands.len() });
        };
        let (listed, keepdims, _) = self.parts();
        let axis = axis("axis", listed, x.rank())?;
        let mut dims = x.dims().to_vec();
        if keepdims {
            dims[axis] = 1;
        } else {
            dims.remove(axis);
        }
        let mut y = Tensor::zeros(DType::I64, &dims)?;
        if y.is_empty() {
            return Ok(vec![y]);
        }
        let (size, inner) = (x.dims()[axis], x.dims()[axis + 1..].iter().product());
        if size == 0 {
            let reason = format!("axis {axis} has no elements");
            return Err(OpError::Value { operand: 0, reason });
        }
        let mut places = vec![0; y.len()];
        for_dtype!(
            x.dtype(),
            float F => self.find::<F>(x.as_slice(), &mut places, size, inner),
            int I => self.find::<I>(x.as_slice(), &mut places, size, inner),
            bool => {},
        );
        for (y, place) in y.as_mut_slice::<i64>().iter_mut().zip(places) {
            *y = i64::try_from(place).unwrap_or(i64::MAX);
        }
        Ok(vec![y])
    }

    fn jumps(&self) -> bool {
        true
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("its result is a position")
    }
}
