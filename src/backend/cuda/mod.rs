//! NVIDIA GPUs: kernels compiled at run time by NVRTC.
//!
//! The driver and the compiler are looked for at run time, so a binary with this backend starts on
//! every machine and says what is missing. Text and keys of kernels are [`crate::codegen`]'s; here
//! they become machine code and run: a worker thread for each logical device puts copies and
//! kernels on its streams, a host thread copies results and computes what has no kernel.

mod compiler;
mod driver;
mod run;

pub use compiler::cache::{self, Cache, Cached};
pub use compiler::compile::{Compiler, Module, Modules};
pub use compiler::nvrtc::{Compiled, KernelError, Nvrtc};
pub use compiler::resources::{Resources, parse as parse_resources};
pub use driver::context::WATCHDOG;
pub use driver::devices::{DeviceInfo, Devices, count, devices};
pub use driver::probe::{self, NvrtcSearch, ProbeError, Version};
pub use driver::rates::{CopyRates, copy_rates};
pub use run::backend::{CompileProgress, Cuda, CudaOptions};
pub use run::executor::CudaExecutable;
pub use run::trace::Trace;
