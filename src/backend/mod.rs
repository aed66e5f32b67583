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

pub use ahead::{run_each, stage_each};
pub use cpu::{Cpu, CpuExecutable};
pub use error::{CompileError, DriverError, RunError};
pub use executable::{Backend, DeviceStats, Executable, RunOptions, RunOutput, Staged};

/// The number of GPUs that the driver shows. Where there is none, what is asked of GPUs runs on
/// virtual devices.
pub fn gpu_count() -> usize {
    #[cfg(feature = "cuda")]
    return cuda::count();
    #[cfg(not(feature = "cuda"))]
    return 0;
}
