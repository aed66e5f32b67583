//! The program: for each device its buffers and its steps, as plain data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::chain::{Chain, ChainStep};
use crate::ir::{Id, IdMap};
use crate::op::{BatchNorm, Op};
use crate::types::invariant::int;
use crate::types::{Device, Dim, KernelClass, Order, Target, TensorType};

/// An executable form of a graph: for each device its buffers and its steps, in order.
///
/// Plain data. Sizes are functions of the batch size `N`; [`Program::bind`] places the buffers for
/// one `N`. Devices run concurrently, and so do the lanes of a device; events order a step after
/// the steps of other devices and lanes whose results it reads.
///
/// Elsewhere: thunk sequence (XLA).
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The graph's name.
    pub name: Arc<str>,
    /// The target of the lowering.
    pub target: Target,
    /// The input tensors of a run, in order.
    pub inputs: Vec<Port>,
    /// The output tensors of a run, in order.
    pub outputs: Vec<Port>,
    /// The parameters, in the order of the graph.
    pub params: Vec<Port>,
    /// The parameters that are computed from others; they are counted on behind `params`.
    pub(crate) derived: Vec<Derived>,
    /// The positions of the parameters that a run updates, in the order of the graph's updates.
    pub updates: Vec<u32>,
    /// The rows of each replica; empty if the graph has no replicas.
    pub rows: Vec<Dim>,
    /// The devices; the first is the host.
    pub devices: Vec<DeviceProgram>,
    /// The number of events.
    pub events: u32,
}

/// A named tensor at the interface of a program: an input, an output or a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: Arc<str>,
    /// Its type.
    pub ty: TensorType,
}

/// A parameter that is computed from others, whenever these are given elements: a factor of a batch
/// norm whose operands no run changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Derived {
    /// Its name and type, which is that in which the batch norm is computed.
    pub(crate) port: Port,
    /// The batch norm.
    pub(crate) op: BatchNorm,
    /// The positions of its scale, bias, mean and variance among the parameters.
    pub(crate) operands: [u32; 4],
    /// Which of its two factors it is.
    pub(crate) factor: Factor,
}

/// A factor of a batch norm, `x * scale + shift`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Factor {
    /// The number that elements are multiplied by.
    Scale,
    /// The number that is then added.
    Shift,
}

impl Factor {
    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Scale => "scale",
            Self::Shift => "shift",
        }
    }
}

/// The buffers and steps of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProgram {
    /// The device.
    pub device: Device,
    /// The replicas that run on it.
    pub replicas: Vec<u32>,
    /// Its buffers; a [`BufferId`] is a position.
    pub buffers: Vec<Buffer>,
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The live ranges of its arena buffers, in the order of the buffers.
    pub(crate) regions: Vec<Region>,
    /// Whether what it computes of some of its rows is what it computes of all.
    pub(crate) rows_are_apart: bool,
}

/// The live range of an arena buffer, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// The buffer; others may lie within it or reuse its bytes.
    pub(crate) buffer: BufferId,
    /// The first step that touches it.
    pub(crate) first: usize,
    /// The last step that touches it, or that may overlap with a step that does.
    pub(crate) last: usize,
}

/// A buffer of a device, by its position in the device's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl Id for BufferId {
    fn index(self) -> usize {
        self.0 as usize
    }
}

/// A tensor in the memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The name of its value.
    pub name: Arc<str>,
    /// Its type; the sizes are functions of the batch size.
    pub ty: TensorType,
    /// The storage of its bytes.
    pub storage: Storage,
    /// The order of its elements.
    pub order: Order,
}

/// The storage of a buffer's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In the caller's tensor for this input, read only.
    Input(u32),
    /// In the tensor handed out as this output.
    Output(u32),
    /// In the device's copy of this parameter, given or derived, read only.
    Param(u32),
    /// In the tensor that replaces the device's copy of a parameter when the run has succeeded, by
    /// the position among the program's updates. A run that fails leaves the old copy in place.
    Update(u32),
    /// In the device's arena, in a region of its own.
    Arena,
    /// In another buffer: the same bytes (a view), which may be in an order of their own, or some
    /// of them (rows of a concatenation).
    Part {
        /// The buffer, which is not itself a part.
        of: BufferId,
        /// The first byte.
        offset: Dim,
    },
    /// In another image with the channels last, from a channel on: the rows of its channels lie
    /// apart, and only kernels that know that write it.
    Strip {
        /// The image, which is not itself a part.
        of: BufferId,
        /// The first channel.
        channel: Dim,
        /// The first byte if its rows lay together. The strips of an image have as many bytes as
        /// parts one behind the other, and memory is planned as if they were those.
        offset: Dim,
    },
    /// In the bytes of an arena buffer of the same size whose contents are no longer needed.
    Reuse {
        /// The buffer, whose storage is [`Storage::Arena`].
        of: BufferId,
    },
}

