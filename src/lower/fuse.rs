//! Fusion: elementwise operators become the epilogue of the kernel before them, or run together in
//! one kernel.

use std::collections::BTreeMap;

use super::chain::{Access, ChainStep};
use super::layout::{Group, Role};
use super::order;
use super::support::{Images, Kernels, Support, Types};
use crate::ir::{Graph, NodeId, NodeMap, Value};
use crate::op::{Binary, Op, Traits, Unary};
use crate::types::{DType, Dim, TensorType};

/// Returns the fusion groups of a graph, by their last node. The roles of the other nodes become
/// [`Role::Fused`].
///
/// A value is fused only if it has no other user. The decision depends on types alone, and of sizes
/// that follow from the batch only on whether they are equal or 1. Each replica is therefore fused
/// as the original graph is.
pub(super) fn fuse(
    graph: &Graph,
    order: &[NodeId],
    roles: &mut NodeMap<Role>,
    kernels: &dyn Kernels,
) -> BTreeMap<NodeId, Group> {
    let mut is_kept = graph.node_map(false);
    for value in graph.kept() {
        is_kept[value.node] = true;
    }
    let mut fuser = Fuser { graph, roles, kernels, is_kept, grouped: graph.node_map(false) };
    let mut groups = BTreeMap::new();
    // Backwards: of two kernels whose results are combined (as in a residual block), the later one
    // gets the operator as its epilogue, since both results are ready only then.
    for id in order.iter().rev() {
        if let Some(group) = fuser.kernel_group(*id) {
            fuser.extend(*id, group, &mut groups);
        }
    }
    for id in order {
        if let Some(group) = fuser.elementwise_group(*id) {
            fuser.extend(*id, group, &mut groups);
        }
    }
    for id in order {
        fuser.read_through(*id, &mut groups);
    }
    groups
}

/// A place where a value is read: an operand of a group, by the group's last node.
struct Place {
    group: NodeId,
    operand: usize,
    /// True if the kernel reads through the function that gives the value.
    through: bool,
}

/// The most operands of a chain: a kernel keeps the elements of some of them for its whole tile.
const MAX_OPERANDS: usize = 24;

/// The most steps of a chain: the time to compile a kernel grows with the square of their number.
const MAX_STEPS: usize = 32;

struct Fuser<'a> {
    graph: &'a Graph,
    roles: &'a mut NodeMap<Role>,
    kernels: &'a dyn Kernels,
    is_kept: NodeMap<bool>,
    /// The nodes that belong to a group.
    grouped: NodeMap<bool>,
}

impl Fuser<'_> {
    /// A group that begins with the kernel of this node.
    fn kernel_group(&self, id: NodeId) -> Option<Group> {
        self.launch(id)?;
        let operands = self.graph.operands(id).to_vec();
        let all_f32 = operands.iter().all(|v| self.is_f32(*v));
        let group = Group { head: Some(id), operands, ..Group::default() };
        let suits = all_f32 && self.is_f32(Value { node: id, output: 0 });
        (suits && self.support(id).ends_in_chain).then_some(group)
    }

    /// A group that begins with an operand of this elementwise node.
    fn elementwise_group(&self, id: NodeId) -> Option<Group> {
        self.launch(id)?;
        let operands = self.graph.operands(id);
        (0..operands.len()).find_map(|slot| {
            let mut group = Group { operands: vec![operands[slot]], ..Group::default() };
            self.try_append(&mut group, id, slot).then_some(group)
        })
    }

    /// The operator of a node that launches a kernel and belongs to no group yet.
    fn launch(&self, id: NodeId) -> Option<&Op> {
        let node = self.graph.node(id);
        let free = self.roles[id] == Role::Launch && !self.grouped[id];
        node.op().filter(|_| free && node.results().len() == 1)
    }

    /// The support of the node's device for its operator.
    fn support(&self, id: NodeId) -> Support {
        let node = self.graph.node(id);
        let support = |op| {
            let kernels = self.kernels.on(node.place().device);
            kernels.supports(op, &Types::of(self.graph, id))
        };
        // Inputs and parameters have no kernel.
        node.op().map(support).unwrap_or_default()
    }

    fn is_f32(&self, value: Value) -> bool {
        self.graph.ty(value).dtype == DType::F32
    }

    /// Extends the group while its last value has exactly one user and that is elementwise.
    fn extend(&mut self, first: NodeId, group: Group, groups: &mut BTreeMap<NodeId, Group>) {
        let (mut last, mut group) = (first, group);
        self.grouped[last] = true;
        while let [(user, slot, _)] = self.graph.users(last).as_slice() {
            // Only nodes of one device and one replica are fused: they share a guard.
            let same_place = self.graph.node(*user).place() == self.graph.node(last).place();
            if self.is_kept[last]
                || !same_place
                || self.launch(*user).is_none()
                || !self.try_append(&mut group, *user, *slot)
            {
                break;
            }
            self.roles[last] = Role::Fused;
            last = *user;
            self.grouped[last] = true;
        }
        groups.insert(last, group);
    }

    /// Appends a node to the group whose last value is the node's operand `slot`; false if it
    /// cannot be fused.
    fn try_append(&self, group: &mut Group, id: NodeId, slot: usize) -> bool {
        let Some(op) = self.launch(id) else { return false };
        let operands = self.graph.operands(id);
        let ty = &self.graph.node(id).results()[0].ty;
        let types: Vec<&TensorType> =
            operands.iter().map(|v| self.graph.ty(*v)).chain([ty]).collect();
        if operands.get(slot).is_none_or(|v| self.graph.ty(*v).shape != ty.shape)
            || !self.support(id).is_step
        {
            return false;
        }
        let next = group.chain.operands();
        if next + operands.len() > MAX_OPERANDS + 1 || group.chain.steps.len() == MAX_STEPS {
            return false;
        }
        let Some(step) = chain_step(op, slot, &types, next) else { return false };
        group.chain.steps.push(step);
        // The kernel may write its result channels last; then the chain must be expressible in that
        // order too, or the epilogue could not index its operands.
        let is_row_major = |head| match self.support(head).images {
            Images::RowMajor => true,
            Images::ChannelsLast | Images::First | Images::All | Images::One | Images::Any => false,
        };
        if !group.head.is_none_or(is_row_major)
            && order::in_channels_last(&group.chain, ty).is_none()
        {
            group.chain.steps.pop();
            return false;
        }
        let others = operands.iter().enumerate().filter(|(i, _)| *i != slot);
        group.operands.extend(others.map(|(_, v)| *v));
        true
    }
}

