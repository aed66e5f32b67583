//! The range of integers that an input may hold: what the graph's own lookups allow.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::{Graph, NodeId, Value};
use crate::op::Op;
use crate::types::DType;

/// For every integer input that reaches the indices of a `gather`, through operators that leave elements as they
/// are, the number of entries that the smallest table looked up has: valid indices are `0..entries`.
pub fn index_ranges(graph: &Graph) -> BTreeMap<Arc<str>, i64> {
    let mut ranges: BTreeMap<Arc<str>, i64> = BTreeMap::new();
    for node in graph.ids() {
        let Some(Op::Gather(gather)) = graph.node(node).op() else { continue };
        let operands = graph.operands(node);
        let [data, indices] = operands.as_slice() else { continue };
        let shape = &graph.ty(*data).shape;
        let axis = crate::op::infer::axis("axis", gather.axis, shape.rank()).ok();
        let Some(entries) = axis.and_then(|a| shape[a].as_const()) else { continue };
        for input in sources(graph, *indices) {
            let name = graph.info(input).name.clone();
            ranges.entry(name).and_modify(|r| *r = (*r).min(entries)).or_insert(entries);
        }
    }
    ranges
}

/// The integer inputs whose elements `value` holds.
fn sources(graph: &Graph, value: Value) -> Vec<Value> {
    let (mut found, mut stack) = (Vec::new(), vec![value]);
    let mut seen = vec![false; graph.id_bound()];
    while let Some(value) = stack.pop() {
        let node: NodeId = value.node;
        if std::mem::replace(&mut seen[node.index()], true) {
            continue;
        }
        match graph.node(node).op() {
            None if graph.inputs().any(|i| i == value) && graph.ty(value).dtype != DType::Bool => {
                found.push(value);
            }
            Some(
                Op::Reshape(_)
                | Op::Flatten(_)
                | Op::Squeeze(_)
                | Op::Unsqueeze(_)
                | Op::Transpose(_)
                | Op::Slice(_)
                | Op::Concat(_)
                | Op::Identity(_)
                | Op::CopyOp(_)
                | Op::Expand(_)
                | Op::Cast(_)
                | Op::SplitOp(_)
                | Op::First(_),
            ) => stack.extend(graph.operands(node)),
            _ => {}
        }
    }
    found.sort_unstable();
    found
}
