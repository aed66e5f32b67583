//! NVIDIA GPUs: kernels compiled at run time by NVRTC.
//!
//! The driver and the compiler are looked for at run time, so a binary with this backend starts on
//! every machine and says what is missing. Text and keys of kernels are `codegen`'s; here
//! they become machine code and run: a worker thread for each logical device puts copies and
//! kernels on its streams, a host thread copies results and computes what has no kernel.

pub(crate) mod compiler;
pub(crate) mod driver;
pub(crate) mod run;

pub use crate::codegen::error::CodegenError;
pub use crate::codegen::key::{Arch, CodeFormat};
pub(crate) use compiler::cache::{self, Cached};
pub(crate) use compiler::compile::Compiler;
pub use compiler::nvrtc::KernelError;
pub(crate) use compiler::nvrtc::Nvrtc;
pub(crate) use compiler::resources::Resources;
#[cfg(feature = "cli")]
pub(crate) use driver::context::is_of_instance;
pub(crate) use driver::devices::count;
#[cfg(feature = "cli")]
pub(crate) use driver::devices::first_instance;
#[cfg(feature = "cli")]
pub(crate) use driver::devices::{DeviceInfo, Devices, devices};
pub(crate) use driver::probe;
#[cfg(feature = "cli")]
pub(crate) use driver::probe::Version;
pub use driver::probe::{NvrtcSearch, ProbeError};
pub use run::backend::{CompileProgress, Cuda, CudaOptions};
#[cfg(feature = "cli")]
pub(crate) use run::in_flight::InFlight;
