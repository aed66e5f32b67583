//! One run: the members of the crew take the steps of the devices, each device's in order.
//!
//! A device is a task that never blocks. Where its next step has to wait for an event, or for
//! memory that a launch of another device holds, the task ends, and whoever records the event or
//! gives the memory back starts it again: it stands in a queue, and the next member that is free
//! takes it. A member that waits for parts of a launch takes no steps of another device meanwhile.

use std::mem;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use smallvec::SmallVec;

use super::blocks::{Blocks, Shared, Worked, text_of};
use super::events::{Events, Stopped};
use super::kernel::{Kernel, StepKernels};
use super::place::{Memory, Place};
use crate::backend::RunError;
use crate::backend::host::profile;
use crate::backend::host::trace::{Kind, Recorder, Span};
use crate::backend::host::{Block as _, Crew, Few, HostSteps, StepError, lock, touched};
use crate::lower::{Action, Bound, BoundDevice, BufferId, Launch, Program, Step};
use crate::types::Tensor;
use crate::types::invariant::invariant;

/// A program at one batch size, with the code of its launches.
#[derive(Debug)]
pub(super) struct Prepared {
    /// The memory of the devices. That of a device whose rows are taken in blocks has what others
    /// copy from it, and nothing else.
    pub(super) bound: Bound,
    works: Vec<Work>,
    /// The arenas of blocks, and the bytes of each.
    shared: (usize, usize),
}

/// How a device computes its rows.
#[derive(Debug)]
enum Work {
    /// All at once; this many bytes of the arena are touched.
    Whole(StepKernels, u64),
    /// Some at a time.
    Blocks(Box<Blocks>),
}

impl Prepared {
    /// For so many threads; `in_blocks` says whether rows may be taken in blocks.
    pub(super) fn new(program: &Program, bound: &Bound, threads: usize, in_blocks: bool) -> Self {
        // Replicas run beside each other.
        let each = (threads / program.rows.len().max(1)).max(1);
        let mut own = bound.clone();
        let (mut slots, mut bytes) = (0, 0);
        let mut works = Vec::with_capacity(program.devices.len());
        for (d, device) in program.devices.iter().enumerate() {
            let blocks = in_blocks.then(|| Blocks::new(program, bound, d, each)).flatten();
            works.push(if let Some(blocks) = blocks {
                (slots, bytes) = (slots + blocks.slots(), bytes.max(blocks.arena()));
                let BoundDevice { locations, planned, .. } = &mut own.devices[d];
                let alignment = program.target.alignment as usize;
                *planned = 0;
                for buffer in blocks.results() {
                    locations[*buffer].offset = *planned;
                    *planned = (*planned + locations[*buffer].bytes).next_multiple_of(alignment);
                }
                Work::Blocks(Box::new(blocks))
            } else {
                let at = &bound.devices[d];
                Work::Whole(StepKernels::new(device, at, bound.n), touched(device, at))
            });
        }
        // A thread computes one block at a time.
        Self { bound: own, works, shared: (slots.min(threads), bytes) }
    }

    /// The bytes of the arenas: those of the devices, and those that their blocks share.
    pub(super) fn arenas(&self) -> impl Iterator<Item = usize> {
        let (count, bytes) = self.shared;
        let own = self.bound.devices.iter().map(|device| device.planned);
        own.chain(std::iter::repeat_n(bytes, count))
    }
}

/// What one run is given.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) program: &'a Program,
    pub(super) prepared: &'a Prepared,
    pub(super) inputs: &'a [&'a Tensor],
    pub(super) params: &'a [Vec<Option<Tensor>>],
    pub(super) crew: &'a Crew,
    pub(super) progress: Option<&'a AtomicU64>,
    pub(super) trace: Option<&'a Recorder>,
}

/// Everything that the tasks of one run share.
pub(super) struct Run<'a> {
    given: Given<'a>,
    /// The memory of each device.
    places: Vec<Place<'a>>,
    /// The arenas of blocks that nobody uses.
    shared: Mutex<Vec<&'a mut [u8]>>,
    /// The work of each device.
    tasks: Vec<Mutex<Task>>,
    events: Events,
    queue: Mutex<Queue>,
}

/// The devices that can go on.
#[derive(Default)]
struct Queue {
    /// Those that nobody has taken, the next one first.
    ready: SmallVec<[usize; 8]>,
    /// The number of those that are being advanced.
    taken: usize,
}

/// A device is being advanced while this lives.
struct Taken<'a> {
    queue: &'a Mutex<Queue>,
    crew: &'a Crew,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut queue = lock(self.queue);
        queue.taken -= 1;
        let is_over = queue.is_over();
        drop(queue);
        if is_over {
            // Whoever began the run waits for its end.
            self.crew.stir();
        }
    }
}

