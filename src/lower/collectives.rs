//! Selects the collectives that the devices execute themselves, and the algorithm of each. In the
//! graph, a collective runs on one device (or the host), and copies distribute its results. Here
//! each member reads the parts of the replicas directly, without a central device. The results are
//! bit-identical, because every member combines the parts in the order of the replicas.

use smallvec::SmallVec;

use super::layout::{Algorithm, Collective, Layout, Member, Role};
use super::program::{Guard, Lane};
use super::support::Types;
use crate::ir::{NodeId, NodeMap, Value};
use crate::op::{Op, Traits};
use crate::types::invariant::int;
use crate::types::{DeviceKind, Dim};

/// The most parts that one kernel combines; the host combines more. Each part is a pointer in the
/// argument of the kernel.
const MAX_PARTS: usize = 64;

/// The bytes of a value from which on [`Algorithm::ReduceScatter`] is used. Below, latency
/// dominates: one exchange of whole parts is faster than two dependent exchanges of slices.
///
/// With `D` devices, whole parts mean that each device reads `D - 1` values. Slices mean `(D -
/// 1)/D` values for the combination and as many for the exchange of the results: for 8 devices
/// 1.75 values instead of 7. For 2 devices both read 1 value, which is why slices need more than
/// 2.
const SLICED_FROM: i64 = 1 << 19;

/// Slices begin at multiples of this many elements, so that they are aligned as buffers are for
/// wide accesses.
const SLICE_UNIT: i64 = 64;

/// Moves collectives to the devices; returns true if there are any.
///
/// Devices execute a collective if the target has kernels for it, all parts are in device memory
/// and a device needs a result. Otherwise it stays on the device of its node, or on the host.
pub(super) fn run_on_devices(layout: &mut Layout<'_>) -> bool {
    let mut any = false;
    if !layout.kernels.target().collectives || layout.graph.split().is_none() {
        return any;
    }
    // Dead copies do not count as users: a device that needs no result is not a member.
    let mut needed = layout.graph.node_map(false);
    layout.order.iter().for_each(|id| needed[*id] = true);
    // In topological order: a collective may move the operand of a view to another device, and the
    // view follows it before its own users are looked at.
    for id in layout.order.clone() {
        if layout.role(id) == Role::View {
            let first = layout.operands(id).first().copied();
            if let Some(first) = first {
                layout.set_device(id, layout.device(first.node));
            }
        } else if let Some(collective) = candidate(layout, id, &needed) {
            assign(layout, id, collective);
            any = true;
        }
    }
    any
}

/// The collective of a node, if devices can execute it.
///
/// A node that belongs to one replica does not combine replicas. A concatenation becomes a
/// collective without a kernel, since it only copies.
fn candidate(layout: &Layout<'_>, id: NodeId, needed: &NodeMap<bool>) -> Option<Collective> {
    let node = layout.graph.node(id);
    let op = node.op()?;
    let role = layout.role(id);
    if !op.is(Traits::COLLECTIVE)
        || node.place().replica.is_some()
        || !matches!(role, Role::Launch | Role::Concat)
    {
        return None;
    }
    let parts: Vec<Value> = layout.graph.operands(id).iter().map(|v| source(layout, *v)).collect();
    let on_devices = parts.iter().all(|v| layout.device(v.node).kind == DeviceKind::Gpu);
    let support = layout.kernels.supports(op, &Types::of(layout.graph, id));
    let launches = support.kernel.is_some() && parts.len() <= MAX_PARTS;
    if !on_devices || (role == Role::Launch && !launches) {
        return None;
    }
    let scans = matches!(op, Op::ExclusiveScan(_));
    let (members, views) = members(layout, id, needed, scans)?;
    let algorithm = if scans { Algorithm::Scan } else { algorithm(layout, id, op, &members) };
    Some(Collective { parts, members, views, algorithm, lane: Lane::Compute })
}

/// The source of a copy; any other value itself.
fn source(layout: &Layout<'_>, value: Value) -> Value {
    let operand = layout.graph.operands(value.node).first().copied();
    operand.filter(|_| layout.role(value.node) == Role::Copy).unwrap_or(value)
}

