//! Running programs: the interface of every backend, and the backends for CPUs and for GPUs.

pub(crate) mod ahead;
#[cfg(feature = "cpu")]
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod executable;
#[cfg(feature = "cpu")]
mod host;
#[cfg(feature = "cpu")]
mod inputs;
#[cfg(feature = "cuda")]
pub(crate) mod memory;
#[cfg(feature = "cpu")]
mod params;
#[cfg(feature = "cpu")]
mod size;

#[cfg(feature = "cuda")]
use crate::codegen::CudaKernels;

pub(crate) use ahead::{run_each, stage_each};
#[cfg(feature = "cpu")]
pub use cpu::{CPU, Cpu, CpuExecutable};
pub use error::{CompileError, DriverError, RunError};
pub use executable::{Backend, DeviceStats, Executable, RunOptions, RunOutput, Staged};
#[cfg(feature = "cpu")]
pub(crate) use host::profile::{Peak, operations};
#[cfg(feature = "cpu")]
pub use host::trace::Trace;

/// The kernels of GPUs, and those of the CPU for what has none there.
#[cfg(feature = "cuda")]
pub static CUDA: CudaKernels = CudaKernels { host: &CPU };

/// The number of GPUs that the driver shows. Where there is none, programs for GPUs run on virtual
/// devices.
pub(crate) fn gpu_count() -> usize {
    #[cfg(feature = "cuda")]
    return cuda::count();
    #[cfg(not(feature = "cuda"))]
    return 0;
}