impl Storage {
    /// True of bytes within another buffer's.
    pub(super) fn is_within(&self) -> bool {
        matches!(self, Self::Part { .. } | Self::Strip { .. })
    }
}

/// A stream of a device: its steps run one after the other.
///
/// Elsewhere: stream (XLA, PyTorch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Computation and its copies.
    Compute,
    /// Exchanges between devices that overlap with computation.
    Exchange,
}

/// A step of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The label of the node that it was lowered from.
    pub label: Arc<str>,
    /// The lane on which it runs.
    pub lane: Lane,
    /// The condition under which it runs; otherwise it is skipped.
    pub guard: Guard,
    /// True for a launch that may run at the same time as the one before it: neither reads or
    /// writes what the other writes.
    pub beside: bool,
    /// The action.
    pub action: Action,
}

/// A condition on the rows of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Guard {
    /// In every run.
    Always,
    /// While the replica has rows.
    Rows(u32),
    /// While the replica has rows and no replica before it has any; replica 0 also when the batch
    /// is empty.
    First(u32),
}

impl Guard {
    /// True if the condition holds for these rows of each replica.
    pub(crate) fn holds(self, rows: &[i64]) -> bool {
        let has = |r: u32| rows.get(r as usize).is_some_and(|n| *n > 0);
        let none = || rows.iter().all(|n| *n <= 0);
        match self {
            Self::Always => true,
            Self::Rows(r) => has(r),
            Self::First(0) => has(0) || none(),
            Self::First(r) => has(r) && !(0..r).any(has),
        }
    }

    /// True if `other` holds whenever this condition does.
    pub(crate) fn implies(self, other: Self) -> bool {
        self == other
            || match (self, other) {
                // `First(0)` holds whenever replica 0 has rows, and for an empty batch too; so
                // `First(0)` does not imply `Rows(0)`, while the others do.
                (_, Self::Always) | (Self::Rows(0), Self::First(0)) => true,
                (Self::First(a), Self::Rows(b)) => a == b && a > 0,
                _ => false,
            }
    }
}

/// The action of a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Runs a kernel.
    Launch(Box<Launch>),
    /// Copies a buffer of any device into a buffer of this device with the same number of bytes.
    Copy {
        /// The position of the device that holds the source.
        device: usize,
        /// The source.
        from: BufferId,
        /// The destination.
        to: BufferId,
    },
    /// Waits for an event.
    Wait(u32),
    /// Records an event behind all steps before it on its lane.
    Record(u32),
}

impl Action {
    /// True if it records this event.
    pub(crate) fn records(&self, event: u32) -> bool {
        matches!(self, Self::Record(own) if *own == event)
    }

    /// The buffers of device `d` that it reads or writes.
    pub(super) fn touched(&self, d: usize) -> SmallVec<[BufferId; 8]> {
        match self {
            Self::Launch(launch) => {
                launch.operands.iter().chain(&launch.results).copied().collect()
            }
            Self::Copy { device, from, to } if *device == d => smallvec![*to, *from],
            Self::Copy { to, .. } => smallvec![*to],
            Self::Wait(_) | Self::Record(_) => smallvec![],
        }
    }
}

/// A kernel with its operands and results.
///
/// Elsewhere: thunk (XLA); kernel launch (PyTorch); `gpu.launch` (MLIR).
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The class of the kernel; [`KernelClass::Reference`] evaluates the operator itself.
    pub class: KernelClass,
    /// The operator; `None` for a chain alone, which is applied to the first operand.
    pub op: Option<Op>,
    /// True if it multiplies matrices, so that each of its blocks fills much of a multiprocessor.
    pub(crate) product: bool,
    /// The functions through which it reads operands of the operator, by their positions: unary
    /// steps.
    pub(crate) prologue: BTreeMap<usize, ChainStep>,
    /// The chain that is applied to the operator's result before it is stored.
    pub(crate) chain: Chain,
    /// The buffers that it reads: the operands of the operator (or the one that the chain is
    /// applied to), then those of the chain.
    pub operands: Vec<BufferId>,
    /// The buffers that it writes, one for each result of the operator.
    pub results: Vec<BufferId>,
}

