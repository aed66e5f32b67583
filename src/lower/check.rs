//! The checker of memory plans: it simulates a program step by step, and checks every read against
//! the writes before it.

use crate::types::invariant::int;
use std::collections::BTreeMap;

use super::memory::{Bound, BoundDevice, Location, Space};
use super::program::{Action, BufferId, DeviceProgram, Lane, Program, Storage};
use crate::types::Device;

/// A violation found in a memory plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}, step {step}: {reason}")]
pub struct MemoryError {
    /// The device.
    pub device: Device,
    /// The position of the step; the number of steps for a violation at the end of the program.
    pub step: usize,
    /// The reason, as a sentence.
    pub reason: String,
}

/// Checks a memory plan against its program:
/// - buffers lie inside their memory, at the target's alignment;
/// - every byte that a step or another device reads was written before, and not overwritten since;
/// - a device waits for the buffers that it copies from others;
/// - steps that may overlap, on two lanes or side by side, have no conflicting accesses;
/// - no byte of a buffer is written twice;
/// - outputs are written completely, and so is each update, once on every device that holds the
///   parameter.
pub fn check(program: &Program, bound: &Bound) -> Result<(), MemoryError> {
    for (d, device) in program.devices.iter().enumerate() {
        let Some(plan) = bound.devices.get(d) else { continue };
        let mut simulation =
            Simulation { program, bound, device, plan, d, spaces: BTreeMap::new() };
        simulation.check_bounds()?;
        for i in 0..device.steps.len() {
            simulation.step(i)?;
        }
        simulation.check_results()?;
        simulation.check_overlap()?;
        simulation.check_beside()?;
        for i in (0u32..).take(program.updates.len()) {
            simulation.check_update(i)?;
        }
    }
    Ok(())
}

/// The written ranges of one space, by first byte: the end, the root buffer whose contents are
/// there, and the step that wrote them. Ranges are disjoint.
type Written = BTreeMap<usize, (usize, BufferId, usize)>;

/// The steps of one device at one batch size, one after the other. Which of them may overlap is
/// decided apart, in `check_overlap`.
struct Simulation<'a> {
    program: &'a Program,
    bound: &'a Bound,
    device: &'a DeviceProgram,
    plan: &'a BoundDevice,
    d: usize,
    spaces: BTreeMap<Space, Written>,
}

