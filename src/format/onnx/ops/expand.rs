//! Values repeated by broadcasting.

use super::{Export, Imports, Writer, Written, free};
use crate::op::Expand;

pub(super) fn imports(all: &mut Imports) {
    all.add("Expand", 2, |n| {
        let (x, mut shape) = (n.operand(0)?, n.sizes(1)?);
        if let Some(size) = n.freed() {
            shape = free::expand(size, n.shape(x), shape);
        }
        n.result(Expand { shape }, &[x])
    });
}

impl Export for Expand {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let shape = w.sizes(&self.shape)?;
        w.with("Expand", [shape], &[])
    }
}
