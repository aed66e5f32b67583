//! Selects the merges of replicas that the devices carry out themselves, and decides how. In the
//! graph, a collective in the middle of a computation gathers on one device (or the host) and
//! copies bring its results back. Done by the members themselves, each reads the replicas' parts
//! directly. The numbers are the same, because every member combines the parts in the order of
//! the replicas.

use smallvec::SmallVec;

use super::layout::{Collective, Form, Layout, Member, Role};
use super::program::{Guard, Lane};
use super::support::Types;
use crate::ir::{NodeId, Value};
use crate::op::{Op, Traits};
use crate::types::invariant::int;
use crate::types::{DeviceKind, Dim};

/// Parts that one kernel combines; more are combined on the host.
const MOST_PARTS: usize = 64;

/// Bytes of a value from which on each device combines a slice of it and takes the others from its
/// peers. Below, one exchange of whole parts is sooner done than two of slices.
///
/// With `D` devices, whole parts mean that each device reads `D - 1` values. Slices mean `(D -
/// 1)/D` values for the combination and as many for the exchange of the results: for 8 devices
/// 1.75 values instead of 7. For 2 devices both read 1 value, which is why slices need more than
/// 2.
const SLICED_FROM: i64 = 1 << 19;

/// Slices begin at multiples of this many elements, so that they are aligned as buffers are for
/// wide accesses.
const SLICE_UNIT: i64 = 64;

/// Finds the collectives that devices do, and moves them there.
///
/// A collective is done by devices if the target has kernels for it, all parts are in the memory of
/// devices and a device needs a result. Otherwise it stays where the graph has it, or on the host.
pub(super) fn collect(layout: &mut Layout<'_>) -> bool {
    let mut any = false;
    if !layout.kernels.target().collectives || layout.graph.split().is_none() {
        return any;
    }
    let mut needed = vec![false; layout.graph.id_bound()];
    layout.order.iter().for_each(|id| needed[id.index()] = true);
    for id in layout.order.clone() {
        if layout.role(id) == Role::View {
            let first = layout.operands(id).first().copied();
            if let Some(first) = first {
                layout.set_device(id, layout.device(first.node));
            }
        } else if let Some(collective) = find(layout, id, &needed) {
            apply(layout, id, collective);
            any = true;
        }
    }
    any
}

/// The collective that a node is, if devices do it.
///
/// A node that belongs to one replica is no merge of replicas. A join becomes a collective
/// without a kernel, since it only copies.
fn find(layout: &Layout<'_>, id: NodeId, needed: &[bool]) -> Option<Collective> {
    let node = layout.graph.node(id);
    let op = node.op()?;
    let role = layout.role(id);
    if !op.is(Traits::COLLECTIVE)
        || node.place().replica.is_some()
        || !matches!(role, Role::Launch | Role::Join)
    {
        return None;
    }
    let parts: Vec<Value> = layout.graph.operands(id).iter().map(|v| source(layout, *v)).collect();
    let on_devices = parts.iter().all(|v| layout.device(v.node).kind == DeviceKind::Gpu);
    let support = layout.kernels.supports(op, &Types::of(layout.graph, id));
    let launches = support.kernel.is_some() && parts.len() <= MOST_PARTS;
    if !on_devices || (role == Role::Launch && !launches) {
        return None;
    }
    let scans = matches!(op, Op::ExclusiveScan(_));
    let (members, views) = members(layout, id, needed, scans)?;
    let form = if scans { Form::Scan } else { form(layout, id, op, &members) };
    Some(Collective { parts, members, views, form, lane: Lane::Compute })
}

/// The value that a copy copies; any other value itself.
fn source(layout: &Layout<'_>, value: Value) -> Value {
    let operand = layout.graph.operands(value.node).first().copied();
    operand.filter(|_| layout.role(value.node) == Role::Copy).unwrap_or(value)
}

