//! fanwise

pub mod ir;
pub mod op;
pub mod types;
