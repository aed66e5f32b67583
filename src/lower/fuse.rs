//! Elementwise operators that run at the end of the kernel before them, or together in one.

use std::collections::BTreeMap;

use super::chain::{Access, Chain, ChainStep};
use super::layout::{Group, Role};
use super::order;
use super::support::{Images, Kernels, Support, Types};
use crate::ir::{Graph, NodeId, Value};
use crate::op::Op;
use crate::types::{DType, Dim, TensorType};

/// The groups of a graph, by their last node. The roles of the nodes before it become
/// [`Role::Absorbed`].
///
/// A value is computed on the way only if nothing else takes it. What is decided depends on types
/// alone, and there on more than whether sizes are equal or 1 only behind the batch; so the
/// replicas are grouped as the template is.
pub(super) fn fuse(
    graph: &Graph,
    order: &[NodeId],
    roles: &mut [Role],
    kernels: &dyn Kernels,
) -> BTreeMap<NodeId, Group> {
    let mut is_kept = vec![false; graph.id_bound()];
    for value in graph.kept() {
        is_kept[value.node.index()] = true;
    }
    let mut fuser = Fuser { graph, roles, kernels, is_kept, taken: vec![false; graph.id_bound()] };
    let mut groups = BTreeMap::new();
    // Of two kernels whose results meet, the later one takes the operator that joins them.
    for id in order.iter().rev() {
        if let Some(group) = fuser.kernel(*id) {
            fuser.follow(*id, group, &mut groups);
        }
    }
    for id in order {
        if let Some(group) = fuser.elementwise(*id) {
            fuser.follow(*id, group, &mut groups);
        }
    }
    groups
}

/// The most operands of a chain: a kernel holds what some of them have for its tile.
const MOST_OPERANDS: usize = 24;

/// The most steps of a chain: the time to compile a kernel grows with the square of their number.
const MOST_STEPS: usize = 32;

struct Fuser<'a> {
    graph: &'a Graph,
    roles: &'a mut [Role],
    kernels: &'a dyn Kernels,
    is_kept: Vec<bool>,
    /// The nodes that belong to a group.
    taken: Vec<bool>,
}

impl Fuser<'_> {
    /// A group that begins with the operator of this node.
    fn kernel(&self, id: NodeId) -> Option<Group> {
        self.launch(id)?;
        let operands = self.graph.operands(id).to_vec();
        let all_f32 = operands.iter().all(|v| self.is_f32(*v));
        let group = Group { head: Some(id), operands, chain: Chain::default() };
        let suits = all_f32 && self.is_f32(Value { node: id, output: 0 });
        (suits && self.support(id).ends_in_chain).then_some(group)
    }

    /// A group that begins with an operand of this elementwise node.
    fn elementwise(&self, id: NodeId) -> Option<Group> {
        self.launch(id)?;
        let operands = self.graph.operands(id);
        (0..operands.len()).find_map(|slot| {
            let mut group = Group { operands: vec![operands[slot]], ..Group::default() };
            self.append(&mut group, id, slot).then_some(group)
        })
    }

    /// The operator of a node that launches a kernel and belongs to no group.
    fn launch(&self, id: NodeId) -> Option<&Op> {
        let node = self.graph.node(id);
        let free = self.roles[id.index()] == Role::Launch && !self.taken[id.index()];
        node.op().filter(|_| free && node.results().len() == 1)
    }

    /// The support of the node's device for its operator.
    fn support(&self, id: NodeId) -> Support {
        let node = self.graph.node(id);
        let support = |op| {
            let kernels = self.kernels.on(node.place().device);
            kernels.supports(op, &Types::of(self.graph, id))
        };
        // An input and a parameter are not computed.
        node.op().map(support).unwrap_or_default()
    }

    fn is_f32(&self, value: Value) -> bool {
        self.graph.ty(value).dtype == DType::F32
    }

    /// Lets the group grow as long as its last value is needed by one elementwise node alone.
    fn follow(&mut self, first: NodeId, group: Group, groups: &mut BTreeMap<NodeId, Group>) {
        let (mut last, mut group) = (first, group);
        self.taken[last.index()] = true;
        while let [(user, slot, _)] = self.graph.users(last).as_slice() {
            let same_place = self.graph.node(*user).place() == self.graph.node(last).place();
            if self.is_kept[last.index()]
                || !same_place
                || self.launch(*user).is_none()
                || !self.append(&mut group, *user, *slot)
            {
                break;
            }
            self.roles[last.index()] = Role::Absorbed;
            last = *user;
            self.taken[last.index()] = true;
        }
        groups.insert(last, group);
    }

    /// Appends a node to the group whose last value is the node's operand `slot`; false if it is no
    /// such node.
    fn append(&self, group: &mut Group, id: NodeId, slot: usize) -> bool {
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
        if next + operands.len() > MOST_OPERANDS + 1 || group.chain.steps.len() == MOST_STEPS {
            return false;
        }
        let Some(step) = step(op, slot, &types, next) else { return false };
        group.chain.steps.push(step);
        // A kernel that gives its result channels last reads the chain's operands by its order.
        if group.head.is_some_and(|head| self.support(head).images != Images::RowMajor)
            && order::in_order(&group.chain, ty).is_none()
        {
            group.chain.steps.pop();
            return false;
        }
        let others = operands.iter().enumerate().filter(|(i, _)| *i != slot);
        group.operands.extend(others.map(|(_, v)| *v));
        true
    }
}

