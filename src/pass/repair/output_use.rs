//! Uses of values by outputs. A partial value that leads to outputs only can be combined where
//! outputs are merged, which is an exchange that happens in any case.

use crate::ir::{Graph, NodeId, Value};
use crate::op::Traits;
use crate::types::{Dim, TensorType};

/// The use of a node's results on the way to outputs, ordered from the weakest on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum OutputUse {
    /// They are outputs, but for the shape, the order of elements or the sign.
    ViewOnly,
    /// They are scaled by numbers that no sample changes, as a sum by the number of samples.
    Scaled,
    /// Any other use.
    Other,
}

/// The use of every node's results, by node; `order` is topological.
pub(super) fn output_uses(graph: &Graph, order: &[NodeId]) -> Vec<OutputUse> {
    let numbers = numbers(graph, order);
    let mut output_uses = vec![OutputUse::Other; graph.id_bound()];
    let mut updates = vec![false; graph.id_bound()];
    let values = graph.updates().iter().flat_map(|update| &update.values);
    values.for_each(|value| updates[value.node.index()] = true);
    for id in order.iter().rev() {
        let users = graph.users(*id).into_iter();
        let steps =
            users.map(|(user, ..)| step(graph, *id, user, &numbers).max(output_uses[user.index()]));
        // A parameter must hold the whole after a run, which is a use of its own.
        let own = if updates[id.index()] { OutputUse::Other } else { OutputUse::ViewOnly };
        // Without users there is nothing that could need more than a view.
        output_uses[id.index()] = steps.max().unwrap_or(OutputUse::ViewOnly).max(own);
    }
    output_uses
}

/// The nodes that an output depends on, by node. On the others only updates depend.
pub(in crate::pass) fn reaches_output(graph: &Graph, order: &[NodeId]) -> Vec<bool> {
    let mut reaching = vec![false; graph.id_bound()];
    graph.outputs().iter().for_each(|output| reaching[output.value.node.index()] = true);
    for id in order.iter().rev() {
        let users = graph.users(*id);
        let used = users.into_iter().any(|(user, ..)| reaching[user.index()]);
        reaching[id.index()] |= used;
    }
    reaching
}

/// The nodes computed from constants and the batch size alone, by node.
fn numbers(graph: &Graph, order: &[NodeId]) -> Vec<bool> {
    let mut numbers = vec![false; graph.id_bound()];
    for id in order {
        let Some(op) = graph.node(*id).op() else { continue };
        let operands = graph.operands(*id);
        let simple = Traits::ELEMENTWISE.union(Traits::VIEW);
        let plain = operands.is_empty() || op.traits().intersects(simple);
        let repeatable = !op.is(Traits::UNREPEATABLE);
        let known = operands.iter().all(|v| numbers[v.node.index()]);
        numbers[id.index()] = plain && repeatable && known;
    }
    numbers
}

/// The use of the results of `of` by the operator `user` alone.
fn step(graph: &Graph, of: NodeId, user: NodeId, numbers: &[bool]) -> OutputUse {
    let ty = graph.ty(Value { node: user, output: 0 });
    let Some(op) = graph.node(user).op().filter(|_| !has_rows(ty)) else { return OutputUse::Other };
    let operands = graph.operands(user);
    if op.is(Traits::PERMUTES) || op.is(Traits::NEGATES) {
        return OutputUse::ViewOnly;
    }
    // A factor known before the run can be applied after the parts are combined.
    let scale = operands.iter().position(|x| x.node == of).and_then(|i| op.scale_of(i));
    let number = scale.and_then(|i| operands.get(i)).is_some_and(|by| numbers[by.node.index()]);
    if number && ty.dtype.is_float() { OutputUse::Scaled } else { OutputUse::Other }
}

/// True if a size depends on the batch.
fn has_rows(ty: &TensorType) -> bool {
    ty.shape.iter().any(Dim::depends_on_batch)
}
