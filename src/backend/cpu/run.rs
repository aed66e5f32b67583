//! One run: a control thread for each device takes the device's steps in order.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytemuck::PodCastError;
use rayon::ThreadPool;
use smallvec::SmallVec;

use super::elementwise::{self, Epilogue};
use super::events::{Events, Stopped};
use super::kernel::{Kernel, Slices, Unsuited};
use super::lock;
use super::memory::DeviceMemory;
use crate::backend::RunError;
use crate::lower::{Action, Bound, BufferId, Launch, Location, Program, Space, Step};
use crate::op::{Op, OpError};
use crate::types::{DType, Tensor};

/// A program at one batch size, with the code of its launches.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) bound: Arc<Bound>,
    /// For each step of each device its kernel; `None` where the step launches none or has nothing to compute.
    kernels: Vec<Vec<Option<Kernel>>>,
}

impl Prepared {
    pub(super) fn new(program: &Program, bound: Arc<Bound>) -> Self {
        let devices = program.devices.iter().zip(&bound.devices);
        let kernels = devices
            .map(|(device, plan)| {
                let kernel = |(step, active): (&Step, &bool)| {
                    let Action::Launch(launch) = &step.action else { return None };
                    let empty = |b: &BufferId| plan.locations[b.index()].bytes == 0;
                    let idle = !active || launch.results.iter().all(empty);
                    (!idle).then(|| Kernel::new(launch, plan, bound.n))
                };
                device.steps.iter().zip(&plan.active).map(kernel).collect()
            })
            .collect();
        Self { bound, kernels }
    }
}

/// Everything that the control threads of one run share.
pub(super) struct Run<'a> {
    pub(super) program: &'a Program,
    pub(super) prepared: &'a Prepared,
    pub(super) inputs: &'a [&'a Tensor],
    pub(super) params: &'a [Vec<Option<Tensor>>],
    pub(super) memories: Vec<Mutex<DeviceMemory>>,
    pub(super) pool: &'a ThreadPool,
    pub(super) events: Events,
    pub(super) progress: Option<&'a AtomicU64>,
}

