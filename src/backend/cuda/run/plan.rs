//! A program at one batch size, with everything that its steps need: addresses, grids, arguments.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::report;
use crate::backend::RunError;
use crate::backend::cpu::StepKernels;
use crate::backend::cuda::driver::memory::{Global, Pinned};
use crate::backend::cuda::driver::module::Function;
use crate::backend::host::touched;
use crate::codegen::{Arg, Call};
use crate::lower::{
    Action, Bound, BoundDevice, BufferId, DeviceProgram, Lane, Location, Port, Program, Space,
    Step, Storage,
};
use crate::types::invariant::{int, invariant};
use crate::types::{Device, KernelClass, Order};

/// Bytes to which what lies in a staging buffer is aligned, as copies like it.
pub(super) const ALIGNMENT: usize = 256;

/// The kernel of a launch, loaded on its device, and how it is called.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) call: Call,
    pub(super) function: Arc<Function>,
}

/// The parameters in a device's memory, by number and order; logical devices of one GPU share
/// them.
pub(super) type Params = BTreeMap<(u32, Order), Arc<Global>>;

/// The memory of a device for new elements, by the position of the update.
pub(super) type Updates = BTreeMap<u32, Arc<Global>>;

/// A place in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceAddress {
    /// So many bytes into the arena.
    Arena(usize),
    /// At an address.
    Fixed(u64),
}

impl DeviceAddress {
    /// Its address, with the arena's.
    pub(super) fn address(self, arena: u64) -> u64 {
        match self {
            Self::Arena(offset) => arena + offset as u64,
            Self::Fixed(address) => address,
        }
    }
}

/// A place in the host's memory, so many bytes into a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HostPlace {
    pub(super) space: Space,
    pub(super) offset: usize,
}

/// The action of a step on a GPU.
#[derive(Debug)]
pub(super) enum Task {
    /// Waits for an event.
    Wait(u32),
    /// Records an event.
    Record(u32),
    /// Copies from the host, or a staged input from this offset of the device's staging buffer.
    Upload { from: HostPlace, to: DeviceAddress, bytes: usize, staging: Option<usize> },
    /// Copies from another GPU, by its position.
    Receive { device: usize, from: DeviceAddress, to: DeviceAddress, bytes: usize },
    /// Copies in the device's memory.
    Copy { from: DeviceAddress, to: DeviceAddress, bytes: usize },
    /// Runs a kernel.
    Launch { function: Arc<Function>, grid: [u32; 3], arguments: Vec<Argument> },
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    /// An address.
    DeviceAddress(DeviceAddress),
    /// A number.
    Size(i64),
    /// The address of the word that the GPU's worker owns.
    Report,
}

/// The task of a step on the host.
#[derive(Debug)]
pub(super) enum HostTask {
    /// Waits for an event that the device at a position records.
    Wait { event: u32, recorder: usize },
    /// Records an event.
    Record(u32),
    /// Copies from a GPU, by its position.
    Download { device: usize, from: DeviceAddress, to: HostPlace, bytes: usize },
    /// Copies in the host's memory, between the buffers with these positions.
    Copy { from: BufferId, to: BufferId },
    /// Runs a kernel of the CPU.
    Launch,
}

/// Tasks of a GPU that are put on its streams together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// One task that concerns others.
    Alone(usize),
    /// Launches and copies of the device alone: a graph.
    Graph(Range<usize>),
}

impl Phase {
    /// The positions of its tasks.
    pub(super) fn tasks(&self) -> Range<usize> {
        match self {
            Self::Alone(at) => *at..*at + 1,
            Self::Graph(range) => range.clone(),
        }
    }
}

/// A task of a GPU.
#[derive(Debug)]
pub(super) struct Placed {
    /// The position of its step.
    pub(super) step: usize,
    pub(super) lane: Lane,
    pub(super) task: Task,
}

/// The plan of a GPU for one batch size.
#[derive(Debug, Default)]
pub(super) struct GpuPlan {
    /// The tasks, in the order of their steps.
    pub(super) tasks: Vec<Placed>,
    /// The tasks in groups, in order.
    pub(super) phases: Vec<Phase>,
    /// True if a kernel may report an invalid element.
    pub(super) reports: bool,
    /// Bytes of the inputs that it copies from the host.
    pub(super) staging: usize,
}

/// A program at one batch size.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) bound: Arc<Bound>,
    /// For each device what it does; nothing for the host.
    pub(super) gpus: Vec<GpuPlan>,
    /// The tasks of the host.
    pub(super) host: Vec<(usize, HostTask)>,
    pub(super) kernels: StepKernels,
    /// For each device one more than the highest byte of its arena that a step touches.
    pub(super) used: Vec<u64>,
    /// The inputs from which a GPU copies.
    pub(super) staged: Vec<u32>,
}

