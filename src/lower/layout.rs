//! Which values share bytes, what each node becomes, and when it runs.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use super::chain::Chain;
use super::collect::{self, Collective};
use super::fuse::Group;
use super::program::Guard;
use super::{LowerError, fuse, lanes, place, schedule};
use crate::ir::{Graph, Node, NodeId, NodeKind, ParamId, Value, Verified};
use crate::op::{Op, Slice};
use crate::types::invariant::int;
use crate::types::{Device, Dim, KernelClass, Keys, Target, TensorType};

/// A batch of which every replica that ever has rows has some, for any sensible weights.
const MANY_ROWS: i64 = 1 << 32;

/// What a node becomes.
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
    Absorbed,
}

/// The first byte of a value within another.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) to: Value,
    pub(super) offset: Dim,
}

/// A table with an entry for each result of each node.
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

/// The decisions that lowering takes before it writes steps.
pub(super) struct Layout<'a> {
    pub(super) graph: &'a Graph,
    /// The nodes that are needed, in the order in which they run.
    pub(super) order: Vec<NodeId>,
    pub(super) roles: Vec<Role>,
    pub(super) guards: Vec<Guard>,
    /// Where each node runs.
    devices: Vec<Device>,
    params: Vec<Option<ParamId>>,
    /// The parameters that a run changes.
    pub(super) variables: Keys<ParamId>,
    /// Where a value lies in another one that lies in none.
    pub(super) links: Table<Option<Link>>,
    /// The nodes that share a launch, by the last of them.
    pub(super) groups: Groups,
    /// What devices join or combine, each for itself.
    pub(super) collectives: BTreeMap<NodeId, Collective>,
}

/// The groups of nodes that share a launch, by the last node of each.
pub(super) type Groups = BTreeMap<NodeId, Group>;

impl<'a> Layout<'a> {
    pub(super) fn new(verified: &Verified<'a>, target: &Target) -> Result<Self, LowerError> {
        let (graph, order) = (verified.graph(), verified.order());
        let mut roles = vec![Role::External; graph.id_bound()];
        let mut links = Table::new(graph, &None);
        let variables = variables(graph);
        for id in order {
            roles[id.index()] = role(graph, *id, target, &variables, &mut links);
        }
        let groups = fuse::fuse(graph, order, &mut roles, target);
        let devices = place::devices(graph, order, &roles, &groups, target);
        let mut params = vec![None; graph.id_bound()];
        for id in order {
            params[id.index()] = param(graph, *id, target, &variables);
        }
        let scheduled = schedule::schedule(graph, order, &roles, &groups);
        let guards = vec![Guard::Always; graph.id_bound()];
        let collectives = BTreeMap::new();
        let order = scheduled;
        let mut layout = Self {
            graph,
            order,
            roles,
            guards,
            devices,
            params,
            variables,
            links,
            groups,
            collectives,
        };
        layout.set_guards()?;
        layout.check()?;
        if collect::collect(&mut layout, target) {
            // Copies of the parts to where the graph combines them are no longer needed.
            layout.order = schedule::schedule(graph, &layout.order, &layout.roles, &layout.groups);
            lanes::set_aside(&mut layout);
        }
        layout.place_operands();
        layout.resolve();
        Ok(layout)
    }

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

    /// Lets a copy be its operand, which is on its device.
    pub(super) fn make_view(&mut self, copy: Value) {
        if let Some(to) = self.graph.operands(copy.node).first().copied() {
            self.set_role(copy.node, Role::View);
            self.links.set(copy, Some(Link { to, offset: Dim::ZERO }));
        }
    }

    /// Lets devices do what a node joins or combines, from the parts themselves.
    pub(super) fn add_collective(&mut self, id: NodeId, collective: Collective) {
        let (operands, chain) = (collective.parts.clone(), Chain::default());
        self.groups.insert(id, Group { head: Some(id), operands, chain });
        self.collectives.insert(id, collective);
    }

    /// The parameter that a node's result is, where its device holds it before the run.
    pub(super) fn param(&self, id: NodeId) -> Option<ParamId> {
        self.params[id.index()]
    }

