//! Sequences turned around, each of its own length.

use super::{Export, Imports, Writer, Written};
use crate::op::ReverseSequence;
use crate::types::DType;

pub(super) fn imports(all: &mut Imports) {
    all.add("ReverseSequence", 2, |n| {
        let (batch_axis, time_axis) = (n.int("batch_axis", 1)?, n.int("time_axis", 0)?);
        n.of_first(2, ReverseSequence { batch_axis, time_axis })
    });
}

impl Export for ReverseSequence {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let mut operands = w.operands()?;
        if w.ty(1)?.dtype != DType::I64 {
            operands[1] = w.emit("Cast", &[&operands[1]], &[("to", DType::I64.into())])?;
        }
        let (batch, time) = (self.batch_axis.into(), self.time_axis.into());
        w.done("ReverseSequence", operands, &[("batch_axis", batch), ("time_axis", time)])
    }
}
