//! Emission: the buffers and the steps of every device, from the decisions in a [`Layout`]. Steps
//! are appended in the order of the layout, in one walk over all devices. A step that reads a value
//! of another stream or device is preceded by a wait for the event behind the writer. [`Point`] is
//! the clock for this: "`steps` steps of this lane of this device are done". A wait is written only
//! if the lane has not waited for a later point of the same lane before, and the record that
//! belongs to it is inserted at the end (`insert_records`), when all waits are known; until then
//! step indices do not shift.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::LowerError;
use super::chain::Chain;
use super::collectives::rotated;
use super::layout::{Group, Layout, Role, ValueMap};
use super::order::{self, Orders};
use super::program::{
    Action, Buffer, BufferId, DeviceProgram, Guard, Lane, Launch, Port, Program, Step, Storage,
};
use super::support::Partials;
use crate::analysis::{rows_are_apart, rows_are_apart_on};
use crate::ir::{Graph, NodeId, NodeMap, ParamId, Value};
use crate::types::invariant::{int, invariant};
use crate::types::{Device, Dim, KernelClass, Order, TensorType};

mod collective;

struct Emitter<'a> {
    layout: &'a Layout<'a>,
    graph: &'a Graph,
    devices: Vec<DeviceProgram>,
    buffers: ValueMap<BufferId>,
    orders: Orders,
    /// The copies of a value on another device than its own or in another memory order, with the
    /// point at which each is ready. A value that several nodes read is thus copied or reordered
    /// once.
    copies: BTreeMap<(Value, usize, Order), (BufferId, Point)>,
    /// The point at which a node's results are ready, by node.
    defined: NodeMap<Point>,
    /// The events to record, by the point that each one marks. Two waits for the same point
    /// share one event.
    records: BTreeMap<Point, u32>,
    /// The number of steps that a lane of a device has waited for, by that device and lane and
    /// by the other's. It only grows, and waits at or below it are redundant.
    waited: BTreeMap<[(usize, Lane); 2], usize>,
    events: u32,
    /// The lane of the steps that are written.
    lane: Lane,
    /// The end points of each device's exchanges beside its computing, in order.
    exchange_ends: Vec<Vec<Point>>,
}

/// A point in time of a lane: the lane has done all its steps among the first `steps` steps of
/// the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    device: usize,
    steps: usize,
    /// The lane to which steps are appended now.
    lane: Lane,
}

/// Before all steps.
///
/// Inputs and parameters are defined here; waiting for it is always redundant.
const START: Point = Point { device: 0, steps: 0, lane: Lane::Compute };

/// Emits the program for the decisions in `layout`.
pub(super) fn emit(layout: &Layout<'_>) -> Result<Program, LowerError> {
    let graph = layout.graph;
    // Device 0 is the host; `BTreeSet` orders the others, so the same graph gives the same program.
    let devices = devices(graph);
    let mut emitter = Emitter {
        layout,
        graph,
        waited: BTreeMap::new(),
        exchange_ends: vec![Vec::new(); devices.len()],
        devices,
        buffers: ValueMap::new(graph, &BufferId(u32::MAX)),
        orders: Orders::new(layout),
        copies: BTreeMap::new(),
        defined: graph.node_map(START),
        records: BTreeMap::new(),
        events: 0,
        lane: Lane::Compute,
    };
    emitter.buffers()?;
    for id in &layout.order {
        emitter.node(*id)?;
    }
    emitter.outputs()?;
    emitter.updates()?;
    // Only now are all waits known; an earlier insertion would shift the steps that points refer
    // to.
    emitter.insert_records();
    let split = graph.split();
    // A graph that is not split has no replicas.
    let rows = (0..split.map_or(0, crate::types::Split::replicas)).filter_map(|r| split?.rows(r));
    Ok(Program {
        name: graph.name().into(),
        target: layout.kernels.target().clone(),
        inputs: graph.inputs().map(|v| port(&graph.info(v).name, graph.ty(v))).collect(),
        outputs: graph.outputs().iter().map(|o| port(&o.name, graph.ty(o.value))).collect(),
        params: graph.params().iter().map(|p| port(&p.name, &p.ty)).collect(),
        derived: Vec::new(),
        updates: graph.updates().iter().map(|update| update.param.0).collect(),
        rows: rows.collect(),
        devices: emitter.devices,
        events: emitter.events,
    })
}

fn port(name: &Arc<str>, ty: &TensorType) -> Port {
    Port { name: name.clone(), ty: ty.clone() }
}

