//! The greatest elements.

use super::{Done, Export, Imports, Node, Writer, Written};
use crate::op::TopK;

pub(super) fn imports(all: &mut Imports) {
    all.add("TopK", 2, top_k);
}

/// The number is an attribute before opset 10. What is not to be sorted may be.
fn top_k(n: &mut Node<'_, '_>) -> Done {
    let (axis, x) = (n.int("axis", -1)?, n.operand(0)?);
    let k = if n.opset < 10 { n.needed_int("k")?.into() } else { n.one_size(1)? };
    let largest = n.opset < 11 || n.flag("largest", true)?;
    if n.opset >= 11 {
        n.flag("sorted", true)?;
    }
    n.results(2, TopK { axis, k, largest, local: false }, &[x])
}

impl Export for TopK {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        if self.local {
            return Err("it takes of each replica's entries alone".into());
        }
        let k = w.size(&self.k)?;
        let (axis, largest) = (("axis", self.axis.into()), ("largest", self.largest.into()));
        w.with("TopK", [k], &[axis, largest])
    }
}
