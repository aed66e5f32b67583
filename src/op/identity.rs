//! A value under another name.

use super::prelude::*;
use super::view::View;

op! {
    /// Its operand.
    pub struct Identity = "identity" {}
}

impl View for Identity {
    const TRAITS: Traits = Traits::CHEAP.union(Traits::FOLLOWS_BLOCKS);

    fn shape(&self, x: &TensorType) -> Result<Shape, OpError> {
        Ok(x.shape.clone())
    }
}
