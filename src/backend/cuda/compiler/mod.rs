//! The compiler: NVRTC found and opened, units compiled on all cores, and what is compiled kept on
//! disk.

pub mod cache;
pub(super) mod compile;
mod library;
pub(super) mod nvrtc;
mod program;
pub(super) mod resources;
#[cfg(test)]
mod tests;