impl Fuser<'_> {
    /// Makes a lone activation the prologue of the kernels that read its result. The gradient of a
    /// `relu` takes its operand instead: both are above 0 at the same elements.
    fn read_through(&mut self, id: NodeId, groups: &mut BTreeMap<NodeId, Group>) {
        let Some(Group { head: None, operands, chain, .. }) = groups.get(&id) else { return };
        let ([x], [step @ ChainStep::Unary(Unary::Relu | Unary::Clip { .. })]) =
            (operands.as_slice(), chain.steps.as_slice())
        else {
            return;
        };
        let (x, step) = (*x, step.clone());
        if self.is_kept[id] || self.roles[id] != Role::Launch || !self.is_f32(x) {
            return;
        }
        let Some(places) = self.places(id, &step, groups) else { return };
        if !places.iter().any(|place| place.through) {
            return;
        }
        groups.remove(&id);
        self.roles[id] = Role::Fused;
        for Place { group, operand, through } in places {
            let group = groups.entry(group).or_insert_with(|| Group {
                head: Some(group),
                operands: self.graph.operands(group).to_vec(),
                ..Group::default()
            });
            group.operands[operand] = x;
            if through {
                group.prologue.insert(operand, step.clone());
            }
        }
    }

    /// The places where the result of an activation is read, if it need not exist for any of them.
    fn places(
        &self,
        id: NodeId,
        step: &ChainStep,
        groups: &BTreeMap<NodeId, Group>,
    ) -> Option<Vec<Place>> {
        let value = Value { node: id, output: 0 };
        let mut places = Vec::new();
        for (user, slot, _) in self.graph.users(id) {
            if self.graph.node(user).place() != self.graph.node(id).place() {
                return None;
            }
            let mut own = groups.iter().filter(|(_, group)| group.head == Some(user));
            let owner = own.next().map(|(last, _)| *last);
            let alone = self.roles[user] == Role::Launch && !groups.contains_key(&user);
            if let Some(group) = owner.or_else(|| alone.then_some(user)) {
                let through = self.support(user).reads_through.takes(slot);
                places.push(through.then_some(Place { group, operand: slot, through })?);
                continue;
            }
            let is_relu = matches!(step, ChainStep::Unary(Unary::Relu));
            let is_gradient =
                matches!(self.graph.node(user).op(), Some(Op::Binary(Binary::ReluGrad)));
            if !is_relu || !is_gradient || slot != 0 {
                return None;
            }
            // The only group without a kernel that reads the value, in which it does so once.
            let reads = |group: &Group| group.operands.iter().filter(|v| **v == value).count();
            let mut holders = groups.iter().filter(|(last, group)| {
                reads(group) > 0 && !places.iter().any(|p| p.group == **last)
            });
            let (last, group) = holders.find(|(_, group)| reads_in_gradient(group, value))?;
            let operand = group.operands.iter().position(|v| *v == value)?;
            places.push((reads(group) == 1).then_some(Place {
                group: *last,
                operand,
                through: false,
            })?);
        }
        Some(places)
    }
}

