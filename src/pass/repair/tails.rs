//! Values of which nothing but outputs is made: their parts can be combined where outputs are
//! merged in any case.

use crate::ir::{Graph, NodeId, Value};
use crate::op::Traits;
use crate::types::{Dim, TensorType};

/// What becomes of a node's results on the way to the outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tail {
    /// They are outputs, as they are or in another shape.
    Views,
    /// They are multiplied or divided by numbers that no sample changes, as a sum by the number of
    /// samples.
    Scaled,
    /// Anything else.
    Used,
}

/// What becomes of the results of every node, by node; `order` is topological.
pub(super) fn tails(graph: &Graph, order: &[NodeId]) -> Vec<Tail> {
    let numbers = numbers(graph, order);
    let mut tails = vec![Tail::Used; graph.id_bound()];
    let mut updates = vec![false; graph.id_bound()];
    let values = graph.updates().iter().flat_map(|update| &update.values);
    values.for_each(|value| updates[value.node.index()] = true);
    for id in order.iter().rev() {
        let users = graph.users(*id).into_iter();
        let steps =
            users.map(|(user, ..)| step(graph, *id, user, &numbers).max(tails[user.index()]));
        let own = if updates[id.index()] { Tail::Used } else { Tail::Views };
        // What nothing uses is used in no way.
        tails[id.index()] = steps.max().unwrap_or(Tail::Views).max(own);
    }
    tails
}

/// Of which nodes outputs are made, by node; of the others only new values of parameters are.
pub(in crate::pass) fn seen(graph: &Graph, order: &[NodeId]) -> Vec<bool> {
    let mut seen = vec![false; graph.id_bound()];
    graph.outputs().iter().for_each(|output| seen[output.value.node.index()] = true);
    for id in order.iter().rev() {
        let users = graph.users(*id);
        let used = users.into_iter().any(|(user, ..)| seen[user.index()]);
        seen[id.index()] |= used;
    }
    seen
}

/// Which nodes are computed from numbers in the graph and the batch size, and from nothing else.
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

/// What `user` does with the results of `of`.
fn step(graph: &Graph, of: NodeId, user: NodeId, numbers: &[bool]) -> Tail {
    let ty = graph.ty(Value { node: user, output: 0 });
    let Some(op) = graph.node(user).op().filter(|_| !has_rows(ty)) else { return Tail::Used };
    let operands = graph.operands(user);
    if op.is(Traits::PERMUTES) || op.is(Traits::NEGATES) {
        return Tail::Views;
    }
    let scale = operands.iter().position(|x| x.node == of).and_then(|i| op.scale_of(i));
    let number = scale.and_then(|i| operands.get(i)).is_some_and(|by| numbers[by.node.index()]);
    if number && ty.dtype.is_float() { Tail::Scaled } else { Tail::Used }
}

fn has_rows(ty: &TensorType) -> bool {
    ty.shape.iter().any(Dim::depends_on_batch)
}