impl Launch {
    /// The name of its operator; of a chain alone, the name of its last operator.
    pub(crate) fn name(&self) -> &'static str {
        let last = || self.chain.steps.last().map_or(self.class.name(), ChainStep::name);
        self.op.as_ref().map_or_else(last, |op| op.name())
    }

    /// Splits the operands into those of the operator (or the one that the chain is applied to) and
    /// those of the chain.
    pub(crate) fn split_operands(&self) -> (&[BufferId], &[BufferId]) {
        self.operands.split_at(self.operands.len().saturating_sub(self.chain.operands()))
    }
}

impl DeviceProgram {
    /// The buffer with this id.
    ///
    /// # Panics
    /// If the id is not one of this device.
    pub(crate) fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The same, to change it.
    pub(super) fn buffer_mut(&mut self, id: BufferId) -> &mut Buffer {
        &mut self.buffers[id.index()]
    }

    /// The ids of its buffers, in order.
    pub(crate) fn buffer_ids(&self) -> impl Iterator<Item = BufferId> + use<> {
        (0..int::<u32>(self.buffers.len())).map(BufferId)
    }

    /// A table of its buffers, with `entry` for each.
    pub(super) fn buffer_map<T: Clone>(&self, entry: T) -> IdMap<BufferId, T> {
        IdMap::new(self.buffers.len(), entry)
    }

    /// The root buffer that contains the bytes of `id`: one that is not part of another.
    pub(crate) fn root(&self, id: BufferId) -> BufferId {
        match self.buffer(id).storage {
            Storage::Part { of, .. } | Storage::Strip { of, .. } => of,
            Storage::Input(_)
            | Storage::Output(_)
            | Storage::Param(_)
            | Storage::Update(_)
            | Storage::Arena
            | Storage::Reuse { .. } => id,
        }
    }

    /// The arena buffer whose region holds the bytes of `id`, if they are in the arena.
    pub(crate) fn region(&self, id: BufferId) -> Option<BufferId> {
        let root = self.root(id);
        match self.buffer(root).storage {
            Storage::Arena => Some(root),
            Storage::Reuse { of } => Some(of),
            Storage::Input(_)
            | Storage::Output(_)
            | Storage::Param(_)
            | Storage::Update(_)
            | Storage::Part { .. }
            | Storage::Strip { .. } => None,
        }
    }
}

impl Program {
    /// The parameter at a position, be it given or derived.
    pub(crate) fn param(&self, i: u32) -> Option<&Port> {
        self.params.get(i as usize).or_else(|| Some(&self.derived(i)?.port))
    }

    /// The derived parameter at a position; `None` of a given one.
    pub(crate) fn derived(&self, i: u32) -> Option<&Derived> {
        self.derived.get((i as usize).checked_sub(self.params.len())?)
    }

    /// The port of an updated parameter, by its position among the updates.
    pub(crate) fn update(&self, i: u32) -> Option<&Port> {
        self.params.get(*self.updates.get(i as usize)? as usize)
    }

    /// The parameters that runs on the CPU read where the caller has them, and so see changed in
    /// place: those that all devices hold row-major, and of which no other is derived. Programs for
    /// GPUs read those that the host alone holds.
    pub fn shared_params(&self) -> impl Iterator<Item = &Port> {
        let mut own: BTreeSet<u32> = self.updates.iter().copied().collect();
        own.extend(self.derived.iter().flat_map(|derived| derived.operands));
        for device in &self.devices {
            let copies = self.target.keeps_params && device.device != Device::HOST;
            let is_elsewhere = |b: &&Buffer| copies || b.order != Order::RowMajor;
            let param = |b: &Buffer| if let Storage::Param(i) = b.storage { Some(i) } else { None };
            own.extend(device.buffers.iter().filter(is_elsewhere).filter_map(param));
        }
        (0..).zip(&self.params).filter(move |(i, _)| !own.contains(i)).map(|(_, port)| port)
    }
}
