//! Axes of size 1 put in.

use super::infer::axes;
use super::prelude::*;
use super::view::View;

op! {
    /// Its operand with further axes of size 1.
    pub struct Unsqueeze = "unsqueeze" is CHEAP | FOLLOWS_BLOCKS {
        /// Positions of the new axes in the result; negative ones count from its end.
        pub axes: Vec<i64>,
    }
}

impl View for Unsqueeze {
    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        let mut shape = x.shape.clone();
        for axis in axes("axes", &self.axes, x.rank().saturating_add(self.axes.len()))? {
            shape.insert(axis, Dim::ONE);
        }
        Ok(shape)
    }
}
