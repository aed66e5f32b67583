//! The work of a GPU's worker in a run.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::graphs::{Graphs, Mode};
use super::job::{DeviceState, Failure, Job, Outcome, Steps, WorkerState};
use super::parts::IN_FLIGHT;
use super::plan::{Argument, GpuPlan, HostPlace, Phase, Placed, Task};
use super::report::Report;
use crate::backend::DriverError;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::module::Function;
use crate::backend::cuda::driver::stream::{Event, Stream, is_short_of_graph};
use crate::backend::host::trace::{Kind, Recorder, Span, WAIT};
use crate::backend::host::{StepError, lock, profile};
use crate::lower::{Action, Lane};
use crate::op::{Binary, Op, OpError};
use crate::types::KernelClass;
use crate::types::invariant::invariant;

/// A GPU with its streams, in the hands of its worker.
#[derive(Debug)]
pub(super) struct Gpu {
    /// The device's position in the program.
    d: usize,
    context: Arc<Context>,
    /// Kernels, and copies from devices.
    compute: Stream,
    /// The lane for exchange.
    exchange: Stream,
    /// Copies from the host.
    uploads: Stream,
    /// Recorded on `compute` for `uploads` to wait for.
    computed: Event,
    /// Recorded on `uploads` for `compute` to wait for.
    uploaded: Event,
    /// Recorded at the beginning of a run that is traced.
    base: Event,
    /// Recorded on a stream that is waited for.
    settled: Event,
    /// Before and after each unit of work.
    timers: Vec<(Event, Event)>,
    graphs: Graphs,
    /// The report of kernels on invalid elements, such as an index outside its axis.
    report: Report,
    /// The number of units of this run that are on the streams, and of those that are in the trace.
    put: usize,
    traced: usize,
    /// True if there is work, or a wait, on `compute` that `uploads` does not wait for.
    is_computing: bool,
    /// True if there are copies on `uploads` that `compute` does not wait for.
    is_uploading: bool,
}

/// Bytes of a device's memory, to copy to.
#[derive(Clone, Copy, Debug)]
struct Target {
    address: u64,
    bytes: usize,
}

/// A unit of work: tasks that are put on a stream together.
#[derive(Clone, Copy, Debug)]
struct Unit<'a> {
    /// Its position in the run.
    at: usize,
    /// The positions of its tasks.
    tasks: &'a Range<usize>,
}

/// The trace of a run.
#[derive(Clone, Copy)]
struct Record<'a> {
    trace: &'a Recorder,
    /// The time in the trace at which the run began.
    start: f64,
}

impl Gpu {
    /// The device at a position of a program.
    pub(super) fn new(d: usize, context: &Arc<Context>) -> Result<Self, DriverError> {
        Ok(Self {
            d,
            context: context.clone(),
            compute: Stream::new(context)?,
            exchange: Stream::new(context)?,
            uploads: Stream::new(context)?,
            computed: Event::new(context, false)?,
            uploaded: Event::new(context, false)?,
            base: Event::new(context, true)?,
            settled: Event::new(context, false)?,
            timers: Vec::new(),
            graphs: Graphs::default(),
            report: Report::new(context)?,
            put: 0,
            traced: 0,
            is_computing: false,
            is_uploading: false,
        })
    }

    /// Does what the device has to do in a run.
    pub(super) fn run(&mut self, job: &Job) -> Outcome {
        let result = self.work(job);
        if result.is_err() {
            job.stop(self.d);
        }
        let sticky = result.as_ref().is_err_and(Failure::is_sticky);
        let device_state = match (&result, sticky) {
            (Ok(_), _) => DeviceState::Clean,
            (Err(_), true) => job.settle(self.streams()).max(DeviceState::Broken),
            (Err(_), false) => job.settle(self.streams()),
        };
        let result = match result {
            Ok(time) => Ok(Some(time)),
            // None: it ended because of another device, whose error is reported.
            Err(failure) => job.error(self.d, failure).map_or(Ok(None), Err),
        };
        job.worker_progress.mark(self.d, Steps::of(0), WorkerState::Idle);
        Outcome { result, device_state }
    }

    fn streams(&self) -> [&Stream; 3] {
        [&self.compute, &self.exchange, &self.uploads]
    }

    /// The stream of a lane.
    fn stream(&self, lane: Lane) -> &Stream {
        match lane {
            Lane::Compute => &self.compute,
            Lane::Exchange => &self.exchange,
        }
    }

