//! Values one after the other.

use super::{ANY, Export, Imports, Writer, Written};
use crate::op::Concat;

pub(super) fn imports(all: &mut Imports) {
    all.add("Concat", ANY, |n| {
        let axis = n.needed_int("axis")?;
        n.of_all(Concat { axis })
    });
}

impl Export for Concat {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        w.same("Concat", &[("axis", self.axis.into())])
    }
}
