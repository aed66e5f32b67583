//! A program that is ready to run on GPUs.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use rayon::prelude::*;

use super::intake::{Intake, Intakes};
use super::job::{Board, Job};
use super::plan::{HostBlocks, Loaded, Params, Plan, Source};
use super::report;
use super::slot::{Ended, Slot, SlotError};
use super::slots::Slots;
use super::trace::Trace;
use super::variables::{Commit, Held, Updates};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::driver::context::{Context, Spare};
use crate::backend::cuda::driver::contexts;
use crate::backend::cuda::driver::memory::{HostBlock, PIN, Pinned, PinnedPool, free_memory};
use crate::backend::host::{Block, DeviceMemory, Events, lock};
use crate::backend::{
    CompileError, DeviceStats, DriverError, Executable, RunError, RunOptions, RunOutput, Staged,
    inputs,
};
use crate::ir::Weights;
use crate::lower::{BindError, Bound, Port, Program};
use crate::types::{Device, Tensor};

/// Plans of this many batch sizes are kept.
const KEPT_PLANS: usize = 16;

/// What memory of the host is for from which GPUs copy inputs.
const STAGED: &str = "the staged inputs";

/// Bytes that a thread copies at a time when inputs are staged.
const STAGED_AT_ONCE: usize = 1 << 20;

/// What an executable is made of.
pub(super) struct Parts {
    pub(super) program: Arc<Program>,
    /// For each device its context; none for the host.
    pub(super) contexts: Arc<Vec<Option<Arc<Context>>>>,
    /// For each step of each device its kernels.
    pub(super) loaded: Vec<Vec<Vec<Option<Loaded>>>>,
    /// The parameters on each device, and their bytes.
    pub(super) params: Vec<Params>,
    pub(super) param_bytes: Vec<u64>,
    /// The memory of each device for new elements of parameters, and what puts them in the place of the old ones.
    pub(super) updates: Vec<Updates>,
    pub(super) commits: Vec<Commit>,
    /// The parameters that the host holds, and those of them from which GPUs copy.
    pub(super) host_params: Arc<Vec<Option<Tensor>>>,
    pub(super) pinned_params: Arc<BTreeMap<u32, Arc<Pinned>>>,
    pub(super) pool: PinnedPool,
    pub(super) intakes: Arc<Intakes>,
    pub(super) cpu: Cpu,
    pub(super) watchdog: Duration,
    pub(super) trace: Option<Arc<Trace>>,
    pub(super) graphs: bool,
    /// What went wrong without harm when the program was readied.
    pub(super) warnings: Vec<String>,
    /// The elements of the parameters before the first run.
    pub(super) weights: Weights,
}

/// A program that is ready to run on GPUs.
///
/// A batch size runs first kernel by kernel, each waited for, so that one that fails is named; then as graphs.
/// Two runs may be in flight at the same time: the inputs of one are copied while the other computes.
pub struct CudaExecutable {
    /// In an `Arc` to be leaked where a device does not come back: its memory must then not be freed.
    pub(super) parts: Arc<Parts>,
    plans: Mutex<VecDeque<Arc<Plan>>>,
    slots: Arc<Mutex<Slots>>,
    freed: Condvar,
    /// The error after which no device can be used.
    pub(super) dead: Mutex<Option<RunError>>,
    /// Taken to read by runs that change no parameters, which happen at the same time, else to write.
    pub(super) gate: RwLock<()>,
    /// The parameters that the host holds.
    pub(super) held: Mutex<Held>,
    /// The elements of the parameters that no run changes, of a program that changes others.
    pub(super) fixed: Mutex<Weights>,
}