    fn work(&mut self, job: &Job) -> Result<Duration, Failure> {
        (self.is_computing, self.is_uploading) = (false, false);
        (self.put, self.traced) = (0, 0);
        let plan = &job.plan.gpus[self.d];
        let mode = self.mode(job);
        let units: Vec<Range<usize>> = if job.trace.is_some() {
            (0..plan.tasks.len()).map(|at| at..at + 1).collect()
        } else {
            plan.phases.iter().map(Phase::tasks).collect()
        };
        while self.timers.len() < units.len() {
            let timer = (Event::new(&self.context, true)?, Event::new(&self.context, true)?);
            self.timers.push(timer);
        }
        let start = self.start(job)?;
        if plan.reports {
            self.report.clear(&self.compute)?;
        }
        let result = self.units(job, plan, &units, mode, start);
        if result.is_err() {
            job.stop(self.d);
        }
        if let (Some(trace), Err(_)) = (&job.trace, &result) {
            // What is known of it; of a device that is broken nothing is.
            while self.traced < self.put && self.timers[self.traced].1.is_reached() == Ok(true) {
                drop(self.record(job, plan, &units[self.traced], Record { trace, start }));
            }
        }
        if let Some(trace) = &job.trace
            && let Err(error) = self.record_staging(job, Record { trace, start })
            && result.is_ok()
        {
            return Err(error.into());
        }
        let time = result?;
        if plan.reports {
            self.check_report(job)?;
        }
        self.graphs.prove();
        job.count(job.program.devices[self.d].steps.len().saturating_sub(plan.tasks.len()));
        Ok(time)
    }

    /// Does the units of a run; the time that they took.
    fn units(
        &mut self,
        job: &Job,
        plan: &GpuPlan,
        units: &[Range<usize>],
        mode: Mode,
        start: f64,
    ) -> Result<Duration, Failure> {
        for (at, tasks) in units.iter().enumerate() {
            self.put(job, plan, Unit { at, tasks }, mode)?;
            self.put = at + 1;
            if let (Some(trace), Mode::Proving) = (&job.trace, mode) {
                self.record(job, plan, tasks, Record { trace, start })?;
            }
        }
        self.finish(job, plan, units, start)
    }

    /// Adds the next unit to the trace; it is done.
    fn record(
        &mut self,
        job: &Job,
        plan: &GpuPlan,
        unit: &Range<usize>,
        Record { trace, start }: Record<'_>,
    ) -> Result<(), DriverError> {
        let (before, after) = &self.timers[self.traced];
        self.traced += 1;
        let Placed { step, lane, task } = &plan.tasks[unit.start];
        let stream = match lane {
            Lane::Compute => "compute",
            Lane::Exchange => "exchange",
        };
        let device = &job.program.devices[self.d];
        let work = || device.steps[*step].label.clone();
        let (track, name, kind) = match task {
            Task::Record(_) => return Ok(()),
            Task::Wait(_) => (stream, WAIT.into(), Kind::Wait),
            Task::Upload { .. } => ("uploads", work(), Kind::Copy),
            Task::Receive { .. } | Task::Copy { .. } => (stream, work(), Kind::Copy),
            Task::Launch { .. } => {
                let kind = Kind::of(&device.steps[*step].action);
                (stream, work(), invariant(kind, "that a launch is work"))
            }
        };
        trace.add([Span {
            track: format!("{} {track}", device.device),
            name,
            start: start + 1e3 * f64::from(before.since(&self.base)?),
            length: 1e3 * f64::from(after.since(before)?),
            kind,
            operator: profile::operator(&device.steps[*step].action),
        }]);
        Ok(())
    }

    /// Adds the inputs that came before the run to the trace, if they have arrived.
    fn record_staging(
        &self,
        job: &Job,
        Record { trace, start }: Record<'_>,
    ) -> Result<(), DriverError> {
        // One that was taken before may have a staging buffer that this batch does not use.
        let staged_inputs =
            lock(&job.staged_inputs).clone().filter(|_| job.plan.gpus[self.d].staging > 0);
        let staging = staged_inputs.as_ref().and_then(|staged| staged.staging(self.d));
        let Some(staging) = staging else { return Ok(()) };
        if !staging.arrived.is_reached()? {
            return Ok(());
        }
        trace.add([Span {
            track: format!("{} inputs", job.program.devices[self.d].device),
            name: "inputs".into(),
            start: start + 1e3 * f64::from(staging.begun.since(&self.base)?),
            length: 1e3 * f64::from(staging.arrived.since(&staging.begun)?),
            kind: Kind::Copy,
            operator: None,
        }]);
        Ok(())
    }