/// Why a step ends the device's work.
enum Failure {
    Stopped,
    Op(&'static str, Box<OpError>),
    Internal(String),
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

fn floats(bytes: Option<&[u8]>) -> Result<Option<&[f32]>, PodCastError> {
    bytes.map(bytemuck::try_cast_slice).transpose()
}

fn internal(reason: &str) -> Failure {
    Failure::Internal(reason.to_owned())
}

/// The bytes of its arena that a device used and the time it worked; `None` if it stopped because of another.
type Outcome = Result<Option<(u64, Duration)>, RunError>;

impl Run<'_> {
    /// Runs all devices; returns for each the bytes of its arena that it used and the time it worked.
    pub(super) fn all_devices(&self) -> Result<Vec<(u64, Duration)>, RunError> {
        // Nothing waits on a single device, so it may take a worker of the pool from beginning to end.
        if self.program.devices.len() == 1 {
            let outcome = self.pool.install(|| self.device(0))?;
            return Ok(outcome.into_iter().collect());
        }
        let outcomes: Vec<Outcome> = thread::scope(|scope| {
            let mut threads = Vec::new();
            for d in 1..self.program.devices.len() {
                let name = format!("fanwise-{}", self.program.devices[d].device);
                let thread =
                    thread::Builder::new().name(name).spawn_scoped(scope, move || self.device(d));
                if thread.is_err() {
                    self.events.stop();
                }
                threads.push((d, thread));
            }
            let host = self.device(0);
            let others = threads.into_iter().map(|(d, thread)| match thread {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|_| Err(self.fault(d, "", "the thread panicked")))
                }
                Err(e) => Err(self.fault(d, "", &format!("no control thread: {e}"))),
            });
            std::iter::once(host).chain(others).collect()
        });
        let mut done = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            done.push(outcome?);
        }
        done.into_iter()
            .collect::<Option<_>>()
            .ok_or_else(|| self.fault(0, "", "a device stopped without an error"))
    }

    fn fault(&self, d: usize, label: &str, reason: &str) -> RunError {
        let (label, reason) = (label.to_owned(), reason.to_owned());
        RunError::Internal { device: self.program.devices[d].device, label, reason }
    }

    /// Takes the steps of one device; a panic in one of them is an error like any other.
    fn device(&self, d: usize) -> Outcome {
        let step = Cell::new(0);
        let result = catch_unwind(AssertUnwindSafe(|| self.steps(d, &step)));
        if !matches!(result, Ok(Ok(_))) {
            self.events.stop();
        }
        let device = self.program.devices[d].device;
        let label =
            || self.program.devices[d].steps.get(step.get()).map_or("", |s| &s.label).to_owned();
        match result {
            Ok(Ok(done)) => Ok(Some(done)),
            Ok(Err(Failure::Stopped)) => Ok(None),
            Ok(Err(Failure::Op(op, error))) => {
                Err(RunError::Op { device, label: label(), op, error })
            }
            Ok(Err(Failure::Internal(reason))) => Err(self.fault(d, &label(), &reason)),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
                let text =
                    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                Err(self.fault(d, &label(), &format!("panic: {text}")))
            }
        }
    }

    fn steps(&self, d: usize, current: &Cell<usize>) -> Result<(u64, Duration), Failure> {
        let bound = &self.prepared.bound.devices[d];
        let (mut used, mut time) = (0, Duration::ZERO);
        for (i, step) in self.program.devices[d].steps.iter().enumerate() {
            current.set(i);
            if let Some(progress) = self.progress {
                progress.fetch_add(1, Ordering::Relaxed);
            }
            if !bound.active[i] {
                continue;
            }
            match &step.action {
                Action::Wait(event) => {
                    self.events.wait(*event)?;
                    continue;
                }
                Action::Record(event) => {
                    self.events.record(*event);
                    continue;
                }
                Action::Launch(_) | Action::Copy { .. } => self.events.check()?,
            }
            let start = Instant::now();
            match &step.action {
                Action::Copy { device, from, to } => self.copy(d, *device, *from, *to)?,
                Action::Launch(launch) => match &self.prepared.kernels[d][i] {
                    Some(Kernel::Reference(op)) => self.evaluate(d, op, launch)?,
                    Some(kernel) => self.launch(d, kernel, launch)?,
                    None => {}
                },
                Action::Wait(_) | Action::Record(_) => {}
            }
            time += start.elapsed();
            used = used.max(self.highest(d, step));
        }
        Ok((used, time))
    }

    fn location(&self, d: usize, buffer: BufferId) -> &Location {
        &self.prepared.bound.devices[d].locations[buffer.index()]
    }

    /// One more than the highest byte of the arena that a step touches.
    fn highest(&self, d: usize, step: &Step) -> u64 {
        let end = |b: &BufferId| {
            let at = self.location(d, *b);
            if at.space == Space::Arena && at.bytes > 0 { at.offset + at.bytes } else { 0 }
        };
        let highest = match &step.action {
            Action::Launch(launch) => launch.operands.iter().chain(&launch.results).map(end).max(),
            Action::Copy { to, .. } => Some(end(to)),
            Action::Wait(_) | Action::Record(_) => None,
        };
        highest.unwrap_or(0) as u64
    }

    /// The bytes of an input, or of a parameter that the device holds.
    fn external(&self, d: usize, at: &Location) -> Option<(&Tensor, &[u8])> {
        let tensor = match at.space {
            Space::Input(i) => self.inputs.get(i as usize)?,
            Space::Param(i) => self.params.get(d)?.get(i as usize)?.as_ref()?,
            Space::Output(_) | Space::Arena => return None,
        };
        Some((tensor, tensor.bytes().get(at.offset..at.offset.checked_add(at.bytes)?)?))
    }

    fn copy(&self, d: usize, source: usize, from: BufferId, to: BufferId) -> Result<(), Failure> {
        let (from, to) = (self.location(source, from), self.location(d, to));
        if from.bytes != to.bytes {
            return Err(internal("source and destination differ in size"));
        }
        if to.bytes == 0 {
            return Ok(());
        }
        let outside = || internal("a buffer lies outside its memory");
        if let Some((_, bytes)) = self.external(source, from) {
            let mut own = lock(&self.memories[d]);
            own.write(to).ok_or_else(outside)?.copy_from_slice(bytes);
        } else if source == d {
            let mut own = lock(&self.memories[d]);
            let views = own.views(&[from], &[to], &|_| None).ok_or_else(outside)?;
            for (read, write) in views.reads.into_iter().zip(views.writes) {
                if let Some(read) = read {
                    write.copy_from_slice(read);
                }
            }
        } else {
            // Two memories are always locked in the order of their devices.
            let first = lock(&self.memories[d.min(source)]);
            let second = lock(&self.memories[d.max(source)]);
            let (mut own, other) = if d < source { (first, second) } else { (second, first) };
            let bytes = other.read(from).ok_or_else(outside)?;
            own.write(to).ok_or_else(outside)?.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Runs a kernel where its operands and its results are.
    fn launch(&self, d: usize, kernel: &Kernel, launch: &Launch) -> Result<(), Failure> {
        let outside = || internal("the launch's memory is not divided as planned");
        let at = |b: &BufferId| self.location(d, *b);
        let reads: SmallVec<[&Location; 6]> = launch.operands.iter().map(at).collect();
        let writes: SmallVec<[&Location; 1]> = launch.results.iter().map(at).collect();
        let external = |at: &Location| self.external(d, at).map(|(_, bytes)| bytes);
        let mut own = lock(&self.memories[d]);
        let views = own.views(&reads, &writes, &external).ok_or_else(outside)?;
        let read: Result<SmallVec<[Option<&[f32]>; 6]>, _> =
            views.reads.into_iter().map(floats).collect();
        let read = read.map_err(|_| outside())?;
        let (operands, others) = read.split_at(launch.split_operands().0.len());
        let others: Option<SmallVec<[&[f32]; 4]>> = others.iter().copied().collect();
        let writes = views.writes.into_iter().map(bytemuck::try_cast_slice_mut);
        let results: Result<SmallVec<[&mut [f32]; 1]>, _> = writes.collect();
        let slices = Slices {
            operands: operands.into(),
            others: others.ok_or_else(outside)?,
            results: results.map_err(|_| outside())?,
        };
        let done = self.pool.install(|| kernel.run(&launch.chain, slices));
        done.map_err(|Unsuited| internal("the operands do not suit the kernel"))
    }

    /// Runs the reference evaluation on copies of the operands, and the chain on its result.
    fn evaluate(&self, d: usize, op: &Op, launch: &Launch) -> Result<(), Failure> {
        let dtype = |b: &BufferId| self.program.devices[d].buffer(*b).ty.dtype;
        let mut operands = Vec::with_capacity(launch.operands.len());
        for buffer in &launch.operands {
            operands.push(self.tensor(d, dtype(buffer), self.location(d, *buffer))?);
        }
        let (operands, others) = operands.split_at(launch.split_operands().0.len());
        let refs: Vec<&Tensor> = operands.iter().collect();
        let mut results = self
            .pool
            .install(|| op.eval(&refs))
            .map_err(|e| Failure::Op(op.name(), Box::new(e)))?;
        if results.len() != launch.results.len() {
            return Err(internal("the operator gives another number of results"));
        }
        for (buffer, result) in launch.results.iter().zip(&results) {
            let at = self.location(d, *buffer);
            if result.dtype() != dtype(buffer) || result.dims() != at.dims.as_slice() {
                let found = result.tensor_type();
                let wanted = format!("{}{:?}", dtype(buffer), at.dims);
                return Err(Failure::Internal(format!(
                    "{} gives {found}, not {wanted}",
                    op.name()
                )));
            }
        }
        if !launch.chain.is_empty() {
            let others: SmallVec<[&[f32]; 4]> = others.iter().map(Tensor::as_slice).collect();
            let unsuited = || internal("the operands do not suit the chain");
            let chain = Epilogue::new(&launch.chain, &others).ok_or_else(unsuited)?;
            let result = results.first_mut().ok_or_else(unsuited)?.as_mut_slice();
            self.pool.install(|| elementwise::in_place(result, &chain));
        }
        let mut own = lock(&self.memories[d]);
        for (buffer, result) in launch.results.iter().zip(&results) {
            let bytes = own.write(self.location(d, *buffer));
            bytes
                .ok_or_else(|| internal("a result lies outside its memory"))?
                .copy_from_slice(result.bytes());
        }
        Ok(())
    }

    /// A tensor with the contents of a buffer; inputs and parameters are shared, not copied.
    fn tensor(&self, d: usize, dtype: DType, at: &Location) -> Result<Tensor, Failure> {
        if at.bytes == 0 {
            return Tensor::zeros(dtype, &at.dims).map_err(|e| Failure::Internal(e.to_string()));
        }
        let tensor = if let Some((tensor, bytes)) = self.external(d, at) {
            if bytes.len() == tensor.bytes().len() {
                tensor.clone().reshaped(&at.dims)
            } else {
                Tensor::from_bytes(dtype, &at.dims, bytes)
            }
        } else {
            let own = lock(&self.memories[d]);
            let bytes =
                own.read(at).ok_or_else(|| internal("an operand lies outside its memory"))?;
            Tensor::from_bytes(dtype, &at.dims, bytes)
        };
        tensor.map_err(|e| Failure::Internal(e.to_string()))
    }
}
