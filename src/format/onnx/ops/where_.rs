//! A choice between two operands, element by element.

use super::{Export, Imports, Writer, Written};
use crate::op::Where;

pub(super) fn imports(all: &mut Imports) {
    all.add("Where", 3, |n| n.of_first(3, Where {}));
}

impl Export for Where {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        w.same("Where", &[])
    }
}
