//! One value everywhere.

use smallvec::SmallVec;

use super::infer::{MAX_INTS, count, known_sizes, result_with_ints, sizes};
use super::prelude::*;
use super::strided;

op! {
    /// A tensor of `shape` whose elements are all the one element of `value`.
    pub struct ConstantOfShape = "constant_of_shape" is NONE {
        /// The sizes of the result.
        pub shape: Vec<Dim>,
        /// The element, as a tensor with one.
        pub value: Tensor,
    }
}

impl OpDef for ConstantOfShape {
    fn interval(&self, _: DType, _: &[Option<Interval>]) -> Option<Interval> {
        Interval::of_tensor(&self.value)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 0, 0, "0")?;
        sizes("shape", &self.shape)?;
        if self.value.len() != 1 {
            let reason =
                format!("{} has {} elements, not 1", self.value.tensor_type(), self.value.len());
            return Err(OpError::attr("value", reason));
        }
        let ty = TensorType::new(self.value.dtype(), Shape::from(self.shape.as_slice()));
        let count = ty.shape.elements().as_const().and_then(|c| usize::try_from(c).ok());
        let element = self.value.to_i64().and_then(|ints| ints.first().copied());
        // An unsigned number above the range of i64 has no known value.
        let element = element.filter(|i| *i >= 0 || ty.dtype != DType::U64);
        let ints = match (element, count.filter(|c| *c <= MAX_INTS)) {
            (Some(i), Some(count)) => Some(SmallVec::from_elem(Dim::from(i), count)),
            _ => None,
        };
        result_with_ints(ty, ints)
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let [y] = at.results else { return at.whole() };
        at.give(rules::batch_axis(y, 0)?.map_or(Claim::Invariant, Claim::Shard))
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let dims = known_sizes("the shape", &self.shape)?;
        Ok(vec![strided::taken(&self.value, 0, &[(dims.iter().product(), 0)], &dims)?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no operand")
    }
}
