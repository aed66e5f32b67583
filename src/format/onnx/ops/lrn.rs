//! Local response normalisation.

use super::{Export, Imports, Writer, Written};
use crate::op::Lrn;

pub(super) fn imports(all: &mut Imports) {
    all.add("LRN", 1, |n| {
        let size = n.needed_int("size")?;
        let (alpha, beta) = (n.float("alpha", 1e-4)?, n.float("beta", 0.75)?);
        let bias = n.float("bias", 1.0)?;
        n.of_first(1, Lrn { alpha, beta, bias, size })
    });
}

impl Export for Lrn {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let (alpha, beta) = (("alpha", self.alpha.into()), ("beta", self.beta.into()));
        let (bias, size) = (("bias", self.bias.into()), ("size", self.size.into()));
        w.same("LRN", &[alpha, beta, bias, size])
    }
}
