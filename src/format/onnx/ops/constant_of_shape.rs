//! One element everywhere.

use super::{Export, Imports, Writer, Written};
use crate::op::ConstantOfShape;
use crate::types::Tensor;

pub(super) fn imports(all: &mut Imports) {
    all.add("ConstantOfShape", 1, |n| {
        let value = n.tensor("value")?.unwrap_or_else(|| Tensor::scalar(0.0f32));
        let shape = n.sizes(0)?;
        n.result(ConstantOfShape { shape, value }, &[])
    });
}

impl Export for ConstantOfShape {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let value = self.value.clone().reshaped(&[]).map_err(|e| e.to_string())?;
        let operands = vec![w.tensor(&value)?, w.sizes(&self.shape)?];
        w.done("Expand", operands, &[])
    }
}
