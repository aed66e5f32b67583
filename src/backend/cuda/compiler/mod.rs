//! The compiler: NVRTC found and opened, units compiled on all cores, and what is compiled kept on
//! disk.

pub(crate) mod cache;
pub(crate) mod compile;
mod library;
pub(crate) mod nvrtc;
mod program;
pub(crate) mod resources;
#[cfg(test)]
mod tests;
