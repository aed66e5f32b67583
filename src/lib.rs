//! fanwise

pub mod op;
pub mod types;
