//! The decisions of lowering about each node and value: which values share bytes, what a node
//! becomes, and when it runs. [`Layout`] is the state that the stages of `lower` share. Each
//! stage refines it (views and joins first, then fused groups, then collectives), and `emit`
//! only reads it. No stage changes the graph.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::chain::Chain;
use super::program::{Guard, Lane};
use super::support::{Kernels, Support, Types};
use crate::ir::{Graph, NodeId, ParamId, Value};
use crate::types::{Device, Dim, KernelClass, Keys};

/// The step, or the absence of one, that a node becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// An input or a parameter: bytes that exist before the run.
    External,
    /// Bytes of its first operand, from an offset on.
    View,
    /// A copy from another device.
    Copy,
    /// A concatenation whose operands lie one after the other in the result.
    Join,
    /// The result of the first replica that has rows.
    First,
    /// A copy of what a collective gives on this device.
    Received,
    /// A kernel.
    Launch,
    /// Part of the kernel of a later node.
    ///
    /// The last node of the group takes the launch, because only its result is in memory: see
    /// [`Group`].
    Absorbed,
}

/// The first byte of a value within another.
///
/// For `slice %x [2..4] axis 0` of an `f32[8, 3]`, the link of the result names `%x` and the
/// offset is `2 * 3 * 4` bytes. Links are kept flat: `to` itself lies in no other value, so
/// [`Layout::base`] takes one look-up and not a walk.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) to: Value,
    pub(super) offset: Dim,
}

/// A table with an entry for each result of each node.
///
/// Indexed by node, then by result. Nearly every node has one result, which the inline capacity
/// of one keeps out of the heap.
#[derive(Clone)]
pub(super) struct Table<T>(Vec<SmallVec<[T; 1]>>);

impl<T: Clone> Table<T> {
    pub(super) fn new(graph: &Graph, fill: &T) -> Self {
        let mut rows = vec![SmallVec::new(); graph.id_bound()];
        for id in graph.ids() {
            rows[id.index()] = SmallVec::from_elem(fill.clone(), graph.node(id).results().len());
        }
        Self(rows)
    }

    pub(super) fn get(&self, value: Value) -> &T {
        &self.0[value.node.index()][value.output as usize]
    }

    pub(super) fn set(&mut self, value: Value, entry: T) {
        self.0[value.node.index()][value.output as usize] = entry;
    }
}

/// Nodes that become one launch, under the last of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Group {
    /// The node whose operator comes first; `None` where the chain begins with a value in memory.
    pub(super) head: Option<NodeId>,
    /// The values that the launch reads: the operator's operands or the value the chain begins
    /// with, then the chain's operands.
    pub(super) operands: Vec<Value>,
    /// The element-wise operators that follow, applied to the result before it is written.
    pub(super) chain: Chain,
}

/// A node that joins or combines the values of all replicas, carried out by the devices that
/// need the result. In the graph the node runs on one device and copies bring its result to the
/// others. As a collective, each member reads the parts from its peers and computes its own
/// result, so the copies disappear (they become [`Role::Received`] or views) and no device waits
/// for a central one.
#[derive(Clone, Debug)]
pub(super) struct Collective {
    /// Where the replicas compute what is joined, in the order of the node's operands. They are the
    /// operands of its group.
    pub(super) parts: Vec<Value>,
    /// Who gets results, the node's own device first.
    pub(super) members: Vec<Member>,
    /// The copies to the node's own device, where its results are already.
    pub(super) views: Vec<Value>,
    /// The form of their cooperation.
    pub(super) form: Form,
    /// On which lane of each device.
    pub(super) lane: Lane,
}

/// The form of a collective: how its members divide the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Each takes all parts from its peers and combines or joins them in the order of the replicas.
    Direct,
    /// Each member combines one slice of this many elements and takes the other slices from its
    /// peers (reduce-scatter, then all-gather).
    Sliced(i64),
    /// Each gets a result of its own, of the parts before it (or behind it).
    Scan,
}

/// A device that gets results of a collective.
///
/// `results[k]` is the value of this device that stands for result `k` of the node, `None` if
/// the device does not need it. A second copy of the same result to the same device is listed in
/// `again`: it shares the bytes of the first.
#[derive(Clone, Debug)]
pub(super) struct Member {
    /// The device.
    pub(super) device: Device,
    /// When it needs them.
    pub(super) guard: Guard,
    /// The value of this device that is the result with a number, by number.
    pub(super) results: SmallVec<[Option<Value>; 2]>,
    /// Further values of this device that are the result with a number.
    pub(super) again: Vec<(u32, Value)>,
}

