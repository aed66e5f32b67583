//! Pictures of a program.

mod memory;
pub(crate) mod timeline;

pub(crate) use memory::memory;

use super::{Bound, Program};

/// The title of a picture of a program: what it shows, at these rows.
fn title(program: &Program, what: &str, bound: &Bound) -> String {
    let step = if program.updates.is_empty() { "" } else { " · training step" };
    format!("{}{step} · {what} at {} rows", program.name, bound.n)
}