    /// How this run's work is put on the streams; what is kept for its batch size comes first.
    fn mode(&mut self, job: &Job) -> Mode {
        let wants_graphs = job.trace.is_none() && job.graphs;
        let mode = self.graphs.begin(job.plan.bound.n, job.arenas[self.d], wants_graphs);
        if mode != Mode::Proving {
            // A unit shows no progress until it ends, and shares the GPU with the other runs in
            // flight: without this allowance the watchdog would end a run that is only slow.
            job.worker_progress.allow(self.graphs.longest().saturating_mul(IN_FLIGHT));
        }
        mode
    }

    /// The time in the trace at which `base` is reached; 0 without a trace.
    fn start(&self, job: &Job) -> Result<f64, Failure> {
        let Some(trace) = &job.trace else { return Ok(0.0) };
        self.compute.record(&self.base)?;
        job.wait_for(&self.base)?;
        Ok(trace.now())
    }

    /// The first and the last step of a unit, which is not empty.
    fn steps(plan: &GpuPlan, unit: &Range<usize>) -> Steps {
        let step = |at: usize| plan.tasks[at].step;
        Steps { first: step(unit.start), last: step(unit.end - 1) }
    }

    /// Puts a unit of work on the streams.
    fn put(
        &mut self,
        job: &Job,
        plan: &GpuPlan,
        unit: Unit<'_>,
        mode: Mode,
    ) -> Result<(), Failure> {
        let Unit { at: u, tasks: range } = unit;
        job.worker_progress.mark(self.d, Self::steps(plan, range), WorkerState::Device);
        job.events.check()?;
        let Placed { lane, task, .. } = &plan.tasks[range.start];
        match task {
            Task::Wait(event) => {
                job.worker_progress.mark(self.d, Self::steps(plan, range), WorkerState::Other);
                if job.trace.is_some() {
                    self.stream(*lane).record(&self.timers[u].0)?;
                }
                job.events.wait(*event)?;
                if let Some(Some(mark)) = job.gpu_events.get(*event as usize) {
                    self.stream(*lane).wait(mark)?;
                }
                // The buffers of the other lane are free only after this wait, so uploads, which
                // may overwrite them, have to wait for `compute` again.
                self.is_computing |= *lane == Lane::Compute;
                if job.trace.is_some() {
                    self.stream(*lane).record(&self.timers[u].1)?;
                }
            }
            Task::Record(event) => {
                self.join_uploads()?;
                if let Some(Some(mark)) = job.gpu_events.get(*event as usize) {
                    self.stream(*lane).record(mark)?;
                }
                job.events.record(*event);
            }
            Task::Upload { from, to, bytes, staging } => {
                self.join_compute()?;
                let to = to.address(job.arenas[self.d]);
                self.uploads.record(&self.timers[u].0)?;
                self.upload(job, *from, *staging, Target { address: to, bytes: *bytes })?;
                self.uploads.record(&self.timers[u].1)?;
                self.is_uploading = true;
            }
            Task::Receive { .. } | Task::Copy { .. } | Task::Launch { .. } => {
                self.join_uploads()?;
                self.stream(*lane).record(&self.timers[u].0)?;
                self.unit(job, plan, unit, mode)?;
                self.stream(*lane).record(&self.timers[u].1)?;
                self.is_computing |= *lane == Lane::Compute;
            }
        }
        if mode == Mode::Proving {
            for stream in self.streams() {
                self.settle(job, stream)?;
            }
        }
        job.count(range.len());
        Ok(())
    }

    /// Copies bytes of the host, or of the staging buffer to which they have come from there.
    fn upload(
        &self,
        job: &Job,
        from: HostPlace,
        at: Option<usize>,
        Target { address, bytes }: Target,
    ) -> Result<(), Failure> {
        let staged_inputs = lock(&job.staged_inputs).clone();
        if let (Some(at), Some(staging)) =
            (at, staged_inputs.as_ref().and_then(|i| i.staging(self.d)))
        {
            self.uploads.wait(&staging.arrived)?;
            return Ok(self.uploads.copy(staging.address() + at as u64, address, bytes)?);
        }
        let missing = || StepError::Internal("the source is not staged".to_owned());
        let block = job.blocks.block(from).ok_or_else(missing)?;
        Ok(self.uploads.upload(block, from.offset, address, bytes)?)
    }

