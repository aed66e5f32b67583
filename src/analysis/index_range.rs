//! The range of integers that an input may hold: what the graph's own lookups allow.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::{Graph, NodeKind};
use crate::op::Op;
use crate::types::DType;

/// For every integer input that reaches the indices of a `gather`, through operators that leave elements as they
/// are, the number of entries that the smallest table looked up has: valid indices are `0..entries`.
pub fn index_ranges(graph: &Graph) -> BTreeMap<Arc<str>, i64> {
    let mut ranges = BTreeMap::new();
    let Ok(order) = graph.order() else { return ranges };
    // The entries of the smallest table in which elements of a node's results are looked up.
    let mut entries: Vec<Option<i64>> = vec![None; graph.id_bound()];
    for id in order.into_iter().rev() {
        let node = graph.node(id);
        let operands = graph.operands(id);
        let (sources, own) = match (node.kind(), operands.as_slice()) {
            (NodeKind::Op(Op::Gather(gather)), [data, indices]) => {
                let shape = &graph.ty(*data).shape;
                let axis = crate::op::infer::axis("axis", gather.axis, shape.rank()).ok();
                ([*indices].to_vec(), axis.and_then(|a| shape[a].as_const()))
            }
            (NodeKind::Op(op), operands) if keeps_elements(op) => {
                (operands.to_vec(), entries[id.index()])
            }
            (NodeKind::Input, _) => {
                let info = &node.results()[0];
                if let Some(own) = entries[id.index()].filter(|_| info.ty.dtype != DType::Bool) {
                    ranges.insert(info.name.clone(), own);
                }
                continue;
            }
            _ => continue,
        };
        let Some(own) = own else { continue };
        for source in sources {
            let known = &mut entries[source.node.index()];
            *known = Some(known.map_or(own, |known| known.min(own)));
        }
    }
    ranges
}

/// True for the operators whose results hold elements of their operands, unchanged.
fn keeps_elements(op: &Op) -> bool {
    matches!(
        op,
        Op::Reshape(_)
            | Op::Flatten(_)
            | Op::Squeeze(_)
            | Op::Unsqueeze(_)
            | Op::Transpose(_)
            | Op::Blocks(_)
            | Op::Slice(_)
            | Op::Concat(_)
            | Op::Identity(_)
            | Op::CopyOp(_)
            | Op::Expand(_)
            | Op::Cast(_)
            | Op::SplitOp(_)
            | Op::First(_)
    )
}
