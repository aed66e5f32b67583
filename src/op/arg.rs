//! The position of an extreme along an axis: `arg_max`, `arg_min`.

use super::element::for_dtype;
use super::infer::{axis, dtype, exactly, result};
use super::prelude::*;

family! {
    /// The position along `axis` of the largest or the smallest element, as `i64`. A NaN counts as
    /// the extreme.
    pub enum Arg is FOLLOWS_BLOCKS | JUMPS with [
        /// The axis, negative from the end; not of size 0.
        axis: i64,
        /// Whether the axis stays, with size 1.
        keepdims: bool,
        /// Whether ties take the last index; otherwise the first.
        select_last_index: bool = false,
    ] {
        /// The index of the largest element.
        Max = "arg_max",
        /// The index of the smallest element.
        Min = "arg_min",
    }
}

impl Arg {
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
        (!best_nan && (beyond || nan)) || (equal && *self.common().2)
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
    fn takes(&self, operands: &[&TensorType]) -> Option<(Dim, Dim)> {
        let [x] = operands else { return None };
        let axis = axis("axis", *self.common().0, x.rank()).ok()?;
        Some((x.shape.get(axis)?.clone(), Dim::ONE))
    }

    fn places(&self, result: usize) -> Option<i64> {
        (result == 0).then_some(*self.common().0)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        let (&listed, &keepdims, _) = self.common();
        let axis = axis("axis", listed, x.ty.rank())?;
        if x.ty.shape[axis] == Dim::ZERO {
            return Err(OpError::shape(0, x.ty, format!("axis {axis} must have elements")));
        }
        let mut shape = x.ty.shape.clone();
        if keepdims {
            shape[axis] = Dim::ONE;
        } else {
            shape.remove(axis);
        }
        result(TensorType { dtype: DType::I64, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let (&listed, &keepdims, _) = self.common();
        match axis("axis", listed, at.rank()) {
            Ok(own) if own != shard.axis => {
                // An axis that goes moves those behind it.
                let gone = usize::from(own < shard.axis && !keepdims);
                at.keep(Shard { axis: shard.axis - gone, ..shard })
            }
            _ => at.refuse(Code::GlobalIndex, "gives a position among all samples"),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let (&listed, &keepdims, _) = self.common();
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
            return Err(OpError::value(0, format!("axis {axis} has no elements")));
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

    fn gradient(&self) -> Gradient {
        Gradient::Zero("its result is a position")
    }
}
