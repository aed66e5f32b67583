//! Pictures of a program.

mod memory;
pub(crate) mod timeline;

pub(crate) use memory::memory;
