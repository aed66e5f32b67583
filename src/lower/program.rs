use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::chain::{Chain, ChainStep};
use crate::op::Op;
use crate::types::{Device, Dim, KernelClass, Order, Target, TensorType};

/// What a graph runs as: for each device its buffers and the steps it takes, in order.
///
/// Plain data. Sizes are functions of the batch size `N`; [`Program::bind`] places the buffers for
/// one `N`. Devices run their steps side by side, and so do the lanes of a device; events order a
/// step after those of other devices and lanes whose results it takes.
///
/// Elsewhere: thunk sequence (XLA).
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// The graph's name.
    pub name: Arc<str>,
    /// The target that it was lowered for.
    pub target: Target,
    /// The tensors that each run is given, in order.
    pub inputs: Vec<Port>,
    /// The tensors that each run hands out, in order.
    pub outputs: Vec<Port>,
    /// The parameters, in the order of the graph's.
    pub params: Vec<Port>,
    /// The parameters that hold other elements after a run, by their position, in the order of the
    /// graph's updates.
    pub updates: Vec<u32>,
    /// The rows of each replica; empty where the graph has none.
    pub rows: Vec<Dim>,
    /// The devices; the first is the host.
    pub devices: Vec<DeviceProgram>,
    /// The number of events.
    pub events: u32,
}

/// A named tensor that comes from outside or goes there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: Arc<str>,
    /// Its type.
    pub ty: TensorType,
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
    /// The places in its arena, in the order of their buffers, and the steps during which they are
    /// taken.
    pub regions: Vec<Region>,
}

/// A place in a device's arena, taken from one step to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The buffer whose place it is; others may lie in it or follow it there.
    pub buffer: BufferId,
    /// The first step that touches it.
    pub first: usize,
    /// The last step that touches it, or beside which one that does may still run.
    pub last: usize,
}

/// A buffer of a device, by its position in the device's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

impl BufferId {
    /// Its position.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A tensor in the memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The name of the value that it holds.
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
    /// In the device's copy of this parameter, read only.
    Param(u32),
    /// In the tensor that becomes the device's copy of a parameter when the run has succeeded, by
    /// the position among the program's updates.
    Update(u32),
    /// In the device's arena, at a place of its own.
    Arena,
    /// In another buffer: the same bytes (a view) or some of them (rows of a concatenation).
    Part {
        /// The buffer, which is not itself a part.
        of: BufferId,
        /// The first byte.
        offset: Dim,
    },
    /// In the place of an arena buffer whose contents are no longer needed and that has the same
    /// size.
    Reuse {
        /// The buffer, whose storage is [`Storage::Arena`].
        of: BufferId,
    },
}

/// Steps of a device that run one after the other.
///
/// Elsewhere: stream (XLA, PyTorch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Computing, and all copies for it.
    Compute,
    /// Exchanges between devices that run beside the computing.
    Exchange,
}

/// One thing that a device does.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The name of the node that it comes from.
    pub label: Arc<str>,
    /// Behind which steps it runs.
    pub lane: Lane,
    /// When it is done; otherwise it is skipped.
    pub guard: Guard,
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
    /// Whether the condition holds, given the rows of each replica.
    pub fn holds(self, rows: &[i64]) -> bool {
        let has = |r: u32| rows.get(r as usize).is_some_and(|n| *n > 0);
        let none = || rows.iter().all(|n| *n <= 0);
        match self {
            Self::Always => true,
            Self::Rows(r) => has(r),
            Self::First(0) => has(0) || none(),
            Self::First(r) => has(r) && !(0..r).any(has),
        }
    }

    /// True if the other condition holds whenever this one does.
    pub(crate) fn implies(self, other: Self) -> bool {
        self == other
            || match (self, other) {
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
    /// Copies a buffer, of another device or of this one, into a buffer of this device with as many
    /// bytes.
    Copy {
        /// The position of the device that holds the source.
        device: usize,
        /// The source.
        from: BufferId,
        /// The destination.
        to: BufferId,
    },
    /// Waits until an event was recorded.
    Wait(u32),
    /// Records an event: every step before it on its lane is done.
    Record(u32),
}

impl Action {
    /// True if it records this event.
    pub(crate) fn records(&self, event: u32) -> bool {
        matches!(self, Self::Record(own) if *own == event)
    }

    /// The buffers of device `d` that it touches there.
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

/// One kernel and what it works on.
///
/// Elsewhere: thunk (XLA); kernel launch (PyTorch); `gpu.launch` (MLIR).
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The class of the kernel; [`KernelClass::Reference`] evaluates the operator itself.
    pub class: KernelClass,
    /// The operator; `None` where the chain is all there is, applied to the first operand.
    pub op: Option<Op>,
    /// The chain that is applied to the operator's result before it is stored.
    pub chain: Chain,
    /// The buffers it reads: the operator's operands (or the one the chain is applied to), then the
    /// chain's.
    pub operands: Vec<BufferId>,
    /// The buffers it writes, one for each result of the operator.
    pub results: Vec<BufferId>,
}

impl Launch {
    /// The name of its operator; where the chain is all there is, that of the chain's last one.
    pub fn name(&self) -> &'static str {
        let last = || self.chain.steps.last().map_or(self.class.name(), ChainStep::name);
        self.op.as_ref().map_or_else(last, |op| op.name())
    }

    /// The operands of the operator, or the one that the chain is applied to, and those of the
    /// chain.
    pub(crate) fn split_operands(&self) -> (&[BufferId], &[BufferId]) {
        self.operands.split_at(self.operands.len().saturating_sub(self.chain.operands()))
    }
}

impl DeviceProgram {
    /// The buffer with this id.
    ///
    /// # Panics
    /// If the id is of another device.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.index()]
    }

    /// The buffer that is not part of another in which the bytes of `id` lie.
    pub fn root(&self, id: BufferId) -> BufferId {
        match self.buffer(id).storage {
            Storage::Part { of, .. } => of,
            Storage::Input(_)
            | Storage::Output(_)
            | Storage::Param(_)
            | Storage::Update(_)
            | Storage::Arena
            | Storage::Reuse { .. } => id,
        }
    }

    /// The arena buffer at whose place the bytes of `id` lie, if they are in the arena.
    pub(crate) fn region(&self, id: BufferId) -> Option<BufferId> {
        let root = self.root(id);
        match self.buffer(root).storage {
            Storage::Arena => Some(root),
            Storage::Reuse { of } => Some(of),
            Storage::Input(_)
            | Storage::Output(_)
            | Storage::Param(_)
            | Storage::Update(_)
            | Storage::Part { .. } => None,
        }
    }
}

impl Program {
    /// The port of an updated parameter, by its position among the updates.
    pub(crate) fn update(&self, i: u32) -> Option<&Port> {
        self.params.get(*self.updates.get(i as usize)? as usize)
    }

    /// The number of steps of all devices.
    pub fn steps(&self) -> u64 {
        self.devices.iter().map(|d| d.steps.len() as u64).sum()
    }
}