/// The work of one device.
#[derive(Default)]
struct Task {
    /// The steps that are done; the next one runs or waits.
    steps: usize,
    /// What it did, but for its own arena.
    worked: Worked,
    /// `None` until it has ended.
    outcome: Option<Outcome>,
}

/// What a device did; `None` if it stopped because of another.
type Outcome = Result<Option<Worked>, RunError>;

/// How a device goes on.
enum Next {
    Step,
    /// Another device starts it again.
    Wait,
    /// It lets these devices go first, which waited for its memory.
    Yield(Vec<usize>),
    End,
}

/// Why a device's work ends early.
enum Failure {
    Stopped,
    Step(StepError),
    /// That of a block of rows.
    Block(RunError),
    Panic(String),
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

fn internal(reason: &str) -> Failure {
    StepError::Internal(reason.to_owned()).into()
}

impl Queue {
    /// True if no device can go on any more, and none is being advanced.
    fn is_over(&self) -> bool {
        self.taken == 0 && self.ready.is_empty()
    }
}

impl<'a> Run<'a> {
    /// A run with the memory of each device, and the arenas of blocks.
    pub(super) fn new(
        given: Given<'a>,
        memories: Vec<Memory<'a>>,
        shared: Vec<&'a mut [u8]>,
    ) -> Self {
        let tasks = memories.iter().map(|_| Mutex::default()).collect();
        let places = memories.into_iter().map(Place::new).collect();
        let events = Events::new(given.program.events);
        let (shared, queue) = (Mutex::new(shared), Mutex::default());
        Self { given, places, shared, tasks, events, queue }
    }

    /// Runs all devices; returns what each did.
    pub(super) fn all_devices(&self) -> Result<Vec<Worked>, RunError> {
        lock(&self.queue).ready.extend(0..self.tasks.len());
        self.given.crew.enter(|| self.devices());
        // An error of a step comes before what followed from it.
        let outcomes: Vec<_> = self.tasks.iter().map(|task| lock(task).outcome.take()).collect();
        let ended: Vec<_> =
            outcomes.into_iter().map(Option::transpose).collect::<Result<_, _>>()?;
        let ended = ended.into_iter().enumerate().map(|(d, outcome)| {
            let stuck = || self.fault(d, "", "it waits for what no device records");
            let stopped = || self.fault(d, "", "it stopped without an error");
            outcome.ok_or_else(stuck)?.ok_or_else(stopped)
        });
        ended.collect()
    }

    fn fault(&self, d: usize, label: &str, reason: &str) -> RunError {
        let (label, reason) = (label.to_owned(), reason.to_owned());
        RunError::Internal { device: self.given.program.devices[d].device, label, reason }
    }

    /// Advances devices, with those members that have nothing else to do, until none can go on.
    fn devices(&self) {
        if self.tasks.len() < 2 {
            while self.next_device() {}
            return;
        }
        let crew = self.given.crew;
        crew.offer(&|| self.next_device(), |devices| {
            loop {
                let seen = crew.generation();
                if devices.work() || devices.help() {
                    continue;
                }
                if lock(&self.queue).is_over() {
                    return;
                }
                crew.wait(seen);
            }
        });
    }

    /// Advances the next device of the queue; false if none stands there.
    fn next_device(&self) -> bool {
        let mut queue = lock(&self.queue);
        if queue.ready.is_empty() {
            return false;
        }
        let device = queue.ready.remove(0);
        queue.taken += 1;
        drop(queue);
        let _taken = Taken { queue: &self.queue, crew: self.given.crew };
        self.advance(device);
        true
    }

    /// Starts devices, or starts them again.
    fn start(&self, devices: Vec<usize>) {
        if !devices.is_empty() {
            lock(&self.queue).ready.extend(devices);
            self.given.crew.stir();
        }
    }

    /// Takes steps of a device until there are none left, or the next one has to wait. A panic in a
    /// step is an error like any other.
    fn advance(&self, d: usize) {
        let mut task = lock(&self.tasks[d]);
        let result = catch_unwind(AssertUnwindSafe(|| self.steps(d, &mut task)));
        let result = result.unwrap_or_else(|panic| Err(Failure::Panic(text_of(&*panic))));
        match result {
            Ok(Next::Wait) => {}
            Ok(Next::Yield(mut others)) => {
                drop(task);
                others.push(d);
                self.start(others);
            }
            Ok(Next::Step | Next::End) => {
                let worked = mem::take(&mut task.worked);
                let planned = worked.planned + self.given.prepared.bound.devices[d].planned as u64;
                task.outcome = Some(Ok(Some(Worked { planned, ..worked })));
            }
            Err(failure) => {
                task.outcome = Some(self.failed(d, &task, failure));
                drop(task);
                self.start(self.events.stop());
                // The step that failed may have held memory.
                self.places.iter().for_each(|place| self.start(place.left()));
            }
        }
    }