    /// The class of the kernel that a node launches, by the table of its device.
    pub(super) fn class(&self, id: NodeId, target: &Target) -> KernelClass {
        let head = self.groups.get(&id).map_or(Some(id), |g| g.head);
        let op = head.and_then(|head| Some((head, self.graph.node(head).op()?)));
        // A chain without a head is elementwise.
        op.map_or(KernelClass::Elementwise, |(head, op)| place::class(self.graph, head, op, target))
    }

    /// The value in which `value` lies and the first byte of it there.
    pub(super) fn base(&self, value: Value) -> (Value, Dim) {
        match self.links.get(value) {
            Some(link) => (link.to, link.offset.clone()),
            None => (value, Dim::ZERO),
        }
    }

    /// The nodes of a replica run while it has rows; what a merge of equal values, or of parts,
    /// takes from replica 0 runs when the batch is empty, too.
    fn set_guards(&mut self) -> Result<(), LowerError> {
        for id in &self.order {
            if let Some(r) = self.graph.node(*id).place().replica {
                self.guards[id.index()] = Guard::Rows(r);
            }
        }
        let mut stack = Vec::new();
        for id in &self.order {
            let node = self.graph.node(*id);
            let merges = node.place().replica.is_none() && self.graph.split().is_some();
            if self.role(*id) == Role::First || (merges && node.op().is_some_and(combines)) {
                // What is not split has no replicas.
                let replicas = self.graph.split().map_or(0, crate::types::Split::replicas);
                let operands = self.graph.operands(*id);
                // Some merges take several values of each replica.
                let each = operands.len() / replicas.max(1);
                let mut parts = (0u32..).zip(operands.chunks(each.max(1)));
                let in_order =
                    parts.all(|(r, p)| p.iter().all(|v| self.guard(v.node) == Guard::Rows(r)));
                if !in_order || operands.len() != replicas * each {
                    return Err(LowerError::First(self.graph.node(*id).label().to_owned()));
                }
                stack.extend(operands.iter().take(each).map(|v| v.node));
            }
        }
        while let Some(id) = stack.pop() {
            if self.guard(id) == Guard::Rows(0) {
                self.guards[id.index()] = Guard::First(0);
                stack.extend(self.operands(id).iter().map(|v| v.node));
            }
        }
        Ok(())
    }

    /// The operands whose elements a node needs at run time.
    pub(super) fn operands(&self, id: NodeId) -> SmallVec<[Value; 4]> {
        operands(self.graph, &self.roles, &self.groups, id)
    }

    /// Every operand is on the node's device (unless it is copied) and present when the node runs.
    fn check(&self) -> Result<(), LowerError> {
        for id in &self.order {
            let node = self.graph.node(*id);
            let merges = matches!(self.role(*id), Role::Join | Role::First)
                || node.op().is_some_and(|op| combines(op) || op.joined().is_some());
            for operand in self.operands(*id) {
                let source = self.graph.node(operand.node);
                let label = || node.label().to_owned();
                let operand_name = || self.graph.info(operand).name.to_string();
                if self.role(*id) != Role::Copy && source.place().device != node.place().device {
                    let (device, operand) = (node.place().device, operand_name());
                    return Err(LowerError::Device { label: label(), device, operand });
                }
                let present = self.guard(*id).implies(self.guard(operand.node));
                if !(present || merges && self.is_empty_when_absent(node, operand)) {
                    return Err(LowerError::Absent { label: label(), operand: operand_name() });
                }
            }
        }
        Ok(())
    }

    /// True if an operand of a merge has no elements while its replica has no rows, or another is
    /// taken then.
    fn is_empty_when_absent(&self, merge: &Node, operand: Value) -> bool {
        let (Some(concat), Guard::Rows(r) | Guard::First(r)) =
            (merge.op().and_then(|op| op.joined()), self.guard(operand.node))
        else {
            return merge.op().is_some_and(|op| combines(op) || matches!(op, Op::First(_)));
        };
        let rows = self.graph.split().and_then(|s| s.rows(r as usize));
        let axis = usize::try_from(concat.axis).ok();
        let size = axis.and_then(|axis| self.graph.ty(operand).shape.get(axis));
        let (Some(rows), Some(size)) = (rows, size) else { return false };
        // Entries for each row, from a batch that gives the replica some.
        let many = rows.eval(MANY_ROWS);
        let inner = if many > 0 { size.eval(MANY_ROWS) / many } else { 0 };
        *size == rows * inner
    }