/// The inputs of a run, held against the program's.
pub(super) struct Batch {
    n: i64,
    tensors: Vec<Tensor>,
    pub(super) plan: Arc<Plan>,
    /// Copies of the inputs from which GPUs copy; none where the host had no memory for them yet.
    pub(super) pinned: Option<BTreeMap<u32, Arc<Pinned>>>,
    options: RunOptions,
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
    pub(super) fn new(mut parts: Parts) -> Self {
        let held = Held { tensors: parts.host_params.clone(), pinned: parts.pinned_params.clone() };
        let mut fixed = mem::take(&mut parts.weights);
        let program = &parts.program;
        let of = |i: u32| program.params.get(i as usize).map(|port| &*port.name);
        let changed: BTreeSet<&str> = program.updates.iter().filter_map(|i| of(*i)).collect();
        let known: BTreeSet<&str> = program.params.iter().map(|port| &*port.name).collect();
        fixed.retain(|name| !changed.is_empty() && known.contains(name) && !changed.contains(name));
        let parts = Arc::new(parts);
        let slots = Arc::new(Mutex::new(Slots::new(parts.clone())));
        // Of a program what is cheaper to have again gives way first.
        let spares: [Arc<dyn Spare>; 2] = [parts.intakes.clone(), slots.clone()];
        for spare in &spares {
            parts.contexts.iter().flatten().for_each(|context| context.keep(spare));
        }
        Self {
            parts,
            plans: Mutex::default(),
            slots,
            freed: Condvar::new(),
            dead: Mutex::default(),
            gate: RwLock::default(),
            held: Mutex::new(held),
            fixed: Mutex::new(fixed),
        }
    }

    fn device(&self, d: usize) -> Device {
        self.parts.program.devices[d].device
    }

    /// The other devices on the GPU of one.
    fn beside(&self, device: Device) -> Vec<Device> {
        contexts::beside(&self.parts.program, &self.parts.contexts, device)
    }

    /// Fails if an earlier run has left a device unusable.
    pub(super) fn check_alive(&self) -> Result<(), RunError> {
        match &*lock(&self.dead) {
            Some(error) => Err(RunError::Dead(Box::new(error.clone()))),
            None => Ok(()),
        }
    }

    /// The error of a call of the driver outside of a step; a device that can no longer be used is remembered.
    pub(super) fn failed(&self, d: usize, what: &str, error: DriverError) -> RunError {
        self.failed_at(d, (what, "memory"), error)
    }

