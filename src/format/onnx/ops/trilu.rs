//! Triangles of matrices.

use super::{Export, Imports, Writer, Written};
use crate::op::Trilu;
use crate::types::Tensor;

pub(super) fn imports(all: &mut Imports) {
    all.add("Trilu", 2, |n| {
        // Without an operand it is the main diagonal.
        let (upper, k) = (n.flag("upper", true)?, n.opt_single(1)?.unwrap_or(0));
        n.of_first(1, Trilu { k, upper })
    });
}

impl Export for Trilu {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let k = w.tensor(&Tensor::scalar(self.k))?;
        w.with("Trilu", [k], &[("upper", self.upper.into())])
    }
}
