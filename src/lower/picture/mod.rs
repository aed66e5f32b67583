//! Pictures of a program.

mod memory;

pub(crate) use memory::memory;