/// The step of an operator with operands and, last, a result of these types, whose operand `slot`
/// is the running element; its other operands become those of the chain from position `next` on.
fn step(op: &Op, slot: usize, types: &[&TensorType], next: usize) -> Option<ChainStep> {
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
            channels(ty).map(|access| ChainStep::ScaleShift { op: op.clone(), operands, access })
        }
        (
            Op::Binary(_)
            | Op::Compare(_)
            | Op::Logic(_)
            | Op::Classify(_)
            | Op::Where(_)
            | Op::Cast(_),
            _,
        ) => Some(ChainStep::Mixed {
            op: op.clone(),
            slot,
            operands: (next..next + count).collect(),
            accesses: accesses?,
            to: ty.dtype,
        }),
        _ => None,
    }
}

/// Which element of a value of type `operand` meets an element of type `ty`, broadcast as usual.
fn access(operand: &TensorType, ty: &TensorType) -> Option<Access> {
    if operand.shape == ty.shape {
        return Some(Access::Full);
    }
    let behind = ty.rank().checked_sub(operand.rank())?;
    let is_wide = |d: &Dim| *d != Dim::ONE;
    let Some(first) = operand.shape.iter().position(is_wide) else { return Some(Access::Scalar) };
    let last = operand.shape.iter().rposition(is_wide)?;
    let (from, to) = (first + behind, last + behind);
    if operand.shape[first..=last] != ty.shape[from..=to] {
        return None;
    }
    let Access::Axis { inner, size: innermost } = along(ty, to)? else { return None };
    let mut others = ty.shape[from..to].iter().map(known);
    let size = others.try_fold(innermost, |product, d| product.checked_mul(d?))?;
    Some(Access::Axis { inner, size })
}

/// The access to a vector along axis 1.
fn channels(ty: &TensorType) -> Option<Access> {
    along(ty, 1)
}

/// A constant size that is not 0.
fn known(d: &Dim) -> Option<usize> {
    d.as_const().and_then(|c| usize::try_from(c).ok()).filter(|c| *c > 0)
}

/// The access to a vector along an axis, if it and what is behind it have constant sizes.
fn along(ty: &TensorType, axis: usize) -> Option<Access> {
    let size = known(ty.shape.get(axis)?)?;
    let mut behind = ty.shape[axis + 1..].iter().map(known);
    let inner = behind.try_fold(1usize, |product, d| product.checked_mul(d?))?;
    Some(Access::Axis { inner, size })
}
