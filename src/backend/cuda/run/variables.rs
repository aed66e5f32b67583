//! The parameters of a program on GPUs that runs change, or that are given other elements.
//!
//! A run computes new elements beside the old ones. When all devices are done, and only then, they
//! are copied over the old ones, in the memory of each device; so a run that fails leaves them as
//! they were. Kernels and captured graphs keep their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::parts::{Bytes, Commit, HostParams, Parts, Replacement, update_size};
use super::pinned::{Elements, NotStaged, Staging, not_pinned};
use super::plan::{Params, Updates, planned};
use super::slots::SlotPool;
use crate::backend::cuda::driver::context::{Context, NOT_READY};
use crate::backend::cuda::driver::memory::{Global, HostBlock};
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::host::lock;
use crate::backend::params::Sources;
use crate::backend::{CompileError, DriverError, RunError, params};
use crate::ir::Weights;
use crate::lower::Program;
use crate::types::invariant::{int, invariant};
use crate::types::{Device, Order, Tensor};

/// The parameters of an executable between runs.
pub(super) struct Variables {
    /// Taken to read by runs that change no parameters, which happen at the same time, else to
    /// write.
    gate: RwLock<()>,
    /// The parameters that the host holds.
    held: Mutex<HostParams>,
    /// The elements of the parameters that no run changes, of a program that changes others.
    fixed: Mutex<Weights>,
    /// The elements of those that others are computed from.
    sources: Mutex<Sources>,
}

