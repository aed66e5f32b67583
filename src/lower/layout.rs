//! The decisions of lowering about each node and value: aliases, roles, guards and devices.
//! [`Layout`] is the state that the stages of `lower` share. Each stage refines it (views and joins
//! first, then fused groups, then collectives), and `emit` only reads it. No stage changes the
//! graph.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::chain::{Chain, ChainStep};
use super::program::{Guard, Lane};
use super::support::{Kernels, Support, Types};
use crate::ir::{Graph, NodeId, NodeMap, ParamId, Value};
use crate::types::{Device, Dim, FastSet, KernelClass};

/// The role of a node: the step that it is lowered to, or why it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// An input or a parameter: bytes that exist before the run.
    External,
    /// A view: the bytes of its first operand from an offset on.
    View,
    /// A copy from another device.
    Copy,
    /// A concatenation whose operands are contiguous in the result, so that they can be computed
    /// there.
    Concat,
    /// The result of the first replica that has rows.
    First,
    /// A copy that a collective replaces: the device computes the result itself.
    Received,
    /// A kernel.
    Launch,
    /// Fused into the kernel of a later node.
    ///
    /// The last node of the group owns the launch, because only its result is in memory: see
    /// [`Group`].
    Fused,
}

/// The location of a value within another one, from its first byte on.
///
/// For `slice %x [2..4] axis 0` of an `f32[8, 3]`, the alias of the result names `%x` and the
/// offset is `2 * 3 * 4` bytes. Links are kept flat: `to` itself lies in no other value, so
/// [`Layout::base`] takes one look-up and not a walk.
#[derive(Clone, Debug)]
pub(super) struct Alias {
    pub(super) to: Value,
    pub(super) offset: Dim,
}

/// A table with an entry for each result of each node.
///
/// Indexed by node, then by result. Nearly every node has one result, which the inline capacity
/// of one keeps out of the heap.
#[derive(Clone)]
pub(super) struct ValueMap<T>(NodeMap<SmallVec<[T; 1]>>);

impl<T: Clone> ValueMap<T> {
    pub(super) fn new(graph: &Graph, fill: &T) -> Self {
        let mut rows = graph.node_map(SmallVec::new());
        for id in graph.ids() {
            rows[id] = SmallVec::from_elem(fill.clone(), graph.node(id).results().len());
        }
        Self(rows)
    }

    pub(super) fn get(&self, value: Value) -> &T {
        &self.0[value.node][value.output as usize]
    }

    pub(super) fn set(&mut self, value: Value, entry: T) {
        self.0[value.node][value.output as usize] = entry;
    }
}

/// A fusion group: nodes that become one launch, under the last of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// The node of the first operator; `None` if the chain begins with a value in memory.
    pub(super) head: Option<NodeId>,
    /// The values that the launch reads: the operator's operands or the value the chain begins
    /// with, then the chain's operands.
    pub(super) operands: Vec<Value>,
    /// The functions through which the launch reads operands of the operator, by their positions.
    pub(super) prologue: BTreeMap<usize, ChainStep>,
    /// The elementwise epilogue, applied to the result before it is written.
    pub(super) chain: Chain,
}

/// A node that joins or combines the values of all replicas, carried out by the devices that
/// need the result. In the graph the node runs on one device and copies bring its result to the
/// others. As a collective, each member reads the parts from its peers and computes its own
/// result, so the copies disappear (they become [`Role::Received`] or views) and no device waits
/// for a central one.
#[derive(Clone, Debug)]
pub(super) struct Collective {
    /// The values of the replicas, in the order of the node's operands; they are the operands of
    /// its group.
    pub(super) parts: Vec<Value>,
    /// The devices that get results, the node's own device first.
    pub(super) members: Vec<Member>,
    /// The copies to the node's own device. They become views, because the results are there
    /// already.
    pub(super) views: Vec<Value>,
    /// The algorithm.
    pub(super) algorithm: Algorithm,
    /// The lane of its steps on each device.
    pub(super) lane: Lane,
}

/// The algorithm of a collective: how its members divide the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    /// Each member reads all parts and combines or concatenates them in the order of the replicas.
    Direct,
    /// Reduce-scatter, then all-gather: each member combines one slice of this many elements and
    /// copies the other slices from its peers.
    ReduceScatter(i64),
    /// Each member gets its own result, from the parts before it (or behind it).
    Scan,
}

/// A member of a collective: a device that gets results.
///
/// `results[k]` is the value of this device that stands for result `k` of the node, `None` if
/// the device does not need it. A second copy of the same result to the same device is listed in
/// `again`: it shares the bytes of the first.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The device.
    pub(super) device: Device,
    /// The condition under which it needs them.
    pub(super) guard: Guard,
    /// The value of this device for each result of the node.
    pub(super) results: SmallVec<[Option<Value>; 2]>,
    /// Further values of this device that equal a result, with the number of the result.
    pub(super) again: Vec<(u32, Value)>,
}

