//! fanwise

pub mod analysis;
pub mod backend;
pub mod format;
pub mod ir;
pub mod lower;
pub mod op;
pub mod pass;
pub mod types;

#[cfg(test)]
#[path = "../tests/it/snap.rs"]
mod snap;
