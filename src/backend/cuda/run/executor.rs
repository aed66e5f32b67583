//! A program that is ready to run on GPUs.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::events::Events;
use super::job::{Job, Progress};
use super::parts::{Bytes, HostParams, Parts};
use super::pinned::{NotTaken, stage, stage_inputs};
use super::plan::{HostBlocks, Plan, Source};
use super::slot::{RunEnd, Slot};
use super::slots::{ReservedSlot, SlotPool};
use super::staging::{Devices, Leftover, Shared, StagedInputs, StagingError};
use super::variables::{Variables, update_blocks};
use crate::backend::cuda::driver::context::Reclaim;
use crate::backend::cuda::driver::memory::{HostBlock, Pinned};
use crate::backend::host::{DeviceMemory, lock, profile};
use crate::backend::size::port_bytes;
use crate::backend::{
    CompileError, DeviceStats, Executable, RunError, RunOptions, RunOutput, Staged, inputs,
};
use crate::ir::Weights;
use crate::lower::{BindError, Bound, Program};
use crate::types::invariant::int;
use crate::types::{Device, Tensor};

/// Plans of this many batch sizes are kept.
const KEPT_PLANS: usize = 16;

/// The use of pinned memory for inputs, for messages.
const STAGED: &str = "the staged inputs";

/// A program that is ready to run on GPUs.
///
/// A batch size runs first kernel by kernel, each waited for, so that one that fails is named; then
/// as graphs. Two runs may be in flight at the same time: the inputs of one are copied while the
/// other computes.
pub struct CudaExecutable {
    /// In an `Arc` to be leaked where a device does not come back: its memory must then not be
    /// freed.
    parts: Arc<Parts>,
    plans: Mutex<VecDeque<Arc<Plan>>>,
    slots: SlotPool,
    variables: Variables,
}

/// The inputs of a run, held against the program's.
struct Batch {
    n: i64,
    tensors: Vec<Tensor>,
    plan: Arc<Plan>,
    /// Copies of the inputs from which GPUs copy; none where the host had no memory for them yet.
    pinned: Option<BTreeMap<u32, Arc<Pinned>>>,
    options: RunOptions,
}

/// A batch whose inputs are on their way to GPUs.
struct CudaStaged<'a> {
    executable: &'a CudaExecutable,
    batch: Batch,
    staged_inputs: Shared,
}

impl Staged for CudaStaged<'_> {
    fn set(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
        self.executable.replace(&mut self.batch, name, value)
    }

    fn run(self: Box<Self>) -> Result<RunOutput, RunError> {
        self.executable.execute(&self.batch, || lock(&self.staged_inputs).take())
    }
}

impl Drop for CudaStaged<'_> {
    fn drop(&mut self) {
        let parts = &self.executable.parts;
        let left = parts.staging_pool.drop_staged(&self.staged_inputs, &self.executable.devices());
        self.executable.settle(left);
    }
}

impl fmt::Debug for CudaExecutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaExecutable")
            .field("program", &self.parts.program.name)
            .field("contexts", &self.parts.contexts)
            .finish_non_exhaustive()
    }
}

impl CudaExecutable {
    /// Of these parts; the host holds these parameters, and `weights` are the elements of all.
    pub(super) fn new(
        parts: Parts,
        held: HostParams,
        weights: Weights,
    ) -> Result<Self, CompileError> {
        let variables = Variables::new(&parts.program, held, weights)?;
        let parts = Arc::new(parts);
        let slots = SlotPool::new(parts.clone());
        // Of a program what is cheaper to have again gives way first.
        let reclaimable: [Arc<dyn Reclaim>; 2] = [parts.staging_pool.clone(), slots.reclaimable()];
        for reclaimable in &reclaimable {
            parts.contexts.iter().flatten().for_each(|context| context.keep(reclaimable));
        }
        Ok(Self { parts, plans: Mutex::default(), slots, variables })
    }

