//! The CPU: virtual devices on the host, with separate memories and one crew of threads for all,
//! and the kernels that they run.
//!
//! A kernel is a function on slices. It uses the threads of the crew in which it is called,
//! and the bits of each output row depend on that row's inputs alone: not on the batch size, the
//! number of threads, the tile in which the row is computed or the alignment of the memory.

pub(crate) mod batch_moments;
mod batch_norm;
mod blocks;
mod borders;
pub(crate) mod conv;
pub(crate) mod conv_transpose;
pub(crate) mod conv_weights;
mod cpu_op;
mod depthwise;
mod dft;
mod dropout;
pub(crate) mod elementwise;
mod ending;
mod ending_last;
mod events;
mod executable;
mod gather;
pub(crate) mod gemm;
mod im2col;
mod isa;
mod kernel;
pub(crate) mod matmul;
mod matrix;
mod micro;
pub(crate) mod moves;
mod peak;
mod phases;
mod place;
pub(crate) mod pool;
pub(crate) mod pool_grad;
mod pool_last;
mod prefetch;
pub(crate) mod products;
pub(crate) mod recurrent;
mod recurrent_grad;
mod reorder;
pub(crate) mod resize;
pub(crate) mod rows;
mod run;
mod scratch;
mod simd;
mod square;
mod state_product;
pub(crate) mod strides;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tile;
mod variables;

use std::sync::Arc;

use super::host::Crew;
use super::{Backend, CompileError, Executable, Trace};
use crate::ir::Weights;
use crate::lower::{self, Program};
pub use executable::CpuExecutable;
pub(crate) use isa::Isa;
pub use kernel::CPU;
#[cfg(feature = "cuda")]
pub(super) use kernel::StepKernels;

/// The CPU backend: any number of virtual devices that share a crew of threads.
#[derive(Clone, Debug)]
pub struct Cpu {
    crew: Arc<Crew>,
    /// What its executables add their runs to.
    trace: Option<Arc<Trace>>,
}

impl Cpu {
    /// A backend that computes on so many threads, at least 1: whoever runs a program is one of
    /// them while the run lasts.
    pub fn new(threads: usize) -> Result<Self, CompileError> {
        Self::with(threads, None)
    }

    /// As [`Self::new`], with these [available](Isa::available) instructions in place of the widest
    /// ones that the machine has.
    pub(crate) fn with(threads: usize, isa: Option<Isa>) -> Result<Self, CompileError> {
        let lacking = |isa: Isa| CompileError::Internal(format!("no `{}` here", isa.name()));
        let arch = isa.map(|isa| isa.arch().ok_or_else(|| lacking(isa))).transpose()?;
        let crew = Crew::new(threads, arch, isa::choose);
        let crew = crew.map_err(|e| CompileError::Threads(e.to_string()))?;
        Ok(Self { crew: Arc::new(crew), trace: None })
    }

    /// The same with a trace of all runs.
    pub(crate) fn traced(self, trace: Option<Arc<Trace>>) -> Self {
        Self { trace, ..self }
    }

    /// The threads.
    #[cfg(feature = "cuda")]
    pub(super) fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Readies a program, like [`Backend::compile`].
    pub fn executable(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<CpuExecutable, CompileError> {
        let made = CpuExecutable::new(program, weights, self.crew.clone())?;
        Ok(made.traced(self.trace.clone()))
    }
}

impl Backend for Cpu {
    fn kernels(&self) -> &dyn lower::Kernels {
        &CPU
    }

    fn compile(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<Box<dyn Executable>, CompileError> {
        Ok(Box::new(self.executable(program, weights)?))
    }
}