/// True if the step of a group that reads a value is the gradient of the `relu` that gave it.
fn reads_in_gradient(group: &Group, value: Value) -> bool {
    let own = group.operands.len().saturating_sub(group.chain.operands());
    let gradient = |step: &ChainStep, first: bool, at: usize| {
        matches!(step, ChainStep::Binary { op: Binary::ReluGrad, operand, swapped, .. }
            if *swapped != first && (first || *operand == at))
    };
    match group.operands.iter().position(|v| *v == value) {
        Some(0) if group.head.is_none() => {
            group.chain.steps.first().is_some_and(|step| gradient(step, true, 0))
        }
        Some(at) if at >= own => {
            group.chain.steps.iter().any(|step| gradient(step, false, at - own))
        }
        Some(_) | None => false,
    }
}

/// The chain step of an operator. `types` are the types of its operands and, last, of its result.
/// Operand `slot` is the running element; the others become operands `next..` of the chain.
fn chain_step(op: &Op, slot: usize, types: &[&TensorType], next: usize) -> Option<ChainStep> {
    let (ty, operands) = types.split_last()?;
    let others = operands.iter().enumerate().filter(|(i, _)| *i != slot);
    let accesses: Option<Vec<Access>> = others.map(|(_, other)| access(other, ty)).collect();
    let alike = types.iter().all(|t| t.dtype == ty.dtype);
    let count = operands.len().saturating_sub(1);
    match (op, count) {
        (Op::Unary(op), 0) => Some(ChainStep::Unary(op.clone())),
        (Op::Binary(op), 1) if alike => {
            let (access, swapped) = (*accesses?.first()?, slot == 1);
            Some(ChainStep::Binary { op: op.clone(), operand: next, access, swapped })
        }
        (Op::BatchNorm(op), 4) if slot == 0 => {
            let operands = std::array::from_fn(|i| next + i);
            channel_access(ty).map(|access| ChainStep::BatchNorm {
                op: op.clone(),
                operands,
                access,
            })
        }
        _ if op.is(Traits::ELEMENTWISE) => Some(ChainStep::Mixed {
            op: op.clone(),
            slot,
            operands: (next..next + count).collect(),
            accesses: accesses?,
            to: ty.dtype,
        }),
        _ => None,
    }
}

/// The access to a value of type `operand` that is broadcast to `ty`; `None` if it is no vector
/// over adjacent axes.
fn access(operand: &TensorType, ty: &TensorType) -> Option<Access> {
    if operand.shape == ty.shape {
        return Some(Access::Full);
    }
    let behind = ty.rank().checked_sub(operand.rank())?;
    // Axes of size 1 before and behind are ignored; the axes between them must match exactly, as
    // one block of adjacent axes, to be addressed by one division and one remainder.
    let is_wide = |d: &Dim| *d != Dim::ONE;
    let Some(first) = operand.shape.iter().position(is_wide) else { return Some(Access::Scalar) };
    let last = operand.shape.iter().rposition(is_wide)?;
    let (from, to) = (first + behind, last + behind);
    if operand.shape[first..=last] != ty.shape[from..=to] {
        return None;
    }
    let Access::Axis { inner, size: innermost } = axis_access(ty, to)? else { return None };
    let mut others = ty.shape[from..to].iter().map(known);
    let size = others.try_fold(innermost, |product, d| product.checked_mul(d?))?;
    Some(Access::Axis { inner, size })
}

/// The access to a vector along axis 1.
fn channel_access(ty: &TensorType) -> Option<Access> {
    axis_access(ty, 1)
}

/// A constant size other than 0: accesses divide by sizes.
fn known(d: &Dim) -> Option<usize> {
    d.as_const().and_then(|c| usize::try_from(c).ok()).filter(|c| *c > 0)
}

/// The access to a vector along an axis. Its size and the sizes behind it must be constants,
/// because they become literals of the kernel, which must not depend on the batch.
fn axis_access(ty: &TensorType, axis: usize) -> Option<Access> {
    let size = known(ty.shape.get(axis)?)?;
    let mut behind = ty.shape[axis + 1..].iter().map(known);
    let inner = behind.try_fold(1usize, |product, d| product.checked_mul(d?))?;
    Some(Access::Axis { inner, size })
}