/// The devices of the graph, the host first. The host is device 0 even if no node runs there:
/// inputs arrive and outputs leave through it. Devices of the split appear even if they have no
/// node, so that the number of replicas does not depend on dead code.
fn devices(graph: &Graph) -> Vec<DeviceProgram> {
    let mut all: BTreeSet<Device> = graph.ids().map(|id| graph.node(id).place().device).collect();
    // A graph that is not split has no other devices.
    let split = graph.split().map_or(&[][..], crate::types::Split::devices);
    all.extend(split);
    all.remove(&Device::HOST);
    std::iter::once(Device::HOST)
        .chain(all)
        .map(|device| {
            let replicas = (0u32..).zip(split).filter(|(_, d)| **d == device);
            let replicas = replicas.map(|(r, _)| r).collect();
            DeviceProgram {
                device,
                replicas,
                buffers: Vec::new(),
                steps: Vec::new(),
                regions: Vec::new(),
                rows_are_apart: match graph.split() {
                    None => rows_are_apart(graph),
                    Some(_) => rows_are_apart_on(graph, device),
                },
            }
        })
        .collect()
}

/// The index of a device in the program's list.
fn position(devices: &[DeviceProgram], device: Device) -> usize {
    let place = devices.iter().position(|d| d.device == device);
    invariant(place, "that every device of the graph is one of the program")
}

