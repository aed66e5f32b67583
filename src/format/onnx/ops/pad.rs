//! Entries added around a value.

use super::{Done, Export, Imports, Node, Writer, Written, word};
use crate::op::infer::axis as named_axis;
use crate::op::{OpError, Pad, PadMode};

const MODES: [(&str, PadMode); 4] = [
    ("constant", PadMode::Constant),
    ("reflect", PadMode::Reflect),
    ("edge", PadMode::Edge),
    ("wrap", PadMode::Wrap),
];

pub(super) fn imports(all: &mut Imports) {
    all.add("Pad", 4, pad);
}

fn pad(n: &mut Node<'_, '_>) -> Done {
    let x = n.operand(0)?;
    let rank = n.shape(x).rank();
    let mode = n.choice("mode", "constant", &MODES)?;
    // Opset 11 made operands of the pads and the value. The sizes of the result follow from the
    // pads, so they must be known numbers.
    let (given, value) = if n.opset < 11 {
        let given = n.needed_ints("pads")?;
        (given, f64::from(n.float("value", 0.0)?))
    } else {
        let given = n.numbers(1)?;
        let value = match n.optional(2) {
            None => 0.0,
            // The other modes do not read the value: one that is not known must not refuse them.
            Some(_) if mode != PadMode::Constant => 0.0,
            Some(_) => n.opt_number(2).ok_or_else(|| n.not_known(2))?,
        };
        (given, value)
    };
    // Operand 3 came with opset 18; without it the pads are those of all axes.
    let axes = match n.opt_numbers(3)? {
        Some(axes) => axes,
        None => (0i64..).take(rank).collect(),
    };
    if given.len() != 2 * axes.len() {
        let reason = format!("{} numbers for {} axes", given.len(), axes.len());
        return Err(OpError::Attribute { attr: "pads", reason }.into());
    }
    let mut pads = vec![0; 2 * rank];
    // Both ONNX and `Pad` list the starts of all axes before the ends, ONNX of the named axes only.
    let (before, after) = given.split_at(axes.len());
    for ((axis, before), after) in axes.iter().zip(before).zip(after) {
        let at = named_axis("axes", *axis, rank)?;
        (pads[at], pads[at + rank]) = (*before, *after);
    }
    n.result(Pad { mode, pads, value }, &[x])
}

impl Export for Pad {
    fn export(&self, w: &mut Writer<'_>) -> Written {
        let (mode, dtype) = (word(&MODES, &self.mode)?, w.ty(0)?.dtype);
        let pads = w.ints(&self.pads)?;
        if self.mode != PadMode::Constant {
            return w.with("Pad", [pads], &[("mode", mode)]);
        }
        let value = w.scalar(dtype, self.value)?;
        w.with("Pad", [pads, value], &[("mode", mode)])
    }
}