/// The decisions that lowering takes before it emits steps. The vectors are indexed by node id
/// and have an entry for every id below the graph's bound, for dead nodes too; `order` lists the
/// live ones.
pub(super) struct Layout<'a> {
    pub(super) graph: &'a Graph,
    /// The kernels of the devices that run the program.
    pub(super) kernels: &'a dyn Kernels,
    /// The nodes that are needed, in the order in which they run.
    pub(super) order: Vec<NodeId>,
    pub(super) roles: NodeMap<Role>,
    pub(super) guards: NodeMap<Guard>,
    /// The device on which each node runs.
    pub(super) devices: NodeMap<Device>,
    pub(super) params: NodeMap<Option<ParamId>>,
    /// The parameters that a run changes.
    pub(super) variables: FastSet<ParamId>,
    /// The position of a value within a root value.
    pub(super) aliases: ValueMap<Option<Alias>>,
    /// The fusion groups, by their last node.
    pub(super) groups: Groups,
    /// The collectives that devices execute themselves, by node.
    pub(super) collectives: BTreeMap<NodeId, Collective>,
}

/// The fusion groups, by their last node.
pub(super) type Groups = BTreeMap<NodeId, Group>;

impl Layout<'_> {
    pub(super) fn role(&self, id: NodeId) -> Role {
        self.roles[id]
    }

    pub(super) fn guard(&self, id: NodeId) -> Guard {
        self.guards[id]
    }

    /// The device on which a node runs and its results are.
    pub(super) fn device(&self, id: NodeId) -> Device {
        self.devices[id]
    }

    pub(super) fn set_device(&mut self, id: NodeId, device: Device) {
        self.devices[id] = device;
    }

    pub(super) fn set_role(&mut self, id: NodeId, role: Role) {
        self.roles[id] = role;
    }

    /// Makes a copy a view of its operand; the operand must be on the copy's device.
    pub(super) fn make_view(&mut self, copy: Value) {
        if let Some(to) = self.graph.operands(copy.node).first().copied() {
            self.set_role(copy.node, Role::View);
            self.aliases.set(copy, Some(Alias { to, offset: Dim::ZERO }));
        }
    }

    /// Registers a collective, and makes the parts the operands of the node. The group is what
    /// makes every later stage (liveness, order, memory) see that the node reads the replicas'
    /// parts themselves and not the values that were copied to its device.
    pub(super) fn add_collective(&mut self, id: NodeId, collective: Collective) {
        let operands = collective.parts.clone();
        self.groups.insert(id, Group { head: Some(id), operands, ..Group::default() });
        self.collectives.insert(id, collective);
    }

    /// The parameter that is the result of a node, if the device holds it before the run.
    pub(super) fn param(&self, id: NodeId) -> Option<ParamId> {
        self.params[id]
    }

    /// The support of the node's device for its launch. It depends on the operator at the head of
    /// the group; a chain without one is elementwise.
    pub(super) fn support(&self, id: NodeId) -> Support {
        let head = self.groups.get(&id).map_or(Some(id), |g| g.head);
        let head = head.filter(|head| self.graph.node(*head).op().is_some());
        head.map_or_else(|| Support::by(KernelClass::Elementwise), |head| self.support_of(head))
    }

    /// The support of a node's device for its operator; an input or parameter has none.
    pub(super) fn support_of(&self, id: NodeId) -> Support {
        let kernels = self.kernels.on(self.device(id));
        let support = |op| kernels.supports(op, &Types::of(self.graph, id));
        // Inputs and parameters have no kernel.
        self.graph.node(id).op().map(support).unwrap_or_default()
    }

    /// The value that contains `value`, and the offset of its first byte there.
    pub(super) fn base(&self, value: Value) -> (Value, Dim) {
        match self.aliases.get(value) {
            Some(alias) => (alias.to, alias.offset.clone()),
            None => (value, Dim::ZERO),
        }
    }

    /// The operands whose elements a node reads at run time.
    pub(super) fn operands(&self, id: NodeId) -> SmallVec<[Value; 4]> {
        operands(self.graph, &self.roles, &self.groups, id)
    }
}

/// The operands whose elements the node reads at run time: of a view only the first, of a group
/// all that the launch reads, of an input or parameter none. The other operands of a view exist
/// for their types or shapes alone. Dropping them here shortens the lifetimes of the values that
/// only they would keep alive.
pub(super) fn operands(
    graph: &Graph,
    roles: &NodeMap<Role>,
    groups: &Groups,
    id: NodeId,
) -> SmallVec<[Value; 4]> {
    if let Some(group) = groups.get(&id) {
        return group.operands.as_slice().into();
    }
    let mut operands = graph.operands(id);
    match roles[id] {
        Role::External => operands.clear(),
        Role::View => operands.truncate(1),
        Role::Copy | Role::Concat | Role::First | Role::Received | Role::Launch | Role::Fused => {}
    }
    operands
}

impl Collective {
    /// The range of elements that each member combines, of a value with `elements` elements. The
    /// size of a slice is rounded up, so the last ranges may be short or empty: 10 elements in
    /// slices of 4 over 4 members are `0..4, 4..8, 8..10, 10..10`. An empty list means that the
    /// form has no slices.
    pub(super) fn slices(&self, elements: i64) -> Vec<Range<i64>> {
        let Algorithm::ReduceScatter(size) = self.algorithm else { return Vec::new() };
        let counts = (0i64..).zip(&self.members).map(|(i, _)| {
            let from = i.saturating_mul(size).min(elements);
            from..from.saturating_add(size).min(elements)
        });
        counts.collect()
    }

    /// True if a member gets this result.
    pub(super) fn gives(&self, value: Value) -> bool {
        self.members.iter().any(|m| m.results.contains(&Some(value)))
    }
}
