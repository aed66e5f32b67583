//! Pictures of a program.

mod memory;
pub(crate) mod timeline;

pub(crate) use memory::memory;

use super::{Bound, Program};
use crate::ir::picture;

/// The title of a picture of a program: what it shows, at these rows.
fn title(program: &Program, what: &str, bound: &Bound) -> String {
    let rest = vec![format!("{what} at {} rows", bound.n)];
    picture::title(&program.name, !program.updates.is_empty(), rest)
}
