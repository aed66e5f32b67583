//! Elements by their positions.

use super::{Export, Imports, Writer, Written};
use crate::op::GatherAt;

pub(super) fn imports(all: &mut Imports) {
    all.add("GatherElements", 2, |n| {
        let axis = n.int("axis", 0)?;
        n.of_all(GatherAt::Elements { axis })
    });
    all.add("GatherND", 2, |n| {
        let batch_dims = n.int("batch_dims", 0)?;
        n.of_all(GatherAt::Nd { batch_dims })
    });
}

impl Export for GatherAt {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        match *self {
            Self::Elements { axis } => w.same("GatherElements", &[("axis", axis.into())]),
            Self::Nd { batch_dims } => w.same("GatherND", &[("batch_dims", batch_dims.into())]),
        }
    }
}
