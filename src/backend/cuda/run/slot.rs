//! A run in flight: workers, streams and arenas, which no other run uses at the same time.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::gpu::Gpu;
use super::host::Host;
use super::job::{DeviceState, Job, Outcome, Steps, WorkerState};
use crate::backend::cuda::driver::captures::heed_no_captures;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::contexts;
use crate::backend::cuda::driver::memory::{Global, PIN};
use crate::backend::cuda::driver::stream::Event;
use crate::backend::cuda::driver::waited::{Waited, receive};
use crate::backend::{DriverError, RunError};
use crate::lower::{Action, Bound, Program};
use crate::types::invariant::invariant;

/// A job for a worker, and the channel for its outcome.
type Order = (Arc<Job>, mpsc::Sender<(usize, Outcome)>);

/// The thread that runs the steps of one device.
#[derive(Debug)]
struct Worker {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread of the device at a position.
    fn start(
        name: String,
        d: usize,
        mut run: impl FnMut(&Job) -> Outcome + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, orders) = mpsc::channel::<Order>();
        let work = move || {
            heed_no_captures();
            for (job, reply) in orders {
                let outcome = catch_unwind(AssertUnwindSafe(|| run(&job)));
                let outcome = outcome.unwrap_or_else(|panic| panicked(&job, d, &*panic));
                // Dropped before the reply: once all have replied, the run gives its slot back, and
                // no worker may still hold the job's buffers then.
                drop(job);
                // Nobody waits for a device that was given up.
                drop(reply.send((d, outcome)));
            }
        };
        let thread = thread::Builder::new().name(name).spawn(work)?;
        Ok(Self { orders: Some(sender), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the run in which it happened.
            drop(thread.join());
        }
    }
}

fn panicked(job: &Job, d: usize, panic: &(dyn Any + Send)) -> Outcome {
    job.stop(d);
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    // None: a panic with another payload has no text.
    let text = text.unwrap_or_default();
    let (device, (label, _)) = (job.program.devices[d].device, job.position(d));
    job.worker_progress.mark(d, Steps::of(0), WorkerState::Idle);
    let error = RunError::Internal { device, label, reason: format!("panic: {text}") };
    Outcome { result: Err(error), device_state: DeviceState::Busy }
}

/// The resources of one run in flight.
#[derive(Debug)]
pub(super) struct Slot {
    /// One for each device, the host first. They end before the memory that their streams use is
    /// freed.
    workers: Vec<Worker>,
    /// The program's events that GPUs record.
    pub(super) gpu_events: Arc<Vec<Option<Event>>>,
    arenas: Vec<Option<Global>>,
}

/// The error of making or reserving a slot.
pub(super) enum SlotError {
    /// A call failed for something of the device at a position; with the bytes that were asked for,
    /// where they are known.
    Driver { d: usize, what: &'static str, asked: Option<u64>, error: DriverError },
    /// The device at a position has no thread.
    Thread(usize, std::io::Error),
}

impl SlotError {
    /// The position of the device that has no memory left, the first for pinned memory of the host,
    /// if that is why.
    pub(super) fn short(&self) -> Option<usize> {
        match self {
            Self::Driver { error, .. } if error.is_out_of_memory() && error.call == PIN => Some(0),
            Self::Driver { d, error, .. } => error.is_out_of_memory().then_some(*d),
            Self::Thread(..) => None,
        }
    }
}

/// The outcome of a run.
pub(super) struct RunEnd {
    /// For each device the time that its steps took.
    pub(super) result: Result<Vec<Duration>, RunError>,
    /// True if the devices can be used again.
    pub(super) is_clean: bool,
    /// True if a worker does not come back, or leaves its device at work: what they use must never
    /// be freed.
    pub(super) is_abandoned: bool,
}

impl Slot {
    /// A slot for a program on devices with these contexts.
    pub(super) fn new(
        program: &Program,
        contexts: &[Option<Arc<Context>>],
    ) -> Result<Self, SlotError> {
        let mut gpu_events: Vec<Option<Event>> = (0..program.events).map(|_| None).collect();
        let mut workers = Vec::with_capacity(contexts.len());
        for (d, (device, context)) in program.devices.iter().zip(contexts).enumerate() {
            let failed =
                |(d, error)| SlotError::Driver { d, what: "the streams", asked: None, error };
            let name = format!("fanwise-{}", device.device);
            let worker = if let Some(context) = context {
                for step in &device.steps {
                    if let Action::Record(event) = step.action
                        && let Some(mark) = gpu_events.get_mut(event as usize)
                    {
                        *mark =
                            Some(Event::new(context, false).map_err(|error| failed((d, error)))?);
                    }
                }
                let mut gpu = Gpu::new(d, context).map_err(|error| failed((d, error)))?;
                Worker::start(name, d, move |job| gpu.run(job))
            } else {
                let mut host = Host::new(contexts).map_err(failed)?;
                Worker::start(name, d, move |job| host.run(job))
            };
            workers.push(worker.map_err(|error| SlotError::Thread(d, error))?);
        }
        let arenas = contexts.iter().map(|_| None).collect();
        Ok(Self { workers, gpu_events: Arc::new(gpu_events), arenas })
    }