    /// The error of a call of the driver for a step that no run is at.
    pub(super) fn failed_at(
        &self,
        d: usize,
        (label, op): (&str, &'static str),
        error: DriverError,
    ) -> RunError {
        let sticky = error.is_sticky();
        let (device, label, error) = (self.device(d), label.to_owned(), Box::new(error));
        let beside = if sticky { self.beside(device) } else { Vec::new() };
        let error = RunError::Driver { device, label, op, error, beside };
        if sticky {
            lock(&self.dead).get_or_insert(error.clone());
        }
        error
    }

    /// The program at this batch size.
    fn plan(&self, n: i64, limit: Option<u64>) -> Result<Arc<Plan>, RunError> {
        let parts = &self.parts;
        let check = |bound: &Bound| {
            // The limit is of the host's memory; what a GPU lacks is seen when its arena is made.
            let host = bound.devices.first().map_or(0, |device| device.planned as u64);
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
        plans.truncate(KEPT_PLANS - 1);
        plans.push_front(plan.clone());
        Ok(plan)
    }

    /// Pinned memory for something, of so many bytes planned.
    pub(super) fn take(
        &self,
        bytes: usize,
        what: &str,
        planned: u64,
    ) -> Result<HostBlock, RunError> {
        let taken = self.parts.pool.take(bytes);
        taken.map_err(|error| self.not_pinned(what, (bytes, planned), error))
    }

    /// The error of a call for pinned memory, other than that there is none.
    fn failed_to_pin(&self, what: &str, error: DriverError) -> RunError {
        let device = self.parts.pool.device();
        let d = self.parts.program.devices.iter().position(|known| known.device == device);
        self.failed(d.unwrap_or(0), what, error)
    }

    /// The error of pinned memory for something: the bytes asked for, and those planned.
    fn not_pinned(
        &self,
        what: &str,
        (asked, planned): (usize, u64),
        error: DriverError,
    ) -> RunError {
        if !error.is_out_of_memory() {
            return self.failed_to_pin(what, error);
        }
        let (device, what, asked, free) =
            (self.device(0), what.to_owned(), asked as u64, free_memory());
        RunError::PinnedMemory { device, what, asked, planned, free }
    }

    /// The bytes of pinned memory that a run takes.
    fn pinned_bytes(&self, plan: &Plan) -> u64 {
        let program = &self.parts.program;
        let size = |port: &Port| u64::try_from(port.ty.bytes().eval(plan.bound.n)).unwrap_or(0);
        let staged = plan.staged.iter().filter_map(|i| program.inputs.get(*i as usize));
        let all = program.outputs.iter().chain(staged).map(size);
        plan.bound.devices[0].planned as u64 + all.sum::<u64>() + self.update_bytes()
    }

    /// The inputs of a run, with copies from which GPUs copy.
    fn batch(
        &self,
        inputs: &BTreeMap<String, Tensor>,
        options: &RunOptions,
    ) -> Result<Batch, RunError> {
        let (n, tensors) = inputs::check(&self.parts.program, inputs)?;
        self.check_alive()?;
        let plan = self.plan(n, options.max_memory)?;
        let tensors: Vec<Tensor> = tensors.into_iter().cloned().collect();
        let pinned = match self.pin(&plan, &tensors) {
            // Runs that end give theirs back.
            Err((_, error)) if error.is_out_of_memory() => None,
            pinned => Some(pinned.map_err(|(_, error)| self.failed_to_pin(STAGED, error))?),
        };
        Ok(Batch { n, tensors, plan, pinned, options: options.clone() })
    }

    /// Gives an input without axes another value; those come with the run, so that nothing copies the one before.
    pub(super) fn replace(
        &self,
        batch: &mut Batch,
        name: &str,
        value: &Tensor,
    ) -> Result<(), RunError> {
        let i = inputs::scalar(&self.parts.program, name, value)?;
        let key = u32::try_from(i).unwrap_or(u32::MAX);
        if let Some(block) = batch.pinned.as_mut().and_then(|pinned| pinned.get_mut(&key)) {
            match self.copied(value) {
                Ok(copy) => *block = copy,
                // Runs that end give theirs back.
                Err((_, error)) if error.is_out_of_memory() => batch.pinned = None,
                Err((_, error)) => return Err(self.failed_to_pin(STAGED, error)),
            }
        }
        batch.tensors[i] = value.clone();
        Ok(())
    }

    /// Copies of the inputs from which GPUs copy, where they can. With an error the bytes asked for.
    fn pin(
        &self,
        plan: &Plan,
        inputs: &[Tensor],
    ) -> Result<BTreeMap<u32, Arc<Pinned>>, (usize, DriverError)> {
        let mut staged = BTreeMap::new();
        for i in &plan.staged {
            let Some(tensor) = inputs.get(*i as usize) else { continue };
            staged.insert(*i, self.copied(tensor)?);
        }
        Ok(staged)
    }

    /// A copy of a tensor from which GPUs copy. With an error the bytes asked for.
    fn copied(&self, tensor: &Tensor) -> Result<Arc<Pinned>, (usize, DriverError)> {
        let bytes = tensor.bytes();
        let mut block = self.parts.pool.take(bytes.len()).map_err(|error| (bytes.len(), error))?;
        let whole = 0..bytes.len();
        if let Some(to) = block.parts(&[whole]).and_then(|mut parts| parts.pop()) {
            let copy = |(to, from): (&mut [u8], &[u8])| to.copy_from_slice(from);
            let pieces = to.par_chunks_mut(STAGED_AT_ONCE);
            self.parts.cpu.pool().install(|| {
                pieces.zip(bytes.par_chunks(STAGED_AT_ONCE)).for_each(copy);
            });
        }
        Ok(block.pinned().clone())
    }

    /// The host's memory: its arena and the outputs, of so many bytes planned.
    fn memory(&self, bound: &Bound, planned: u64) -> Result<DeviceMemory<HostBlock>, RunError> {
        let arena = self.take(bound.devices[0].planned, "its arena", planned)?;
        let mut outputs = Vec::with_capacity(self.parts.program.outputs.len());
        for port in &self.parts.program.outputs {
            let bytes = usize::try_from(port.ty.bytes().eval(bound.n)).unwrap_or(0);
            outputs.push(self.take(bytes, &format!("the output `{}`", port.name), planned)?);
        }
        Ok(DeviceMemory { arena, outputs, updates: self.update_blocks(planned)? })
    }

    /// A slot whose arenas are large enough, and their addresses. Where memory does not suffice for another run in
    /// flight, waits until one ends.
    fn slot(&self, plan: &Plan) -> Result<(Slot, Vec<u64>), RunError> {
        let bytes = plan.bound.devices.iter().skip(1).map(|device| device.planned as u64).sum();
        loop {
            let mut slots = lock(&self.slots);
            while slots.are_taken(bytes) {
                slots = self.freed.wait(slots).unwrap_or_else(PoisonError::into_inner);
            }
            self.check_alive()?;
            let slot = slots.free.pop();
            if slot.is_none() {
                slots.made += 1;
            }
            let before = slots.given_up;
            drop(slots);
            let (program, contexts) = (&self.parts.program, &self.parts.contexts);
            let made =
                slot.map_or_else(|| Slot::new(program, contexts), Ok).and_then(|mut slot| {
                    let arenas = slot.reserve(&plan.bound, contexts)?;
                    Ok((slot, arenas))
                });
            let error = match made {
                Ok(made) => return Ok(made),
                Err(error) => error,
            };
            let short = error.short();
            let mut others = self.give_up_slot(short.map(|_| bytes), before);
            if let Some(context) = short.and_then(|d| contexts[d].as_ref()) {
                others |= context.give_up_spares();
            }
            if short.is_none() || !others {
                return Err(self.no_slot(plan, error));
            }
        }
    }

    /// Says that a slot is no more, and the bytes of the plan for which there was no memory, if that is why; true if there
    /// are others, or were since the number of those given up was `before`.
    fn give_up_slot(&self, short: Option<u64>, before: u64) -> bool {
        let mut slots = lock(&self.slots);
        slots.made -= 1;
        // Free ones hold memory that is wanted.
        slots.made -= slots.free.len();
        let free = mem::take(&mut slots.free);
        let had = !free.is_empty() || slots.made > 0 || slots.given_up != before;
        slots.given_up += 1;
        if let Some(bytes) = short {
            slots.tighten(bytes);
        }
        // Whoever is short waits for them here, and finds their memory then.
        drop(free);
        drop(slots);
        self.freed.notify_all();
        had
    }

    fn no_slot(&self, plan: &Plan, error: SlotError) -> RunError {
        match error {
            SlotError::Driver { error, .. } if error.call == PIN => {
                let (asked, planned) = (report::PINNED, self.pinned_bytes(plan));
                self.not_pinned("what kernels report", (asked, planned), error)
            }
            SlotError::Driver { d, asked, error, .. } if error.is_out_of_memory() => {
                // What the driver takes for streams it does not say; the arena comes behind them.
                let asked = asked.unwrap_or(plan.bound.devices[d].planned as u64);
                self.out_of_memory(plan, d, asked)
            }
            SlotError::Driver { d, what, error, .. } => self.failed(d, what, error),
            SlotError::Thread(d, error) => RunError::Internal {
                device: self.device(d),
                label: String::new(),
                reason: format!("no worker thread: {error}"),
            },
        }
    }

    fn out_of_memory(&self, plan: &Plan, d: usize, asked: u64) -> RunError {
        let context = self.parts.contexts[d].as_ref();
        if let Some(frees) = context.map(|context| context.frees()).filter(|f| f.is_late()) {
            // What was given up for it is still at work.
            let (label, limit) = ("the arena".to_owned(), frees.limit());
            return RunError::Stuck { device: self.device(d), label, op: "memory", limit };
        }
        let free = context.and_then(|c| c.free_memory().ok()).unwrap_or(0);
        let planned = plan.bound.devices[d].planned as u64 + self.parts.param_bytes[d];
        RunError::OutOfMemory { device: self.device(d), n: plan.bound.n, asked, planned, free }
    }

    /// Leaks what a device may still be at between runs: whoever frees it waits for the device.
    pub(super) fn abandon(&self) {
        let mut slots = lock(&self.slots);
        slots.made -= slots.free.len();
        mem::forget(mem::take(&mut slots.free));
        mem::forget(Arc::clone(&self.parts));
    }

    /// Gives a slot back after a run, or leaks it where a device is still at work in it; before it what inputs came to.
    fn end(&self, slot: Slot, job: &Job, ended: &Ended) {
        if let (false, Err(error)) = (ended.is_clean, &ended.result) {
            lock(&self.dead).get_or_insert(error.clone());
        }
        self.take_back(job, ended);
        let mut slots = lock(&self.slots);
        slots.ended();
        if ended.is_abandoned {
            slots.made -= 1;
            mem::forget(slot);
            // Its kernels, parameters and contexts stay for the same reason.
            mem::forget(Arc::clone(&self.parts));
        } else {
            slots.free.push(slot);
        }
        drop(slots);
        // After a failure all that wait have to be told.
        self.freed.notify_all();
    }

    fn job(
        &self,
        Batch { tensors, plan, pinned, options, .. }: &Batch,
        (slot, arenas): (&Slot, Vec<u64>),
    ) -> Result<Job, RunError> {
        let parts = &self.parts;
        let planned = self.pinned_bytes(plan);
        let pinned = match pinned {
            Some(pinned) => pinned.clone(),
            None => self
                .pin(plan, tensors)
                .map_err(|(asked, error)| self.not_pinned(STAGED, (asked, planned), error))?,
        };
        let memory = self.memory(&plan.bound, planned)?;
        let held = lock(&self.held).clone();
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
            intake: Mutex::default(),
            arenas,
            contexts: parts.contexts.clone(),
            marks: slot.marks.clone(),
            events: Events::new(parts.program.events),
            board: Board::new(parts.program.devices.len()),
            progress: options.progress.clone(),
            trace: parts.trace.as_ref().map(|trace| trace.run(&parts.program.name)),
            graphs: parts.graphs,
            cpu: parts.cpu.clone(),
        })
    }