/// The decisions that lowering takes before it writes steps. The vectors are indexed by node id
/// and have an entry for every id below the graph's bound, for dead nodes too; `order` lists the
/// live ones.
pub(super) struct Layout<'a> {
    pub(super) graph: &'a Graph,
    /// The kernels of the devices that run the program.
    pub(super) kernels: &'a dyn Kernels,
    /// The nodes that are needed, in the order in which they run.
    pub(super) order: Vec<NodeId>,
    pub(super) roles: Vec<Role>,
    pub(super) guards: Vec<Guard>,
    /// The device on which each node runs.
    pub(super) devices: Vec<Device>,
    pub(super) params: Vec<Option<ParamId>>,
    /// The parameters that a run changes.
    pub(super) variables: Keys<ParamId>,
    /// Where a value lies in another one that lies in none.
    pub(super) links: Table<Option<Link>>,
    /// The nodes that share a launch, by the last of them.
    pub(super) groups: Groups,
    /// The collectives that devices carry out themselves, by node.
    pub(super) collectives: BTreeMap<NodeId, Collective>,
}

/// The groups of nodes that share a launch, by the last node of each.
pub(super) type Groups = BTreeMap<NodeId, Group>;

impl Layout<'_> {
    pub(super) fn role(&self, id: NodeId) -> Role {
        self.roles[id.index()]
    }

    pub(super) fn guard(&self, id: NodeId) -> Guard {
        self.guards[id.index()]
    }

    /// The device on which a node runs and its results are.
    pub(super) fn device(&self, id: NodeId) -> Device {
        self.devices[id.index()]
    }

    pub(super) fn set_device(&mut self, id: NodeId, device: Device) {
        self.devices[id.index()] = device;
    }

    pub(super) fn set_role(&mut self, id: NodeId, role: Role) {
        self.roles[id.index()] = role;
    }

    /// Makes a copy a view of its operand; the operand must be on the copy's device.
    pub(super) fn make_view(&mut self, copy: Value) {
        if let Some(to) = self.graph.operands(copy.node).first().copied() {
            self.set_role(copy.node, Role::View);
            self.links.set(copy, Some(Link { to, offset: Dim::ZERO }));
        }
    }

    /// Registers a collective, and makes the parts the operands of the node. The group is what
    /// makes every later stage (liveness, order, memory) see that the node reads the replicas'
    /// parts themselves and not the values that were copied to its device.
    pub(super) fn add_collective(&mut self, id: NodeId, collective: Collective) {
        let (operands, chain) = (collective.parts.clone(), Chain::default());
        self.groups.insert(id, Group { head: Some(id), operands, chain });
        self.collectives.insert(id, collective);
    }

    /// The parameter that a node's result is, where its device holds it before the run.
    pub(super) fn param(&self, id: NodeId) -> Option<ParamId> {
        self.params[id.index()]
    }

    /// The kernel class of a node's launch on its device. It depends on the operator at the head
    /// of the group; a chain without one is element-wise.
    pub(super) fn support(&self, id: NodeId) -> Support {
        let head = self.groups.get(&id).map_or(Some(id), |g| g.head);
        let op = head.and_then(|head| Some((head, self.graph.node(head).op()?)));
        op.map_or_else(
            || Support::by(KernelClass::Elementwise),
            |(head, op)| {
                let kernels = self.kernels.on(self.device(id));
                kernels.supports(op, &Types::of(self.graph, head))
            },
        )
    }

    /// The value in which `value` lies and the first byte of it there.
    pub(super) fn base(&self, value: Value) -> (Value, Dim) {
        match self.links.get(value) {
            Some(link) => (link.to, link.offset.clone()),
            None => (value, Dim::ZERO),
        }
    }

    /// The operands whose elements a node needs at run time.
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
    roles: &[Role],
    groups: &Groups,
    id: NodeId,
) -> SmallVec<[Value; 4]> {
    if let Some(group) = groups.get(&id) {
        return group.operands.as_slice().into();
    }
    let mut operands = graph.operands(id);
    match roles[id.index()] {
        Role::External => operands.clear(),
        Role::View => operands.truncate(1),
        Role::Copy | Role::Join | Role::First | Role::Received | Role::Launch | Role::Absorbed => {}
    }
    operands
}

impl Collective {
    /// The range of elements that each member combines, of a value with `elements` elements. The
    /// size of a slice is rounded up, so the last ranges may be short or empty: 10 elements in
    /// slices of 4 over 4 members are `0..4, 4..8, 8..10, 10..10`. An empty list means that the
    /// form has no slices.
    pub(super) fn slices(&self, elements: i64) -> Vec<Range<i64>> {
        let Form::Sliced(size) = self.form else { return Vec::new() };
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
