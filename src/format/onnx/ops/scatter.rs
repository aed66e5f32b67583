//! Elements written at positions.

use super::{Done, Export, Imports, Node, Writer, Written, word};
use crate::op::{Reduction, Scatter};

const REDUCTIONS: [(&str, Reduction); 5] = [
    ("none", Reduction::None),
    ("add", Reduction::Add),
    ("mul", Reduction::Mul),
    ("max", Reduction::Max),
    ("min", Reduction::Min),
];

pub(super) fn imports(all: &mut Imports) {
    all.add("ScatterElements", 3, elements);
    all.add("Scatter", 3, elements);
    all.add("ScatterND", 3, |n| {
        let reduction = n.choice("reduction", "none", &REDUCTIONS)?;
        n.of_all(Scatter::Nd { reduction })
    });
}

fn elements(n: &mut Node<'_, '_>) -> Done {
    let (axis, reduction) = (n.int("axis", 0)?, n.choice("reduction", "none", &REDUCTIONS)?);
    n.of_all(Scatter::Elements { axis, reduction })
}

impl Export for Scatter {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        match self {
            Self::Elements { axis, reduction } => {
                let reduction = ("reduction", word(&REDUCTIONS, reduction)?);
                w.same("ScatterElements", &[("axis", (*axis).into()), reduction])
            }
            Self::Nd { reduction } => {
                w.same("ScatterND", &[("reduction", word(&REDUCTIONS, reduction)?)])
            }
        }
    }
}