/// A buffer of the device at a position.
#[derive(Clone, Copy, Debug)]
struct At {
    device: usize,
    buffer: BufferId,
}

/// The source of plans.
pub(super) struct Source<'a> {
    pub(super) program: &'a Program,
    /// For each step of each device the kernels that it launches on a GPU.
    pub(super) loaded: &'a [Vec<Vec<Option<Loaded>>>],
    pub(super) params: &'a [Params],
    /// The memory of each device for new elements of parameters.
    pub(super) updates: &'a [Updates],
}

/// The bytes that a device holds from run to run: its parameters, in each order, and the new
/// elements of those that runs change.
pub(super) fn planned(program: &Program, device: &DeviceProgram) -> u64 {
    let mut seen = BTreeSet::new();
    let held = device.buffers.iter().filter_map(|buffer| {
        let (i, port) = match buffer.storage {
            Storage::Param(i) => ((false, i), program.param(i)),
            Storage::Update(i) => ((true, i), program.update(i)),
            Storage::Input(_)
            | Storage::Output(_)
            | Storage::Arena
            | Storage::Part { .. }
            | Storage::Strip { .. }
            | Storage::Reuse { .. } => return None,
        };
        let port = invariant(port, "that a buffer of a parameter is of a port");
        seen.insert((i, buffer.order)).then(|| int::<u64>(port.ty.bytes().eval(0)))
    });
    held.sum()
}

/// A step that does not fit its buffers or the device: a fault of whoever made the program.
fn fault(device: Device, step: &Step, reason: &str) -> RunError {
    let (label, reason) = (step.label.to_string(), reason.to_owned());
    RunError::Internal { device, label, reason }
}

