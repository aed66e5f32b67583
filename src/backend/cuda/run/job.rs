//! The shared state of one run, and the progress of its workers.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::events::{Events, Stopped};
use super::plan::{HostBlocks, Plan};
use super::staging::StagedInputs;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::contexts;
use crate::backend::cuda::driver::memory::HostBlock;
use crate::backend::cuda::driver::stream::{Event, Stream};
use crate::backend::host::trace::Recorder;
use crate::backend::host::{DeviceMemory, StepError, lock};
use crate::backend::{DriverError, RunError};
use crate::lower::{Action, Program};
use crate::types::{Device, KernelClass, Tensor};

/// Everything that the workers of one run share.
pub(super) struct Job {
    pub(super) program: Arc<Program>,
    pub(super) plan: Arc<Plan>,
    /// The tensors given to the run.
    pub(super) inputs: Vec<Tensor>,
    /// The parameters that the host holds.
    pub(super) params: Arc<Vec<Option<Tensor>>>,
    /// The host's memory, for steps on the host.
    pub(super) memory: Mutex<DeviceMemory<HostBlock>>,
    /// The same memory, inputs and parameters, for copies by devices.
    pub(super) blocks: HostBlocks,
    /// The staging buffers to which inputs were uploaded before the run.
    pub(super) staged_inputs: Mutex<Option<Arc<StagedInputs>>>,
    /// The address of each device's arena.
    pub(super) arenas: Vec<u64>,
    /// The contexts of the devices; none for the host.
    pub(super) contexts: Arc<Vec<Option<Arc<Context>>>>,
    /// The program's events that GPUs record.
    pub(super) gpu_events: Arc<Vec<Option<Event>>>,
    /// The program's events that the host has seen recorded, and whether a device has failed.
    pub(super) events: Events,
    pub(super) worker_progress: Progress,
    pub(super) progress: Option<Arc<AtomicU64>>,
    pub(super) trace: Option<Recorder>,
    /// True if launches that were done once are captured and replayed.
    pub(super) graphs: bool,
    pub(super) cpu: Cpu,
}

impl Job {
    /// Counts steps as done, of those that a run counts.
    pub(super) fn count(&self, steps: usize) {
        if let Some(progress) = &self.progress {
            progress.fetch_add(steps as u64, Ordering::Relaxed);
        }
    }

    /// The steps that a device is at, and their operator, in words.
    pub(super) fn position(&self, d: usize) -> (String, &'static str) {
        let steps = &self.program.devices[d].steps;
        let Steps { first, last } = self.worker_progress.steps(d);
        let Some(step) = steps.get(first) else { return (String::new(), "none") };
        let op = match &step.action {
            Action::Launch(launch) if launch.class == KernelClass::Update => "update",
            Action::Launch(launch) => launch.name(),
            Action::Copy { .. } => "copy",
            Action::Wait(_) => "wait",
            Action::Record(_) => "record",
        };
        match steps.get(last).filter(|_| last > first) {
            Some(end) => (format!("{} .. {}", step.label, end.label), "graph"),
            None => (step.label.to_string(), op),
        }
    }

    /// The device that has to do the steps that a device is at: copies to the host are the work of
    /// their sources.
    pub(super) fn worker(&self, d: usize) -> Device {
        let devices = &self.program.devices;
        let step = devices[d].steps.get(self.worker_progress.steps(d).first);
        match step.map(|step| &step.action) {
            Some(Action::Copy { device, .. }) if devices[d].device == Device::HOST => {
                devices[*device].device
            }
            Some(Action::Copy { .. } | Action::Launch(_) | Action::Wait(_) | Action::Record(_))
            | None => devices[d].device,
        }
    }

    /// Ends all devices' work, since that of one is over.
    pub(super) fn stop(&self, d: usize) {
        self.worker_progress.end(d);
        self.events.stop();
    }

    /// Waits until something on a device is reached, or a device has failed.
    pub(super) fn poll(
        &self,
        mut reached: impl FnMut() -> Result<bool, DriverError>,
    ) -> Result<(), Failure> {
        let mut pause = Pause::default();
        while !reached()? {
            self.events.check()?;
            pause.wait();
        }
        self.worker_progress.tick();
        Ok(())
    }