    /// Makes the arenas large enough; the address of each.
    pub(super) fn reserve(
        &mut self,
        bound: &Bound,
        contexts: &[Option<Arc<Context>>],
    ) -> Result<Vec<u64>, SlotError> {
        let mut addresses = vec![0; contexts.len()];
        for (d, (context, arena)) in contexts.iter().zip(&mut self.arenas).enumerate() {
            let Some(context) = context else { continue };
            let planned = bound.devices[d].planned;
            if arena.as_ref().is_none_or(|a| a.len() < planned) {
                // The old one goes first, so that both need not fit.
                drop(arena.take());
                let asked = Some(planned as u64);
                let failed = |error| SlotError::Driver { d, what: "the arena", asked, error };
                *arena = Some(Global::new(context, planned).map_err(failed)?);
            }
            addresses[d] = invariant(arena.as_ref(), "that a GPU has its arena").address();
        }
        Ok(addresses)
    }

    /// Gives up its memory on a device, if it has any there.
    pub(super) fn give_up(&mut self, on: &Context) -> Vec<Global> {
        let takes = |arena: &mut Global| arena.takes_of(on);
        self.arenas.iter_mut().filter_map(|arena| arena.take_if(takes)).collect()
    }

    /// Runs a job. A device that makes no progress for `limit` ends it.
    pub(super) fn run(&self, job: &Arc<Job>, limit: Duration) -> RunEnd {
        let (reply, replies) = mpsc::channel();
        for worker in &self.workers {
            if let Some(orders) = &worker.orders {
                // A worker that is gone does not reply, which is seen below.
                drop(orders.send((Arc::clone(job), reply.clone())));
            }
        }
        drop(reply);
        let mut outcomes: Vec<Option<Outcome>> = self.workers.iter().map(|_| None).collect();
        let stuck = watch(job, &replies, &mut outcomes, limit);
        let state = |outcome: &Option<Outcome>| {
            // None: without a reply the device may still be at work.
            outcome.as_ref().map_or(DeviceState::Busy, |outcome| outcome.device_state)
        };
        let device_state = outcomes.iter().map(state).max();
        let device_state = invariant(device_state, "that a program runs on a device");
        let (is_clean, is_abandoned) = (
            stuck.is_none() && device_state == DeviceState::Clean,
            device_state == DeviceState::Busy,
        );
        let mut times = Vec::with_capacity(outcomes.len());
        let mut errors = Vec::new();
        let mut is_stopped = false;
        for (d, outcome) in outcomes.into_iter().enumerate() {
            match outcome.map(|outcome| outcome.result) {
                Some(Ok(Some(time))) => times.push(time),
                Some(Ok(None)) => is_stopped = true,
                Some(Err(error)) => errors.push((job.worker_progress.ended_before(d), error)),
                None => {}
            }
        }
        let silent = || RunError::Internal {
            device: job.program.devices[0].device,
            label: String::new(),
            reason: "a device ended without an error".to_owned(),
        };
        // An error comes before "stuck": a device that failed is why another one waits for ever.
        let result = match nearest(job, errors).or(stuck) {
            Some(error) => Err(error),
            None if is_stopped || is_abandoned => Err(silent()),
            None => Ok(times),
        };
        RunEnd { result, is_clean, is_abandoned }
    }
}

/// Among the errors of several devices, each with the number of those that ended before, the one
/// that is nearest to the cause. Work that fails on a GPU makes every call fail for all logical
/// devices on it, whatever they are at: of these the first counts, but one that waits for others or
/// marks its place does nothing that fails by itself.
fn nearest(job: &Job, mut errors: Vec<(usize, RunError)>) -> Option<RunError> {
    errors.sort_by_key(|(before, error)| (op(error).is_some_and(is_mark), *before));
    let mut gpus = BTreeSet::new();
    let firsts = errors.into_iter().map(|(_, error)| error).filter(|error| {
        let RunError::Driver { device, .. } = error else { return true };
        let gpu = contexts::ordinal(&job.program, &job.contexts, *device);
        gpu.is_none_or(|gpu| gpus.insert(gpu))
    });
    firsts.min_by_key(rank)
}

/// Among the errors of several GPUs, how near one is to the cause: copies also fail where the other
/// GPU has failed.
fn rank(error: &RunError) -> u32 {
    let RunError::Driver { op, error, .. } = error else { return 0 };
    if is_mark(op) || *op == "copy" { 2 } else { u32::from(error.is_sticky()) }
}

/// The operator at which a call of the driver failed.
fn op(error: &RunError) -> Option<&'static str> {
    if let RunError::Driver { op, .. } = error { Some(op) } else { None }
}