impl Emitter<'_> {
    fn device(&self, id: NodeId) -> usize {
        self.position(self.layout.device(id))
    }

    fn position(&self, device: Device) -> usize {
        position(&self.devices, device)
    }

    fn add_buffer(&mut self, device: usize, buffer: Buffer) -> Result<BufferId, LowerError> {
        let buffers = &mut self.devices[device].buffers;
        let id = u32::try_from(buffers.len()).map_err(|_| LowerError::TooLarge)?;
        buffers.push(buffer);
        Ok(BufferId(id))
    }

    /// Adds a buffer for every value, in the order of the schedule, then sets the storage of
    /// aliases. Two passes, because an alias may point to a value that comes later: the operands of
    /// a concatenation lie in its result. A result of a collective that no member needs gets no
    /// buffer.
    fn buffers(&mut self) -> Result<(), LowerError> {
        let values = |id: NodeId| {
            let results = self.graph.node(id).results().len();
            (0..int::<u32>(results)).map(move |output| Value { node: id, output })
        };
        let values: Vec<Value> = self.layout.order.iter().copied().flat_map(values).collect();
        let inputs: BTreeMap<NodeId, u32> =
            self.graph.inputs().map(|v| v.node).zip(0u32..).collect();
        let given = |value: &&Value| {
            self.layout.collectives.get(&value.node).is_none_or(|c| c.gives(**value))
        };
        let given: Vec<Value> = values.iter().filter(given).copied().collect();
        for value in &given {
            let info = self.graph.info(*value);
            let storage = match (self.layout.param(value.node), inputs.get(&value.node)) {
                (Some(id), _) => Storage::Param(id.0),
                (None, Some(id)) => Storage::Input(*id),
                (None, None) => Storage::Arena,
            };
            let order = self.orders.value(*value);
            let buffer = Buffer { name: info.name.clone(), ty: info.ty.clone(), storage, order };
            let id = self.add_buffer(self.device(value.node), buffer)?;
            self.buffers.set(*value, id);
        }
        for value in values {
            let base = self.orders.within(value).map(|other| self.layout.base(other));
            let alias = || self.layout.aliases.get(value).clone().map(|a| (a.to, a.offset));
            if let Some((to, offset)) = base.or_else(alias) {
                let storage = Storage::Part { of: *self.buffers.get(to), offset };
                let (device, id) = (self.device(value.node), *self.buffers.get(value));
                self.devices[device].buffer_mut(id).storage = storage;
            }
        }
        Ok(())
    }

    fn push(&mut self, device: usize, label: &str, guard: Guard, action: Action) {
        let (label, lane) = (label.into(), self.lane);
        let step = Step { label, lane, guard, beside: false, action };
        self.devices[device].steps.push(step);
    }

    /// Emits the steps of a node and records when its results are ready. A view adds no step; its
    /// result is ready with the last of its operands.
    fn node(&mut self, id: NodeId) -> Result<(), LowerError> {
        let node = self.graph.node(id);
        let (device, guard) = (self.device(id), self.layout.guard(id));
        if let Some(collective) = self.layout.collectives.get(&id) {
            return self.collective(id, collective);
        }
        match self.layout.role(id) {
            Role::External | Role::Fused | Role::Received => return Ok(()),
            Role::View => {
                let operands = self.layout.operands(id);
                let defined = operands.iter().map(|v| self.defined[v.node]).max();
                // A view without operands is ready from the start.
                self.defined[id] = defined.unwrap_or(START);
                return Ok(());
            }
            Role::Copy => {
                let to = *self.buffers.get(Value { node: id, output: 0 });
                for operand in self.layout.operands(id) {
                    self.copy(node.label(), guard, operand, device, to);
                }
            }
            Role::Concat => self.concat(id, device, Value { node: id, output: 0 })?,
            Role::First => self.select_first(id),
            Role::Launch => {
                let operands = self.layout.operands(id);
                if let Some(operand) = operands.first().filter(|_| self.orders.is_free(id)) {
                    self.defined[id] = self.defined[operand.node];
                    return Ok(());
                }
                self.launch(id)?;
            }
        }
        // Behind the last of the node's steps, whatever their number.
        self.defined[id] = self.now(device);
        Ok(())
    }

    /// The point behind all steps emitted so far on a device, for the current lane.
    fn now(&self, device: usize) -> Point {
        Point { device, steps: self.devices[device].steps.len(), lane: self.lane }
    }

    /// Emits a launch: first the copies and reorders of its operands, then the launch, then the
    /// reorders of its results. A channels-last kernel writes a result that others read in
    /// row-major order to a second buffer, and a reorder step fills the value's own one. The second
    /// buffer is registered among the copies, so that a later channels-last kernel reads it
    /// directly.
    fn launch(&mut self, id: NodeId) -> Result<(), LowerError> {
        let (graph, layout) = (self.graph, self.layout);
        let (device, guard, order) = (self.device(id), layout.guard(id), self.orders.launch(id));
        let group = layout.groups.get(&id);
        let head = group.map_or(Some(id), |g| g.head);
        // A node without a group has no chain and no prologue.
        let Group { chain, prologue, .. } = group.cloned().unwrap_or_default();
        let support = layout.support(id);
        let mut launch = Launch {
            class: support.class(),
            op: head.and_then(|head| graph.node(head).op()).cloned(),
            product: matches!(support.class(), KernelClass::Conv | KernelClass::MatMul),
            prologue,
            chain: match order {
                // The others are of parameters, and of values without a chain.
                Order::RowMajor | Order::RowPanels | Order::GatePanels | Order::Heads => chain,
                Order::ChannelsLast => {
                    order::in_channels_last(&chain, &graph.node(id).results()[0].ty)
                        .unwrap_or(chain)
                }
            },
            operands: Vec::new(),
            results: Vec::new(),
        };
        for (slot, value) in layout.operands(id).into_iter().enumerate() {
            let order = self.orders.operand(layout, id, slot);
            launch.operands.push(self.materialize(value, device, order)?);
        }
        let label = graph.node(head.unwrap_or(id)).label();
        let mut reorders = Vec::new();
        for (output, result) in (0u32..).zip(graph.node(id).results()) {
            let value = Value { node: id, output };
            let to = *self.buffers.get(value);
            let own = self.orders.value(value);
            // Heads are written so.
            let reordered = order != own && own != Order::Heads && order::differs(&result.ty);
            launch.results.push(if reordered {
                let from = self.add_copy_buffer(value, device, order, Storage::Arena)?;
                reorders.push((value, from, to));
                from
            } else {
                to
            });
        }
        if let Some(parts) = support.parts {
            self.partial_launch(device, label, guard, &mut launch, parts)?;
        }
        self.push(device, label, guard, Action::Launch(Box::new(launch)));
        let now = self.now(device);
        for (value, from, to) in reorders {
            self.copies.insert((value, device, order), (from, now));
            self.push(device, label, guard, reorder(from, to));
        }
        Ok(())
    }

    /// Emits the first launch of a two-pass operator. Its result, the partial results, becomes one
    /// more operand of the second launch.
    fn partial_launch(
        &mut self,
        device: usize,
        label: &str,
        guard: Guard,
        launch: &mut Launch,
        parts: Partials,
    ) -> Result<(), LowerError> {
        let to = self.add_buffer(
            device,
            Buffer {
                name: format!("{label}.parts").into(),
                ty: parts.ty,
                storage: Storage::Arena,
                order: Order::RowMajor,
            },
        )?;
        let first = Launch {
            class: KernelClass::Partial,
            op: launch.op.clone(),
            product: parts.product,
            prologue: launch.prologue.clone(),
            chain: Chain::default(),
            operands: launch.operands[..parts.reads.min(launch.operands.len())].to_vec(),
            results: vec![to],
        };
        launch.operands.push(to);
        self.push(device, label, guard, Action::Launch(Box::new(first)));
        Ok(())
    }

    /// Returns a buffer that holds a value on a device in an order: its own, an earlier copy, or
    /// one that is copied or reordered now. If both orders have the same bytes, no reorder is
    /// needed.
    fn materialize(
        &mut self,
        value: Value,
        device: usize,
        order: Order,
    ) -> Result<BufferId, LowerError> {
        let ty = self.graph.ty(value);
        let (own, is_here) = (self.orders.value(value), self.device(value.node) == device);
        let order = if order::differs(ty) { order } else { own };
        // Only row-major elements are put in another order here.
        let suits = order == own || matches!(own, Order::RowMajor | Order::ChannelsLast);
        invariant(suits.then_some(()), "that who reads panels takes them");
        if is_here {
            let name = &self.graph.info(value).name;
            self.wait(name, device, self.defined[value.node]);
        }
        // The lane of the reader may differ from that of the writer even on one device, hence the
        // wait above for values of this device too.
        if is_here && order == own {
            return Ok(*self.buffers.get(value));
        }
        let label = self.graph.info(value).name.clone();
        if let Some((known, point)) = self.copies.get(&(value, device, order)).copied() {
            self.wait(&label, device, point);
            return Ok(known);
        }
        let guard = self.layout.guard(value.node);
        if !is_here && order == own {
            let to = self.add_copy_buffer(value, device, order, Storage::Arena)?;
            self.copy(&label, guard, value, device, to);
            self.copies.insert((value, device, order), (to, self.now(device)));
            return Ok(to);
        }
        // A constant parameter may be uploaded twice, once in each order: this costs memory but
        // no step per run. A variable changes during a run, so two copies of it would disagree;
        // it has one buffer and is reordered on use, and so is one that is not uploaded.
        let uploads = self.layout.kernels.target().keeps_params;
        let is_kept = |id: &ParamId| uploads && !self.layout.variables.contains(id);
        let kept = self.layout.param(value.node).filter(is_kept);
        if is_here && let Some(id) = kept {
            let held = self.add_copy_buffer(value, device, order, Storage::Param(id.0))?;
            self.copies.insert((value, device, order), (held, START));
            return Ok(held);
        }
        // Copy first, then reorder here: the copy is registered too, so a row-major reader of the
        // same value on this device needs no second transfer.
        let from = self.materialize(value, device, own)?;
        let to = self.add_copy_buffer(value, device, order, Storage::Arena)?;
        self.push(device, &label, guard, reorder(from, to));
        self.copies.insert((value, device, order), (to, self.now(device)));
        Ok(to)
    }

    /// Adds a buffer for a copy of a value on a device in an order.
    fn add_copy_buffer(
        &mut self,
        value: Value,
        device: usize,
        order: Order,
        storage: Storage,
    ) -> Result<BufferId, LowerError> {
        let info = self.graph.info(value);
        let buffer = Buffer { name: info.name.clone(), ty: info.ty.clone(), storage, order };
        self.add_buffer(device, buffer)
    }

    /// Copies `value` into a buffer, behind the steps that write it.
    fn copy(&mut self, label: &str, guard: Guard, value: Value, device: usize, to: BufferId) {
        let source = self.device(value.node);
        self.wait(label, device, self.defined[value.node]);
        let from = *self.buffers.get(value);
        self.push(device, label, guard, Action::Copy { device: source, from, to });
    }

    /// Makes the lane of a device wait until another device, or its other lane, reaches a point.
    fn wait(&mut self, label: &str, device: usize, point: Point) {
        let (own, other) = ((device, self.lane), (point.device, point.lane));
        // A lane that never waited knows only the start, at step 0.
        let waited = self.waited.get(&[own, other]).copied().unwrap_or(0);
        if own != other && point.steps > waited {
            self.waited.insert([own, other], point.steps);
            // Waiting at the host until a transfer is done would serialize the devices; an event
            // only orders the two lanes.
            let event = *self.records.entry(point).or_insert(self.events);
            if event == self.events {
                self.events += 1;
            }
            self.push(device, label, Guard::Always, Action::Wait(event));
        }
    }

    /// Copies the operands of a concatenation that were not computed in place into its result on a
    /// device.
    fn concat(&mut self, id: NodeId, device: usize, result: Value) -> Result<(), LowerError> {
        let (base, mut offset) = self.layout.base(result);
        let label = self.graph.node(id).label();
        let operands = self.layout.operands(id);
        let mut offsets = Vec::with_capacity(operands.len());
        for operand in &operands {
            offsets.push(offset.clone());
            offset = offset + self.graph.info(*operand).ty.bytes();
        }
        let sources: Vec<usize> =
            operands.iter().map(|operand| self.device(operand.node)).collect();
        for at in rotated(&sources, device) {
            let (operand, from) = (operands[at], offsets[at].clone());
            let info = self.graph.info(operand);
            if self.layout.base(operand) == (base, from.clone()) {
                self.wait(label, device, self.defined[operand.node]);
                continue;
            }
            let of = *self.buffers.get(base);
            let storage = Storage::Part { of, offset: from };
            let (name, ty, order) = (info.name.clone(), info.ty.clone(), Order::RowMajor);
            let part = self.add_buffer(device, Buffer { name, ty, storage, order })?;
            self.copy(label, self.layout.guard(operand.node), operand, device, part);
        }
        Ok(())
    }

    /// Copies the operands of a `first` that were not computed in place. The guards exclude each
    /// other, so exactly one copy runs.
    fn select_first(&mut self, id: NodeId) {
        let result = Value { node: id, output: 0 };
        let (device, to) = (self.device(id), *self.buffers.get(result));
        for (r, operand) in (0u32..).zip(self.graph.operands(id)) {
            let label = self.graph.node(id).label();
            if self.layout.base(operand) == self.layout.base(result) {
                self.wait(label, device, self.defined[operand.node]);
            } else {
                self.copy(label, Guard::First(r), operand, device, to);
            }
        }
    }

    /// Computes the outputs in the tensors of the caller, or copies them there.
    fn outputs(&mut self) -> Result<(), LowerError> {
        for (i, output) in (0u32..).zip(self.graph.outputs()) {
            self.write_back(&output.name, output.value, 0, Storage::Output(i))?;
        }
        Ok(())
    }

    /// Computes the new elements of parameters in the tensors that replace them, or copies them
    /// there.
    fn updates(&mut self) -> Result<(), LowerError> {
        for (i, update) in (0u32..).zip(self.graph.updates()) {
            let name = &self.graph.param(update.param).name;
            for (value, home) in update.values.iter().zip(self.graph.homes(update.param)) {
                let device = self.position(*home);
                self.write_back(name, *value, device, Storage::Update(i))?;
            }
        }
        Ok(())
    }

    /// Computes a value directly in a tensor that outlives the run, or copies it there. Directly
    /// only if the value fills a whole arena buffer of that device; a value that is an output
    /// already, or a part of another one, is copied.
    fn write_back(
        &mut self,
        name: &Arc<str>,
        value: Value,
        device: usize,
        storage: Storage,
    ) -> Result<(), LowerError> {
        let (base, offset) = self.layout.base(value);
        let (source, ty) = (self.device(value.node), self.graph.ty(value));
        let buffer = self.devices[source].buffer_mut(*self.buffers.get(base));
        if source == device
            && buffer.storage == Storage::Arena
            && offset == Dim::ZERO
            && buffer.ty.bytes() == ty.bytes()
        {
            buffer.storage = storage;
            return Ok(());
        }
        let (name, order) = (name.clone(), Order::RowMajor);
        let buffer = Buffer { name: name.clone(), ty: ty.clone(), storage, order };
        let to = self.add_buffer(device, buffer)?;
        self.copy(&name, Guard::Always, value, device, to);
        Ok(())
    }

    /// Inserts the records behind the steps that they mark. `records` is sorted by device and step,
    /// so one pass over the steps of a device suffices.
    fn insert_records(&mut self) {
        for (d, device) in self.devices.iter_mut().enumerate() {
            let from = |device| Point { device, ..START };
            let mut records = self.records.range(from(d)..from(d + 1)).peekable();
            let steps = std::mem::take(&mut device.steps);
            for (i, step) in steps.into_iter().map(Some).chain([None]).enumerate() {
                while let Some((point, event)) = records.next_if(|(point, _)| point.steps == i) {
                    let label =
                        device.steps.last().map_or_else(|| "".into(), |s: &Step| s.label.clone());
                    let (lane, action) = (point.lane, Action::Record(*event));
                    let guard = Guard::Always;
                    device.steps.push(Step { label, lane, guard, beside: false, action });
                }
                device.steps.extend(step);
            }
        }
    }
}

/// The launch that copies a buffer into another one of a different memory order.
fn reorder(from: BufferId, to: BufferId) -> Action {
    Action::Launch(Box::new(Launch {
        class: KernelClass::Reorder,
        op: None,
        product: false,
        prologue: BTreeMap::new(),
        chain: Chain::default(),
        operands: vec![from],
        results: vec![to],
    }))
}

#[cfg(test)]
mod tests {
    use super::position;
    use crate::types::Device;

    #[test]
    #[should_panic(expected = "that every device of the graph is one of the program")]
    fn an_unknown_device_is_not_the_host() {
        position(&[], Device::gpu(1));
    }
}
