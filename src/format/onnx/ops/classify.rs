//! Kinds of numbers.

use super::{Export, Imports, Writer, Written};
use crate::op::Classify;

pub(super) fn imports(all: &mut Imports) {
    all.add("IsNaN", 1, |n| n.of_first(1, Classify::IsNan));
    all.add("IsInf", 1, |n| {
        let negative = n.flag("detect_negative", true)?;
        let positive = n.flag("detect_positive", true)?;
        n.of_first(1, Classify::IsInf { negative, positive })
    });
}

impl Export for Classify {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        match *self {
            Self::IsNan => w.same("IsNaN", &[]),
            Self::IsInf { negative, positive } => {
                let negative = ("detect_negative", negative.into());
                w.same("IsInf", &[negative, ("detect_positive", positive.into())])
            }
        }
    }
}