impl Source<'_> {
    /// The plan for a bound program.
    pub(super) fn plan(&self, bound: Arc<Bound>) -> Result<Plan, RunError> {
        let mut gpus = Vec::with_capacity(bound.devices.len());
        for d in 0..bound.devices.len() {
            gpus.push(if d == 0 { GpuPlan::default() } else { self.gpu(&bound, d)? });
        }
        let used = self
            .program
            .devices
            .iter()
            .zip(&bound.devices)
            .map(|(device, bound)| touched(device, bound));
        let inputs = gpus.iter().flat_map(|gpu| &gpu.tasks).filter_map(|placed| {
            let Task::Upload { from, .. } = &placed.task else { return None };
            if let Space::Input(i) = from.space { Some(i) } else { None }
        });
        let mut staged: Vec<u32> = inputs.collect();
        staged.sort_unstable();
        staged.dedup();
        let kernels = StepKernels::new(&self.program.devices[0], &bound.devices[0], bound.n);
        Ok(Plan { used: used.collect(), host: self.host(&bound)?, kernels, staged, gpus, bound })
    }

    fn place(&self, bound: &Bound, d: usize, buffer: BufferId) -> Option<DeviceAddress> {
        let device = &self.program.devices[d];
        let locations = &bound.devices[d].locations;
        let own = device.buffer(buffer);
        if let Storage::Strip { of, channel, .. } = &own.storage {
            let first = int::<usize>(channel.eval(bound.n)) * own.ty.dtype.bytes();
            let Location { space: Space::Arena, offset, .. } = locations[*of] else { return None };
            return Some(DeviceAddress::Arena(offset + first));
        }
        let at = &locations[buffer];
        match at.space {
            Space::Arena => Some(DeviceAddress::Arena(at.offset)),
            Space::Param(i) => {
                let order = device.buffer(device.root(buffer)).order;
                let held = self.params.get(d)?.get(&(i, order))?;
                Some(DeviceAddress::Fixed(held.address() + at.offset as u64))
            }
            Space::Update(i) => {
                let new = self.updates.get(d)?.get(&i)?;
                Some(DeviceAddress::Fixed(new.address() + at.offset as u64))
            }
            Space::Input(_) | Space::Output(_) => None,
        }
    }

    fn gpu(&self, bound: &Bound, d: usize) -> Result<GpuPlan, RunError> {
        let (device, own) = (&self.program.devices[d], &bound.devices[d]);
        let mut tasks = Vec::new();
        for (i, step) in device.steps.iter().enumerate().filter(|(i, _)| own.active[*i]) {
            let placed = |task| Placed { step: i, lane: step.lane, task };
            let task = match &step.action {
                Action::Wait(event) => Some(Task::Wait(*event)),
                Action::Record(event) => Some(Task::Record(*event)),
                Action::Copy { device: source, from, to } => {
                    let to = At { device: d, buffer: *to };
                    let from = At { device: *source, buffer: *from };
                    self.copy(bound, to, from, step)?
                }
                Action::Launch(launch) => {
                    let loaded = self.loaded[d][i].as_slice();
                    let missing = || fault(device.device, step, "the launch has no kernel");
                    // Updates in a row are launched with the first of them, and so are launches
                    // side by side.
                    let is_later = step.beside || launch.class == KernelClass::Update;
                    if loaded.is_empty() && !is_later {
                        return Err(missing());
                    }
                    let has_work = launch.results.iter().any(|b| own.locations[*b].bytes > 0);
                    if let Some(op) = launch.op.as_ref().filter(|_| has_work) {
                        let (device, label) = (device.device, step.label.to_string());
                        let error = |error| RunError::Op { device, label, op: op.name(), error };
                        op.fails_at(bound.n).map_err(|e| error(Box::new(e)))?;
                    }
                    for loaded in loaded {
                        let loaded = loaded.as_ref().ok_or_else(missing)?;
                        let task = self.launch(bound, d, i, loaded)?;
                        tasks.extend(task.map(placed));
                    }
                    None
                }
            };
            tasks.extend(task.map(placed));
        }
        let staging = assign_staging(&mut tasks, &self.program.inputs);
        let phases = phases(&tasks);
        let reports = tasks.iter().any(|placed| match &placed.task {
            Task::Launch { arguments, .. } => {
                arguments.iter().any(|argument| matches!(argument, Argument::Report))
            }
            Task::Wait(_)
            | Task::Record(_)
            | Task::Upload { .. }
            | Task::Receive { .. }
            | Task::Copy { .. } => false,
        });
        Ok(GpuPlan { tasks, phases, reports, staging })
    }

    /// The copy into a buffer of a GPU; none where it has no bytes.
    fn copy(&self, bound: &Bound, to: At, from: At, step: &Step) -> Result<Option<Task>, RunError> {
        let fault = |reason| fault(self.program.devices[to.device].device, step, reason);
        let at = |at: At| &bound.devices[at.device].locations[at.buffer];
        let order = |at: At| self.program.devices[at.device].buffer(at.buffer).order;
        let bytes = at(to).bytes;
        if at(from).bytes != bytes || order(from) != order(to) {
            return Err(fault("source and destination differ in size or order"));
        }
        if bytes == 0 {
            return Ok(None);
        }
        let outside = || fault("a buffer of a copy is not in its device's memory");
        let (d, source) = (to.device, from.device);
        let to = self.place(bound, d, to.buffer).ok_or_else(outside)?;
        if source == 0 {
            let from = host_place(at(from));
            return Ok(Some(Task::Upload { from, to, bytes, staging: None }));
        }
        let from = self.place(bound, source, from.buffer).ok_or_else(outside)?;
        Ok(Some(if source == d {
            Task::Copy { from, to, bytes }
        } else {
            Task::Receive { device: source, from, to, bytes }
        }))
    }

    /// The launch of a kernel of the step at a position; none where its grid is empty.
    fn launch(
        &self,
        bound: &Bound,
        d: usize,
        at: usize,
        loaded: &Loaded,
    ) -> Result<Option<Task>, RunError> {
        let step = &self.program.devices[d].steps[at];
        let fault = |reason| fault(self.program.devices[d].device, step, reason);
        let mut grid = [0; 3];
        // The most blocks along y and z, as along x on every architecture.
        for ((size, blocks), most) in
            grid.iter_mut().zip(&loaded.call.grid).zip([i32::MAX as u32, 65_535, 65_535])
        {
            let blocks = blocks.eval(bound.n);
            if blocks <= 0 {
                return Ok(None);
            }
            let fits = u32::try_from(blocks).ok().filter(|b| *b <= most);
            *size = fits.ok_or_else(|| fault("the grid has more blocks than a device takes"))?;
        }
        let argument = |arg: &Arg| match arg {
            Arg::Buffer(b) => self.place(bound, d, *b).map(Argument::DeviceAddress),
            Arg::Size(size) => Some(Argument::Size(size.eval(bound.n))),
            Arg::Report => Some(Argument::Report),
            Arg::Step => Some(Argument::Size(report::number(at))),
        };
        let arguments = loaded.call.args.iter().map(argument).collect::<Option<_>>();
        let arguments = arguments.ok_or_else(|| fault("an operand is not on the device"))?;
        Ok(Some(Task::Launch { function: loaded.function.clone(), grid, arguments }))
    }

    /// The actions of the host at this batch size, in the order of its steps.
    fn host(&self, bound: &Bound) -> Result<Vec<(usize, HostTask)>, RunError> {
        let (device, own): (&DeviceProgram, &BoundDevice) =
            (&self.program.devices[0], &bound.devices[0]);
        let recorders = recorders(self.program);
        let mut tasks = Vec::new();
        for (i, step) in device.steps.iter().enumerate().filter(|(i, _)| own.active[*i]) {
            let task = match &step.action {
                Action::Wait(event) => {
                    let recorder = recorders.get(event).copied();
                    let unrecorded = || fault(device.device, step, "nobody records its event");
                    HostTask::Wait { event: *event, recorder: recorder.ok_or_else(unrecorded)? }
                }
                Action::Record(event) => HostTask::Record(*event),
                Action::Launch(_) => HostTask::Launch,
                Action::Copy { device: source, from, to } => {
                    let place = &own.locations[*to];
                    let fault = |reason| fault(device.device, step, reason);
                    let other = &self.program.devices[*source];
                    let bytes = bound.devices[*source].locations[*from].bytes;
                    if bytes != place.bytes || other.buffer(*from).order != device.buffer(*to).order
                    {
                        return Err(fault("source and destination differ in size or order"));
                    }
                    if bytes == 0 {
                        continue;
                    }
                    if *source == 0 {
                        HostTask::Copy { from: *from, to: *to }
                    } else {
                        let from = self.place(bound, *source, *from);
                        let from = from.ok_or_else(|| fault("the source is not on its device"))?;
                        HostTask::Download { device: *source, from, to: host_place(place), bytes }
                    }
                }
            };
            tasks.push((i, task));
        }
        Ok(tasks)
    }
}

