//! `If`: a node that one of its branches replaces.

use super::{Control, ImportError, Imports, NodeError};
use crate::format::onnx::bodies::Body;
use crate::ir::Value;

pub(super) fn imports(all: &mut Imports) {
    all.control("If", 1, branch);
}

/// Only the branch that is taken has to be supported.
fn branch(c: &mut Control<'_, '_>) -> Result<(), ImportError> {
    let [yes, no] = c.bodies(["then_branch", "else_branch"])?;
    c.check("then_branch", &yes, [0, c.results()])?;
    c.check("else_branch", &no, [0, c.results()])?;
    let condition = c.operand(0)?;
    c.settings(|_| Ok(()))?;
    let results = match c.truth(condition, "its condition") {
        Ok(true) => c.run(&yes, "then", &[])?,
        Ok(false) => c.run(&no, "else", &[])?,
        Err(error @ ImportError::Node { error: NodeError::Undecided { .. }, .. }) => {
            either(c, &yes, &no).ok_or(error)?
        }
        Err(error) => return Err(error),
    };
    for (i, value) in results.into_iter().enumerate() {
        c.set(i, value);
    }
    Ok(())
}

/// The results of a branch if the other computes the same: then no condition has to be known.
fn either<'s>(c: &mut Control<'_, 's>, yes: &Body<'s>, no: &Body<'s>) -> Option<Vec<Value>> {
    let [taken, other] = [(yes, "then"), (no, "else")].map(|(body, part)| c.run(body, part, &[]));
    let (taken, other) = (taken.ok()?, other.ok()?);
    if !taken.iter().zip(&other).all(|(a, b)| c.are_alike(*a, *b)) {
        return None;
    }
    c.note("both branches compute the same, so that its condition need not be known");
    Some(taken)
}