    /// The outcome of a device whose work ended early.
    fn failed(&self, d: usize, task: &Task, failure: Failure) -> Outcome {
        let device = &self.given.program.devices[d];
        // After the last step there is none to name.
        let label = device.steps.get(task.steps).map_or("", |s| &s.label);
        match failure {
            Failure::Stopped => Ok(None),
            Failure::Step(error) => Err(error.at(device.device, label)),
            Failure::Block(error) => Err(error),
            Failure::Panic(text) => Err(self.fault(d, label, &format!("panic: {text}"))),
        }
    }

    /// Computes the rows of a device in blocks.
    fn blocks(&self, d: usize, blocks: &Blocks) -> Result<Worked, Failure> {
        self.events.check()?;
        let bound = &self.given.prepared.bound.devices[d];
        let mut memory = lock(&self.places[d].memory);
        let Memory { arena, outputs, .. } = &mut *memory;
        let results = blocks.results().iter().map(|b| &bound.locations[*b]);
        let ranges: Few<_> = results.map(|at| at.offset..at.offset + at.bytes).collect();
        let results = arena.parts(&ranges);
        let results = results.ok_or_else(|| internal("results lie outside of their memory"))?;
        let outputs = outputs.iter_mut().map(|output| &mut **output).chain(results).collect();
        let program = &self.given.program.devices[d];
        let Given { inputs, params, crew, progress, .. } = self.given;
        let params = &params[blocks.holder()];
        let is_stopped = &|| self.events.check().is_err();
        let given = Shared { program, inputs, params, crew, progress, is_stopped };
        let mut shared = lock(&self.shared);
        let first = shared.len().checked_sub(blocks.slots());
        let first = invariant(first, "that a thread computes one block at a time");
        let mut arenas = shared.split_off(first);
        drop(shared);
        let done = blocks.run(&given, &mut arenas, outputs);
        drop(memory);
        lock(&self.shared).append(&mut arenas);
        self.start(self.places[d].left());
        let mut worked = done.map_err(Failure::Block)?;
        // Those that stop early leave rows out.
        self.events.check()?;
        worked.used += bound.planned as u64;
        Ok(worked)
    }

    /// Takes steps of a device.
    fn steps(&self, d: usize, task: &mut Task) -> Result<Next, Failure> {
        match &self.given.prepared.works[d] {
            Work::Whole(kernels, used) => {
                let begin = Instant::now();
                let next = self.whole(d, kernels, task)?;
                task.worked.time += begin.elapsed();
                task.worked.used = *used;
                Ok(next)
            }
            Work::Blocks(blocks) => {
                task.worked = self.blocks(d, blocks)?;
                let bound = &self.given.prepared.bound.devices[d];
                // What is left: others may have waited for the results.
                let steps = self.given.program.devices[d].steps.iter().zip(&bound.active);
                for (step, _) in steps.filter(|(_, active)| **active) {
                    if let Action::Record(event) = step.action {
                        self.start(self.events.record(event));
                    }
                }
                Ok(Next::End)
            }
        }
    }

    /// Takes steps of a device that computes all rows at once.
    fn whole(&self, d: usize, kernels: &StepKernels, task: &mut Task) -> Result<Next, Failure> {
        let bound = &self.given.prepared.bound.devices[d];
        while let Some(step) = self.given.program.devices[d].steps.get(task.steps) {
            let mut next = Next::Step;
            if bound.active[task.steps] {
                let begin = self.given.trace.map(|_| Instant::now());
                match &step.action {
                    Action::Wait(event) if !self.events.is_recorded(*event, d)? => {
                        return Ok(Next::Wait);
                    }
                    Action::Wait(_) => {}
                    Action::Record(event) => self.start(self.events.record(*event)),
                    Action::Copy { device, from, to } => {
                        next = self.copy(d, *device, [*from, *to])?;
                    }
                    Action::Launch(launch) => {
                        next = self.launch(d, kernels.of(task.steps), launch)?;
                    }
                }
                if matches!(next, Next::Wait) {
                    return Ok(next);
                }
                if let (Some(begin), Some(kind)) = (begin, Kind::of(&step.action)) {
                    self.record(d, step, kind, begin..Instant::now());
                }
            }
            task.steps += 1;
            if let Some(progress) = self.given.progress {
                progress.fetch_add(1, Ordering::Relaxed);
            }
            if matches!(next, Next::Yield(_)) {
                return Ok(next);
            }
        }
        Ok(Next::End)
    }

