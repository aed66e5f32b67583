//! Integers that follow from the batch size.

use super::infer::{count, known_all, result_with_ints};
use super::prelude::*;

op! {
    /// A vector of `i64` whose elements are these formulas of the number of rows of the whole
    /// batch; with `scalar` a scalar.
    ///
    /// Every replica gets the same integers: in `values`, `N` is the whole batch wherever the
    /// operator runs.
    pub struct Dims = "dims" is NONE {
        /// Whether the result has no axis; there is one value then.
        pub scalar: bool = false,
        /// The elements.
        pub values: Vec<Dim>,
    }
}

impl OpDef for Dims {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 0, 0, "0")?;
        let shape = match (self.scalar, self.values.len()) {
            (true, 1) => Shape::scalar(),
            (true, n) => {
                return Err(OpError::attr("values", format!("{n} values for a scalar")));
            }
            (false, n) => Shape::from([n].as_slice()),
        };
        let ints = self.values.iter().cloned().collect();
        result_with_ints(TensorType::new(DType::I64, shape), Some(ints))
    }

    fn eval(&self, _: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let values = known_all("the value", &self.values)?;
        let dims: &[usize] = if self.scalar { &[] } else { &[values.len()] };
        Ok(vec![Tensor::new(dims, &values)?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::Zero("it takes no operand")
    }
}
