//! Graphs whose rows are computed apart: a run of some rows gives the rows that a run of all gives.

use super::survey;
use crate::ir::{Graph, NodeKind, Value};
use crate::op::{Op, Traits};
use crate::types::{Claim, Dim, TensorType};

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