/// True for the steps that order others.
fn is_mark(op: &str) -> bool {
    matches!(op, "wait" | "record")
}

/// Collects the workers' replies; the error of a device that makes no progress, if one does not.
fn watch(
    job: &Arc<Job>,
    replies: &mpsc::Receiver<(usize, Outcome)>,
    outcomes: &mut [Option<Outcome>],
    limit: Duration,
) -> Option<RunError> {
    // Replies wake the thread at once; this only bounds how late a hang is noticed.
    const LOOK: Duration = Duration::from_millis(20);
    // One that sleeps until its device is done comes back late, or never.
    const GRACE: Duration = Duration::from_secs(1);
    let (mut ticks, mut still, mut stuck) =
        (job.worker_progress.ticks(), Waited::begin(limit), None);
    while outcomes.iter().any(Option::is_none) {
        match replies.recv_timeout(LOOK.min(limit / 4)) {
            Ok((d, outcome)) => outcomes[d] = Some(outcome),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let now = job.worker_progress.ticks();
                let patience = match stuck {
                    None => limit.saturating_add(job.worker_progress.allowance()),
                    Some(_) => limit.min(GRACE),
                };
                if now != ticks || job.worker_progress.any(WorkerState::Host) {
                    (ticks, still) = (now, Waited::begin(limit));
                } else if still.look() > patience {
                    // The workers were asked to stop and did not, so the run leaks what they use
                    // instead of waiting for ever.
                    if stuck.is_some() {
                        break;
                    }
                    stuck = Some(give_up(job, limit));
                    still = Waited::begin(limit);
                }
            }
        }
    }
    stuck
}

/// How long the driver may take to say which events are reached: where a device hangs, every call
/// may wait for it.
const ASKED: Duration = Duration::from_secs(1);

/// Ends a run; the error of the device that others wait for: one that waits for itself alone.
fn give_up(job: &Arc<Job>, limit: Duration) -> RunError {
    let error = |d: usize| {
        let (label, op) = job.position(d);
        RunError::Stuck { device: job.worker(d), label, op, limit }
    };
    // Their positions are read before the events stop: workers that end overwrite them.
    let at_work =
        (0..job.program.devices.len()).filter(|d| !job.worker_progress.is(*d, WorkerState::Idle));
    let at_work: BTreeMap<usize, RunError> = at_work.map(|d| (d, error(d))).collect();
    let on_device =
        at_work.keys().copied().filter(|d| job.worker_progress.is(*d, WorkerState::Device));
    let on_device: Vec<(usize, usize)> =
        on_device.map(|d| (d, job.worker_progress.steps(d).first)).collect();
    job.events.stop();
    job.worker_progress.give_up();
    let alone = match on_device[..] {
        [(only, _)] => Some(only),
        _ => waits_for_none(job, on_device),
    };
    // 0 is the host: all workers have ended meanwhile.
    let at = alone.or_else(|| at_work.keys().next().copied()).unwrap_or(0);
    at_work.get(&at).cloned().unwrap_or_else(|| error(at))
}

/// The first of these devices, each with the steps that it has done, whose streams wait for no
/// event that is not reached; none if the driver does not say it in time.
fn waits_for_none(job: &Arc<Job>, devices: Vec<(usize, usize)>) -> Option<usize> {
    let (found, answer) = mpsc::channel();
    let job = Arc::clone(job);
    let ask = move || {
        heed_no_captures();
        let reached = |(d, steps): &(usize, usize)| are_reached(&job, *d, *steps);
        // Ok(()) or an error: nobody waits for an answer that comes too late.
        found.send(devices.into_iter().find(reached).map(|(d, _)| d)).unwrap_or(());
    };
    thread::Builder::new().name("fanwise-watchdog".to_owned()).spawn(ask).ok()?;
    receive(&answer, ASKED).ok()?
}

/// True if every event is reached for which a device's streams wait in so many steps.
fn are_reached(job: &Job, d: usize, steps: usize) -> bool {
    let done = job.program.devices[d].steps.iter().take(steps);
    done.filter_map(|step| {
        let Action::Wait(event) = step.action else { return None };
        job.gpu_events.get(event as usize)?.as_ref()
    })
    .all(|mark| mark.is_reached() != Ok(false))
}
