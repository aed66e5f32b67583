//! The exchange stream of a device: an all-reduce whose result only updates read overlaps with
//! computation. Data-parallel training spends its exchange on gradients. No later step of the
//! backward pass reads the sum of a gradient, only the update of its weight does. Such a sum may
//! therefore run on a second stream while the device computes the next gradient. This file
//! decides which nodes go there, orders the steps so that they can overlap, and tells the memory
//! plan how long the bytes of an overlapping step stay in use.

use std::collections::{BTreeMap, VecDeque};

use super::layout::{Layout, Role};
use super::program::{Action, DeviceProgram, Lane};
use crate::ir::{NodeId, NodeMap};
use crate::op::Op;
use crate::types::Device;

/// Moves each `all_reduce` that only updates read to the exchange stream, and reorders the nodes
/// so that the replicas proceed side by side. The order changes only if at least one node moved:
/// a graph without such sums (every inference graph) keeps the order that the schedule chose.
pub(super) fn assign_exchange_stream(layout: &mut Layout<'_>) {
    let on_exchange = update_only_nodes(layout);
    let graph = layout.graph;
    let mut any = false;
    for (id, collective) in &mut layout.collectives {
        if on_exchange[*id] && matches!(graph.node(*id).op(), Some(Op::AllReduce(_))) {
            collective.lane = Lane::Exchange;
            any = true;
        }
    }
    if any {
        layout.order = list_schedule(layout);
    }
}

/// Marks the nodes on which neither a replica nor an output depends. The order is topological,
/// so one walk from its end sees every user of a node before the node itself. A node that
/// belongs to a replica is never marked, even if only updates read it: its device computes it in
/// turn, as one more step of the replica.
fn update_only_nodes(layout: &Layout<'_>) -> NodeMap<bool> {
    let graph = layout.graph;
    let mut on_exchange = graph.node_map(true);
    graph.outputs().iter().for_each(|output| on_exchange[output.value.node] = false);
    for id in layout.order.iter().rev() {
        on_exchange[*id] &= graph.node(*id).place().replica.is_none();
        if !on_exchange[*id] {
            layout.operands(*id).iter().for_each(|v| on_exchange[v.node] = false);
        }
    }
    on_exchange
}

/// A list schedule: every device keeps its own order, and the devices take turns. In order of
/// precedence, the next node is
/// - a node of the exchange stream (see [`exchange_nodes`]) whose operands are ready, so that an
///   exchange starts as early as possible and overlaps with the most computation;
/// - the next node of the device with the fewest scheduled nodes, among the devices whose next
///   node is ready;
/// - the next of the other collectives, which make devices wait for each other and hence come
///   only when no device can go on without them. The last choice needs no test for readiness.
///   Take the earliest node of the old order that is not placed yet. All its operands come
///   before it, so it is ready. A marked node would be in `ready`, and a device's node would be
///   the front of its queue. If both are exhausted, the node is the front of `barriers`. The same
///   argument shows that the loop ends only when all nodes are placed.
fn list_schedule(layout: &Layout<'_>) -> Vec<NodeId> {
    let graph = layout.graph;
    // A node that reads a value twice counts it twice here and is listed twice among its users, so
    // the counter reaches 0 exactly when the last operand is scheduled.
    let mut unmet = graph.node_map(0usize);
    let mut users: NodeMap<Vec<NodeId>> = graph.node_map(Vec::new());
    for id in &layout.order {
        let operands = layout.operands(*id);
        unmet[*id] = operands.len();
        operands.iter().for_each(|v| users[v.node].push(*id));
    }
    let on_exchange = exchange_nodes(layout, &users);
    let mut devices: BTreeMap<Device, (usize, VecDeque<NodeId>)> = BTreeMap::new();
    // A `BTreeMap`, because ties between devices are broken by their order: the same graph gives
    // the same program in every process.
    let (mut barriers, mut ready) = (VecDeque::new(), VecDeque::new());
    for id in &layout.order {
        if on_exchange[*id] {
            ready.extend((unmet[*id] == 0).then_some(*id));
        } else if layout.collectives.contains_key(id) {
            barriers.push_back(*id);
        } else {
            devices.entry(layout.device(*id)).or_default().1.push_back(*id);
        }
    }
    let mut out = Vec::with_capacity(layout.order.len());
    // Only the exchange nodes have a global ready queue. The nodes of a device keep the order of
    // the schedule, which places late nodes right before their uses to keep lifetimes short.
    loop {
        let is_ready = |id: &NodeId| unmet[*id] == 0;
        let next = ready.pop_front().or_else(|| {
            // Round robin by progress. The replicas do the same work, so their gradients become
            // ready at about the same time and no device waits long for the parts of its peers.
            let queues =
                devices.values_mut().filter(|(_, queue)| queue.front().is_some_and(is_ready));
            let Some((done, queue)) = queues.min_by_key(|(done, _)| *done) else {
                return barriers.pop_front();
            };
            *done += 1;
            queue.pop_front()
        });
        let Some(next) = next else { return out };
        out.push(next);
        for user in &users[next] {
            unmet[*user] -= 1;
            if unmet[*user] == 0 && on_exchange[*user] {
                ready.push_back(*user);
            }
        }
    }
}

/// Marks the nodes on the exchange stream, and the views and joins that only feed them. A join
/// counts because its operands lie in place (see [`Role::Concat`]): it takes no step of its own on
/// the compute stream. A node without users stays unmarked; nothing waits for it.
fn exchange_nodes(layout: &Layout<'_>, users: &NodeMap<Vec<NodeId>>) -> NodeMap<bool> {
    let mut on_exchange = layout.graph.node_map(false);
    for id in layout.order.iter().rev() {
        let own = &users[*id];
        let is_alias = matches!(layout.role(*id), Role::View | Role::Concat);
        on_exchange[*id] = match layout.collectives.get(id) {
            Some(collective) => collective.lane == Lane::Exchange,
            None => is_alias && !own.is_empty() && own.iter().all(|user| on_exchange[*user]),
        };
    }
    on_exchange
}

impl DeviceProgram {
    /// Returns, for each step, the last step during which it may still run. The memory plan keeps
    /// the buffers of the step until then. A step of the compute stream ends with those beside it.
    /// A step of the exchange stream has ended when the compute stream has waited for an event that
    /// the exchange stream recorded behind it: a stream is in order, so the event implies all steps
    /// before it. Several such waits may exist and the first one decides, hence the minimum while
    /// walking back. Without any wait the step may run until the end of the program, which is
    /// written as the number of steps.
    pub(super) fn completions(&self) -> Vec<usize> {
        // Walking back sees the wait of the compute stream before the record that it waits for,
        // and the record before the exchange steps that it covers.
        let mut waits: BTreeMap<u32, usize> = BTreeMap::new();
        let mut ends: Vec<usize> = self.rows().into_iter().map(|row| row.end - 1).collect();
        let mut end = self.steps.len();
        for (i, step) in self.steps.iter().enumerate().rev() {
            match (step.lane, &step.action) {
                (Lane::Compute, Action::Wait(event)) => drop(waits.insert(*event, i)),
                (Lane::Exchange, Action::Record(event)) => {
                    end = end.min(waits.get(event).copied().unwrap_or(end));
                }
                (Lane::Exchange, _) => ends[i] = end,
                (Lane::Compute, _) => {}
            }
        }
        ends
    }
}
