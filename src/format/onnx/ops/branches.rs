//! `If`: a node that one of its branches replaces.

use super::{Control, ImportError, Imports};

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
    let (body, part) =
        if c.truth(condition, "its condition")? { (yes, "then") } else { (no, "else") };
    for (i, value) in c.run(&body, part, &[])?.into_iter().enumerate() {
        c.set(i, value);
    }
    Ok(())
}
