//! fanwise

pub mod format;
pub mod backend;
pub mod ir;
pub mod op;
pub mod types;

#[cfg(test)]
#[path = "../tests/it/snap.rs"]
mod snap;
