//! Truth values and bits.

use super::alike::alike;
use super::{Imports, Writer, Written, name, word};
use crate::op::Logic;

const DIRECTIONS: [(&str, bool); 2] = [("LEFT", true), ("RIGHT", false)];

alike! {
    Logic [shift, write_shift] {
        "Not" first 1 => Logic::Not,
        "And" broadcast 2 => Logic::And,
        "Or" broadcast 2 => Logic::Or,
        "Xor" broadcast 2 => Logic::Xor,
        "BitwiseNot" first 1 => Logic::BitwiseNot,
        "BitwiseAnd" broadcast 2 => Logic::BitwiseAnd,
        "BitwiseOr" broadcast 2 => Logic::BitwiseOr,
        "BitwiseXor" broadcast 2 => Logic::BitwiseXor,
    }
}

fn shift(all: &mut Imports) {
    all.add("BitShift", 2, |n| {
        let left = n.choice("direction", "", &DIRECTIONS)?;
        n.of_first(2, Logic::BitShift { left })
    });
}

fn write_shift(op: &Logic, w: &mut Writer<'_>) -> Written {
    let left = matches!(op, Logic::BitShift { left: true });
    let name = name(&[("BitShift", Logic::BitShift { left })], op)?;
    w.same(name, &[("direction", word(&DIRECTIONS, &left)?)])
}