/// The devices that need results, the node's own first, and the copies to that one; none where no
/// device needs any.
///
/// A member whose copies run under different guards runs always: it serves several replicas, and
/// any of them may have rows.
fn members(
    layout: &Layout<'_>,
    id: NodeId,
    needed: &[bool],
    scans: bool,
) -> Option<(Vec<Member>, Vec<Value>)> {
    let graph = layout.graph;
    let results = graph.node(id).results().len();
    let (copies, own) = users(layout, id, needed);
    let place = graph.node(id).place().device;
    let home = match (place.kind, copies.first()) {
        (DeviceKind::Gpu, _) => place,
        (DeviceKind::Cpu, first) => layout.device(first?.1.node),
    };
    if scans && place.kind == DeviceKind::Cpu && own.contains(&true) {
        return None;
    }
    let (mut members, mut views) = (Vec::new(), Vec::new());
    let own: SmallVec<[Option<Value>; 2]> = (0u32..)
        .zip(own)
        .map(|(output, used)| (used || !scans).then_some(Value { node: id, output }))
        .collect();
    if own.iter().any(Option::is_some) {
        let guard = Guard::Always;
        members.push(Member { device: home, guard, results: own, again: Vec::new() });
    }
    for (output, copy) in copies {
        let (device, guard) = (layout.device(copy.node), layout.guard(copy.node));
        let slot = output as usize;
        if device == home
            && members.first().is_some_and(|m| m.results[slot].is_some_and(|v| v.node == id))
        {
            views.push(copy);
            continue;
        }
        // A scan gives a device that has several replicas several results, each by a launch of its
        // own.
        let joins = |m: &&mut Member| m.device == device && (!scans || m.results[slot].is_some());
        if let Some(member) = members.iter_mut().find(joins) {
            if member.guard != guard {
                member.guard = Guard::Always;
            }
            match &mut member.results[slot] {
                Some(_) => member.again.push((output, copy)),
                free => *free = Some(copy),
            }
        } else {
            let mut taken = SmallVec::from_elem(None, results);
            taken[slot] = Some(copy);
            members.push(Member { device, guard, results: taken, again: Vec::new() });
        }
    }
    Some((members, views))
}

/// The copies of a node's results to devices, also of what is a view of one, with the number of the
/// result; and whether each result is needed otherwise. Only of what is `needed`.
///
/// A view of the result is followed to its own users, because a copy of the view brings the same
/// bytes. A result is needed otherwise if it is kept, or if any other kind of node reads it.
fn users(layout: &Layout<'_>, id: NodeId, needed: &[bool]) -> (Vec<(u32, Value)>, Vec<bool>) {
    let graph = layout.graph;
    let results = int::<u32>(graph.node(id).results().len());
    let (mut copies, mut own) = (Vec::new(), vec![false; results as usize]);
    for (output, own) in (0..results).zip(&mut own) {
        let mut stack = vec![Value { node: id, output }];
        while let Some(value) = stack.pop() {
            *own |= graph.is_kept(value);
            let users = graph.users(value.node);
            let takes = |(user, _, output): &&(NodeId, usize, u32)| {
                *output == value.output && needed[user.index()]
            };
            for (user, _, _) in users.iter().filter(takes) {
                let result = Value { node: *user, output: 0 };
                let copied = graph.node(*user).place().device.kind == DeviceKind::Gpu;
                match layout.role(*user) {
                    Role::Copy if copied => copies.push((output, result)),
                    Role::View if layout.operands(*user).contains(&value) => stack.push(result),
                    Role::External
                    | Role::View
                    | Role::Copy
                    | Role::Join
                    | Role::First
                    | Role::Received
                    | Role::Launch
                    | Role::Absorbed => *own = true,
                }
            }
        }
    }
    copies.sort_unstable_by_key(|(output, copy)| (copy.node, *output));
    (copies, own)
}

/// The form of a collective: slices if more than two devices combine a large value of a known
/// size, whole parts otherwise. The batch size must not matter: slices are laid out before it is
/// known. The slice is `elements / (devices * 64)`, rounded down, plus 1, times 64. So 1,000,000
/// elements on 4 devices give three slices of 250,048 and one of 249,856.
fn form(layout: &Layout<'_>, id: NodeId, op: &Op, members: &[Member]) -> Form {
    let ty = &layout.graph.node(id).results()[0].ty;
    let is_whole = |m: &Member| {
        m.results.iter().flatten().all(|v| layout.graph.ty(*v) == ty) && m.results[0].is_some()
    };
    let (Some(elements), Some(bytes)) = (ty.shape.elements().as_const(), ty.bytes().as_const())
    else {
        return Form::Direct;
    };
    let devices = int::<i64>(members.len());
    // The components of a wide number lie apart.
    let sliced = matches!(op, Op::AllReduce(reduce) if !reduce.by.is_wide())
        && devices > 2
        && bytes >= SLICED_FROM
        && members.iter().all(is_whole);
    if !sliced {
        return Form::Direct;
    }
    let units = elements.div_euclid(devices.saturating_mul(SLICE_UNIT)).saturating_add(1);
    Form::Sliced(units.saturating_mul(SLICE_UNIT))
}

/// Moves a collective to its members: its group takes the parts themselves, its results are
/// received.
fn apply(layout: &mut Layout<'_>, id: NodeId, collective: Collective) {
    if let Some(first) = collective.members.first() {
        layout.set_device(id, first.device);
    }
    for member in &collective.members {
        let again = member.again.iter().map(|(_, value)| value);
        for value in member.results.iter().flatten().chain(again).filter(|v| v.node != id) {
            layout.set_role(value.node, Role::Received);
        }
    }
    for value in &collective.views {
        layout.make_view(*value);
    }
    layout.add_collective(id, collective);
}

/// The bytes of so many elements that are as wide as `width`.
pub(super) fn bytes(elements: i64, width: usize) -> Dim {
    Dim::from(elements.saturating_mul(int::<i64>(width)))
}