    /// Lets `compute` wait for the copies from the host.
    fn join_uploads(&mut self) -> Result<(), DriverError> {
        if std::mem::take(&mut self.is_uploading) {
            self.uploads.record(&self.uploaded)?;
            self.compute.wait(&self.uploaded)?;
        }
        Ok(())
    }

    /// Lets the copies from the host wait for `compute`: they may overwrite what it reads.
    fn join_compute(&mut self) -> Result<(), DriverError> {
        if std::mem::take(&mut self.is_computing) {
            self.compute.record(&self.computed)?;
            self.uploads.wait(&self.computed)?;
        }
        Ok(())
    }

    /// Puts a unit on the stream of its lane: task by task, or as a graph.
    fn unit(
        &mut self,
        job: &Job,
        plan: &GpuPlan,
        unit: Unit<'_>,
        mode: Mode,
    ) -> Result<(), Failure> {
        if mode != Mode::Replayed || unit.tasks.len() < 2 || !self.has_graph(job, plan, unit)? {
            return self.one_by_one(job, plan, unit.tasks, mode);
        }
        loop {
            let graph = self.graphs.get(unit.at);
            let missing = || StepError::Internal("the graph is not kept".to_owned());
            let stream = self.stream(plan.tasks[unit.tasks.start].lane);
            match stream.replay(graph.ok_or_else(missing)?) {
                // Nothing of it is on the stream. Other batch sizes give up their graphs for it.
                Err(error) if is_short_of_graph(&error) && self.graphs.give_way() => {}
                Err(error) if is_short_of_graph(&error) => break,
                launched => return Ok(launched?),
            }
        }
        self.graphs.refuse(unit.at);
        self.one_by_one(job, plan, unit.tasks, mode)
    }

    /// Puts the tasks of a unit on the stream of its lane.
    fn one_by_one(
        &self,
        job: &Job,
        plan: &GpuPlan,
        tasks: &Range<usize>,
        mode: Mode,
    ) -> Result<(), Failure> {
        let stream = self.stream(plan.tasks[tasks.start].lane);
        for at in tasks.clone() {
            // Each task is marked by itself, so that a call that fails names its step.
            let steps = Self::steps(plan, &(at..at + 1));
            job.worker_progress.mark(self.d, steps, WorkerState::Device);
            self.task(job, stream, &plan.tasks[at].task)?;
            if mode == Mode::Proving {
                self.settle(job, stream)?;
            }
        }
        Ok(())
    }