    /// Waits until an event is reached, or a device has failed. The thread sleeps as long as its
    /// device works: the watchdog alone looks again and again, and leaves a thread behind whose
    /// device never ends. Of a run that is traced the thread comes back to tell what it knows.
    pub(super) fn wait_for(&self, event: &Event) -> Result<(), Failure> {
        /// The number of queries before the thread sleeps: to wake it takes longer than many a
        /// kernel.
        const LOOKS: u32 = 16;

        if self.trace.is_some() {
            return self.poll(|| event.is_reached());
        }
        for look in 0.. {
            if event.is_reached()? {
                break;
            }
            self.events.check()?;
            if look < LOOKS {
                std::thread::yield_now();
            } else {
                event.block()?;
                break;
            }
        }
        self.worker_progress.tick();
        Ok(())
    }

    /// Waits until streams are idle, whatever has failed, or the watchdog has given up.
    pub(super) fn settle<'a>(&self, streams: impl IntoIterator<Item = &'a Stream>) -> DeviceState {
        let settle = |stream: &Stream| {
            let mut pause = Pause::default();
            loop {
                match stream.is_idle() {
                    Ok(true) => return DeviceState::Clean,
                    Ok(false) if !self.worker_progress.is_overdue() => pause.wait(),
                    Ok(false) => return DeviceState::Busy,
                    Err(_) => return DeviceState::Broken,
                }
            }
        };
        // All streams, also those after one that failed: each may still use memory.
        // None: a device without streams is not at work.
        streams.into_iter().map(settle).max().unwrap_or(DeviceState::Clean)
    }

    /// The error of a device that ended early; none where it did so because of another.
    pub(super) fn error(&self, d: usize, failure: Failure) -> Option<RunError> {
        let device = self.program.devices[d].device;
        let (label, op) = self.position(d);
        let (device, error) = match failure {
            Failure::Stopped => return None,
            Failure::Step(error) => return Some(error.at(device, &label)),
            Failure::Driver(error) => (self.worker(d), error),
            Failure::Of(d, error) => (self.program.devices[d].device, error),
        };
        let beside = if error.is_sticky() {
            contexts::colocated(&self.program, &self.contexts, device)
        } else {
            Vec::new()
        };
        Some(RunError::Driver { device, label, op, error: Box::new(error), beside })
    }
}

/// Why a device's work ends early.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another device has failed.
    Stopped,
    /// A call of the driver failed.
    Driver(DriverError),
    /// One failed that is for the device at a position, whatever the worker is at.
    Of(usize, DriverError),
    /// A step on the host failed, or does not fit.
    Step(StepError),
}

impl Failure {
    /// True if the device cannot be used any more.
    pub(super) fn is_sticky(&self) -> bool {
        match self {
            Self::Driver(error) | Self::Of(_, error) => error.is_sticky(),
            Self::Stopped | Self::Step(_) => false,
        }
    }
}

impl From<Stopped> for Failure {
    fn from(_: Stopped) -> Self {
        Self::Stopped
    }
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

impl From<StepError> for Failure {
    fn from(error: StepError) -> Self {
        Self::Step(error)
    }
}

/// The message of a worker that is done with a run.
pub(super) struct Outcome {
    /// The time that its steps took; none if it ended because of another.
    pub(super) result: Result<Option<Duration>, RunError>,
    /// The state in which it leaves the device.
    pub(super) device_state: DeviceState,
}

/// The state in which a run leaves a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DeviceState {
    /// It can be used again.
    Clean,
    /// Its work failed in a way that lasts.
    Broken,
    /// It is still at work: what that uses must never be freed.
    Busy,
}

/// The present activity of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerState {
    /// Nothing.
    Idle = 0,
    /// It waits for its device.
    Device = 1,
    /// It waits for another worker.
    Other = 2,
    /// It computes on the host.
    Host = 3,
}

/// Steps of a device that its worker is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steps {
    /// The position of the first.
    pub(super) first: usize,
    /// The position of the last.
    pub(super) last: usize,
}

