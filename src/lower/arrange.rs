//! Decides which values share bytes, what each node becomes, and when it runs.

use std::collections::BTreeMap;

use smallvec::{SmallVec, smallvec};

use super::error::LowerError;
use super::layout::{Layout, Link, Role, Table};
use super::program::Guard;
use super::support::Kernels;
use super::{collect, fuse, lanes, place, schedule};
use crate::ir::{Graph, Node, NodeId, NodeKind, ParamId, Value, Verified};
use crate::op::{Op, Slice, Traits};
use crate::types::invariant::int;
use crate::types::{Device, Dim, Keys, Target, TensorType};

/// A batch of which every replica that ever has rows has some, for any sensible weights.
const MANY_ROWS: i64 = 1 << 32;

/// The decisions for a graph on the target that has these kernels.
pub(super) fn arrange<'a>(
    verified: &Verified<'a>,
    kernels: &'a dyn Kernels,
) -> Result<Layout<'a>, LowerError> {
    let (graph, order, target) = (verified.graph(), verified.order(), kernels.target());
    let mut roles = vec![Role::External; graph.id_bound()];
    let mut links = Table::new(graph, &None);
    let variables = variables(graph);
    for id in order {
        roles[id.index()] = role(graph, *id, target, &variables, &mut links);
    }
    let groups = fuse::fuse(graph, order, &mut roles, kernels);
    let devices = place::devices(graph, order, &roles, &groups, kernels);
    let mut params = vec![None; graph.id_bound()];
    for id in order {
        params[id.index()] = param(graph, *id, target, &variables);
    }
    let scheduled = schedule::schedule(graph, order, &roles, &groups);
    let guards = vec![Guard::Always; graph.id_bound()];
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
        links,
        groups,
        collectives,
    };
    set_guards(&mut layout)?;
    check(&layout)?;
    if collect::collect(&mut layout) {
        // Copies of the parts to where the graph combines them are no longer needed.
        layout.order = schedule::schedule(graph, &layout.order, &layout.roles, &layout.groups);
        lanes::set_aside(&mut layout);
    }
    place_operands(&mut layout);
    resolve(&mut layout);
    Ok(layout)
}

