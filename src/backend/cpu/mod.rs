//! The CPU: virtual devices on the host, with separate memories, a control thread each and one pool of workers for
//! all, and the kernels that they run.
//!
//! A kernel is a function on slices. It uses the threads of the rayon pool in which it is called, and the bits of
//! each output row depend on that row's inputs alone: not on the batch size, the number of threads, the tile in which
//! the row is computed or the alignment of the memory.

pub mod conv;
pub mod conv_transpose;
mod depthwise;
pub mod elementwise;
mod events;
pub mod gemm;
mod im2col;
mod kernel;
pub mod matmul;
mod memory;
pub mod moves;
mod phases;
pub mod pool;
pub mod recurrent;
pub mod resize;
pub mod rows;
mod run;
mod scratch;
mod simd;
mod step;
pub mod strides;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tile;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{
    Backend, CompileError, DeviceStats, Executable, RunError, RunOptions, RunOutput, inputs, params,
};
use crate::ir::Weights;
use crate::lower::{BindError, Bound, Program};
use crate::types::{DType, Device, Target, Tensor};
pub(super) use events::Events;
#[cfg(feature = "cuda")]
pub(super) use events::Stopped;
#[cfg(feature = "cuda")]
pub(super) use memory::Block;
pub(super) use memory::DeviceMemory;
use run::Prepared;
#[cfg(feature = "cuda")]
pub(super) use step::{HostSteps, Kernels, StepError, highest};

/// Plans of this many batch sizes are kept.
const KEPT_PLANS: usize = 16;

/// The CPU backend: any number of virtual devices that share a pool of worker threads.
#[derive(Clone, Debug)]
pub struct Cpu {
    pool: Arc<ThreadPool>,
}

impl Cpu {
    /// A backend with a pool of `threads` workers, at least 1.
    pub fn new(threads: usize) -> Result<Self, CompileError> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|i| format!("fanwise-{i}"))
            .build()
            .map_err(|e| CompileError::Threads(e.to_string()))?;
        Ok(Self { pool: Arc::new(pool) })
    }

    /// The workers.
    #[cfg(feature = "cuda")]
    pub(super) fn pool(&self) -> &ThreadPool {
        &self.pool
    }

    /// Readies a program, like [`Backend::compile`].
    pub fn executable(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<CpuExecutable, CompileError> {
        let params = place_params(&program, weights)?;
        Ok(CpuExecutable {
            program,
            params,
            pool: self.pool.clone(),
            plans: Mutex::default(),
            arenas: Mutex::default(),
        })
    }
}

impl Backend for Cpu {
    fn target(&self) -> &Target {
        &Target::CPU
    }

    fn compile(
        &self,
        program: Program,
        weights: &Weights,
    ) -> Result<Box<dyn Executable>, CompileError> {
        Ok(Box::new(self.executable(program, weights)?))
    }
}

/// A program that is ready to run on virtual devices.
#[derive(Debug)]
pub struct CpuExecutable {
    program: Program,
    /// The parameters that each device holds, by position; `None` for those it does not hold.
    params: Vec<Vec<Option<Tensor>>>,
    pool: Arc<ThreadPool>,
    plans: Mutex<VecDeque<Arc<Prepared>>>,
    /// The arenas of the last run, one for each device.
    arenas: Mutex<Option<Vec<Tensor>>>,
}

/// The elements of the parameters on each device: the host shares the caller's, another device has its own.
fn place_params(
    program: &Program,
    weights: &Weights,
) -> Result<Vec<Vec<Option<Tensor>>>, CompileError> {
    let mut devices = Vec::with_capacity(program.devices.len());
    for device in &program.devices {
        let mut held: Vec<Option<Tensor>> = vec![None; program.params.len()];
        for (i, tensor) in params::of(program, device, weights)? {
            let own = if device.device == Device::HOST {
                Ok(tensor.clone())
            } else {
                Tensor::from_bytes(tensor.dtype(), tensor.dims(), tensor.bytes())
            };
            held[i as usize] = Some(own.map_err(|error| CompileError::Param {
                name: program.params[i as usize].name.to_string(),
                device: device.device,
                error,
            })?);
        }
        devices.push(held);
    }
    Ok(devices)
}