/// Returns the devices that need results, the node's own device first, and the copies to that one;
/// `None` if no device needs a result.
///
/// A member whose copies have different guards runs always: it serves several replicas, and any of
/// them may have rows.
fn members(
    layout: &Layout<'_>,
    id: NodeId,
    needed: &NodeMap<bool>,
    scans: bool,
) -> Option<(Vec<Member>, Vec<Value>)> {
    let graph = layout.graph;
    let results = graph.node(id).results().len();
    let (copies, own) = result_uses(layout, id, needed);
    let place = graph.node(id).place().device;
    // A node on the host has no device of its own: the first device that copies its result takes
    // the role, which saves that copy.
    let home = match (place.kind, copies.first()) {
        (DeviceKind::Gpu, _) => place,
        (DeviceKind::Cpu, first) => layout.device(first?.1.node),
    };
    // The host would need every result of the scan, while each member computes only its own.
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
        // A scan has one result for each replica; a device with several replicas gets each of its
        // results by a separate launch.
        let joins = |m: &&mut Member| m.device == device && (!scans || m.results[slot].is_some());
        if let Some(member) = members.iter_mut().find(joins) {
            // Two guards cannot be merged into one condition, so the member always runs.
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

/// Returns the copies of a node's results (or of views of them) to devices, with the number of the
/// result, and whether each result has another use. Users that are not `needed` are ignored.
///
/// A view of the result is followed to its own users, because a copy of the view transfers the same
/// bytes. A result has another use if it is kept, or if any other kind of node reads it.
fn result_uses(
    layout: &Layout<'_>,
    id: NodeId,
    needed: &NodeMap<bool>,
) -> (Vec<(u32, Value)>, Vec<bool>) {
    let graph = layout.graph;
    let results = int::<u32>(graph.node(id).results().len());
    let (mut copies, mut own) = (Vec::new(), vec![false; results as usize]);
    for (output, own) in (0..results).zip(&mut own) {
        let mut stack = vec![Value { node: id, output }];
        while let Some(value) = stack.pop() {
            *own |= graph.is_kept(value);
            let users = graph.users(value.node);
            let takes = |(user, _, output): &&(NodeId, usize, u32)| {
                *output == value.output && needed[*user]
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
                    | Role::Concat
                    | Role::First
                    | Role::Received
                    | Role::Launch
                    | Role::Fused => *own = true,
                }
            }
        }
    }
    // The walk over views visits users in the order of a stack; sorting makes the members, and with
    // them the program, independent of it.
    copies.sort_unstable_by_key(|(output, copy)| (copy.node, *output));
    (copies, own)
}

/// The form of a collective: slices if more than two devices combine a large value of a known
/// size, whole parts otherwise. The batch size must not matter: slices are laid out before it is
/// known. The slice is `elements / (devices * 64)`, rounded down, plus 1, times 64. So 1,000,000
/// elements on 4 devices give three slices of 250,048 and one of 249,856.
fn algorithm(layout: &Layout<'_>, id: NodeId, op: &Op, members: &[Member]) -> Algorithm {
    let ty = &layout.graph.node(id).results()[0].ty;
    let is_whole = |m: &Member| {
        m.results.iter().flatten().all(|v| layout.graph.ty(*v) == ty) && m.results[0].is_some()
    };
    let (Some(elements), Some(bytes)) = (ty.shape.elements().as_const(), ty.bytes().as_const())
    else {
        return Algorithm::Direct;
    };
    let devices = int::<i64>(members.len());
    // The components of a wide number are not contiguous, so a slice of elements would cut them.
    let sliced = matches!(op, Op::AllReduce(reduce) if !reduce.by.is_wide())
        && devices > 2
        && bytes >= SLICED_FROM
        && members.iter().all(is_whole);
    if !sliced {
        return Algorithm::Direct;
    }
    // Rounded up to whole units, so that all slices together cover the value; the last ones may be
    // short or empty.
    let units = elements.div_euclid(devices.saturating_mul(SLICE_UNIT)).saturating_add(1);
    Algorithm::ReduceScatter(units.saturating_mul(SLICE_UNIT))
}

/// Assigns a collective to its members: its group reads the parts themselves, and the copies of its
/// results become [`Role::Received`] or views.
fn assign(layout: &mut Layout<'_>, id: NodeId, collective: Collective) {
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

/// The bytes of `elements` elements of `width` bytes.
pub(super) fn bytes(elements: i64, width: usize) -> Dim {
    Dim::from(elements.saturating_mul(int::<i64>(width)))
}

/// The order in which `device` copies what the devices `sources` hold: from the next device on, so
/// that at any time the devices copy from different ones. Combining keeps the order of the sources.
pub(super) fn rotated(sources: &[usize], device: usize) -> Vec<usize> {
    let places = 0..sources.len();
    let (next, rest): (Vec<usize>, Vec<usize>) = places.partition(|at| sources[*at] > device);
    [next, rest].concat()
}
