//! What the worker of the host does in a run: copies from GPUs, and the steps that run on the CPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::driver::Context;
use super::job::{Failure, Job, Left, Outcome, State};
use super::plan::HostTask;
use super::stream::Stream;
use super::trace::Span;
use crate::backend::DriverError;
use crate::backend::cpu::{HostSteps, StepError};
use crate::lower::Action;
use crate::types::Tensor;

/// The host's position in a program.
const HOST: usize = 0;

/// The host with a stream to copy from each GPU, in the hands of its worker.
#[derive(Debug)]
pub(super) struct Host {
    /// One for each device; none for the host.
    downloads: Vec<Option<Stream>>,
    /// The devices with copies that are not waited for.
    pending: Vec<usize>,
}

impl Host {
    /// The host beside devices with these contexts.
    pub(super) fn new(contexts: &[Option<Arc<Context>>]) -> Result<Self, DriverError> {
        let stream = |c: &Option<Arc<Context>>| c.as_ref().map(Stream::new).transpose();
        let downloads = contexts.iter().map(stream).collect::<Result<_, _>>()?;
        Ok(Self { downloads, pending: Vec::new() })
    }

    /// Does what the host has to do in a run.
    pub(super) fn run(&mut self, job: &Job) -> Outcome {
        self.pending.clear();
        let result = self.work(job);
        if result.is_err() {
            job.events.stop();
        }
        let sticky = matches!(&result, Err(Failure::Driver(error)) if error.is_sticky());
        let left = match (&result, sticky) {
            (Ok(_), _) => Left::Clean,
            (Err(_), true) => job.settle(self.downloads.iter().flatten()).max(Left::Broken),
            (Err(_), false) => job.settle(self.downloads.iter().flatten()),
        };
        let result = match result {
            Ok(time) => Ok(Some(time)),
            Err(failure) => job.error(HOST, failure).map_or(Ok(None), Err),
        };
        job.board.mark(HOST, (0, 0), State::Idle);
        Outcome { result, left }
    }

    fn work(&mut self, job: &Job) -> Result<Duration, Failure> {
        let inputs: Vec<&Tensor> = job.inputs.iter().collect();
        let steps = HostSteps {
            program: &job.program.devices[HOST],
            bound: &job.plan.bound.devices[HOST],
            inputs: &inputs,
            params: &job.params,
            pool: job.cpu.pool(),
        };
        let mut time = Duration::ZERO;
        for (step, task) in &job.plan.host {
            job.board.mark(HOST, (*step, *step), State::Device);
            job.events.check()?;
            let begin = (Instant::now(), job.trace.as_ref().map(|t| t.now()));
            self.task(job, &steps, *step, task)?;
            if matches!(task, HostTask::Launch | HostTask::Copy { .. } | HostTask::Download { .. })
            {
                time += begin.0.elapsed();
                trace(job, *step, task, begin);
            }
            job.count(1);
        }
        let begin = Instant::now();
        self.join(job)?;
        job.count(steps.program.steps.len().saturating_sub(job.plan.host.len()));
        Ok(time + begin.elapsed())
    }

    fn task(
        &mut self,
        job: &Job,
        steps: &HostSteps<'_>,
        step: usize,
        task: &HostTask,
    ) -> Result<(), Failure> {
        let internal = |reason: &str| StepError::Internal(reason.to_owned());
        match task {
            HostTask::Wait(event) => {
                job.board.mark(HOST, (step, step), State::Other);
                job.events.wait(*event)?;
                if let Some(Some(mark)) = job.marks.get(*event as usize) {
                    // Which GPU recorded it is not said; a copy from any may be meant.
                    for stream in self.downloads.iter().flatten() {
                        stream.wait(mark)?;
                    }
                }
            }
            HostTask::Record(event) => {
                self.join(job)?;
                job.events.record(*event);
            }
            HostTask::Download { device, from, to, bytes } => {
                let stream = self.downloads.get(*device).and_then(Option::as_ref);
                let stream = stream.ok_or_else(|| internal("the source is no GPU"))?;
                let block = job.blocks.block(*to);
                let block = block.ok_or_else(|| internal("the destination is not pinned"))?;
                stream.download(from.address(job.arenas[*device]), block, to.offset, *bytes)?;
                self.pending.push(*device);
                if job.trace.is_some() {
                    self.join(job)?;
                }
            }
            HostTask::Copy { from, to } => {
                self.join(job)?;
                steps.copy(steps.location(*from), steps.location(*to), &job.memory)?;
            }
            HostTask::Launch => {
                self.join(job)?;
                job.board.mark(HOST, (step, step), State::Host);
                if let Action::Launch(launch) = &steps.program.steps[step].action {
                    steps.launch(&job.plan.kernels, step, launch, &job.memory)?;
                }
            }
        }
        Ok(())
    }

    /// Waits for the copies from GPUs.
    fn join(&mut self, job: &Job) -> Result<(), Failure> {
        for device in self.pending.drain(..) {
            if let Some(Some(stream)) = self.downloads.get(device) {
                job.poll(|| stream.is_idle())?;
            }
        }
        Ok(())
    }
}

/// Adds a step that is done to the trace.
fn trace(job: &Job, step: usize, task: &HostTask, begin: (Instant, Option<f64>)) {
    let (Some(trace), Some(start)) = (&job.trace, begin.1) else { return };
    let track = if let HostTask::Download { device, .. } = task {
        format!("{} downloads", job.program.devices[*device].device)
    } else {
        job.program.devices[HOST].device.to_string()
    };
    let name = job.program.devices[HOST].steps[step].label.clone();
    let length = begin.0.elapsed().as_secs_f64() * 1e6;
    trace.add([Span { track, name, start, length }]);
}
