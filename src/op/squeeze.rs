//! Axes of size 1 left out.

use super::infer::axes;
use super::prelude::*;
use super::view::View;

op! {
    /// Its operand without the axes named, which have size 1.
    pub struct Squeeze = "squeeze" is CHEAP | FOLLOWS_BLOCKS {
        /// The axes, negative from the end.
        pub axes: Vec<i64>,
    }
}

impl View for Squeeze {
    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        let mut shape = x.shape.clone();
        for axis in axes("axes", &self.axes, x.rank())?.into_iter().rev() {
            if shape.remove(axis) != Dim::ONE {
                let reason = format!("axis {axis} of {x} has more than one entry");
                return Err(OpError::attr("axes", reason));
            }
        }
        Ok(shape)
    }
}
