//! The parameters of a program on GPUs that runs change, or that are given other elements.
//!
//! A run computes new elements beside the old ones. When all devices are done, and only then, they are copied over the
//! old ones, in the memory of each device; so a run that fails leaves them as they were. Kernels and captured graphs
//! keep their addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::sync::{Arc, PoisonError};

use bytes::Bytes;

use super::backend::{NotStaged, Staging, finish, not_pinned, planned};
use super::executor::CudaExecutable;
use super::plan::Params;
use crate::backend::cuda::driver::context::{Context, NOT_READY};
use crate::backend::cuda::driver::contexts;
use crate::backend::cuda::driver::memory::{Global, HostBlock, Pinned};
use crate::backend::cuda::driver::stream::Stream;
use crate::backend::host::lock;
use crate::backend::{CompileError, DriverError, RunError};
use crate::ir::Weights;
use crate::lower::{Program, Storage};
use crate::types::{Device, Order, Tensor};

/// The memory of a device for new elements, by the position of the update.
pub(super) type Updates = BTreeMap<u32, Arc<Global>>;

/// The parameters that the host holds, and those of them from which GPUs copy.
#[derive(Clone)]
pub(super) struct Held {
    pub(super) tensors: Arc<Vec<Option<Tensor>>>,
    pub(super) pinned: Arc<BTreeMap<u32, Arc<Pinned>>>,
}

/// What puts new elements in the place of old ones on a device.
pub(super) struct Commit {
    /// The device's position.
    device: usize,
    stream: Stream,
    /// From where to where, and how many bytes.
    copies: Vec<(u64, u64, usize)>,
}

/// The updates of a device of a program.
fn of(program: &Program, d: usize) -> impl Iterator<Item = u32> + '_ {
    program.devices[d].buffers.iter().filter_map(|buffer| match buffer.storage {
        Storage::Update(i) => Some(i),
        Storage::Input(_)
        | Storage::Output(_)
        | Storage::Param(_)
        | Storage::Arena
        | Storage::Part { .. }
        | Storage::Reuse { .. } => None,
    })
}

/// The bytes of an update.
fn bytes(program: &Program, i: u32) -> usize {
    program.update(i).and_then(|port| usize::try_from(port.ty.bytes().eval(0)).ok()).unwrap_or(0)
}

fn failed(device: Device, name: &str, error: DriverError) -> CompileError {
    let what = format!("the update of `{name}`");
    CompileError::Driver { device, what, error: Box::new(error) }
}

