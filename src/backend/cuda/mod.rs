//! NVIDIA GPUs: kernels compiled at run time by NVRTC.
//!
//! The driver and the compiler are looked for at run time, so a binary with this backend starts on every machine and
//! says what is missing. Text and keys of kernels are [`crate::codegen`]'s; here they become machine code and run: a
//! worker thread for each logical device puts copies and kernels on its streams, a host thread copies results and
//! computes what has no kernel.

mod backend;
pub mod cache;
mod compiler;
mod contexts;
mod devices;
mod driver;
mod executor;
mod frees;
mod gpu;
mod host;
mod intake;
mod job;
mod library;
mod memory;
mod module;
mod nvrtc;
mod plan;
pub mod probe;
mod rates;
mod report;
mod resources;
mod slot;
mod slots;
mod stream;
mod sys;
#[cfg(test)]
mod tests;
mod trace;
mod variables;

pub use backend::{CompileProgress, Cuda, CudaOptions, WATCHDOG};
pub use cache::{Cache, Cached};
pub use compiler::{Compiler, Module, Modules};
pub use devices::{DeviceInfo, Devices, count, devices};
pub use executor::CudaExecutable;
pub use nvrtc::{Compiled, KernelError, Nvrtc};
pub use probe::{NvrtcSearch, ProbeError, Version};
pub use rates::{CopyRates, copy_rates};
pub use resources::{Resources, parse as parse_resources};
pub use trace::Trace;