/// The guard of a run: exclusive if it changes parameters, which runs beside it would read half
/// changed.
pub(super) enum RunGuard<'a> {
    /// Beside others.
    Shared { _guard: RwLockReadGuard<'a, ()> },
    /// Alone.
    Exclusive { _guard: RwLockWriteGuard<'a, ()> },
}

/// The error of the driver while the update of a parameter was prepared.
fn failed(device: Device, name: &str, error: DriverError) -> CompileError {
    let what = format!("the update of `{name}`");
    CompileError::Driver { device, what, error: Box::new(error) }
}

/// Memory for new elements on each device, and what puts them in the place of the old ones.
pub(super) struct Prepared {
    pub(super) updates: Vec<Updates>,
    pub(super) commits: Vec<Commit>,
}

/// Takes memory for the new elements on each device; logical devices on one GPU share the copies.
pub(super) fn prepare(
    program: &Program,
    contexts: &[Option<Arc<Context>>],
    params: &[Params],
) -> Result<Prepared, CompileError> {
    let (mut all, mut commits, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (d, context) in contexts.iter().enumerate() {
        let (device, mut own) = (&program.devices[d], Updates::new());
        let Some(context) = context.as_ref().filter(|_| params::updates(device).next().is_some())
        else {
            all.push(own);
            continue;
        };
        let mut copies = Vec::new();
        for (i, _) in params::updates(device) {
            let new = new_elements(program, d, context, i)?;
            let param =
                invariant(program.updates.get(i as usize), "that an update is of a parameter");
            let old = params.get(d).and_then(|held| held.get(&(*param, Order::RowMajor)));
            let old = old.ok_or_else(|| {
                let name = &program.params[*param as usize].name;
                CompileError::Internal(format!("{} changes `{name}` without it", device.device))
            })?;
            // Two logical devices of one GPU hold the same memory: it is copied once.
            if new.len() > 0 && seen.insert((context.ordinal(), old.address())) {
                let (old, bytes) = (old.address(), new.len());
                copies.push(Replacement { new: new.address(), old, bytes });
            }
            own.insert(i, Arc::new(new));
        }
        // A stream of its own: the copies wait for the whole run, and nothing of the run waits for
        // them.
        let stream = Stream::new(context);
        let stream = stream.map_err(|error| failed(device.device, "parameters", error))?;
        let commit = Commit::new(d, stream, copies);
        commits.push(commit.map_err(|error| failed(device.device, "parameters", error))?);
        all.push(own);
    }
    Ok(Prepared { updates: all, commits })
}

/// Memory of a GPU for the new elements of an update.
fn new_elements(
    program: &Program,
    d: usize,
    context: &Arc<Context>,
    i: u32,
) -> Result<Global, CompileError> {
    let device = program.devices[d].device;
    let name = &invariant(program.update(i), "that an update is of a parameter").name;
    let bytes =
        update_size(program, i).map_err(|error| CompileError::Internal(error.to_string()))?;
    Global::new(context, bytes).map_err(|error| {
        if !error.is_out_of_memory() {
            return failed(device, name, error);
        }
        // For the message only: a device whose driver does not answer has no known free memory.
        let free = context.free_memory().unwrap_or(0);
        let (name, asked) = (name.to_string(), bytes as u64);
        let planned = planned(program, &program.devices[d]);
        CompileError::OutOfMemory { device, name, asked, planned, free }
    })
}

impl Variables {
    /// The parameters with which an executable begins: what the host holds, and all elements.
    pub(super) fn new(
        program: &Program,
        held: HostParams,
        weights: Weights,
    ) -> Result<Self, CompileError> {
        let sources = Mutex::new(Sources::new(program, &weights)?);
        let of = |i: u32| program.params.get(i as usize).map(|port| &*port.name);
        let changed: BTreeSet<&str> = program.updates.iter().filter_map(|i| of(*i)).collect();
        let known: BTreeSet<&str> = program.params.iter().map(|port| &*port.name).collect();
        let mut fixed = weights;
        // A program that changes nothing is never asked for its parameters.
        fixed.retain(|name| !changed.is_empty() && known.contains(name) && !changed.contains(name));
        let (gate, held) = (RwLock::default(), Mutex::new(held));
        Ok(Self { gate, held, fixed: Mutex::new(fixed), sources })
    }

    /// Waits for the turn of a run.
    pub(super) fn begin_run(&self, program: &Program) -> RunGuard<'_> {
        if program.updates.is_empty() {
            RunGuard::Shared { _guard: self.gate.read().unwrap_or_else(PoisonError::into_inner) }
        } else {
            RunGuard::Exclusive {
                _guard: self.gate.write().unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// The parameters on the host.
    pub(super) fn held(&self) -> HostParams {
        lock(&self.held).clone()
    }

    /// Puts the new elements of a run that succeeded in the place of the old ones, on every device.
    pub(super) fn commit(
        &self,
        parts: &Parts,
        slots: &SlotPool,
        blocks: Vec<HostBlock>,
    ) -> Result<(), RunError> {
        // Computed before the copies begin: what may still fail, fails while the old elements are
        // whole.
        let held = self.with_blocks(parts, blocks)?;
        let mut failed = None;
        for commit in &parts.commits {
            if let (None, Err(error)) = (&failed, commit.put()) {
                failed = Some((commit.device, error));
            }
        }
        // Also behind a failure: what was begun is waited for.
        for commit in &parts.commits {
            if let Err(error) = commit.stream.finish(parts.watchdog) {
                // A question that fails is asked again.
                let busy = |error: &DriverError| error.code == NOT_READY;
                let again = || commit.stream.finish(parts.watchdog).is_err_and(|e| busy(&e));
                if busy(&error) || again() {
                    slots.abandon();
                }
                failed.get_or_insert((commit.device, error));
            }
        }
        if let Some((device, error)) = failed {
            return Err(torn(parts, device, error));
        }
        *lock(&self.held) = held;
        Ok(())
    }

    /// What the host holds after a run, in the memory where that computed it.
    fn with_blocks(&self, parts: &Parts, blocks: Vec<HostBlock>) -> Result<HostParams, RunError> {
        let program = &parts.program;
        let own: BTreeSet<u32> = params::updates(&program.devices[0]).map(|(i, _)| i).collect();
        let held = self.held();
        let (mut tensors, mut pinned) = ((*held.tensors).clone(), (*held.pinned).clone());
        for (i, block) in (0u32..).zip(blocks).filter(|(i, _)| own.contains(i)) {
            let param =
                invariant(program.updates.get(i as usize), "that an update is of a parameter");
            let port = &program.params[*param as usize];
            let new = block.pinned().clone();
            let shared = bytes::Bytes::from_owner(block).slice(..parts.update_size(i)?);
            let tensor = Tensor::from_shared(port.ty.dtype, &port.ty.shape.at(0), &shared);
            let failed = |error| RunError::Allocation { device: Device::HOST, error };
            tensors[*param as usize] = Some(tensor.map_err(failed)?);
            if let Some(pinned) = pinned.get_mut(param) {
                *pinned = new;
            }
        }
        Ok(HostParams { tensors: Arc::new(tensors), pinned: Arc::new(pinned) })
    }

    /// The elements that the parameters have now, of a program that changes some.
    pub(super) fn current(&self, parts: &Parts, slots: &SlotPool) -> Result<Weights, RunError> {
        if parts.program.updates.is_empty() {
            return Err(RunError::Parameters(parts.program.target.name));
        }
        // No run may change a parameter while others are read.
        let _still = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        parts.health.check()?;
        let mut weights = lock(&self.fixed).clone();
        let held = self.held();
        for param in &parts.program.updates {
            let port = &parts.program.params[*param as usize];
            if let Some(Some(tensor)) = held.tensors.get(*param as usize) {
                weights.insert(port.name.clone(), tensor.clone());
                continue;
            }
            let on = |d: usize| parts.params.get(d)?.get(&(*param, Order::RowMajor));
            // All devices that hold a parameter hold the same bits: the first that does is read.
            let found = (0..parts.params.len()).find_map(|d| Some((d, on(d)?)));
            let (d, global) = found.ok_or_else(|| RunError::Internal {
                device: Device::HOST,
                label: port.name.to_string(),
                reason: "no device holds the parameter, which runs change".to_owned(),
            })?;
            let data = download(parts, slots, d, global)?;
            let data = &data.as_ref()[..global.len()];
            let tensor = Tensor::from_bytes(port.ty.dtype, &port.ty.shape.at(0), data);
            let tensor =
                tensor.map_err(|error| RunError::Allocation { device: Device::HOST, error })?;
            weights.insert(port.name.clone(), tensor);
        }
        Ok(weights)
    }

    /// Gives parameters other elements, between two runs. Where memory for the copies is not to be
    /// had, they stay as they were.
    pub(super) fn set(
        &self,
        parts: &Parts,
        slots: &SlotPool,
        weights: &Weights,
    ) -> Result<(), CompileError> {
        let program = &parts.program;
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = parts.health.dead() {
            return Err(CompileError::Dead(Box::new(error)));
        }
        let mut new = params::matched(program, weights)?;
        let sources = lock(&self.sources).with(program, &mut new)?;
        let held = self.with(parts, &new)?;
        let writes = writes(parts, &new);
        let staging = staging(parts, &writes)?;
        // Memory was taken before: from here on only the driver can fail, and then the state is
        // torn.
        let written = write_all(parts, &writes, staging);
        if let Err(CompileError::Driver { device, what, error }) = &written {
            let (label, error) = (what.clone(), error.clone());
            if error.code == NOT_READY {
                slots.abandon();
            }
            let beside = parts.health.colocated(*device);
            let error = RunError::Driver { device: *device, label, op: "memory", error, beside };
            parts.health.die(&error);
        }
        written?;
        *lock(&self.held) = held;
        *lock(&self.sources) = sources;
        let mut fixed = lock(&self.fixed);
        for (name, tensor) in weights.iter() {
            if fixed.get(name).is_some() {
                fixed.insert(name.clone(), tensor.clone());
            }
        }
        Ok(())
    }

    /// The parameters on the host, with these elements.
    fn with(&self, parts: &Parts, new: &BTreeMap<u32, Tensor>) -> Result<HostParams, CompileError> {
        let (program, held) = (&parts.program, self.held());
        let (mut tensors, mut pinned) = ((*held.tensors).clone(), (*held.pinned).clone());
        for (i, tensor) in new {
            if let Some(Some(held)) = tensors.get_mut(*i as usize) {
                *held = tensor.clone();
            }
            if let Some(held) = pinned.get_mut(i) {
                let planned = planned(program, &program.devices[0]);
                let bytes = Bytes { asked: tensor.bytes().len(), planned };
                let port = invariant(program.param(*i), "that the host holds parameters");
                let name = &port.name;
                let taken = parts.pool.take(bytes.asked);
                let mut block =
                    taken.map_err(|error| not_pinned(&parts.pool, bytes, name, error))?;
                let is_filled = block.fill(tensor.bytes());
                invariant(
                    is_filled.then_some(()),
                    "that a block has the bytes that were asked for",
                );
                *held = block.pinned().clone();
            }
        }
        Ok(HostParams { tensors: Arc::new(tensors), pinned: Arc::new(pinned) })
    }
}

/// An error after which some parameters may hold new elements and others old ones: no run comes
/// after it.
fn torn(parts: &Parts, d: usize, error: DriverError) -> RunError {
    let error = parts.health.failed(d, "the updates", error);
    parts.health.die(&error);
    error
}

/// The bytes in the memory of a device.
fn download(
    parts: &Parts,
    slots: &SlotPool,
    d: usize,
    global: &Arc<Global>,
) -> Result<HostBlock, RunError> {
    let bytes = Bytes { asked: global.len(), planned: global.len() as u64 };
    let block = parts.take(bytes, "the parameters")?;
    let context = parts.contexts.get(d).and_then(Option::as_ref);
    let context = invariant(context, "that memory of a GPU is that of a context");
    if global.len() > 0 {
        let wrong = |error| parts.health.failed(d, "the parameters", error);
        let stream = Stream::new(context).map_err(wrong)?;
        stream.download(global.address(), block.pinned(), 0, global.len()).map_err(wrong)?;
        if let Err(error) = stream.finish(parts.watchdog) {
            let is_stuck = error.code == NOT_READY;
            let error = wrong(error);
            if is_stuck {
                mem::forget((stream, block));
                slots.abandon();
                parts.health.die(&error);
            }
            return Err(error);
        }
    }
    Ok(block)
}

/// Staging for the largest of these writes, on each GPU that one goes to.
fn staging(parts: &Parts, writes: &[Write<'_>]) -> Result<Staging, CompileError> {
    let size = |write: &Write<'_>| write.elements.tensor.bytes().len();
    let largest = writes.iter().max_by_key(|write| size(write));
    // Without a write nothing is staged.
    let (name, asked) = largest.map_or(("", 0), |write| (write.name, size(write)));
    let staging = Staging::new(&parts.pool, asked, writes.iter().map(|write| write.context));
    staging.map_err(|error| match error {
        NotStaged::Stream(ordinal, error) => {
            let on = writes.iter().find(|write| write.context.ordinal() == ordinal);
            let on = invariant(on, "that a stream is of a GPU that is written to");
            failed(on.device, "parameters", error)
        }
        NotStaged::Pinned(error) => {
            let bytes = Bytes { asked, planned: asked as u64 };
            not_pinned(&parts.pool, bytes, name, error)
        }
    })
}

/// What has to be written where: elements to every GPU that holds them, once.
fn writes<'a>(parts: &'a Parts, new: &'a BTreeMap<u32, Tensor>) -> Vec<Write<'a>> {
    let (mut seen, mut writes) = (BTreeSet::new(), Vec::new());
    for (d, (held, context)) in parts.params.iter().zip(parts.contexts.iter()).enumerate() {
        let Some(context) = context else { continue };
        for ((i, order), global) in held {
            let Some(tensor) = new.get(i).filter(|tensor| !tensor.bytes().is_empty()) else {
                continue;
            };
            if seen.insert((context.ordinal(), global.address())) {
                let device = parts.program.devices[d].device;
                let port = invariant(parts.program.param(*i), "that a device holds parameters");
                let name = &port.name;
                let elements = Elements { tensor, order: *order };
                writes.push(Write { device, context, name, global, elements });
            }
        }
    }
    writes
}

fn write_all(parts: &Parts, writes: &[Write<'_>], staging: Staging) -> Result<(), CompileError> {
    let mut staging = staging;
    for Write { device, context, name, global, elements } in writes {
        let write = || staging.write(context, global, *elements, parts.watchdog);
        let written = parts.cpu.crew().enter(write);
        staging = written.map_err(|error| {
            let what = format!("the parameter `{name}`");
            CompileError::Driver { device: *device, what, error: Box::new(error) }
        })?;
    }
    Ok(())
}

/// Memory of the host for new elements, of so many bytes planned; blocks without bytes for those of
/// other devices.
pub(super) fn update_blocks(parts: &Parts, planned: u64) -> Result<Vec<HostBlock>, RunError> {
    let program = &parts.program;
    let own: BTreeSet<u32> = params::updates(&program.devices[0]).map(|(i, _)| i).collect();
    let block = |i: u32| {
        let asked = if own.contains(&i) { parts.update_size(i)? } else { 0 };
        parts.take(Bytes { asked, planned }, "the updates")
    };
    (0..int(program.updates.len())).map(block).collect()
}

/// New elements of a parameter in the memory of a GPU.
struct Write<'a> {
    device: Device,
    context: &'a Arc<Context>,
    name: &'a str,
    global: &'a Arc<Global>,
    elements: Elements<'a>,
}