    /// Adds a step, with when it ran, to the trace, if there is one.
    fn record(&self, d: usize, step: &Step, kind: Kind, when: Range<Instant>) {
        let Some(trace) = self.given.trace else { return };
        trace.add([Span {
            track: self.given.program.devices[d].device.to_string(),
            name: step.label.clone(),
            start: trace.at(when.start),
            length: (when.end - when.start).as_secs_f64() * 1e6,
            kind,
            operator: profile::operator(&step.action),
        }]);
    }

    /// The memory and operands of a device's steps.
    fn of(&self, d: usize) -> HostSteps<'_> {
        HostSteps {
            program: &self.given.program.devices[d],
            bound: &self.given.prepared.bound.devices[d],
            inputs: self.given.inputs,
            params: &self.given.params[d],
            crew: self.given.crew,
        }
    }

    fn launch(&self, d: usize, kernel: Option<&Kernel>, launch: &Launch) -> Result<Next, Failure> {
        // A device that failed stops the others before their next step.
        self.events.check()?;
        self.of(d).launch(kernel, launch, &mut lock(&self.places[d].memory))?;
        let others = self.places[d].left();
        Ok(if others.is_empty() { Next::Step } else { Next::Yield(others) })
    }

    /// Copies a buffer of the device `source` into one of device `d`.
    fn copy(&self, d: usize, source: usize, [from, to]: [BufferId; 2]) -> Result<Next, Failure> {
        self.events.check()?;
        let (place, target) = (self.of(source).location(from), self.of(d).location(to));
        if place.bytes != target.bytes {
            return Err(internal("source and destination differ in size"));
        }
        // Replicas without rows copy nothing, and a buffer without bytes has no place.
        if target.bytes == 0 {
            return Ok(Next::Step);
        }
        let outside = || internal("a buffer lies outside its memory");
        if let Some((_, bytes)) = self.of(source).external(place) {
            let mut own = lock(&self.places[d].memory);
            own.write(target).ok_or_else(outside)?.copy_from_slice(bytes);
        } else if source == d {
            self.of(d).copy(from, to, &mut lock(&self.places[d].memory))?;
        } else {
            let (first, last) = (&self.places[d.min(source)], &self.places[d.max(source)]);
            let Some(one) = first.take(d) else { return Ok(Next::Wait) };
            let Some(other) = last.take(d) else {
                drop(one);
                self.start(first.left());
                return Ok(Next::Wait);
            };
            let (mut own, other) = if d < source { (one, other) } else { (other, one) };
            let bytes = other.read(place).ok_or_else(outside)?;
            own.write(target).ok_or_else(outside)?.copy_from_slice(bytes);
            drop((own, other));
            self.start(self.places[source].left());
        }
        self.start(self.places[d].left());
        Ok(Next::Step)
    }
}

#[cfg(test)]
mod tests {
    use super::{Given, Prepared, Run};
    use crate::backend::CPU;
    use crate::backend::cpu::isa;
    use crate::backend::cpu::place::Memory;
    use crate::backend::host::{Crew, lock};
    use crate::ir::verify;
    use crate::lower::lower;
    use crate::lower::testing::Replication;

    #[test]
    fn a_device_that_fails_ends_those_that_wait_for_memory() {
        let (graph, _) = Replication::of(2).graph();
        let program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
        let bound = program.bind(4).unwrap();
        let prepared = Prepared::new(&program, &bound, 1, false);
        let crew = Crew::new(1, None, isa::choose).unwrap();
        // There are neither inputs nor parameters: the first copy of one fails.
        let params = vec![Vec::new(); program.devices.len()];
        let mut arenas: Vec<Vec<u8>> =
            bound.devices.iter().map(|device| vec![0; device.planned]).collect();
        let memory = |arena| Memory { arena, outputs: Vec::new(), updates: Vec::new() };
        let memories = arenas.iter_mut().map(|arena| memory(arena.as_mut_slice())).collect();
        let (program, prepared, crew) = (&program, &prepared, &crew);
        let (progress, trace) = (None, None);
        let given =
            Given { program, prepared, inputs: &[], params: &params, crew, progress, trace };
        let run = Run::new(given, memories, Vec::new());
        let launch = lock(&run.places[1].memory);
        assert!(run.places[1].take(0).is_none());
        drop(launch);
        lock(&run.queue).ready.push(2);
        run.devices();
        assert!(matches!(lock(&run.tasks[2]).outcome, Some(Err(_))));
        assert!(matches!(lock(&run.tasks[0]).outcome, Some(Ok(None))));
    }
}
