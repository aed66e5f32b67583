//! A value on another device.

use super::prelude::*;
use super::view::View;

op! {
    /// Its operand, bit for bit, on the device of this operation, wherever the operand lives.
    pub struct CopyOp = "copy" is FOLLOWS_BLOCKS | WIDE_PARTS {}
}

impl View for CopyOp {
    // It says where its result is.
    const IS_OPERAND: bool = false;

    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        Ok(x.shape.clone())
    }
}
