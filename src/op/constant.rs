//! A tensor that is written in the graph.

use super::infer::{MAX_INTS, count, result_with_ints};
use super::prelude::*;

op! {
    /// The tensor `value`.
    pub struct Constant = "constant" is NONE {
        /// The result.
        pub value: Tensor,
    }
}

impl OpDef for Constant {
    fn known(&self) -> Option<&Tensor> {
        Some(&self.value)
    }

    fn interval(&self, _: DType, _: &[Option<Interval>]) -> Option<Interval> {
        Interval::of_tensor(&self.value)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 0, 0, "0")?;
        let value = &self.value;
        let ints = if value.len() <= MAX_INTS { value.to_i64() } else { None };
        // An unsigned number above the range of i64 has no known value.
        let ints = ints.filter(|ints| value.dtype() != DType::U64 || ints.iter().all(|i| *i >= 0));
        let ints = ints.map(|ints| ints.into_iter().map(Dim::from).collect());
        result_with_ints(value.tensor_type(), ints)
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        Ok(vec![self.value.clone()])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no operand")
    }
}
