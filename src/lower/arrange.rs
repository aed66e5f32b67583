//! Layout decisions: aliases between values, the role of each node, its guard and its order.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use super::error::LowerError;
use super::layout::{Alias, Layout, Role, ValueMap};
use super::program::Guard;
use super::support::Kernels;
use super::{collectives, devices, fuse, schedule, streams};
use crate::ir::{Graph, Node, NodeId, NodeKind, ParamId, Value, Verified};
use crate::op::{Op, Slice, Traits};
use crate::types::invariant::int;
use crate::types::{Device, Dim, FastSet, Target, TensorType};

/// A batch large enough that every replica that can have rows has some, for any reasonable weights.
const MANY_ROWS: i64 = 1 << 32;

/// Decides the layout of a graph for the target of `kernels`.
pub(super) fn arrange<'a>(
    verified: &Verified<'a>,
    kernels: &'a dyn Kernels,
) -> Result<Layout<'a>, LowerError> {
    let (graph, order, target) = (verified.graph(), verified.order(), kernels.target());
    let mut roles = graph.node_map(Role::External);
    let mut aliases = ValueMap::new(graph, &None);
    let variables = variables(graph);
    for id in order {
        roles[*id] = role(graph, *id, target, &variables, &mut aliases);
    }
    let groups = fuse::fuse(graph, order, &mut roles, kernels);
    let devices = devices::assign(graph, order, &roles, &groups, kernels);
    let mut params = graph.node_map(None);
    for id in order {
        params[*id] = param(graph, *id, target, &variables);
    }
    let scheduled = schedule::schedule(graph, order, &roles, &groups);
    let guards = graph.node_map(Guard::Always);
    let collectives = BTreeMap::new();
    let order = scheduled;
    let mut layout = Layout {
        graph,
        kernels,
        order,
        roles,
        guards,
        devices,
        params,
        variables,
        aliases,
        groups,
        collectives,
    };
    // The check comes before the collectives move: it verifies the graph as it is written, where
    // each operand is on the device of its node.
    set_guards(&mut layout)?;
    check(&layout)?;
    if collectives::run_on_devices(&mut layout) {
        // The copies of the parts to a central device are dead now; scheduling again removes them.
        layout.order = schedule::schedule(graph, &layout.order, &layout.roles, &layout.groups);
        streams::assign_exchange_stream(&mut layout);
    }
    // After the schedule is final and roles are known: whether an operand can be computed in place
    // depends on its device, which a collective may have changed.
    alias_merge_operands(&mut layout);
    flatten_aliases(&mut layout);
    Ok(layout)
}

/// Sets the guards: the nodes of a replica run while it has rows. Whatever a `first` or a combining
/// collective reads of replica 0 also runs for an empty batch, so that it has a result then.
fn set_guards(layout: &mut Layout<'_>) -> Result<(), LowerError> {
    for id in &layout.order {
        if let Some(r) = layout.graph.node(*id).place().replica {
            layout.guards[*id] = Guard::Rows(r);
        }
    }
    let mut stack = Vec::new();
    for id in &layout.order {
        let node = layout.graph.node(*id);
        let merges = node.place().replica.is_none() && layout.graph.split().is_some();
        if layout.role(*id) == Role::First || (merges && node.op().is_some_and(combines)) {
            // A graph that is not split has no replicas.
            let replicas = layout.graph.split().map_or(0, crate::types::Split::replicas);
            let operands = layout.graph.operands(*id);
            // `merge_top_k` reads several values of each replica.
            let each = operands.len() / replicas.max(1);
            let mut parts = (0u32..).zip(operands.chunks(each.max(1)));
            let in_order =
                parts.all(|(r, p)| p.iter().all(|v| layout.guard(v.node) == Guard::Rows(r)));
            if !in_order || operands.len() != replicas * each {
                return Err(LowerError::First(layout.graph.node(*id).label().to_owned()));
            }
            stack.extend(operands.iter().take(each).map(|v| v.node));
        }
    }
    // Whatever such a part is computed from has to run as well.
    while let Some(id) = stack.pop() {
        if layout.guard(id) == Guard::Rows(0) {
            layout.guards[id] = Guard::First(0);
            stack.extend(layout.operands(id).iter().map(|v| v.node));
        }
    }
    Ok(())
}