impl Steps {
    /// One step.
    pub(super) fn of(step: usize) -> Self {
        Self { first: step, last: step }
    }
}

/// The progress of the workers of a run.
pub(super) struct Progress {
    rows: Vec<Row>,
    ticks: AtomicU64,
    overdue: AtomicBool,
    /// Microseconds that a device may work without a sign of progress, beside the watchdog's.
    allowance: AtomicU64,
    /// The devices whose work ended early, in the order in which they said so.
    ended: Mutex<Vec<usize>>,
}

#[derive(Default)]
struct Row {
    first: AtomicUsize,
    last: AtomicUsize,
    state: AtomicUsize,
}

impl Progress {
    pub(super) fn new(devices: usize) -> Self {
        let rows = (0..devices).map(|_| Row::default()).collect();
        let (ticks, overdue) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { rows, ticks, overdue, allowance: AtomicU64::new(0), ended: Mutex::default() }
    }

    /// Says that a device's work ended early.
    fn end(&self, d: usize) {
        lock(&self.ended).push(d);
    }

    /// The number of devices whose work ended before that of `d`.
    pub(super) fn ended_before(&self, d: usize) -> usize {
        let ended = lock(&self.ended);
        // All of them ended before one that has not.
        ended.iter().position(|other| *other == d).unwrap_or(ended.len())
    }

    /// Says that a device is at these steps, and what it waits for.
    pub(super) fn mark(&self, d: usize, steps: Steps, state: WorkerState) {
        let row = &self.rows[d];
        row.first.store(steps.first, Ordering::Relaxed);
        row.last.store(steps.last, Ordering::Relaxed);
        row.state.store(state as usize, Ordering::Relaxed);
        self.tick();
    }

    /// The first and the last step that a device is at.
    pub(super) fn steps(&self, d: usize) -> Steps {
        let row = &self.rows[d];
        let (first, last) = (row.first.load(Ordering::Relaxed), row.last.load(Ordering::Relaxed));
        Steps { first, last }
    }

    /// Says that there is progress.
    pub(super) fn tick(&self) {
        self.ticks.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that grows with progress.
    pub(super) fn ticks(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Says that work which is seen only when all of it is done has taken so long before.
    pub(super) fn allow(&self, time: Duration) {
        // For ever.
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.allowance.fetch_max(micros, Ordering::Relaxed);
    }

    /// The time for which devices may work without progress, besides the watchdog's limit.
    pub(super) fn allowance(&self) -> Duration {
        Duration::from_micros(self.allowance.load(Ordering::Relaxed))
    }

    /// True if a device is in this state.
    pub(super) fn is(&self, d: usize, state: WorkerState) -> bool {
        self.rows[d].state.load(Ordering::Relaxed) == state as usize
    }

    /// True if any device is in this state.
    pub(super) fn any(&self, state: WorkerState) -> bool {
        (0..self.rows.len()).any(|d| self.is(d, state))
    }

    /// Says that devices are no longer waited for.
    pub(super) fn give_up(&self) {
        self.overdue.store(true, Ordering::Relaxed);
    }

    fn is_overdue(&self) -> bool {
        self.overdue.load(Ordering::Relaxed)
    }
}

/// Longer and longer pauses between looks at a device.
#[derive(Default)]
struct Pause(u32);

impl Pause {
    /// The number of queries that only yield to other threads: even the shortest sleep may be
    /// longer than the kernel that it waits for.
    const EAGER: u32 = 200;
    /// The shortest pause.
    const SHORTEST: Duration = Duration::from_micros(10);
    /// The number of times that the pause doubles, to 0.64 ms: a long wait takes little of a core,
    /// and the end of work is noticed soon enough.
    const DOUBLINGS: u32 = 6;

    fn wait(&mut self) {
        if self.0 < Self::EAGER {
            std::thread::yield_now();
        } else {
            let doublings = ((self.0 - Self::EAGER) / 16).min(Self::DOUBLINGS);
            std::thread::sleep(Self::SHORTEST * (1 << doublings));
        }
        self.0 = self.0.saturating_add(1);
    }
}
