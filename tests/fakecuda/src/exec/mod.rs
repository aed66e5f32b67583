//! Execution of kernels.

mod access;
pub mod block;
pub mod fault;
pub mod kernel;
pub mod memory;
pub mod num;
mod quick;
pub mod rows;
pub mod shadow;
pub mod warp;