/// Checks that every operand is on the node's device (unless it is copied) and present when the
/// node runs.
fn check(layout: &Layout<'_>) -> Result<(), LowerError> {
    for id in &layout.order {
        let node = layout.graph.node(*id);
        let merges = matches!(layout.role(*id), Role::Concat | Role::First)
            || node.op().is_some_and(|op| combines(op) || op.joined().is_some());
        for operand in layout.operands(*id) {
            let source = layout.graph.node(operand.node);
            let label = || node.label().to_owned();
            let operand_name = || layout.graph.info(operand).name.to_string();
            if layout.role(*id) != Role::Copy && source.place().device != node.place().device {
                let (device, operand) = (node.place().device, operand_name());
                return Err(LowerError::Device { label: label(), device, operand });
            }
            let present = layout.guard(*id).implies(layout.guard(operand.node));
            if !(present || merges && is_empty_when_absent(layout, node, operand)) {
                return Err(LowerError::Absent { label: label(), operand: operand_name() });
            }
        }
    }
    Ok(())
}

/// True if an operand of a merge has no elements while its replica has no rows, or if the merge
/// reads another operand then.
fn is_empty_when_absent(layout: &Layout<'_>, merge: &Node, operand: Value) -> bool {
    let (Some(axis), Guard::Rows(r) | Guard::First(r)) =
        (merge.op().and_then(|op| op.joined()), layout.guard(operand.node))
    else {
        return merge.op().is_some_and(|op| combines(op) || matches!(op, Op::First(_)));
    };
    let rows = layout.graph.split().and_then(|s| s.rows(r as usize));
    let axis = usize::try_from(axis).ok();
    let size = axis.and_then(|axis| layout.graph.ty(operand).shape.get(axis));
    let (Some(rows), Some(size)) = (rows, size) else { return false };
    // The entries for each row, measured at a large batch, then checked as a formula for all
    // batches: the size must be proportional to the rows of the replica to be empty with them.
    let many = rows.eval(MANY_ROWS);
    let inner = if many > 0 { size.eval(MANY_ROWS) / many } else { 0 };
    *size == rows * inner
}

/// Aliases the operands of merges to the merged result, where possible, so that their kernels write
/// in place and no copy is needed.
fn alias_merge_operands(layout: &mut Layout<'_>) {
    for id in layout.order.clone() {
        let result = Value { node: id, output: 0 };
        match layout.role(id) {
            Role::Concat => {
                for (to, device) in concat_results(layout, id) {
                    alias_concat_operands(layout, id, to, device);
                }
            }
            Role::First => {
                for (r, operand) in (0u32..).zip(layout.graph.operands(id)) {
                    let copy = layout.role(operand.node) == Role::Copy;
                    if aliasable_root(layout, operand) == Some(operand)
                        // All operands share the bytes of the result, and only the guard `First(r)`
                        // keeps their writers apart. A copy can be guarded so; a launch only for
                        // replica 0, which also covers the empty batch.
                        && (copy || (r == 0 && layout.role(operand.node) == Role::Launch))
                        && is_single_use(layout, operand)
                        && layout.device(operand.node) == layout.device(id)
                    {
                        layout.guards[operand.node] = Guard::First(r);
                        layout.aliases.set(operand, Some(Alias { to: result, offset: Dim::ZERO }));
                    }
                }
            }
            Role::External
            | Role::View
            | Role::Copy
            | Role::Received
            | Role::Launch
            | Role::Fused => {}
        }
    }
}

/// The results of a concatenation: one for each member if it is a collective.
fn concat_results(layout: &Layout<'_>, id: NodeId) -> SmallVec<[(Value, Device); 4]> {
    let Some(collective) = layout.collectives.get(&id) else {
        return smallvec![(Value { node: id, output: 0 }, layout.device(id))];
    };
    let values = collective.members.iter().map(|m| Some((*m.results.first()?, m.device)));
    values.filter_map(|v| v.and_then(|(value, device)| Some((value?, device)))).collect()
}

/// Aliases the operands of a concatenation that are on this device to their ranges of its result.
fn alias_concat_operands(layout: &mut Layout<'_>, id: NodeId, to: Value, device: Device) {
    let mut offset = Dim::ZERO;
    for operand in layout.operands(id) {
        let root =
            aliasable_root(layout, operand).filter(|root| layout.device(root.node) == device);
        if let Some(root) = root {
            layout.aliases.set(root, Some(Alias { to, offset: offset.clone() }));
        }
        offset = offset + layout.graph.ty(operand).bytes();
    }
}

fn is_single_use(layout: &Layout<'_>, value: Value) -> bool {
    let users = layout.graph.users(value.node);
    users.iter().filter(|(_, _, output)| *output == value.output).count() == 1
        && !layout.graph.is_kept(value)
}

