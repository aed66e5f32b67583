//! NVIDIA GPUs: kernels compiled at run time by NVRTC, through cudarc.
//!
//! The driver and the compiler are looked for at run time, so a binary with this backend starts on every machine and
//! says what is missing. Text and keys of kernels are [`crate::codegen`]'s; here they become machine code.

pub mod cache;
mod compiler;
mod devices;
mod nvrtc;
pub mod probe;
mod resources;
#[cfg(test)]
mod tests;

pub use cache::{Cache, Cached};
pub use compiler::{Compiler, Module, Modules};
pub use devices::{DeviceInfo, Devices, count, devices};
pub use nvrtc::{Compiled, KernelError, Nvrtc};
pub use probe::{NvrtcSearch, ProbeError, Version};
pub use resources::{Resources, parse as parse_resources};
