//! Normalisation by the length of a vector.

use super::{Export, Imports, Writer, Written};
use crate::op::LpNorm;

pub(super) fn imports(all: &mut Imports) {
    all.add("LpNormalization", 1, |n| {
        let (axis, p) = (n.int("axis", -1)?, n.int("p", 2)?);
        n.of_first(1, LpNorm { axis, p })
    });
}

impl Export for LpNorm {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        w.same("LpNormalization", &[("axis", self.axis.into()), ("p", self.p.into())])
    }
}
