//! fanwise

pub mod format;
pub mod ir;
pub mod op;
pub mod types;