    /// Lets the operands of merges be written where the merged result has them, where nothing
    /// hinders it.
    fn place_operands(&mut self) {
        for id in self.order.clone() {
            let result = Value { node: id, output: 0 };
            match self.role(id) {
                Role::Join => {
                    for (to, device) in self.joined(id) {
                        self.place_parts(id, to, device);
                    }
                }
                Role::First => {
                    for (r, operand) in (0u32..).zip(self.graph.operands(id)) {
                        let copy = self.role(operand.node) == Role::Copy;
                        if self.placeable(operand) == Some(operand)
                            && (copy || (r == 0 && self.role(operand.node) == Role::Launch))
                            && self.is_single_use(operand)
                            && self.device(operand.node) == self.device(id)
                        {
                            self.guards[operand.node.index()] = Guard::First(r);
                            self.links.set(operand, Some(Link { to: result, offset: Dim::ZERO }));
                        }
                    }
                }
                Role::External
                | Role::View
                | Role::Copy
                | Role::Received
                | Role::Launch
                | Role::Absorbed => {}
            }
        }
    }

    /// The values that a concatenation gives, of several devices if they do it each for itself.
    fn joined(&self, id: NodeId) -> SmallVec<[(Value, Device); 4]> {
        let Some(collective) = self.collectives.get(&id) else {
            return smallvec![(Value { node: id, output: 0 }, self.device(id))];
        };
        let values = collective.members.iter().map(|m| Some((*m.results.first()?, m.device)));
        values.filter_map(|v| v.and_then(|(value, device)| Some((value?, device)))).collect()
    }

    /// Lets the operands of a concatenation that are on a device be written where they lie in what
    /// is joined there.
    fn place_parts(&mut self, id: NodeId, to: Value, device: Device) {
        let mut offset = Dim::ZERO;
        for operand in self.operands(id) {
            let root = self.placeable(operand).filter(|root| self.device(root.node) == device);
            if let Some(root) = root {
                self.links.set(root, Some(Link { to, offset: offset.clone() }));
            }
            offset = offset + self.graph.ty(operand).bytes();
        }
    }

    fn is_single_use(&self, value: Value) -> bool {
        let users = self.graph.users(value.node);
        users.iter().filter(|(_, _, output)| *output == value.output).count() == 1
            && !self.graph.is_kept(value)
    }

    /// The value that holds all bytes of `value` and no others, if it can still be given any place.
    fn placeable(&self, value: Value) -> Option<Value> {
        let mut root = value;
        while self.role(root.node) == Role::View {
            let link = self.links.get(root).as_ref()?;
            if link.offset != Dim::ZERO {
                return None;
            }
            root = link.to;
        }
        let free = self.role(root.node) != Role::External && self.links.get(root).is_none();
        (free && self.graph.ty(root).bytes() == self.graph.ty(value).bytes()).then_some(root)
    }

    /// Makes every link lead to a value that lies in none: results of merges lead forward, views
    /// back.
    fn resolve(&mut self) {
        let step = |id: NodeId, links: &mut Table<Option<Link>>| {
            let results = int::<u32>(self.graph.node(id).results().len());
            for output in 0..results {
                let value = Value { node: id, output };
                let Some(link) = links.get(value).clone() else { continue };
                if let Some(next) = links.get(link.to).clone() {
                    let offset = link.offset + next.offset;
                    links.set(value, Some(Link { to: next.to, offset }));
                }
            }
        };
        for id in self.order.iter().rev().filter(|id| self.roles[id.index()] != Role::View) {
            step(*id, &mut self.links);
        }
        for id in self.order.iter().filter(|id| self.roles[id.index()] == Role::View) {
            step(*id, &mut self.links);
        }
    }
}

/// True of what combines parts of replicas, and leaves out those of replicas without rows.
fn combines(op: &Op) -> bool {
    matches!(op, Op::AllReduce(_) | Op::ExclusiveScan(_) | Op::MergeTopK(_))
}