    /// The devices to which inputs come.
    fn devices(&self) -> Devices<'_> {
        let Parts { program, contexts, health, watchdog, .. } = &*self.parts;
        Devices { program, contexts, health, watchdog: *watchdog }
    }

    /// Leaks what a device may be at work with for ever.
    fn settle(&self, left: Leftover) {
        if left == Leftover::Leaked {
            mem::forget(Arc::clone(&self.parts));
        }
    }

    /// The program at this batch size.
    fn plan(&self, n: i64, limit: Option<u64>) -> Result<Arc<Plan>, RunError> {
        let parts = &self.parts;
        let check = |bound: &Bound| {
            // The limit is of the host's memory; what a GPU lacks is seen when its arena is made.
            let host = bound.devices[0].planned as u64;
            inputs::check_memory(&parts.program, bound.n, [host, parts.param_bytes[0]], limit)
        };
        let mut plans = lock(&self.plans);
        let known = plans.iter().position(|p| p.bound.n == n);
        let plan = if let Some(plan) = known.and_then(|at| plans.remove(at)) {
            check(&plan.bound)?;
            plan
        } else {
            let bound = parts.program.bind(n)?;
            check(&bound)?;
            let source = Source {
                program: &parts.program,
                loaded: &parts.loaded,
                params: &parts.params,
                updates: &parts.updates,
            };
            Arc::new(source.plan(Arc::new(bound))?)
        };
        // The latest comes first, so that the one that was used longest ago goes.
        plans.truncate(KEPT_PLANS - 1);
        plans.push_front(plan.clone());
        Ok(plan)
    }

    /// The inputs of a run, with copies from which GPUs copy.
    fn batch(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<Batch, RunError> {
        let parts = &self.parts;
        let (n, tensors) = inputs::check(&parts.program, inputs)?;
        parts.health.check()?;
        let plan = self.plan(n, options.max_memory)?;
        let tensors: Vec<Tensor> = tensors.into_iter().cloned().collect();
        let pinned = match stage_inputs(parts, &plan, &tensors) {
            Ok(pinned) => Some(pinned),
            // Runs that end give theirs back.
            Err(NotTaken { error, .. }) if error.is_out_of_memory() => None,
            Err(NotTaken { error, .. }) => return Err(parts.failed_to_pin(STAGED, error)),
        };
        Ok(Batch { n, tensors, plan, pinned, options: options.clone() })
    }

    /// Gives an input without axes another value; those come with the run, so that nothing copies
    /// the one before.
    fn replace(&self, batch: &mut Batch, name: &str, value: &Tensor) -> Result<(), RunError> {
        let i = inputs::scalar(&self.parts.program, name, value)?;
        let key = int::<u32>(i);
        if let Some(block) = batch.pinned.as_mut().and_then(|pinned| pinned.get_mut(&key)) {
            match stage(&self.parts, value) {
                Ok(copy) => *block = copy,
                // Runs that end give theirs back.
                Err(NotTaken { error, .. }) if error.is_out_of_memory() => batch.pinned = None,
                Err(NotTaken { error, .. }) => {
                    return Err(self.parts.failed_to_pin(STAGED, error));
                }
            }
        }
        batch.tensors[i] = value.clone();
        Ok(())
    }

    /// The host's memory: its arena and the outputs, of so many bytes planned.
    fn memory(&self, bound: &Bound, planned: u64) -> Result<DeviceMemory<HostBlock>, RunError> {
        let parts = &self.parts;
        let asked = bound.devices[0].planned;
        let arena = parts.take(Bytes { asked, planned }, "its arena")?;
        let mut outputs = Vec::with_capacity(parts.program.outputs.len());
        for port in &parts.program.outputs {
            let bytes = Bytes { asked: port_bytes(port, bound.n)?, planned };
            outputs.push(parts.take(bytes, &format!("the output `{}`", port.name))?);
        }
        Ok(DeviceMemory { arena, outputs, updates: update_blocks(parts, planned)? })
    }

    /// Takes what a run had back: what inputs came to, then its slot.
    fn end(&self, slot: Slot, job: &Job, ended: &RunEnd) {
        if let (false, Err(error)) = (ended.is_clean, &ended.result) {
            self.parts.health.die(error);
        }
        let staged_inputs = lock(&job.staged_inputs).take();
        match staged_inputs.map(Arc::try_unwrap) {
            Some(Ok(staged_inputs)) if !ended.is_abandoned => {
                self.settle(self.parts.staging_pool.take_back(staged_inputs, &self.devices()));
            }
            // A device is still at work in it, or a worker that does not come back has it.
            Some(Ok(staged_inputs)) => mem::forget(staged_inputs),
            Some(Err(staged_inputs)) => mem::forget(staged_inputs),
            None => {}
        }
        self.slots.end(slot, ended);
    }

    /// The run of a batch in a slot, without staged inputs.
    fn job(&self, batch: &Batch, taken: &ReservedSlot) -> Result<Job, RunError> {
        let (parts, Batch { tensors, plan, options, .. }) = (&self.parts, batch);
        let planned = parts.pinned_bytes(plan)?;
        let pinned = match &batch.pinned {
            Some(pinned) => pinned.clone(),
            None => stage_inputs(parts, plan, tensors).map_err(|NotTaken { asked, error }| {
                parts.not_pinned(Bytes { asked, planned }, STAGED, error)
            })?,
        };
        let memory = self.memory(&plan.bound, planned)?;
        // The guard of the run holds off those who would change them meanwhile.
        let held = self.variables.held();
        let blocks = HostBlocks {
            arena: memory.arena.pinned().clone(),
            inputs: pinned,
            params: held.pinned,
            outputs: memory.outputs.iter().map(|block| block.pinned().clone()).collect(),
            updates: memory.updates.iter().map(|block| block.pinned().clone()).collect(),
        };
        Ok(Job {
            program: parts.program.clone(),
            plan: plan.clone(),
            inputs: tensors.clone(),
            params: held.tensors,
            memory: Mutex::new(memory),
            blocks,
            staged_inputs: Mutex::default(),
            arenas: taken.arenas.clone(),
            contexts: parts.contexts.clone(),
            gpu_events: taken.slot.gpu_events.clone(),
            events: Events::new(parts.program.events),
            worker_progress: Progress::new(parts.program.devices.len()),
            progress: options.progress.clone(),
            trace: parts.trace.as_ref().map(|trace| {
                trace.run(&parts.program.name, || profile::works(&parts.program, plan.bound.n))
            }),
            graphs: parts.graphs,
            cpu: parts.cpu.clone(),
        })
    }

    /// Runs a batch; `staged inputs` gives what its inputs have come to before.
    fn execute(
        &self,
        batch: &Batch,
        staged_inputs: impl FnOnce() -> Option<StagedInputs>,
    ) -> Result<RunOutput, RunError> {
        let parts = &self.parts;
        let _guard = self.variables.begin_run(&parts.program);
        parts.health.check()?;
        let taken = self.slots.take(&batch.plan)?;
        // Asked again: a run that had the slot before may have broken a device.
        let ready = parts.health.check().and_then(|()| self.job(batch, &taken));
        let slot = taken.slot;
        let job = match ready {
            Ok(job) => {
                Arc::new(Job { staged_inputs: Mutex::new(staged_inputs().map(Arc::new)), ..job })
            }
            Err(error) => {
                self.slots.give_back(slot);
                return Err(error);
            }
        };
        let ended = slot.run(&job, parts.watchdog);
        if let (Some(trace), Err(error)) = (&job.trace, &ended.result) {
            trace.fail(error);
        }
        self.end(slot, &job, &ended);
        // Only now: the slot and what was staged are taken back also after a failure.
        let times = ended.result?;
        let (blocks, updates) = {
            let mut memory = lock(&job.memory);
            (mem::take(&mut memory.outputs), mem::take(&mut memory.updates))
        };
        let outputs = self.outputs(batch.n, blocks)?;
        // Outputs come first: memory that is not to be had for them leaves the parameters as they
        // were.
        if !parts.program.updates.is_empty() && batch.options.may_update(&outputs) {
            self.variables.commit(parts, &self.slots, updates)?;
        }
        Ok(RunOutput { n: batch.n, outputs, devices: self.stats(&batch.plan, &times) })
    }

    /// The outputs, in the memory to which they were copied.
    fn outputs(&self, n: i64, blocks: Vec<HostBlock>) -> Result<Vec<(Arc<str>, Tensor)>, RunError> {
        let ports = self.parts.program.outputs.iter().zip(blocks);
        ports
            .map(|(port, block)| {
                let dims = port.ty.shape.at(n);
                let bytes = port_bytes(port, n)?;
                let shared = bytes::Bytes::from_owner(block).slice(..bytes);
                let tensor = Tensor::from_shared(port.ty.dtype, &dims, &shared);
                let failed = |error| RunError::Allocation { device: Device::HOST, error };
                tensor.map(|tensor| (port.name.clone(), tensor)).map_err(failed)
            })
            .collect()
    }

    /// The statistics of each device, for the report of a run.
    fn stats(&self, plan: &Plan, times: &[Duration]) -> Vec<DeviceStats> {
        let devices = self.parts.program.devices.iter().zip(times).enumerate();
        let stats = devices.map(|(d, (device, time))| {
            let rows = device.replicas.iter().filter_map(|r| plan.bound.rows.get(*r as usize));
            DeviceStats {
                device: device.device,
                rows: (!device.replicas.is_empty()).then(|| rows.sum()),
                planned: plan.bound.devices[d].planned as u64,
                used: plan.used[d],
                params: self.parts.param_bytes[d],
                time: *time,
            }
        });
        stats.collect()
    }
}