/// The value behind a lock, also after a panic elsewhere: what it guards is valid at every moment.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CpuExecutable {
    /// The program at this batch size with its kernels, which may hold tables as long as the results: they are made
    /// after the memory is found to suffice.
    fn prepare(&self, n: i64, limit: Option<u64>) -> Result<Arc<Prepared>, RunError> {
        let mut plans = lock(&self.plans);
        let known = plans.iter().position(|p| p.bound.n == n);
        let plan = if let Some(plan) = known.and_then(|at| plans.remove(at)) {
            self.check_memory(&plan.bound, limit)?;
            plan
        } else {
            let bound = self.program.bind(n)?;
            self.check_memory(&bound, limit)?;
            Arc::new(Prepared::new(&self.program, Arc::new(bound)))
        };
        plans.truncate(KEPT_PLANS - 1);
        plans.push_front(plan.clone());
        Ok(plan)
    }

    fn param_bytes(&self, device: usize) -> u64 {
        let held = self.params.get(device).into_iter().flatten().flatten();
        held.map(|t| t.bytes().len() as u64).sum()
    }

    /// Fails if the run takes more memory than allowed.
    fn check_memory(&self, bound: &Bound, limit: Option<u64>) -> Result<(), RunError> {
        let arenas = bound.devices.iter().map(|device| device.planned as u64);
        let params = (0..self.params.len()).map(|d| self.param_bytes(d));
        inputs::check_memory(&self.program, bound.n, arenas.chain(params), limit)
    }

    /// The memory of every device: the arenas of the last run where they suffice, new outputs.
    fn memories(&self, bound: &Bound) -> Result<Vec<DeviceMemory>, RunError> {
        let mut kept = lock(&self.arenas).take().unwrap_or_default().into_iter();
        let mut memories = Vec::with_capacity(bound.devices.len());
        for (program, device) in self.program.devices.iter().zip(&bound.devices) {
            let allocation = |error| RunError::Allocation { device: program.device, error };
            let arena = match kept.next().filter(|a| a.len() >= device.planned) {
                Some(arena) => arena,
                None => Tensor::zeros(DType::U8, &[device.planned]).map_err(allocation)?,
            };
            let mut outputs = Vec::new();
            if program.device == Device::HOST {
                for port in &self.program.outputs {
                    let dims = port.ty.shape.at(bound.n);
                    outputs.push(Tensor::zeros(port.ty.dtype, &dims).map_err(allocation)?);
                }
            }
            memories.push(DeviceMemory { arena, outputs });
        }
        Ok(memories)
    }
}

impl Executable for CpuExecutable {
    fn program(&self) -> &Program {
        &self.program
    }

    fn bind(&self, n: i64) -> Result<Arc<Bound>, BindError> {
        let known = lock(&self.plans).iter().find(|p| p.bound.n == n).map(|p| p.bound.clone());
        known.map_or_else(|| Ok(Arc::new(self.program.bind(n)?)), Ok)
    }

    fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<RunOutput, RunError> {
        let (n, inputs) = inputs::check(&self.program, inputs)?;
        let prepared = self.prepare(n, options.max_memory)?;
        let bound = &prepared.bound;
        let memories = self.memories(bound)?.into_iter().map(Mutex::new).collect();
        let run = run::Run {
            program: &self.program,
            prepared: &prepared,
            inputs: &inputs,
            params: &self.params,
            memories,
            pool: &self.pool,
            events: Events::new(self.program.events),
            progress: options.progress.as_deref(),
        };
        let done = run.all_devices();
        let mut memories = run
            .memories
            .into_iter()
            .map(|m| m.into_inner().unwrap_or_else(PoisonError::into_inner));
        let (mut arenas, mut outputs) = (Vec::new(), Vec::new());
        for memory in &mut memories {
            arenas.push(memory.arena);
            outputs.extend(memory.outputs);
        }
        *lock(&self.arenas) = Some(arenas);
        let devices = done?.into_iter().enumerate().map(|(d, (used, time))| {
            let program = &self.program.devices[d];
            let rows = program.replicas.iter().filter_map(|r| bound.rows.get(*r as usize));
            DeviceStats {
                device: program.device,
                rows: (!program.replicas.is_empty()).then(|| rows.sum()),
                planned: bound.devices[d].planned as u64,
                used,
                params: self.param_bytes(d),
                time,
            }
        });
        let names = self.program.outputs.iter().map(|p| p.name.clone());
        Ok(RunOutput { n, devices: devices.collect(), outputs: names.zip(outputs).collect() })
    }
}
