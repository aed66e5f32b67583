//! The CPU: virtual devices on the host, with separate memories, a control thread each and one pool of workers for
//! all, and the kernels that they run.
//!
//! A kernel is a function on slices. It uses the threads of the rayon pool in which it is called, and the bits of
//! each output row depend on that row's inputs alone: not on the batch size, the number of threads, the tile in which
//! the row is computed or the alignment of the memory.

pub mod batch_norm;
pub mod conv;
pub mod conv_transpose;
pub mod conv_weights;
mod depthwise;
pub mod elementwise;
pub mod gemm;
mod im2col;
mod kernel;
pub mod matmul;
pub mod moves;
mod phases;
pub mod pool;
pub mod pool_grad;
pub mod recurrent;
pub mod resize;
pub mod rows;
mod run;
mod scratch;
mod simd;
pub mod strides;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod tile;
mod variables;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::host::{DeviceMemory, Events, lock};
use super::{
    Backend, CompileError, DeviceStats, Executable, RunError, RunOptions, RunOutput, Staged, inputs,
};
use crate::ir::Weights;
use crate::lower::{BindError, Bound, Program};
use crate::types::{DType, Device, Target, Tensor};
#[cfg(feature = "cuda")]
pub(super) use kernel::Kernels;
use run::Prepared;
use variables::{Params, place_params};

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
            params: RwLock::new(params),
            spares: Mutex::default(),
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
    params: RwLock<Params>,
    /// Memory for the updates of each device; a run that updates parameters holds it, so that there is one at a time.
    spares: Mutex<Vec<Vec<Tensor>>>,
    pool: Arc<ThreadPool>,
    plans: Mutex<VecDeque<Arc<Prepared>>>,
    /// The arenas of the last run, one for each device.
    arenas: Mutex<Option<Vec<Tensor>>>,
}

impl CpuExecutable {
    /// The program at this batch size with its kernels, which may hold tables as long as the results: they are made
    /// after the memory is found to suffice, beside that which the parameters take on each device.
    fn prepare(
        &self,
        n: i64,
        limit: Option<u64>,
        params: &[u64],
    ) -> Result<Arc<Prepared>, RunError> {
        let check = |bound: &Bound| {
            let arenas = bound.devices.iter().map(|device| device.planned as u64);
            let updates = self.program.devices.iter().zip(&bound.devices);
            let updates = updates.map(|(device, bound)| variables::update_bytes(device, bound));
            let held = arenas.chain(params.iter().copied()).chain(updates);
            inputs::check_memory(&self.program, n, held, limit)
        };
        let mut plans = lock(&self.plans);
        let known = plans.iter().position(|p| p.bound.n == n);
        let plan = if let Some(plan) = known.and_then(|at| plans.remove(at)) {
            check(&plan.bound)?;
            plan
        } else {
            let bound = self.program.bind(n)?;
            check(&bound)?;
            Arc::new(Prepared::new(&self.program, Arc::new(bound)))
        };
        plans.truncate(KEPT_PLANS - 1);
        plans.push_front(plan.clone());
        Ok(plan)
    }

    /// The memory of every device: the arenas of the last run where they suffice, new outputs, memory for updates.
    fn memories(
        &self,
        bound: &Bound,
        spares: Option<&mut Vec<Vec<Tensor>>>,
    ) -> Result<Vec<DeviceMemory>, RunError> {
        let mut spares = spares.map(std::mem::take).unwrap_or_default().into_iter();
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
            let updates =
                variables::tensors(&self.program, program, spares.next()).map_err(allocation)?;
            memories.push(DeviceMemory { arena, outputs, updates });
        }
        Ok(memories)
    }
}

/// A batch to come: its inputs are in the host's memory, where the devices read them.
struct Kept<'a> {
    executable: &'a CpuExecutable,
    inputs: BTreeMap<String, Tensor>,
    options: RunOptions,
}

impl Staged for Kept<'_> {
    fn set(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
        inputs::scalar(&self.executable.program, name, value)?;
        self.inputs.insert(name.to_owned(), value.clone());
        Ok(())
    }

    fn run(self: Box<Self>) -> Result<RunOutput, RunError> {
        self.executable.run(&self.inputs, &self.options)
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
        let mut spares = (!self.program.updates.is_empty()).then(|| lock(&self.spares));
        let held = self.params.read().unwrap_or_else(PoisonError::into_inner);
        let param_bytes = variables::bytes(&held);
        let prepared = self.prepare(n, options.max_memory, &param_bytes)?;
        let bound = &prepared.bound;
        let memories = self.memories(bound, spares.as_deref_mut())?;
        let run = run::Run {
            program: &self.program,
            prepared: &prepared,
            inputs: &inputs,
            params: &held,
            memories: memories.into_iter().map(Mutex::new).collect(),
            pool: &self.pool,
            events: Events::new(self.program.events),
            progress: options.progress.as_deref(),
        };
        let done = run.all_devices();
        let mut memories = run
            .memories
            .into_iter()
            .map(|m| m.into_inner().unwrap_or_else(PoisonError::into_inner));
        let (mut arenas, mut outputs, mut updates) = (Vec::new(), Vec::new(), Vec::new());
        for memory in &mut memories {
            arenas.push(memory.arena);
            outputs.extend(memory.outputs);
            updates.push(memory.updates);
        }
        drop(held);
        *lock(&self.arenas) = Some(arenas);
        if let Some(spares) = &mut spares {
            if done.is_ok() {
                self.replace(&mut updates);
            }
            **spares = updates;
        }
        let devices = done?.into_iter().enumerate().map(|(d, (used, time))| {
            let program = &self.program.devices[d];
            let rows = program.replicas.iter().filter_map(|r| bound.rows.get(*r as usize));
            DeviceStats {
                device: program.device,
                rows: (!program.replicas.is_empty()).then(|| rows.sum()),
                planned: bound.devices[d].planned as u64,
                used,
                params: param_bytes[d],
                time,
            }
        });
        let names = self.program.outputs.iter().map(|p| p.name.clone());
        Ok(RunOutput { n, devices: devices.collect(), outputs: names.zip(outputs).collect() })
    }

    fn stage<'a>(
        &'a self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<Box<dyn Staged + 'a>, RunError> {
        inputs::check(&self.program, inputs)?;
        Ok(Box::new(Kept { executable: self, inputs: inputs.clone(), options: options.clone() }))
    }

    fn weights(&self) -> Result<Weights, RunError> {
        Ok(self.current())
    }

    fn set_weights(&self, weights: &Weights) -> Result<(), CompileError> {
        self.set(weights)
    }
}