impl Executable for CudaExecutable {
    fn program(&self) -> &Program {
        &self.parts.program
    }

    fn warnings(&self) -> &[String] {
        &self.parts.warnings
    }

    fn bind(&self, n: i64) -> Result<Arc<Bound>, BindError> {
        let known = lock(&self.plans).iter().find(|p| p.bound.n == n).map(|p| p.bound.clone());
        known.map_or_else(|| Ok(Arc::new(self.parts.program.bind(n)?)), Ok)
    }

    fn run(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<RunOutput, RunError> {
        self.execute(&self.batch(inputs, options)?, || None)
    }

    fn stage<'a>(
        &'a self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<Box<dyn Staged + 'a>, RunError> {
        let batch = self.batch(inputs, options)?;
        let staging_pool = &self.parts.staging_pool;
        let staged = staging_pool.stage(&batch.plan, batch.pinned.as_ref(), &self.devices());
        let staged_inputs = staged.map_err(|StagingError { error, left }| {
            self.settle(left);
            error
        })?;
        Ok(Box::new(CudaStaged { executable: self, batch, staged_inputs }))
    }

    fn weights(&self) -> Result<Weights, RunError> {
        self.variables.current(&self.parts, &self.slots)
    }

    fn set_weights(&self, weights: &Weights) -> Result<(), CompileError> {
        self.variables.set(&self.parts, &self.slots, weights)
    }
}