/// The operands whose elements the node needs at run time: of a view the first alone, of a group
/// all that it reads, of a parameter that is kept none.
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

/// The parameters that a run changes.
fn variables(graph: &Graph) -> Keys<ParamId> {
    graph.updates().iter().map(|update| update.param).collect()
}

/// The parameter whose elements a node has on its device before the run: its own, or one that the
/// target keeps there, which no run changes.
fn param(graph: &Graph, id: NodeId, target: &Target, variables: &Keys<ParamId>) -> Option<ParamId> {
    let node = graph.node(id);
    match node.kind() {
        NodeKind::Param(param) => Some(*param),
        NodeKind::Op(Op::CopyOp(_)) if target.keeps_params => {
            let operand = graph.operands(id).first().copied()?;
            match graph.node(operand.node).kind() {
                NodeKind::Param(param) => Some(*param).filter(|param| !variables.contains(param)),
                NodeKind::Input | NodeKind::Op(_) => None,
            }
        }
        NodeKind::Input | NodeKind::Op(_) => None,
    }
}

fn role(
    graph: &Graph,
    id: NodeId,
    target: &Target,
    variables: &Keys<ParamId>,
    links: &mut Table<Option<Link>>,
) -> Role {
    let node = graph.node(id);
    let NodeKind::Op(op) = node.kind() else { return Role::External };
    if param(graph, id, target, variables).is_some() {
        return Role::External;
    }
    let operands = graph.operands(id);
    let Some(first) = operands.first().copied() else { return Role::Launch };
    let device = |v: Value| graph.node(v.node).place().device;
    if matches!(op, Op::CopyOp(_)) && device(first) != node.place().device {
        return Role::Copy;
    }
    if let Some(offset) = view_offset(graph, node, op, first) {
        links.set(Value { node: id, output: 0 }, Some(Link { to: first, offset }));
        return Role::View;
    }
    if let Some(concat) = op.joined()
        && is_outermost(graph.ty(first), concat.axis)
    {
        return Role::Join;
    }
    if matches!(op, Op::First(_)) { Role::First } else { Role::Launch }
}

/// Where the only result of the node begins in its first operand, if its bytes lie there one after
/// the other.
fn view_offset(graph: &Graph, node: &Node, op: &Op, operand: Value) -> Option<Dim> {
    let [result] = node.results() else { return None };
    let ty = graph.ty(operand);
    if let Op::Slice(slice) = op {
        return slice_offset(slice, ty);
    }
    let of_none = graph.node(operand.node).place().replica.is_none();
    let same = result.ty.bytes() == ty.bytes() && result.ty.dtype == ty.dtype;
    let is_view = op.kernel() == KernelClass::View && same;
    let whole = matches!(op, Op::CopyOp(_)) || (matches!(op, Op::First(_)) && of_none);
    (whole || is_view).then_some(Dim::ZERO)
}

/// The first byte of a slice that takes one run of its operand.
fn slice_offset(slice: &Slice, ty: &TensorType) -> Option<Dim> {
    let mut offset = Dim::ZERO;
    let bounds = slice.starts.iter().zip(&slice.ends).zip(&slice.steps);
    for (axis, ((start, end), step)) in slice.axes.iter().zip(bounds) {
        let size = ty.shape.get(*axis)?;
        if *start == Dim::ZERO && end == size && *step == 1 {
            continue;
        }
        let outermost = ty.shape.get(..*axis)?.iter().all(|d| *d == Dim::ONE);
        if !outermost || *step != 1 {
            return None;
        }
        let row = ty.shape[axis + 1..].iter().fold(Dim::ONE, |p, d| p * d.clone());
        let width = int::<i64>(ty.dtype.bytes());
        offset = start.clone() * row * width;
    }
    Some(offset)
}

/// True if all axes before `axis` (negative from the end) have size 1.
fn is_outermost(ty: &TensorType, axis: i64) -> bool {
    let rank = int::<i64>(ty.rank());
    let axis = if axis < 0 { axis + rank } else { axis };
    usize::try_from(axis)
        .ok()
        .and_then(|axis| ty.shape.get(..axis))
        .is_some_and(|before| before.iter().all(|d| *d == Dim::ONE))
}
