//! Uses of values by outputs. A partial value that leads to outputs only can be combined where
//! outputs are merged, which is an exchange that happens in any case.

use crate::ir::{Graph, NodeId, NodeMap, Value};
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
pub(super) fn output_uses(graph: &Graph, order: &[NodeId]) -> NodeMap<OutputUse> {
    let numbers = numbers(graph, order);
    let mut output_uses = graph.node_map(OutputUse::Other);
    let mut updates = graph.node_map(false);
    let values = graph.updates().iter().flat_map(|update| &update.values);
    values.for_each(|value| updates[value.node] = true);
    for id in order.iter().rev() {
        let users = graph.users(*id).into_iter();
        let steps = users.map(|(user, ..)| step(graph, *id, user, &numbers).max(output_uses[user]));
        // A parameter must hold the whole after a run, which is a use of its own.
        let own = if updates[*id] { OutputUse::Other } else { OutputUse::ViewOnly };
        // Without users there is nothing that could need more than a view.
        output_uses[*id] = steps.max().unwrap_or(OutputUse::ViewOnly).max(own);
    }
    output_uses
}

/// The nodes that an output depends on, by node. On the others only updates depend.
pub(in crate::pass) fn reaches_output(graph: &Graph, order: &[NodeId]) -> NodeMap<bool> {
    let mut reaching = graph.node_map(false);
    graph.outputs().iter().for_each(|output| reaching[output.value.node] = true);
    for id in order.iter().rev() {
        if reaching[*id] {
            graph.operand_list(*id).iter().for_each(|value| reaching[value.node] = true);
        }
    }
    reaching
}

/// The nodes computed from constants and the batch size alone, by node.
fn numbers(graph: &Graph, order: &[NodeId]) -> NodeMap<bool> {
    let mut numbers = graph.node_map(false);
    for id in order {
        let Some(op) = graph.node(*id).op() else { continue };
        let operands = graph.operands(*id);
        let simple = Traits::ELEMENTWISE.union(Traits::VIEW);
        let plain = operands.is_empty() || op.traits().intersects(simple);
        let repeatable = !op.is(Traits::UNREPEATABLE);
        let known = operands.iter().all(|v| numbers[v.node]);
        numbers[*id] = plain && repeatable && known;
    }
    numbers
}

/// The use of the results of `of` by the operator `user` alone.
fn step(graph: &Graph, of: NodeId, user: NodeId, numbers: &NodeMap<bool>) -> OutputUse {
    let ty = graph.ty(Value { node: user, output: 0 });
    let Some(op) = graph.node(user).op().filter(|_| !has_rows(ty)) else { return OutputUse::Other };
    let operands = graph.operands(user);
    if op.is(Traits::PERMUTES) || op.is(Traits::NEGATES) {
        return OutputUse::ViewOnly;
    }
    // A factor known before the run can be applied after the parts are combined.
    let scale = operands.iter().position(|x| x.node == of).and_then(|i| op.scale_of(i));
    let number = scale.and_then(|i| operands.get(i)).is_some_and(|by| numbers[by.node]);
    if number && ty.dtype.is_float() { OutputUse::Scaled } else { OutputUse::Other }
}

/// True if a size depends on the batch.
fn has_rows(ty: &TensorType) -> bool {
    ty.shape.iter().any(Dim::depends_on_batch)
}
