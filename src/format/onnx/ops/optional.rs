//! Optional values that are tensors, or not there at all.

use super::{Imports, Node};
use crate::op::Formula;
use crate::types::{DType, Tensor};

pub(super) fn imports(all: &mut Imports) {
    all.add("OptionalGetElement", 1, |n: &mut Node<'_, '_>| {
        let x = n.operand(0)?;
        n.last(0).identity(x)?;
        Ok(())
    });
    all.add("OptionalHasElement", 1, |n: &mut Node<'_, '_>| {
        let has = n.literal(Tensor::from_bytes(DType::Bool, &[], &[u8::from(n.arity() > 0)])?)?;
        n.last(0).identity(has)?;
        Ok(())
    });
}