impl Simulation<'_> {
    fn error(&self, step: usize, reason: String) -> MemoryError {
        MemoryError { device: self.device.device, step, reason }
    }

    /// Checks that a device that holds a parameter has exactly one buffer for its new elements.
    fn check_update(&self, i: u32) -> Result<(), MemoryError> {
        let param = self.program.updates.get(i as usize).copied();
        let buffers = |storage| self.device.buffers.iter().filter(move |b| b.storage == storage);
        let holds = param.is_some_and(|p| buffers(Storage::Param(p)).next().is_some());
        let found = buffers(Storage::Update(i)).count();
        let elsewhere = || self.program.devices.iter().flat_map(|d| &d.buffers);
        let none = !elsewhere().any(|b| b.storage == Storage::Update(i));
        if found > 1 || none || (holds && found == 0) {
            let name = self.program.update(i).map_or_else(String::new, |p| p.name.to_string());
            let reason = format!("the update of {name} has {found} buffers");
            return Err(self.error(self.device.steps.len(), reason));
        }
        Ok(())
    }

    fn at(&self, buffer: BufferId) -> &Location {
        &self.plan.locations[buffer]
    }

    fn name(&self, buffer: BufferId) -> String {
        format!("%{} {}", buffer.0, self.device.buffer(buffer).name)
    }

    /// Checks that every buffer in use lies inside its memory.
    fn check_bounds(&self) -> Result<(), MemoryError> {
        let alignment = self.program.target.alignment as usize;
        let size = |port: Option<&super::Port>| {
            // A missing port has 0 bytes, so every buffer within it is out of bounds.
            port.and_then(|p| usize::try_from(p.ty.bytes().eval(self.bound.n)).ok()).unwrap_or(0)
        };
        for (i, step) in self.device.steps.iter().enumerate().filter(|(i, _)| self.runs(*i)) {
            let (reads, writes) = self.touched(&step.action);
            for buffer in reads.into_iter().chain(writes) {
                let at = self.at(buffer);
                let limit = match at.space {
                    Space::Arena => self.plan.planned,
                    Space::Input(i) => size(self.program.inputs.get(i as usize)),
                    Space::Output(i) => size(self.program.outputs.get(i as usize)),
                    Space::Param(i) => size(self.program.param(i)),
                    Space::Update(i) => size(self.program.update(i)),
                };
                if at.offset.checked_add(at.bytes).is_none_or(|end| end > limit) {
                    return Err(
                        self.error(i, format!("{} ends after {limit} bytes", self.name(buffer)))
                    );
                }
                self.check_strip(i, buffer)?;
                let own = !self.device.buffer(buffer).storage.is_within();
                if at.space == Space::Arena && own && !at.offset.is_multiple_of(alignment) {
                    return Err(self.error(i, format!("{} is not aligned", self.name(buffer))));
                }
            }
        }
        Ok(())
    }

    /// Checks that a strip is a kernel's result alone, and that the plan has it where its channels
    /// lie: then the strips of an image are apart in memory as they are in the plan.
    fn check_strip(&self, i: usize, buffer: BufferId) -> Result<(), MemoryError> {
        let Storage::Strip { of, channel, offset } = &self.device.buffer(buffer).storage else {
            return Ok(());
        };
        let is_result = match &self.device.steps[i].action {
            Action::Launch(launch) => !launch.operands.contains(&buffer),
            Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => false,
        };
        let whole = &self.device.buffer(*of).ty;
        let place = channel.clone() * whole.bytes();
        if !is_result || offset.clone() * whole.shape[1].clone() != place {
            return Err(self.error(i, format!("{} is no strip of its image", self.name(buffer))));
        }
        Ok(())
    }

    /// True if a step is active and writes at least one byte.
    fn runs(&self, step: usize) -> bool {
        let (_, writes) = self.touched(&self.device.steps[step].action);
        self.plan.active[step] && writes.iter().any(|b| self.at(*b).bytes > 0)
    }

    /// The buffers of this device that a step reads and writes.
    fn touched(&self, action: &Action) -> (Vec<BufferId>, Vec<BufferId>) {
        match action {
            Action::Launch(launch) => {
                let mut reads = launch.operands.clone();
                let present = launch.op.as_ref().and_then(|op| op.present(self.bound.n));
                if let Some(present) = present {
                    let mut present = present.into_iter();
                    // Operands beyond the list are present.
                    reads.retain(|_| present.next().unwrap_or(true));
                }
                (reads, launch.results.clone())
            }
            Action::Copy { device, from, to } if *device == self.d => (vec![*from], vec![*to]),
            Action::Copy { to, .. } => (Vec::new(), vec![*to]),
            Action::Wait(_) | Action::Record(_) => (Vec::new(), Vec::new()),
        }
    }

    fn step(&mut self, i: usize) -> Result<(), MemoryError> {
        if !self.runs(i) {
            return Ok(());
        }
        let action = &self.device.steps[i].action;
        let (reads, writes) = self.touched(action);
        for buffer in reads {
            self.read(i, buffer)?;
            if writes.iter().any(|w| self.conflicts(*w, buffer)) {
                let text = format!("{} is written while it is read", self.name(buffer));
                return Err(self.error(i, text));
            }
        }
        if let Action::Copy { device, from, .. } = action
            && *device != self.d
        {
            self.check_wait(i, *device, *from)?;
        }
        for buffer in writes {
            self.write(i, buffer)?;
        }
        Ok(())
    }

    /// True if a written buffer overlaps one that is read, unless the launch runs in place.
    fn conflicts(&self, written: BufferId, read: BufferId) -> bool {
        let (a, b) = (self.at(written), self.at(read));
        let in_place = matches!(self.device.buffer(written).storage, Storage::Reuse { .. })
            && (a.offset, a.bytes) == (b.offset, b.bytes);
        self.overlap(written, read) && !in_place
    }

    /// Checks that all bytes of the buffer hold its own contents. Returns the last step that wrote
    /// some.
    fn read(&self, i: usize, buffer: BufferId) -> Result<usize, MemoryError> {
        let at = self.at(buffer);
        // A buffer may be written in parts, by several steps: each range is followed to its writer.
        let (mut from, end, root) = (at.offset, at.offset + at.bytes, self.device.root(buffer));
        let mut last = 0;
        if matches!(at.space, Space::Input(_) | Space::Param(_)) {
            // They are complete before the first step.
            return Ok(last);
        }
        while from < end {
            let found = self.spaces.get(&at.space).and_then(|w| w.range(..=from).next_back());
            let (until, holder, step) = found
                .map(|(_, entry)| *entry)
                .filter(|(until, ..)| *until > from)
                .ok_or_else(|| {
                    self.error(i, format!("byte {from} of {} was not written", self.name(buffer)))
                })?;
            if holder != root {
                let text = format!("{} is overwritten by {}", self.name(buffer), self.name(holder));
                return Err(self.error(i, text));
            }
            (from, last) = (until, last.max(step));
        }
        Ok(last)
    }

    fn write(&mut self, i: usize, buffer: BufferId) -> Result<(), MemoryError> {
        let at = self.at(buffer).clone();
        if at.bytes == 0 {
            return Ok(());
        }
        let (start, end, root) = (at.offset, at.offset + at.bytes, self.device.root(buffer));
        if matches!(at.space, Space::Input(_) | Space::Param(_)) {
            return Err(self.error(i, format!("{} is read only", self.name(buffer))));
        }
        let written = self.spaces.entry(at.space).or_default();
        let before = written.range(..start).next_back().map(|(s, entry)| (*s, *entry));
        let mut overlapping: Vec<(usize, (usize, BufferId, usize))> =
            before.filter(|(_, (until, ..))| *until > start).into_iter().collect();
        overlapping.extend(written.range(start..end).map(|(s, entry)| (*s, *entry)));
        for (from, (until, holder, step)) in &overlapping {
            written.remove(from);
            if *from < start {
                written.insert(*from, (start, *holder, *step));
            }
            if *until > end {
                written.insert(end, (*until, *holder, *step));
            }
        }
        // Ranges that are overlapped in part keep their remainder, as `(from..start)` and
        // `(end..until)`, so that a later read of it still finds its writer.
        written.insert(start, (end, root, i));
        if overlapping.iter().any(|(_, (_, holder, _))| *holder == root) {
            return Err(self.error(i, format!("{} is written twice", self.name(buffer))));
        }
        Ok(())
    }

    /// Checks that the source's device records an event behind its last write of the copied bytes,
    /// and that this device waits for it.
    fn check_wait(&self, i: usize, source: usize, from: BufferId) -> Result<(), MemoryError> {
        let (Some(device), Some(plan)) =
            (self.program.devices.get(source), self.bound.devices.get(source))
        else {
            return Err(self.error(i, "it copies from no device".to_owned()));
        };
        let (root, source) = (device.root(from), &plan.locations[from]);
        let gives = |b: BufferId| {
            let at = &plan.locations[b];
            let apart =
                at.offset + at.bytes <= source.offset || source.offset + source.bytes <= at.offset;
            device.root(b) == root && !apart
        };
        let writes = |step: &super::Step| match &step.action {
            Action::Launch(launch) => launch.results.iter().any(|b| gives(*b)),
            Action::Copy { to, .. } => gives(*to),
            Action::Wait(_) | Action::Record(_) => false,
        };
        // The last write of each lane decides: a lane runs in order, so an event behind it covers
        // all writes before it.
        let own = self.device.steps[i].lane;
        let is_waited_for = |lane: Lane| {
            let active = |(i, step): &(usize, &super::Step)| {
                plan.active[*i] && step.lane == lane && writes(step)
            };
            let Some((last, _)) = device.steps.iter().enumerate().rfind(active) else {
                return true;
            };
            let recorded = |event: u32| {
                let mut after = device.steps[last..].iter();
                after.any(|s| s.lane == lane && s.action.records(event))
            };
            self.device.steps[..i].iter().any(|s| match s.action {
                Action::Wait(event) => s.lane == own && recorded(event),
                Action::Launch(_) | Action::Copy { .. } | Action::Record(_) => false,
            })
        };
        if [Lane::Compute, Lane::Exchange].into_iter().all(is_waited_for) {
            return Ok(());
        }
        let name = &device.buffer(from).name;
        Err(self.error(i, format!("nothing waits until {name} is written on {}", device.device)))
    }

    /// Checks that buffers that other devices read survive to the end, and that outputs and updates
    /// are written completely.
    fn check_results(&self) -> Result<(), MemoryError> {
        let steps = self.device.steps.len();
        for (d, (other, plan)) in self.program.devices.iter().zip(&self.bound.devices).enumerate() {
            for (step, active) in other.steps.iter().zip(&plan.active) {
                if let Action::Copy { device, from, .. } = &step.action
                    && *active
                    && *device == self.d
                    && d != self.d
                {
                    self.read(steps, *from)?;
                }
            }
        }
        for (i, buffer) in self.device.buffers.iter().enumerate() {
            if matches!(buffer.storage, Storage::Output(_) | Storage::Update(_)) {
                self.read(steps, BufferId(int::<u32>(i)))?;
            }
        }
        Ok(())
    }

    /// Checks that of the launches side by side none writes what another reads or writes.
    fn check_beside(&self) -> Result<(), MemoryError> {
        for (i, row) in self.device.rows().into_iter().enumerate().filter(|(i, _)| self.runs(*i)) {
            let (_, writes) = self.touched(&self.device.steps[i].action);
            for j in row.filter(|j| *j != i && self.runs(*j)) {
                let (reads, others) = self.touched(&self.device.steps[j].action);
                let mut touched = reads.into_iter().chain(others);
                if let Some(b) = touched.find(|b| writes.iter().any(|w| self.overlap(*w, *b))) {
                    let text = format!("{} is written by a step beside it", self.name(b));
                    return Err(self.error(j, text));
                }
            }
        }
        Ok(())
    }

    /// Checks that steps of the exchange lane have no conflict with steps that may overlap with
    /// them.
    fn check_overlap(&self) -> Result<(), MemoryError> {
        let steps = &self.device.steps;
        let on = |lane: Lane| {
            let runs = steps.iter().enumerate().filter(|(i, s)| s.lane == lane && self.runs(*i));
            runs.map(|(i, s)| (i, self.touched(&s.action))).collect::<Vec<_>>()
        };
        let (exchanges, computes) = (on(Lane::Exchange), on(Lane::Compute));
        let recorded = |event: u32| {
            let found = |s: &super::Step| s.lane == Lane::Compute && s.action.records(event);
            steps.iter().position(found)
        };
        let completions = self.device.completions();
        for (i, (reads, writes)) in &exchanges {
            // Computation before the last wait of the exchange lane is done.
            let waited = steps[..*i].iter().filter(|s| s.lane == Lane::Exchange);
            let begin = waited.filter_map(|s| match s.action {
                Action::Wait(event) => recorded(event),
                Action::Launch(_) | Action::Copy { .. } | Action::Record(_) => None,
            });
            // Without a wait any earlier step may still run.
            let begin = begin.max().unwrap_or(0);
            let beside = computes.iter().filter(|(j, ..)| (begin..completions[*i]).contains(j));
            for (j, (read, written)) in beside {
                let meet = |own: &[BufferId], others: &[BufferId]| {
                    own.iter().any(|a| others.iter().any(|b| self.overlap(*a, *b)))
                };
                if meet(writes, read) || meet(writes, written) || meet(reads, written) {
                    let text = format!("step {j} may run at the same time and meets its memory");
                    return Err(self.error(*i, text));
                }
            }
        }
        Ok(())
    }

    /// True if two buffers have bytes in common.
    fn overlap(&self, a: BufferId, b: BufferId) -> bool {
        let (a, b) = (self.at(a), self.at(b));
        let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
        a.space == b.space && a.bytes > 0 && b.bytes > 0 && !apart
    }
}
