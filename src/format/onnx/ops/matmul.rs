//! Products of matrices.

use super::{Export, Imports, Writer, Written};
use crate::op::MatMul;

pub(super) fn imports(all: &mut Imports) {
    all.add("MatMul", 2, |n| n.of_first(2, MatMul {}));
}

impl Export for MatMul {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        w.same("MatMul", &[])
    }
}
