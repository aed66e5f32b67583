//! Operators on sequences.

use super::Line;
use crate::op::ReverseSequence;

pub(super) fn find(op: &str) -> Option<Line> {
    Some(match op {
        "ReverseSequence" => (2, |n| {
            let (batch_axis, time_axis) = (n.int("batch_axis", 1)?, n.int("time_axis", 0)?);
            let operands = [n.operand(0)?, n.operand(1)?];
            n.result(ReverseSequence { batch_axis, time_axis }, &operands)
        }),
        _ => return None,
    })
}