/// Takes memory for the new elements on each device, and what puts them in the place of the old ones, which logical
/// devices on one GPU share.
pub(super) fn prepare(
    program: &Program,
    contexts: &[Option<Arc<Context>>],
    params: &[Params],
) -> Result<(Vec<Updates>, Vec<Commit>), CompileError> {
    let (mut all, mut commits, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (d, context) in contexts.iter().enumerate() {
        let mut updates = Updates::new();
        let Some(context) = context.as_ref().filter(|_| of(program, d).next().is_some()) else {
            all.push(updates);
            continue;
        };
        let device = program.devices[d].device;
        let mut copies = Vec::new();
        for i in of(program, d) {
            let name = program.update(i).map_or("", |port| &*port.name);
            let new = Global::new(context, bytes(program, i)).map_err(|error| {
                if !error.is_out_of_memory() {
                    return failed(device, name, error);
                }
                let free = context.free_memory().unwrap_or(0);
                let (name, asked) = (name.to_owned(), bytes(program, i) as u64);
                let planned = planned(program, &program.devices[d]);
                CompileError::OutOfMemory { device, name, asked, planned, free }
            })?;
            let param = program.updates.get(i as usize);
            let old = param.and_then(|param| params.get(d)?.get(&(*param, Order::RowMajor)));
            if let Some(old) = old
                && new.len() > 0
                && seen.insert((context.ordinal(), old.address()))
            {
                copies.push((new.address(), old.address(), new.len()));
            }
            updates.insert(i, Arc::new(new));
        }
        let stream = Stream::new(context).map_err(|error| failed(device, "parameters", error))?;
        commits.push(Commit { device: d, stream, copies });
        all.push(updates);
    }
    Ok((all, commits))
}

impl CudaExecutable {
    /// Memory of the host for new elements, of so many bytes planned; blocks without bytes for those of other devices.
    pub(super) fn update_blocks(&self, planned: u64) -> Result<Vec<HostBlock>, RunError> {
        let program = &self.parts.program;
        let own: BTreeSet<u32> = of(program, 0).collect();
        let count = u32::try_from(program.updates.len()).unwrap_or(u32::MAX);
        let size = |i: u32| if own.contains(&i) { bytes(program, i) } else { 0 };
        (0..count).map(|i| self.take(size(i), "the updates", planned)).collect()
    }

    /// The bytes of these blocks.
    pub(super) fn update_bytes(&self) -> u64 {
        let program = &self.parts.program;
        of(program, 0).map(|i| bytes(program, i) as u64).sum()
    }

    /// Puts the new elements of a run that succeeded in the place of the old ones, on every device.
    pub(super) fn commit(&self, blocks: Vec<HostBlock>) -> Result<(), RunError> {
        let parts = &self.parts;
        let held = self.with_blocks(blocks)?;
        let put = |commit: &Commit| {
            let mut copies = commit.copies.iter();
            copies.try_for_each(|(from, to, bytes)| commit.stream.copy(*from, *to, *bytes))
        };
        let mut failed = None;
        for commit in &parts.commits {
            if let (None, Err(error)) = (&failed, put(commit)) {
                failed = Some((commit.device, error));
            }
        }
        // Also behind a failure: what was begun is waited for.
        for commit in &parts.commits {
            if let Err(error) = finish(&commit.stream, parts.watchdog) {
                // A question that fails is asked again.
                let busy = |error: &DriverError| error.code == NOT_READY;
                let again = || finish(&commit.stream, parts.watchdog).is_err_and(|e| busy(&e));
                if busy(&error) || again() {
                    self.abandon();
                }
                failed.get_or_insert((commit.device, error));
            }
        }
        if let Some((device, error)) = failed {
            return Err(self.torn(device, error));
        }
        *lock(&self.held) = held;
        Ok(())
    }

    /// What the host holds after a run, in the memory where that computed it.
    fn with_blocks(&self, blocks: Vec<HostBlock>) -> Result<Held, RunError> {
        let program = &self.parts.program;
        let own: BTreeSet<u32> = of(program, 0).collect();
        let held = lock(&self.held).clone();
        let (mut tensors, mut pinned) = ((*held.tensors).clone(), (*held.pinned).clone());
        for (i, block) in (0u32..).zip(blocks).filter(|(i, _)| own.contains(i)) {
            let param = program.updates.get(i as usize);
            let (Some(port), Some(param)) = (program.update(i), param) else { continue };
            let new = block.pinned().clone();
            let shared = Bytes::from_owner(block).slice(..bytes(program, i));
            let tensor = Tensor::from_shared(port.ty.dtype, &port.ty.shape.at(0), &shared);
            let failed = |error| RunError::Allocation { device: Device::HOST, error };
            tensors[*param as usize] = Some(tensor.map_err(failed)?);
            if let Some(pinned) = pinned.get_mut(param) {
                *pinned = new;
            }
        }
        Ok(Held { tensors: Arc::new(tensors), pinned: Arc::new(pinned) })
    }

    /// An error after which some parameters may hold new elements and others old ones: no run comes after it.
    fn torn(&self, d: usize, error: DriverError) -> RunError {
        let error = self.failed(d, "the updates", error);
        lock(&self.dead).get_or_insert(error.clone());
        error
    }

    /// The elements that the parameters have now, of a program that changes some.
    pub(super) fn current(&self) -> Result<Weights, RunError> {
        let parts = &self.parts;
        if parts.program.updates.is_empty() {
            return Err(RunError::Parameters(parts.program.target.name));
        }
        let _still = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        self.check_alive()?;
        let mut weights = lock(&self.fixed).clone();
        let held = lock(&self.held).clone();
        for param in &parts.program.updates {
            let Some(port) = parts.program.params.get(*param as usize) else { continue };
            if let Some(Some(tensor)) = held.tensors.get(*param as usize) {
                weights.insert(port.name.clone(), tensor.clone());
                continue;
            }
            let on = |d: usize| parts.params.get(d)?.get(&(*param, Order::RowMajor));
            let found = (0..parts.params.len()).find_map(|d| Some((d, on(d)?)));
            let Some((d, global)) = found else { continue };
            let data = self.download(d, global)?;
            let data = data.as_ref().get(..global.len()).unwrap_or_default();
            let tensor = Tensor::from_bytes(port.ty.dtype, &port.ty.shape.at(0), data);
            let tensor =
                tensor.map_err(|error| RunError::Allocation { device: Device::HOST, error })?;
            weights.insert(port.name.clone(), tensor);
        }
        Ok(weights)
    }

    /// The bytes in the memory of a device.
    fn download(&self, d: usize, global: &Arc<Global>) -> Result<HostBlock, RunError> {
        let block = self.take(global.len(), "the parameters", global.len() as u64)?;
        let Some(context) = self.parts.contexts.get(d).and_then(Option::as_ref) else {
            return Ok(block);
        };
        if global.len() > 0 {
            let wrong = |error| self.failed(d, "the parameters", error);
            let stream = Stream::new(context).map_err(wrong)?;
            stream.download(global.address(), block.pinned(), 0, global.len()).map_err(wrong)?;
            if let Err(error) = finish(&stream, self.parts.watchdog) {
                let is_stuck = error.code == NOT_READY;
                let error = wrong(error);
                if is_stuck {
                    mem::forget((stream, block));
                    self.abandon();
                    lock(&self.dead).get_or_insert(error.clone());
                }
                return Err(error);
            }
        }
        Ok(block)
    }

    /// Gives parameters other elements, between two runs. Where memory for the copies is not to be had, they stay as they
    /// were.
    pub(super) fn set(&self, weights: &Weights) -> Result<(), CompileError> {
        let parts = &self.parts;
        let program = &parts.program;
        let _alone = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = &*lock(&self.dead) {
            return Err(CompileError::Dead(Box::new(error.clone())));
        }
        let ports = (0u32..).zip(&program.params);
        let ports: BTreeMap<&str, u32> = ports.map(|(i, port)| (&*port.name, i)).collect();
        let mut new: BTreeMap<u32, &Tensor> = BTreeMap::new();
        for (name, tensor) in weights.iter() {
            let i = ports.get(&**name);
            let i = *i.ok_or_else(|| CompileError::UnknownParam(name.to_string()))?;
            let expected = &program.params[i as usize].ty;
            if tensor.tensor_type() != *expected {
                return Err(CompileError::ParamType {
                    name: name.to_string(),
                    expected: Box::new(expected.clone()),
                    found: Box::new(tensor.tensor_type()),
                });
            }
            new.insert(i, tensor);
        }
        let held = self.with(&new)?;
        let writes = self.writes(&new);
        let largest = writes.iter().max_by_key(|write| write.tensor.bytes().len());
        let (largest, bytes) =
            largest.map_or(("", 0), |write| (write.name, write.tensor.bytes().len()));
        let staging = Staging::new(&parts.pool, bytes, writes.iter().map(|write| write.context));
        let staging = staging.map_err(|error| match error {
            NotStaged::Stream(ordinal, error) => {
                let on = writes.iter().find(|write| write.context.ordinal() == ordinal);
                failed(on.map_or(Device::HOST, |write| write.device), "parameters", error)
            }
            NotStaged::Pinned(error) => {
                not_pinned(&parts.pool, largest, (bytes, bytes as u64), error)
            }
        })?;
        let written = self.write_all(&writes, staging);
        if let Err(CompileError::Driver { device, what, error }) = &written {
            let (label, error) = (what.clone(), error.clone());
            if error.code == NOT_READY {
                self.abandon();
            }
            let beside = contexts::beside(&parts.program, &parts.contexts, *device);
            let error = RunError::Driver { device: *device, label, op: "memory", error, beside };
            lock(&self.dead).get_or_insert(error);
        }
        written?;
        *lock(&self.held) = held;
        let mut fixed = lock(&self.fixed);
        for (name, tensor) in weights.iter() {
            if fixed.get(name).is_some() {
                fixed.insert(name.clone(), tensor.clone());
            }
        }
        Ok(())
    }

    /// What the host holds, with these elements.
    fn with(&self, new: &BTreeMap<u32, &Tensor>) -> Result<Held, CompileError> {
        let (program, held) = (&self.parts.program, lock(&self.held).clone());
        let (mut tensors, mut pinned) = ((*held.tensors).clone(), (*held.pinned).clone());
        for (i, tensor) in new {
            if let Some(Some(held)) = tensors.get_mut(*i as usize) {
                *held = (*tensor).clone();
            }
            if let Some(held) = pinned.get_mut(i) {
                let (name, bytes) = (&program.params[*i as usize].name, tensor.bytes().len());
                let planned = planned(program, &program.devices[0]);
                let pool = &self.parts.pool;
                let wrong = |error| not_pinned(pool, name, (bytes, planned), error);
                let mut block = self.parts.pool.take(bytes).map_err(wrong)?;
                block.fill(tensor.bytes());
                *held = block.pinned().clone();
            }
        }
        Ok(Held { tensors: Arc::new(tensors), pinned: Arc::new(pinned) })
    }

    /// What has to be written where: elements to every GPU that holds them, once.
    fn writes<'a>(&'a self, new: &BTreeMap<u32, &'a Tensor>) -> Vec<Write<'a>> {
        let parts = &self.parts;
        let (mut seen, mut writes) = (BTreeSet::new(), Vec::new());
        for (d, (held, context)) in parts.params.iter().zip(parts.contexts.iter()).enumerate() {
            let Some(context) = context else { continue };
            for ((i, order), global) in held {
                let Some(tensor) = new.get(i).filter(|tensor| !tensor.bytes().is_empty()) else {
                    continue;
                };
                if seen.insert((context.ordinal(), global.address())) {
                    let device = parts.program.devices[d].device;
                    let name = &parts.program.params[*i as usize].name;
                    writes.push(Write { device, context, name, global, tensor, order: *order });
                }
            }
        }
        writes
    }

    fn write_all(&self, writes: &[Write<'_>], staging: Staging) -> Result<(), CompileError> {
        let mut staging = staging;
        for Write { device, context, name, global, tensor, order } in writes {
            let written = staging.write(context, global, (tensor, *order), self.parts.watchdog);
            staging = written.map_err(|error| {
                let what = format!("the parameter `{name}`");
                CompileError::Driver { device: *device, what, error: Box::new(error) }
            })?;
        }
        Ok(())
    }
}

/// New elements of a parameter in the memory of a GPU.
struct Write<'a> {
    device: Device,
    context: &'a Arc<Context>,
    name: &'a str,
    global: &'a Arc<Global>,
    tensor: &'a Tensor,
    order: Order,
}
