//! One run: a control thread for each device takes the device's steps in order; of a small program
//! one thread takes those of all devices in turns.

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
    /// Whether threads would take longer to start, and to wake each other, than the steps.
    is_small: bool,
}

/// The bytes of all buffers of all devices of a small program: copying them takes about as long as
/// starting eight threads.
const SMALL: usize = 1 << 20;

impl Prepared {
    pub(super) fn new(program: &Program, bound: Arc<Bound>) -> Self {
        let devices = program.devices.iter().zip(&bound.devices);
        let kernels =
            devices.map(|(device, plan)| StepKernels::new(device, plan, bound.n)).collect();
        let buffers = bound.devices.iter().flat_map(|device| device.locations.iter());
        let bytes = buffers.fold(0usize, |sum, buffer| sum.saturating_add(buffer.bytes));
        Self { kernels, is_small: bytes <= SMALL, bound }
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
    Panic(String),
}

/// The result of a device.
#[derive(Default)]
struct Done {
    /// The steps that are done; the next one runs or waits.
    steps: usize,
    /// The bytes of its arena that it used.
    used: u64,
    /// The time that it worked.
    time: Duration,
}

impl Done {
    /// Counts a step that began at `start` and touched the arena up to `highest`.
    fn note(&mut self, start: Instant, highest: u64) {
        self.time += start.elapsed();
        self.used = self.used.max(highest);
    }
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
        let outcomes = if self.prepared.is_small {
            self.pool.install(|| self.in_turns())
        } else {
            self.on_threads()
        };
        let mut done = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            done.push(outcome?);
        }
        done.into_iter()
            .collect::<Option<_>>()
            .ok_or_else(|| self.fault(0, "", "a device stopped without an error"))
    }

    /// Takes the steps of each device on a thread of its own.
    fn on_threads(&self) -> Vec<Outcome> {
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for d in 1..self.program.devices.len() {
                let name = format!("fanwise-{}", self.program.devices[d].device);
                let thread =
                    thread::Builder::new().name(name).spawn_scoped(scope, move || self.device(d));
                // The other devices would wait for this one.
                if thread.is_err() {
                    self.events.stop();
                }
                threads.push((d, thread));
            }
            // The calling thread works as well.
            let host = self.device(0);
            let others = threads.into_iter().map(|(d, thread)| match thread {
                Ok(thread) => {
                    thread.join().unwrap_or_else(|_| Err(self.fault(d, "", "the thread panicked")))
                }
                Err(e) => Err(self.fault(d, "", &format!("no control thread: {e}"))),
            });
            std::iter::once(host).chain(others).collect()
        })
    }

    fn fault(&self, d: usize, label: &str, reason: &str) -> RunError {
        let (label, reason) = (label.to_owned(), reason.to_owned());
        RunError::Internal { device: self.program.devices[d].device, label, reason }
    }

    /// Takes the steps of one device on a thread of its own.
    fn device(&self, d: usize) -> Outcome {
        let mut done = Done::default();
        let event = |event| self.events.wait(event).map(|()| true);
        let result = self.advance(d, &mut done, &event);
        self.outcome(d, &done, result.map(|_| ()))
    }

    /// Takes the steps of all devices in turns, each until it has to wait for another.
    fn in_turns(&self) -> Vec<Outcome> {
        let event = |event| self.events.is_recorded(event);
        let mut all: Vec<Done> = self.program.devices.iter().map(|_| Done::default()).collect();
        let mut outcomes: Vec<Option<Outcome>> = all.iter().map(|_| None).collect();
        let mut moved = true;
        // A round in which no device takes a step is a deadlock, which no correct program has; it
        // is reported below instead of waited for.
        while moved {
            moved = false;
            for (d, (done, ended)) in all.iter_mut().zip(&mut outcomes).enumerate() {
                if ended.is_some() {
                    continue;
                }
                let before = done.steps;
                let result = self.advance(d, done, &event);
                moved |= done.steps > before;
                if !matches!(result, Ok(false)) {
                    moved = true;
                    *ended = Some(self.outcome(d, done, result.map(|_| ())));
                }
            }
        }
        let stuck = |d| Err(self.fault(d, "", "it waits for what no device records"));
        outcomes.into_iter().enumerate().map(|(d, o)| o.unwrap_or_else(|| stuck(d))).collect()
    }

    /// The outcome of a device's work, once it has ended.
    fn outcome(&self, d: usize, done: &Done, result: Result<(), Failure>) -> Outcome {
        if result.is_err() {
            self.events.stop();
        }
        let device = &self.program.devices[d];
        // After the last step there is none to name.
        let label = || device.steps.get(done.steps).map_or("", |s| &s.label);
        match result {
            Ok(()) => Ok(Some((done.used, done.time))),
            Err(Failure::Stopped) => Ok(None),
            Err(Failure::Step(error)) => Err(error.at(device.device, label())),
            Err(Failure::Panic(text)) => Err(self.fault(d, label(), &format!("panic: {text}"))),
        }
    }

    /// Takes steps of a device until there are none left, which gives true, or `event` says that
    /// one that the next step waits for is not recorded. A panic in a step is an error like any
    /// other.
    fn advance(
        &self,
        d: usize,
        done: &mut Done,
        event: &dyn Fn(u32) -> Result<bool, Stopped>,
    ) -> Result<bool, Failure> {
        let result = catch_unwind(AssertUnwindSafe(|| self.steps(d, done, event)));
        result.unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(Failure::Panic(text.unwrap_or_else(|| "a value without text".to_owned())))
        })
    }

    fn steps(
        &self,
        d: usize,
        done: &mut Done,
        event: &dyn Fn(u32) -> Result<bool, Stopped>,
    ) -> Result<bool, Failure> {
        let bound = &self.prepared.bound.devices[d];
        while let Some(step) = self.program.devices[d].steps.get(done.steps) {
            let at = done.steps;
            if bound.active[at] {
                let start = Instant::now();
                match &step.action {
                    Action::Wait(awaited) if !event(*awaited)? => return Ok(false),
                    Action::Wait(_) => {}
                    Action::Record(event) => self.events.record(*event),
                    Action::Copy { device, from, to } => {
                        // A device that failed stops the others before their next step.
                        self.events.check()?;
                        self.copy(d, *device, *from, *to)?;
                        done.note(start, highest(bound, step));
                    }
                    Action::Launch(launch) => {
                        self.events.check()?;
                        let kernels = &self.prepared.kernels[d];
                        self.of(d).launch(kernels.of(at), launch, &self.memories[d])?;
                        done.note(start, highest(bound, step));
                    }
                }
            }
            done.steps += 1;
            if let Some(progress) = self.progress {
                progress.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(true)
    }

    /// The memory and operands of a device's steps.
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
        // Replicas without rows copy nothing, and a buffer without bytes has no place.
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