    /// Runs a batch; `intake` gives what its inputs have come to before.
    pub(super) fn execute(
        &self,
        batch: &Batch,
        intake: impl FnOnce() -> Option<Intake>,
    ) -> Result<RunOutput, RunError> {
        let changes = !self.parts.program.updates.is_empty();
        let _alone = changes.then(|| self.gate.write().unwrap_or_else(PoisonError::into_inner));
        let _among = (!changes).then(|| self.gate.read().unwrap_or_else(PoisonError::into_inner));
        self.check_alive()?;
        let (slot, arenas) = self.slot(&batch.plan)?;
        let ready = self.check_alive().and_then(|()| self.job(batch, (&slot, arenas)));
        let job = match ready {
            Ok(job) => Arc::new(Job { intake: Mutex::new(intake().map(Arc::new)), ..job }),
            Err(error) => {
                lock(&self.slots).free.push(slot);
                // One that finds the devices dead leaves the slot to others.
                self.freed.notify_all();
                return Err(error);
            }
        };
        let ended = slot.run(&job, self.parts.watchdog);
        if let (Some(trace), Err(error)) = (&job.trace, &ended.result) {
            trace.fail(error);
        }
        self.end(slot, &job, &ended);
        let times = ended.result?;
        let (blocks, updates) = {
            let mut memory = lock(&job.memory);
            (mem::take(&mut memory.outputs), mem::take(&mut memory.updates))
        };
        let outputs = self.outputs(batch.n, blocks)?;
        if changes {
            self.commit(updates)?;
        }
        Ok(RunOutput { n: batch.n, outputs, devices: self.stats(&batch.plan, &times) })
    }

    /// The outputs, in the memory to which they were copied.
    fn outputs(&self, n: i64, blocks: Vec<HostBlock>) -> Result<Vec<(Arc<str>, Tensor)>, RunError> {
        let ports = self.parts.program.outputs.iter().zip(blocks);
        ports
            .map(|(port, block)| {
                let dims = port.ty.shape.at(n);
                let bytes = usize::try_from(port.ty.bytes().eval(n)).unwrap_or(0);
                let shared = Bytes::from_owner(block).slice(..bytes);
                let tensor = Tensor::from_shared(port.ty.dtype, &dims, &shared);
                let failed = |error| RunError::Allocation { device: Device::HOST, error };
                tensor.map(|tensor| (port.name.clone(), tensor)).map_err(failed)
            })
            .collect()
    }

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
        Ok(Box::new(self.bring(self.batch(inputs, options)?)?))
    }

    fn weights(&self) -> Result<Weights, RunError> {
        self.current()
    }

    fn set_weights(&self, weights: &Weights) -> Result<(), CompileError> {
        self.set(weights)
    }
}
