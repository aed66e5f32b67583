//! The bits of elements as another type: read alone, since the operator set that is written has
//! nothing that computes it.

use super::{Imports, wrong};
use crate::op::BitCast;

pub(super) fn imports(all: &mut Imports) {
    all.add("BitCast", 1, |n| {
        let to = n.opt_dtype("to")?.ok_or_else(|| wrong("to", "is missing"))?;
        n.of_first(1, BitCast { to })
    });
}
