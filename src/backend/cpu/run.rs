//! One run: a control thread for each device takes the device's steps in order.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rayon::ThreadPool;

use super::kernel::StepKernels;
use crate::backend::RunError;
use crate::backend::host::{DeviceMemory, Events, HostSteps, StepError, Stopped, highest, lock};
use crate::lower::{Action, Bound, BufferId, Program};
use crate::types::Tensor;

/// A program at one batch size, with the code of its launches.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) bound: Arc<Bound>,
    /// The kernels of each device.
    kernels: Vec<StepKernels>,
}

impl Prepared {
    pub(super) fn new(program: &Program, bound: Arc<Bound>) -> Self {
        let devices = program.devices.iter().zip(&bound.devices);
        let kernels =
            devices.map(|(device, plan)| StepKernels::new(device, plan, bound.n)).collect();
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

/// Why a device's work ends early.
enum Failure {
    Stopped,
    Step(StepError),
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self::Step(error)
    }
}

/// The bytes of its arena that a device used and the time it worked; `None` if it stopped because
/// of another.
type Outcome = Result<Option<(u64, Duration)>, RunError>;

impl Run<'_> {
    /// Runs all devices; returns for each the bytes of its arena that it used and the time it
    /// worked.
    pub(super) fn all_devices(&self) -> Result<Vec<(u64, Duration)>, RunError> {
        // Nothing waits on a single device, so it may take a worker of the pool from beginning to
        // end.
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
            Ok(Err(Failure::Step(error))) => Err(error.at(device, &label())),
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
                Action::Launch(launch) => {
                    let kernels = &self.prepared.kernels[d];
                    self.of(d).launch(kernels.of(i), launch, &self.memories[d])?;
                }
                Action::Wait(_) | Action::Record(_) => {}
            }
            time += start.elapsed();
            used = used.max(highest(bound, step));
        }
        Ok((used, time))
    }

    /// What the steps of a device work with.
    fn of(&self, d: usize) -> HostSteps<'_> {
        HostSteps {
            program: &self.program.devices[d],
            bound: &self.prepared.bound.devices[d],
            inputs: self.inputs,
            params: &self.params[d],
            pool: self.pool,
        }
    }

    fn copy(&self, d: usize, source: usize, from: BufferId, to: BufferId) -> Result<(), Failure> {
        let (from, to) = (self.of(source).location(from), self.of(d).location(to));
        let internal = |reason: &str| StepError::Internal(reason.to_owned());
        if from.bytes != to.bytes {
            return Err(internal("source and destination differ in size").into());
        }
        if to.bytes == 0 {
            return Ok(());
        }
        let outside = || internal("a buffer lies outside its memory");
        if let Some((_, bytes)) = self.of(source).external(from) {
            let mut own = lock(&self.memories[d]);
            own.write(to).ok_or_else(outside)?.copy_from_slice(bytes);
        } else if source == d {
            self.of(d).copy(from, to, &self.memories[d])?;
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
}