    /// Captures a unit, unless it was; false where there is no memory for its graph. Other batch
    /// sizes give theirs up for it.
    fn has_graph(&mut self, job: &Job, plan: &GpuPlan, unit: Unit<'_>) -> Result<bool, Failure> {
        if self.graphs.get(unit.at).is_some() {
            return Ok(true);
        }
        loop {
            let stream = self.stream(plan.tasks[unit.tasks.start].lane);
            let put = || self.one_by_one(job, plan, unit.tasks, Mode::Replayed);
            match stream.capture(put) {
                Ok(graph) => {
                    let steps = Self::steps(plan, unit.tasks);
                    job.worker_progress.mark(self.d, steps, WorkerState::Device);
                    self.graphs.keep(unit.at, graph);
                    return Ok(true);
                }
                Err(Failure::Driver(error)) if is_short_of_graph(&error) => {
                    if !self.graphs.give_way() {
                        self.graphs.refuse(unit.at);
                        return Ok(false);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Launches a kernel. What programs keep on the device for later gives way to its code, which
    /// the driver loads when a kernel is first launched.
    fn launch(
        &self,
        stream: &Stream,
        function: &Function,
        grid: [u32; 3],
        arguments: &mut [u64],
    ) -> Result<(), DriverError> {
        loop {
            match stream.launch(function, grid, arguments) {
                Err(error) if error.is_out_of_memory() => {
                    if !self.context.reclaim_all() {
                        // Something may have given way for another meanwhile.
                        let launched = stream.launch(function, grid, arguments);
                        return launched.map_err(|error| self.no_code(error));
                    }
                }
                launched => return launched,
            }
        }
    }

    /// The error of a launch for which there is no memory, with what the driver does not say.
    fn no_code(&self, error: DriverError) -> DriverError {
        if !error.is_out_of_memory() {
            return error;
        }
        // For the message only: a driver that does not answer has no known free memory.
        let free = self.context.free_memory().unwrap_or(0);
        let text = format!(
            "{}; the driver loads a kernel when it is first launched, and {free} bytes are free",
            error.text
        );
        DriverError { text, ..error }
    }

    /// Waits until the work on a stream is done.
    fn settle(&self, job: &Job, stream: &Stream) -> Result<(), Failure> {
        stream.record(&self.settled)?;
        job.wait_for(&self.settled)?;
        // It is idle, and gives up what it held for its copies.
        job.poll(|| stream.is_idle())
    }

    /// Puts one task on a stream.
    fn task(&self, job: &Job, stream: &Stream, task: &Task) -> Result<(), Failure> {
        let arena = job.arenas[self.d];
        match task {
            Task::Launch { function, grid, arguments } => {
                let value = |argument: &Argument| match argument {
                    Argument::DeviceAddress(place) => place.address(arena),
                    Argument::Size(size) => size.cast_unsigned(),
                    Argument::Report => self.report.address(),
                };
                let mut arguments: Vec<u64> = arguments.iter().map(value).collect();
                self.launch(stream, function, *grid, &mut arguments)?;
            }
            Task::Copy { from, to, bytes } => {
                stream.copy(from.address(arena), to.address(arena), *bytes)?;
            }
            Task::Receive { device, from, to, bytes } => {
                let (from, to) = (from.address(job.arenas[*device]), to.address(arena));
                match job.contexts.get(*device).and_then(Option::as_ref) {
                    Some(other) if other.ordinal() != self.context.ordinal() => {
                        stream.copy_from(other, from, to, *bytes)?;
                    }
                    _ => stream.copy(from, to, *bytes)?,
                }
            }
            Task::Wait(_) | Task::Record(_) | Task::Upload { .. } => {}
        }
        Ok(())
    }

    /// Waits until all work is done, in its order; the time that it took.
    fn finish(
        &mut self,
        job: &Job,
        plan: &GpuPlan,
        units: &[Range<usize>],
        start: f64,
    ) -> Result<Duration, Failure> {
        let (mut time, mut longest) = (0.0f64, 0.0f64);
        for (u, unit) in units.iter().enumerate() {
            let task = &plan.tasks[unit.start].task;
            let is_work = !matches!(task, Task::Wait(_) | Task::Record(_));
            if is_work {
                let (before, after) = &self.timers[u];
                job.worker_progress.mark(self.d, Self::steps(plan, unit), WorkerState::Device);
                job.wait_for(after)?;
                let taken = f64::from(after.since(before)?);
                (time, longest) = (time + taken, longest.max(taken));
            }
            if let (Some(trace), true) = (&job.trace, u >= self.traced) {
                job.wait_for(&self.timers[u].1)?;
                self.record(job, plan, unit, Record { trace, start })?;
            }
        }
        if plan.reports {
            self.report.fetch(&self.compute)?;
        }
        for stream in self.streams() {
            self.settle(job, stream)?;
        }
        self.graphs.took(Duration::from_secs_f64(longest / 1e3));
        Ok(Duration::from_secs_f64(time.max(0.0) / 1e3))
    }

    /// Fails if a kernel met an element that its operator cannot take, as the operator's evaluation
    /// does.
    fn check_report(&self, job: &Job) -> Result<(), Failure> {
        let Some((step, position)) = self.report.first() else { return Ok(()) };
        job.worker_progress.mark(self.d, Steps::of(step), WorkerState::Device);
        let (_, name) = job.position(self.d);
        let action = job.program.devices[self.d].steps.get(step).map(|step| &step.action);
        let launch = match action {
            Some(Action::Launch(launch)) => Some(launch),
            Some(Action::Copy { .. } | Action::Wait(_) | Action::Record(_)) | None => None,
        };
        let lengths = launch.and_then(|launch| match &launch.op {
            Some(Op::Recurrent(op)) => op.lengths_operand(),
            Some(Op::RecurrentGrad(op)) => op.forward().lengths_operand(),
            Some(Op::ReverseSequence(_)) => Some(1),
            _ => None,
        });
        let by_index = launch.is_none_or(|launch| {
            matches!(launch.class, KernelClass::Move | KernelClass::Index | KernelClass::Line)
        });
        let arithmetic = usize::try_from(position).ok().and_then(|i| Binary::FAILURES.get(i));
        let (operand, reason) = match (lengths, arithmetic.filter(|_| !by_index)) {
            (Some(operand), _) => {
                (operand, format!("the length at position {position} is not one of a sequence"))
            }
            (None, Some(reason)) => (1, (*reason).to_owned()),
            (None, None) => (1, format!("the index at position {position} is outside its axis")),
        };
        Err(StepError::Op(name, Box::new(OpError::Value { operand, reason })).into())
    }
}