/// The value that holds exactly the bytes of `value`, if it is not aliased yet.
fn aliasable_root(layout: &Layout<'_>, value: Value) -> Option<Value> {
    let mut root = value;
    while layout.role(root.node) == Role::View {
        let alias = layout.aliases.get(root).as_ref()?;
        if alias.offset != Dim::ZERO {
            return None;
        }
        root = alias.to;
    }
    let free = layout.role(root.node) != Role::External && layout.aliases.get(root).is_none();
    (free && layout.graph.ty(root).bytes() == layout.graph.ty(value).bytes()).then_some(root)
}

/// Flattens the aliases: each points to a value that lies in no other. Operands of merges point
/// forward in the order, so they are resolved from its end; views point back, so they are resolved
/// from its start.
fn flatten_aliases(layout: &mut Layout<'_>) {
    let step = |id: NodeId, aliases: &mut ValueMap<Option<Alias>>| {
        let results = int::<u32>(layout.graph.node(id).results().len());
        for output in 0..results {
            let value = Value { node: id, output };
            let Some(alias) = aliases.get(value).clone() else { continue };
            if let Some(next) = aliases.get(alias.to).clone() {
                let offset = alias.offset + next.offset;
                aliases.set(value, Some(Alias { to: next.to, offset }));
            }
        }
    };
    for id in layout.order.iter().rev().filter(|id| layout.roles[**id] != Role::View) {
        step(*id, &mut layout.aliases);
    }
    for id in layout.order.iter().filter(|id| layout.roles[**id] == Role::View) {
        step(*id, &mut layout.aliases);
    }
}

/// True for a collective that computes with the parts of the replicas and skips those of replicas
/// without rows; one that only moves elements (`all_gather`) concatenates them instead.
fn combines(op: &Op) -> bool {
    op.is(Traits::COLLECTIVE) && !op.is(Traits::MOVES)
}

/// The parameters that a run updates.
fn variables(graph: &Graph) -> FastSet<ParamId> {
    graph.updates().iter().map(|update| update.param).collect()
}

/// The parameter that a node holds on its device before the run: a parameter itself, or a copy of
/// one that the target keeps on the device. A copy of a variable is not kept, since a run updates
/// it.
fn param(
    graph: &Graph,
    id: NodeId,
    target: &Target,
    variables: &FastSet<ParamId>,
) -> Option<ParamId> {
    let node = graph.node(id);
    match node.kind() {
        NodeKind::Param(param) => Some(*param),
        NodeKind::Op(op) if target.keeps_params && matches!(**op, Op::CopyOp(_)) => {
            let operand = graph.operands(id).first().copied()?;
            match graph.node(operand.node).kind() {
                NodeKind::Param(param) => Some(*param).filter(|param| !variables.contains(param)),
                NodeKind::Input | NodeKind::Op(_) => None,
            }
        }
        NodeKind::Input | NodeKind::Op(_) => None,
    }
}

/// The role of a node before fusion, from its operator and its operands alone.
fn role(
    graph: &Graph,
    id: NodeId,
    target: &Target,
    variables: &FastSet<ParamId>,
    aliases: &mut ValueMap<Option<Alias>>,
) -> Role {
    let node = graph.node(id);
    let NodeKind::Op(op) = node.kind() else { return Role::External };
    if param(graph, id, target, variables).is_some() {
        return Role::External;
    }
    let operands = graph.operands(id);
    let Some(first) = operands.first().copied() else { return Role::Launch };
    let device = |v: Value| graph.node(v.node).place().device;
    if matches!(**op, Op::CopyOp(_)) && device(first) != node.place().device {
        return Role::Copy;
    }
    if let Some(offset) = view_offset(graph, node, op, first) {
        aliases.set(Value { node: id, output: 0 }, Some(Alias { to: first, offset }));
        return Role::View;
    }
    if let Some(axis) = op.joined()
        && is_outermost(graph.ty(first), axis)
    {
        return Role::Concat;
    }
    if matches!(**op, Op::First(_)) { Role::First } else { Role::Launch }
}

/// The offset of the only result of the node within its first operand, if its bytes are contiguous
/// there.
fn view_offset(graph: &Graph, node: &Node, op: &Op, operand: Value) -> Option<Dim> {
    let [result] = node.results() else { return None };
    let ty = graph.ty(operand);
    if let Op::Slice(slice) = op {
        return slice_offset(slice, ty);
    }
    let of_none = graph.node(operand.node).place().replica.is_none();
    let same = result.ty.bytes() == ty.bytes() && result.ty.dtype == ty.dtype;
    let is_view = op.is(Traits::VIEW) && same;
    let whole = matches!(op, Op::CopyOp(_)) || (matches!(op, Op::First(_)) && of_none);
    (whole || is_view).then_some(Dim::ZERO)
}

/// The first byte of a slice that is one contiguous range of its operand.
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