/// The nodes of a replica run while it has rows; what a merge of equal values, or of parts,
/// takes from replica 0 runs when the batch is empty, too.
fn set_guards(layout: &mut Layout<'_>) -> Result<(), LowerError> {
    for id in &layout.order {
        if let Some(r) = layout.graph.node(*id).place().replica {
            layout.guards[id.index()] = Guard::Rows(r);
        }
    }
    let mut stack = Vec::new();
    for id in &layout.order {
        let node = layout.graph.node(*id);
        let merges = node.place().replica.is_none() && layout.graph.split().is_some();
        if layout.role(*id) == Role::First || (merges && node.op().is_some_and(combines)) {
            // What is not split has no replicas.
            let replicas = layout.graph.split().map_or(0, crate::types::Split::replicas);
            let operands = layout.graph.operands(*id);
            // Some merges take several values of each replica.
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
    while let Some(id) = stack.pop() {
        if layout.guard(id) == Guard::Rows(0) {
            layout.guards[id.index()] = Guard::First(0);
            stack.extend(layout.operands(id).iter().map(|v| v.node));
        }
    }
    Ok(())
}

/// Every operand is on the node's device (unless it is copied) and present when the node runs.
fn check(layout: &Layout<'_>) -> Result<(), LowerError> {
    for id in &layout.order {
        let node = layout.graph.node(*id);
        let merges = matches!(layout.role(*id), Role::Join | Role::First)
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

/// True if an operand of a merge has no elements while its replica has no rows, or another is
/// taken then.
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
    // Entries for each row, from a batch that gives the replica some.
    let many = rows.eval(MANY_ROWS);
    let inner = if many > 0 { size.eval(MANY_ROWS) / many } else { 0 };
    *size == rows * inner
}

/// Lets the operands of merges be written where the merged result has them, where nothing
/// hinders it.
fn place_operands(layout: &mut Layout<'_>) {
    for id in layout.order.clone() {
        let result = Value { node: id, output: 0 };
        match layout.role(id) {
            Role::Join => {
                for (to, device) in joined(layout, id) {
                    place_parts(layout, id, to, device);
                }
            }
            Role::First => {
                for (r, operand) in (0u32..).zip(layout.graph.operands(id)) {
                    let copy = layout.role(operand.node) == Role::Copy;
                    if placeable(layout, operand) == Some(operand)
                        && (copy || (r == 0 && layout.role(operand.node) == Role::Launch))
                        && is_single_use(layout, operand)
                        && layout.device(operand.node) == layout.device(id)
                    {
                        layout.guards[operand.node.index()] = Guard::First(r);
                        layout.links.set(operand, Some(Link { to: result, offset: Dim::ZERO }));
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
fn joined(layout: &Layout<'_>, id: NodeId) -> SmallVec<[(Value, Device); 4]> {
    let Some(collective) = layout.collectives.get(&id) else {
        return smallvec![(Value { node: id, output: 0 }, layout.device(id))];
    };
    let values = collective.members.iter().map(|m| Some((*m.results.first()?, m.device)));
    values.filter_map(|v| v.and_then(|(value, device)| Some((value?, device)))).collect()
}

/// Lets the operands of a concatenation that are on a device be written where they lie in what
/// is joined there.
fn place_parts(layout: &mut Layout<'_>, id: NodeId, to: Value, device: Device) {
    let mut offset = Dim::ZERO;
    for operand in layout.operands(id) {
        let root = placeable(layout, operand).filter(|root| layout.device(root.node) == device);
        if let Some(root) = root {
            layout.links.set(root, Some(Link { to, offset: offset.clone() }));
        }
        offset = offset + layout.graph.ty(operand).bytes();
    }
}

fn is_single_use(layout: &Layout<'_>, value: Value) -> bool {
    let users = layout.graph.users(value.node);
    users.iter().filter(|(_, _, output)| *output == value.output).count() == 1
        && !layout.graph.is_kept(value)
}

/// The value that holds all bytes of `value` and no others, if it can still be given any place.
fn placeable(layout: &Layout<'_>, value: Value) -> Option<Value> {
    let mut root = value;
    while layout.role(root.node) == Role::View {
        let link = layout.links.get(root).as_ref()?;
        if link.offset != Dim::ZERO {
            return None;
        }
        root = link.to;
    }
    let free = layout.role(root.node) != Role::External && layout.links.get(root).is_none();
    (free && layout.graph.ty(root).bytes() == layout.graph.ty(value).bytes()).then_some(root)
}

/// Makes every link lead to a value that lies in none: results of merges lead forward, views
/// back.
fn resolve(layout: &mut Layout<'_>) {
    let step = |id: NodeId, links: &mut Table<Option<Link>>| {
        let results = int::<u32>(layout.graph.node(id).results().len());
        for output in 0..results {
            let value = Value { node: id, output };
            let Some(link) = links.get(value).clone() else { continue };
            if let Some(next) = links.get(link.to).clone() {
                let offset = link.offset + next.offset;
                links.set(value, Some(Link { to: next.to, offset }));
            }
        }
    };
    for id in layout.order.iter().rev().filter(|id| layout.roles[id.index()] != Role::View) {
        step(*id, &mut layout.links);
    }
    for id in layout.order.iter().filter(|id| layout.roles[id.index()] == Role::View) {
        step(*id, &mut layout.links);
    }
}

/// True of what combines parts of replicas, and leaves out those of replicas without rows.
fn combines(op: &Op) -> bool {
    matches!(op, Op::AllReduce(_) | Op::ExclusiveScan(_) | Op::MergeTopK(_))
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
    if let Some(axis) = op.joined()
        && is_outermost(graph.ty(first), axis)
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
    let is_view = op.is(Traits::VIEW) && same;
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
