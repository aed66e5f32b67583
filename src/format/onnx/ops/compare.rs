//! Comparisons.

use super::broadcast::broadcast;
use super::{Export, Imports, Writer, Written, name};
use crate::op::Compare;

/// The comparisons, in ONNX and here.
const ALL: [(&str, Compare); 5] = [
    ("Equal", Compare::Equal),
    ("Less", Compare::Less),
    ("LessOrEqual", Compare::LessOrEqual),
    ("Greater", Compare::Greater),
    ("GreaterOrEqual", Compare::GreaterOrEqual),
];

pub(super) fn imports(all: &mut Imports) {
    all.table(&ALL, 2, |n| {
        let op = n.row(&ALL)?;
        broadcast(n, op)
    });
}

impl Export for Compare {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        w.same(name(&ALL, self)?, &[])
    }
}
