//! A mark at a position.

use super::{Done, Export, Imports, Node, Writer, Written};
use crate::op::{Formula, OneHot};
use crate::types::{DType, Dim};

pub(super) fn imports(all: &mut Imports) {
    all.add("OneHot", 3, one_hot);
}

/// Numbers with a fraction are cut.
fn one_hot(n: &mut Node<'_, '_>) -> Done {
    let (axis, mut numbers, values) = (n.int("axis", -1)?, n.operand(0)?, n.operand(2)?);
    let depth = match n.opt_number(1) {
        #[expect(clippy::cast_possible_truncation, reason = "the depth is cut")]
        Some(depth) => Dim::from(depth as i64),
        None => n.one_size(1)?,
    };
    if n.dtype(numbers).is_float() {
        numbers = n.convert(numbers, DType::I64)?;
    }
    n.result(OneHot { axis, depth }, &[numbers, values])
}

impl Export for OneHot {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let depth = w.size(&self.depth)?;
        let mut operands = w.operands()?;
        operands.insert(1, depth);
        w.done("OneHot", operands, &[("axis", self.axis.into())])
    }
}
