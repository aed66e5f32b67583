//! What a device does beside its computing: the sums over replicas that only updates take.

use std::collections::{BTreeMap, VecDeque};

use super::layout::{Layout, Role};
use super::program::{Action, DeviceProgram, Lane};
use crate::ir::NodeId;
use crate::op::Op;
use crate::types::Device;

/// Puts on the lane for exchange what combines parts for nothing but updates, each where its parts
/// are there: the replicas go on side by side, each in its order.
pub(super) fn set_aside(layout: &mut Layout<'_>) {
    let apart = for_updates(layout);
    let graph = layout.graph;
    let mut any = false;
    for (id, collective) in &mut layout.collectives {
        if apart[id.index()] && matches!(graph.node(*id).op(), Some(Op::AllReduce(_))) {
            collective.lane = Lane::Exchange;
            any = true;
        }
    }
    if any {
        layout.order = side_by_side(layout);
    }
}

/// Which nodes no replica and no output depends on.
fn for_updates(layout: &Layout<'_>) -> Vec<bool> {
    let graph = layout.graph;
    let mut apart = vec![true; graph.id_bound()];
    graph.outputs().iter().for_each(|output| apart[output.value.node.index()] = false);
    for id in layout.order.iter().rev() {
        apart[id.index()] &= graph.node(*id).place().replica.is_none();
        if !apart[id.index()] {
            layout.operands(*id).iter().for_each(|v| apart[v.node.index()] = false);
        }
    }
    apart
}

/// The order in which every device does what it did, in its order, but with what is set aside, and
/// what only joins parts for it, as soon as the parts are there; and all else that joins replicas
/// when no device has anything else to do.
fn side_by_side(layout: &Layout<'_>) -> Vec<NodeId> {
    let bound = layout.graph.id_bound();
    let mut missing = vec![0usize; bound];
    let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); bound];
    for id in &layout.order {
        let operands = layout.operands(*id);
        missing[id.index()] = operands.len();
        operands.iter().for_each(|v| users[v.node.index()].push(*id));
    }
    let apart = at_once(layout, &users);
    let mut devices: BTreeMap<Device, (usize, VecDeque<NodeId>)> = BTreeMap::new();
    let (mut joins, mut ready) = (VecDeque::new(), VecDeque::new());
    for id in &layout.order {
        if apart[id.index()] {
            ready.extend((missing[id.index()] == 0).then_some(*id));
        } else if layout.collectives.contains_key(id) {
            joins.push_back(*id);
        } else {
            devices.entry(layout.device(*id)).or_default().1.push_back(*id);
        }
    }
    let mut out = Vec::with_capacity(layout.order.len());
    loop {
        let is_ready = |id: &NodeId| missing[id.index()] == 0;
        let next = ready.pop_front().or_else(|| {
            // The device that has done the fewest goes on.
            let queues =
                devices.values_mut().filter(|(_, queue)| queue.front().is_some_and(is_ready));
            let Some((done, queue)) = queues.min_by_key(|(done, _)| *done) else {
                return joins.pop_front();
            };
            *done += 1;
            queue.pop_front()
        });
        let Some(next) = next else { return out };
        out.push(next);
        for user in &users[next.index()] {
            missing[user.index()] -= 1;
            if missing[user.index()] == 0 && apart[user.index()] {
                ready.push_back(*user);
            }
        }
    }
}

/// Which nodes are set aside, or give nothing but parts to what is, and take no step where these
/// lie in place.
fn at_once(layout: &Layout<'_>, users: &[Vec<NodeId>]) -> Vec<bool> {
    let mut apart = vec![false; users.len()];
    for id in layout.order.iter().rev() {
        let own = &users[id.index()];
        let joins = matches!(layout.role(*id), Role::View | Role::Join);
        apart[id.index()] = match layout.collectives.get(id) {
            Some(collective) => collective.lane == Lane::Exchange,
            None => joins && !own.is_empty() && own.iter().all(|user| apart[user.index()]),
        };
    }
    apart
}

impl DeviceProgram {
    /// For each step the last step beside which it may still run: itself, or of one on the lane for
    /// exchange the wait of the other lane for it, the number of steps where there is none.
    pub(super) fn ends(&self) -> Vec<usize> {
        let mut waits: BTreeMap<u32, usize> = BTreeMap::new();
        let mut ends: Vec<usize> = (0..self.steps.len()).collect();
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
