//! Running programs: what every backend offers, and the CPU backend.

mod ahead;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod error;
mod executable;
mod host;
mod inputs;
mod params;
mod size;

use crate::codegen::CudaKernels;

pub use ahead::{run_each, stage_each};
pub use cpu::{CPU, Cpu, CpuExecutable};
pub use error::{CompileError, DriverError, RunError};
pub use executable::{Backend, DeviceStats, Executable, RunOptions, RunOutput, Staged};

/// The kernels of GPUs, and those of the CPU for what has none there.
pub static CUDA: CudaKernels = CudaKernels { host: &CPU };

/// The number of GPUs that the driver shows. Where there is none, what is asked of GPUs runs on
/// virtual devices.
pub fn gpu_count() -> usize {
    #[cfg(feature = "cuda")]
    return cuda::count();
    #[cfg(not(feature = "cuda"))]
    return 0;
}
