//! Truth values and bits.

use super::broadcast::broadcast;
use super::{Export, Imports, Writer, Written, name, word};
use crate::op::Logic;

/// The functions of one operand, in ONNX and here.
const UNARY: [(&str, Logic); 2] = [("Not", Logic::Not), ("BitwiseNot", Logic::BitwiseNot)];

/// The functions of two operands.
const BINARY: [(&str, Logic); 6] = [
    ("And", Logic::And),
    ("Or", Logic::Or),
    ("Xor", Logic::Xor),
    ("BitwiseAnd", Logic::BitwiseAnd),
    ("BitwiseOr", Logic::BitwiseOr),
    ("BitwiseXor", Logic::BitwiseXor),
];

const DIRECTIONS: [(&str, bool); 2] = [("LEFT", true), ("RIGHT", false)];

pub(super) fn imports(all: &mut Imports) {
    all.table(&UNARY, 1, |n| n.of_first(1, n.row(&UNARY)?));
    all.table(&BINARY, 2, |n| {
        let op = n.row(&BINARY)?;
        broadcast(n, op)
    });
    all.add("BitShift", 2, |n| {
        let left = n.choice("direction", "", &DIRECTIONS)?;
        n.of_first(2, Logic::BitShift { left })
    });
}

impl Export for Logic {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        if let Self::BitShift { left } = self {
            let direction = word(&DIRECTIONS, left)?;
            return w.same("BitShift", &[("direction", direction)]);
        }
        w.same(name(&UNARY, self).or_else(|_| name(&BINARY, self))?, &[])
    }
}
