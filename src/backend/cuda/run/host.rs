//! The work of the host's worker in a run: copies from GPUs, and the steps that run on the CPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::job::{DeviceState, Failure, Job, Outcome, Steps, WorkerState};
use super::plan::HostTask;
use crate::backend::DriverError;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::memory::Pinned;
use crate::backend::cuda::driver::stream::{Event, Stream};
use crate::backend::host::trace::{Kind, Recorder, Span, WAIT};
use crate::backend::host::{HostSteps, StepError, lock, profile};
use crate::lower::Action;
use crate::types::Tensor;
use crate::types::invariant::invariant;

/// The host's position in a program.
const HOST: usize = 0;

/// The host with a stream to copy from each GPU, in the hands of its worker.
#[derive(Debug)]
pub(super) struct Host {
    /// One for each device; none for the host.
    downloads: Vec<Option<Download>>,
    /// The steps of copies that are not waited for, and the devices they copy from.
    pending: Vec<(usize, usize)>,
}

/// The copies from a GPU.
#[derive(Debug)]
struct Download {
    context: Arc<Context>,
    stream: Stream,
    /// Recorded at the beginning of a run that is traced, and the time of it in the trace.
    base: Event,
    start: f64,
    /// Before and after each copy.
    timers: Vec<(Event, Event)>,
    /// The steps of this run's copies, in their order.
    steps: Vec<usize>,
}

/// Bytes of pinned memory, to copy to.
struct Target<'a> {
    block: &'a Arc<Pinned>,
    offset: usize,
    bytes: usize,
}

impl Download {
    /// A stream and its events on the GPU of a context.
    fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        Ok(Self {
            context: context.clone(),
            stream: Stream::new(context)?,
            base: Event::new(context, true)?,
            start: 0.0,
            timers: Vec::new(),
            steps: Vec::new(),
        })
    }

    /// Readies it for a run.
    fn begin(&mut self, job: &Job) -> Result<(), Failure> {
        self.steps.clear();
        if let Some(trace) = &job.trace {
            self.stream.record(&self.base)?;
            job.wait_for(&self.base)?;
            self.start = trace.now();
        }
        Ok(())
    }

    /// Puts the copy of a step on the stream.
    fn copy(&mut self, step: usize, from: u64, to: &Target<'_>) -> Result<(), DriverError> {
        let at = self.steps.len();
        if self.timers.len() == at {
            // Events are kept from run to run: a batch size has the same copies each time.
            let timed = || Event::new(&self.context, true);
            self.timers.push((timed()?, timed()?));
        }
        self.stream.record(&self.timers[at].0)?;
        self.stream.download(from, to.block, to.offset, to.bytes)?;
        self.stream.record(&self.timers[at].1)?;
        self.steps.push(step);
        Ok(())
    }

    /// The end of the last copy of this run.
    fn last(&self) -> Option<&Event> {
        self.steps.len().checked_sub(1).map(|at| &self.timers[at].1)
    }

    /// The milliseconds that the copies of this run took, as far as they are done; and adds them to
    /// the trace.
    fn end(&self, job: &Job, device: usize) -> Result<f64, DriverError> {
        let mut time = 0.0;
        for (step, (before, after)) in self.steps.iter().zip(&self.timers) {
            if !after.is_reached()? {
                break;
            }
            let length = f64::from(after.since(before)?);
            time += length;
            if let Some(trace) = &job.trace {
                trace.add([Span {
                    track: format!("{} downloads", job.program.devices[device].device),
                    name: job.program.devices[HOST].steps[*step].label.clone(),
                    start: self.start + 1e3 * f64::from(before.since(&self.base)?),
                    length: 1e3 * length,
                    kind: Kind::Copy,
                    operator: Some(profile::COPY),
                }]);
            }
        }
        Ok(time)
    }
}

