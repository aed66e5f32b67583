//! Elements of another type.

use super::{Done, Export, Imports, Node, Writer, Written, wrong};
use crate::op::Cast;
use crate::types::DType;

pub(super) fn imports(all: &mut Imports) {
    all.add("Cast", 1, |n| {
        let to = n.opt_dtype("to")?.ok_or_else(|| wrong("to", "is missing"))?;
        cast(n, to)
    });
    all.add("CastLike", 2, |n| {
        let like = n.operand(1)?;
        cast(n, n.dtype(like))
    });
}

/// The settings for conversions to 8-bit floats mean nothing for other types.
fn cast(n: &mut Node<'_, '_>, to: DType) -> Done {
    n.int("saturate", 1)?;
    n.string("round_mode", "up")?;
    n.of_first(1, Cast { to })
}

impl Export for Cast {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        w.same("Cast", &[("to", self.to.into())])
    }
}
