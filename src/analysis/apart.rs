//! Graphs whose rows are computed apart: a run of some rows gives the rows that a run of all gives.

use smallvec::SmallVec;

use super::survey;
use crate::ir::{DevicePlacement, Graph, NodeKind, ResultInfo, Value};
use crate::op::{Op, Traits};
use crate::types::{Claim, Device, Dim, TensorType};

/// True if a run of neighbouring rows of the inputs gives the same rows of the outputs, to the bit.
///
/// So it is where the graph may be split and nothing needs to be exchanged: what a replica computes
/// from its rows alone, and what has neither rows nor their number in it. Callbacks are asked once
/// for all rows, as their owners expect where one device runs.
pub(crate) fn rows_are_apart(graph: &Graph) -> bool {
    if graph.split().is_some() || !graph.updates().is_empty() {
        return false;
    }
    let Some(claims) = survey(graph).ok().filter(|claims| claims.refused().is_empty()) else {
        return false;
    };
    let first =
        |value: Value| claims.get(value).shard().is_some_and(|s| s.axis == 0 && s.outer == 1);
    let is_free =
        |value: Value| claims.get(value) == Claim::Invariant && !depends_on_batch(graph.ty(value));
    let is_apart = |id| {
        let node = graph.node(id);
        let mut results = (0u32..).zip(node.results()).map(|(i, _)| Value { node: id, output: i });
        match node.kind() {
            NodeKind::Input => results.all(|value| first(value) || is_free(value)),
            NodeKind::Param(_) => results.all(is_free),
            NodeKind::Op(op) => {
                let has_rows = results.clone().all(|v| claims.get(v).shard().is_some());
                let is_ours = !op.is(Traits::UNREPEATABLE) && !matches!(**op, Op::Custom(_));
                let is_same = !op.depends_on_batch()
                    && graph.operand_list(id).iter().all(|v| is_free(*v))
                    && results.all(is_free);
                is_ours && (has_rows || is_same)
            }
        }
    };
    graph.ids().all(is_apart) && graph.outputs().iter().all(|output| first(output.value))
}

/// As [`rows_are_apart`], for what a device with one of the replicas computes.
pub(crate) fn rows_are_apart_on(graph: &Graph, device: Device) -> bool {
    replica(graph, device).is_some_and(|own| rows_are_apart(&own))
}

/// What a device computes of `N` rows, as a graph of its own: what it copies from other devices are
/// inputs, what they copy from it are outputs. `None` unless it has one replica, whose rows are `N`
/// of some batch.
fn replica(graph: &Graph, device: Device) -> Option<Graph> {
    let split = graph.split()?;
    let mut own = (0..).zip(split.devices()).filter(|(_, other)| **other == device);
    let (Some((replica, _)), None) = (own.next(), own.next()) else { return None };
    let rows = Dim::n() * i64::try_from(split.replicas()).ok()?;
    if split.rows(replica)?.at_rows(&rows) != Dim::n() {
        return None;
    }
    let mut own = Graph::new(graph.name());
    let mut nodes = graph.node_map(None);
    for id in graph.order().ok()?.into_iter().filter(|id| graph.node(*id).place().device == device)
    {
        let operand = |value: &Value| nodes[value.node].map(|node| Value { node, ..*value });
        let operands: Option<Vec<Value>> = graph.operand_list(id).iter().map(operand).collect();
        let node = graph.node(id);
        let results = node.results().iter();
        let results =
            results.map(|r| ResultInfo { ty: r.ty.at_rows(&rows), ints: None, ..r.clone() });
        let mut results: SmallVec<[ResultInfo; 1]> = results.collect();
        nodes[id] = Some(match (node.kind(), operands) {
            (NodeKind::Param(param), _) => {
                let param = own.add_param(graph.param(*param).clone());
                own.add_param_node(param, Device::HOST).node
            }
            (NodeKind::Op(op), Some(operands)) => {
                let mut op = (**op).clone();
                op.at_rows(&rows);
                let place = DevicePlacement { device: Device::HOST, replica: None };
                let origin = node.origin().clone();
                own.add_typed(op, &operands, results, place, origin)
            }
            (NodeKind::Op(op), None) if matches!(**op, Op::CopyOp(_)) => {
                let ResultInfo { name, ty, .. } = results.pop()?;
                own.add_input(name, ty).node
            }
            (NodeKind::Op(_) | NodeKind::Input, _) => return None,
        });
    }
    let leaves = |value: Value| {
        let mut users = graph.users(value.node).into_iter();
        graph.is_kept(value)
            || users.any(|(user, _, output)| {
                output == value.output && graph.node(user).place().device != device
            })
    };
    for id in graph.ids() {
        let Some(node) = nodes[id] else { continue };
        for (output, result) in (0..).zip(graph.node(id).results()) {
            if leaves(Value { node: id, output }) {
                own.add_output(result.name.clone(), Value { node, output });
            }
        }
    }
    Some(own)
}

fn depends_on_batch(ty: &TensorType) -> bool {
    ty.shape.iter().any(Dim::depends_on_batch)
}

#[cfg(test)]
mod tests {
    use super::rows_are_apart;
    use crate::ir::parse;

    /// Whether the rows of a graph of `x: f32[N,4]` and `z: f32[4]` with these nodes are apart.
    fn apart(nodes: &str, y: &str) -> bool {
        let text = format!(
            "fanwise 1\nsymbol N >= 0\n\ngraph @g(%x: f32[N,4], %z: f32[4]) -> (y: {y}) {{\n  \
             {nodes}\n  return %y\n}}\n"
        );
        rows_are_apart(&parse(&text).unwrap())
    }

    #[test]
    fn rows_that_meet_others_or_their_number_are_not_apart() {
        assert!(apart("%y : f32[N,4] = add(%x, %z)", "f32[N,4]"));
        assert!(apart("%y : f32[N] = reduce_sum(%x) {axes=[1], keepdims=false}", "f32[N]"));
        let turned = "%t : f32[4,N] = transpose(%x) {perm=[1,0]}\n  \
                      %y : f32[N,4] = transpose(%t) {perm=[1,0]}";
        assert!(apart(turned, "f32[N,4]"));
        // The same for all rows, but an output that has none.
        assert!(!apart("%y : f32[4] = relu(%z)", "f32[4]"));
        assert!(!apart("%y : f32[4] = reduce_sum(%x) {axes=[0], keepdims=false}", "f32[4]"));
        let noise =
            "%d : f32[N,4] = random_uniform() {seed=7, shape=[N,4]}\n  %y : f32[N,4] = add(%x, %d)";
        assert!(!apart(noise, "f32[N,4]"));
    }

    #[test]
    fn values_of_the_number_of_rows_are_not_apart() {
        let share = "%n : f32[N] = constant_of_shape() {shape=[N], value=f32[] [1.0]}\n  \
                     %c : f32[] = reduce_sum(%n) {axes=[0], keepdims=false}\n  \
                     %y : f32[N,4] = div(%x, %c)";
        assert!(!apart(share, "f32[N,4]"));
    }
}