impl Host {
    /// The host beside devices with these contexts.
    pub(super) fn new(contexts: &[Option<Arc<Context>>]) -> Result<Self, (usize, DriverError)> {
        let download = |(d, c): (usize, &Option<Arc<Context>>)| {
            c.as_ref().map(Download::new).transpose().map_err(|error| (d, error))
        };
        let downloads = contexts.iter().enumerate().map(download).collect::<Result<_, _>>()?;
        Ok(Self { downloads, pending: Vec::new() })
    }

    /// The streams of all GPUs.
    fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.downloads.iter().flatten().map(|download| &download.stream)
    }

    /// Does what the host has to do in a run.
    pub(super) fn run(&mut self, job: &Job) -> Outcome {
        self.pending.clear();
        let result = self.work(job);
        if result.is_err() {
            job.stop(HOST);
        }
        let sticky = result.as_ref().is_err_and(Failure::is_sticky);
        let device_state = match (&result, sticky) {
            (Ok(_), _) => DeviceState::Clean,
            // After a sticky error the driver answers nothing more in this process.
            (Err(_), true) => job.settle(self.streams()).max(DeviceState::Broken),
            (Err(_), false) => job.settle(self.streams()),
        };
        let result = match result {
            Ok(time) => Ok(Some(time)),
            // None: it ended because of another device, whose error is reported.
            Err(failure) => job.error(HOST, failure).map_or(Ok(None), Err),
        };
        job.worker_progress.mark(HOST, Steps::of(0), WorkerState::Idle);
        Outcome { result, device_state }
    }

    /// Does the tasks, and tells the other workers if one of them failed.
    fn work(&mut self, job: &Job) -> Result<Duration, Failure> {
        let inputs: Vec<&Tensor> = job.inputs.iter().collect();
        let steps = HostSteps {
            program: &job.program.devices[HOST],
            bound: &job.plan.bound.devices[HOST],
            inputs: &inputs,
            params: &job.params,
            crew: job.cpu.crew(),
        };
        for download in self.downloads.iter_mut().flatten() {
            download.begin(job)?;
        }
        let result = self.tasks(job, &steps);
        if result.is_err() {
            job.stop(HOST);
        }
        let mut copied = 0.0;
        for (device, download) in self.downloads.iter().enumerate() {
            let last = download.as_ref().and_then(|download| download.steps.last());
            if let (Ok(_), Some(step)) = (&result, last) {
                job.worker_progress.mark(HOST, Steps::of(*step), WorkerState::Device);
            }
            // After a failure what is known of them; of a device that is broken nothing is.
            match download.as_ref().map(|download| download.end(job, device)) {
                Some(Err(error)) if result.is_ok() => return Err(error.into()),
                Some(Ok(time)) => copied += time,
                Some(Err(_)) | None => {}
            }
        }
        // Steps that move nothing at this batch size count as done for the progress bar.
        job.count(steps.program.steps.len().saturating_sub(job.plan.host.len()));
        Ok(result? + Duration::from_secs_f64(copied.max(0.0) / 1e3))
    }

    /// Does the tasks of a run; the time that the host itself took.
    fn tasks(&mut self, job: &Job, steps: &HostSteps<'_>) -> Result<Duration, Failure> {
        let mut time = Duration::ZERO;
        for (step, task) in &job.plan.host {
            job.worker_progress.mark(HOST, Steps::of(*step), WorkerState::Device);
            job.events.check()?;
            self.wait(job, *step, task)?;
            let begin = TaskStart::now(job);
            self.task(job, steps, *step, task)?;
            if matches!(task, HostTask::Launch | HostTask::Copy { .. }) {
                time += begin.clock.elapsed();
                let step = &steps.program.steps[*step];
                let kind = invariant(Kind::of(&step.action), "that launches and copies are work");
                trace(job, || step.label.clone(), kind, &begin, profile::operator(&step.action));
            }
            job.count(1);
        }
        let begin = TaskStart::now(job);
        self.join(job)?;
        trace(job, || WAIT.into(), Kind::Wait, &begin, None);
        Ok(time)
    }

    /// Waits for what has to be there before a task.
    fn wait(&mut self, job: &Job, step: usize, task: &HostTask) -> Result<(), Failure> {
        let begin = TaskStart::now(job);
        match task {
            HostTask::Wait { event, .. } => {
                job.worker_progress.mark(HOST, Steps::of(step), WorkerState::Other);
                job.events.wait(*event)?;
            }
            HostTask::Record(_) | HostTask::Copy { .. } | HostTask::Launch => {
                self.join(job)?;
                job.worker_progress.mark(HOST, Steps::of(step), WorkerState::Device);
            }
            HostTask::Download { .. } => return Ok(()),
        }
        trace(job, || WAIT.into(), Kind::Wait, &begin, None);
        Ok(())
    }

    /// Does one task, for which everything is there.
    fn task(
        &mut self,
        job: &Job,
        steps: &HostSteps<'_>,
        step: usize,
        task: &HostTask,
    ) -> Result<(), Failure> {
        let internal = |reason: &str| StepError::Internal(reason.to_owned());
        match task {
            HostTask::Wait { event, recorder } => {
                let mark = job.gpu_events.get(*event as usize).and_then(Option::as_ref);
                let download = self.downloads.get(*recorder).and_then(Option::as_ref);
                if let (Some(mark), Some(download)) = (mark, download) {
                    // Copies from other GPUs do not wait for this one.
                    let waits = download.stream.wait(mark);
                    waits.map_err(|error| Failure::Of(*recorder, error))?;
                }
            }
            HostTask::Record(event) => job.events.record(*event),
            HostTask::Download { device, from, to, bytes } => {
                let download = self.downloads.get_mut(*device).and_then(Option::as_mut);
                let download = download.ok_or_else(|| internal("the source is not a GPU"))?;
                let block = job.blocks.block(*to);
                let block = block.ok_or_else(|| internal("the destination is not pinned"))?;
                let from = from.address(job.arenas[*device]);
                let to = Target { block, offset: to.offset, bytes: *bytes };
                download.copy(step, from, &to)?;
                // Waited for where the bytes are needed, so that copies from several GPUs overlap.
                self.pending.push((step, *device));
            }
            HostTask::Copy { from, to } => {
                steps.copy(*from, *to, &mut lock(&job.memory))?;
            }
            HostTask::Launch => {
                job.worker_progress.mark(HOST, Steps::of(step), WorkerState::Host);
                if let Action::Launch(launch) = &steps.program.steps[step].action {
                    steps.launch(job.plan.kernels.of(step), launch, &mut lock(&job.memory))?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the copies from GPUs.
    fn join(&mut self, job: &Job) -> Result<(), Failure> {
        for (step, device) in self.pending.drain(..) {
            job.worker_progress.mark(HOST, Steps::of(step), WorkerState::Device);
            if let Some(Some(download)) = self.downloads.get(device) {
                if let Some(last) = download.last() {
                    job.wait_for(last)?;
                }
                // It is idle, and gives up what it held for its copies.
                job.poll(|| download.stream.is_idle())?;
            }
        }
        Ok(())
    }
}

/// When a task of the host began.
struct TaskStart {
    clock: Instant,
    /// The time in the trace, in microseconds, if there is one.
    in_trace: Option<f64>,
}

impl TaskStart {
    fn now(job: &Job) -> Self {
        Self { clock: Instant::now(), in_trace: job.trace.as_ref().map(Recorder::now) }
    }
}

/// Adds what the host has done since a time to the trace.
fn trace(
    job: &Job,
    name: impl FnOnce() -> Arc<str>,
    kind: Kind,
    begin: &TaskStart,
    operator: Option<&'static str>,
) {
    let (Some(trace), Some(start)) = (&job.trace, begin.in_trace) else { return };
    let track = job.program.devices[HOST].device.to_string();
    let length = begin.clock.elapsed().as_secs_f64() * 1e6;
    trace.add([Span { track, name: name(), start, length, kind, operator }]);
}