/// The position of the device that records each event.
fn recorders(program: &Program) -> BTreeMap<u32, usize> {
    let of = |(d, device): (usize, &DeviceProgram)| {
        let events = device.steps.iter().filter_map(|step| match step.action {
            Action::Record(event) => Some(event),
            Action::Launch(_) | Action::Copy { .. } | Action::Wait(_) => None,
        });
        events.map(|event| (event, d)).collect::<Vec<_>>()
    };
    program.devices.iter().enumerate().flat_map(of).collect()
}

/// The place of a buffer in the memory of the host.
fn host_place(at: &Location) -> HostPlace {
    HostPlace { space: at.space, offset: at.offset }
}

/// Assigns places in the staging buffer to the inputs that tasks copy from the host; returns the
/// bytes of all.
/// Those without axes may be set until the run begins, and come with it.
fn assign_staging(tasks: &mut [Placed], inputs: &[Port]) -> usize {
    let mut end: usize = 0;
    for placed in tasks {
        if let Task::Upload {
            from: HostPlace { space: Space::Input(i), .. }, bytes, staging, ..
        } = &mut placed.task
            && inputs.get(*i as usize).is_some_and(|port| port.ty.rank() > 0)
        {
            let at = end.next_multiple_of(ALIGNMENT);
            *staging = Some(at);
            end = at + *bytes;
        }
    }
    end
}

/// The tasks in groups: those of one lane that concern the device alone together.
fn phases(tasks: &[Placed]) -> Vec<Phase> {
    let mut phases: Vec<Phase> = Vec::new();
    for (at, Placed { lane, task, .. }) in tasks.iter().enumerate() {
        if !matches!(task, Task::Launch { .. } | Task::Copy { .. }) {
            phases.push(Phase::Alone(at));
            continue;
        }
        match phases.last_mut() {
            Some(Phase::Graph(range)) if tasks[range.start].lane == *lane => range.end = at + 1,
            _ => phases.push(Phase::Graph(at..at + 1)),
        }
    }
    phases
}

/// The pinned blocks of a run in the host's memory.
#[derive(Debug)]
pub(super) struct HostBlocks {
    pub(super) arena: Arc<Pinned>,
    pub(super) inputs: BTreeMap<u32, Arc<Pinned>>,
    pub(super) params: Arc<BTreeMap<u32, Arc<Pinned>>>,
    pub(super) outputs: Vec<Arc<Pinned>>,
    pub(super) updates: Vec<Arc<Pinned>>,
}

impl HostBlocks {
    /// The block that a place is in.
    pub(super) fn block(&self, place: HostPlace) -> Option<&Arc<Pinned>> {
        match place.space {
            Space::Arena => Some(&self.arena),
            Space::Input(i) => self.inputs.get(&i),
            Space::Param(i) => self.params.get(&i),
            Space::Output(i) => self.outputs.get(i as usize),
            Space::Update(i) => self.updates.get(i as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::planned;
    use crate::backend::CPU;
    use crate::ir::verify;
    use crate::lower::testing::template;
    use crate::lower::{Storage, lower};

    #[test]
    #[should_panic(expected = "that a buffer of a parameter is of a port")]
    fn a_parameter_without_a_port_takes_no_0_bytes() {
        let (graph, _) = template();
        let mut program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
        assert!(planned(&program, &program.devices[0]) > 0);
        program.devices[0].buffers[0].storage = Storage::Param(99);
        planned(&program, &program.devices[0]);
    }
}
