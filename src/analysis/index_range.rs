//! The range of integers that an input may hold: what the graph's own lookups allow.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ir::{Graph, NodeKind, Value};
use crate::op::{Gather, GatherAt, Op, ReverseSequence, Scatter};
use crate::types::{DType, Dim};

/// For every integer input that reaches indices or lengths of sequences, through operators that leave elements as they
/// are, the number of values that are valid for all of them: `0..number`.
pub fn index_ranges(graph: &Graph) -> BTreeMap<Arc<str>, i64> {
    let mut ranges = BTreeMap::new();
    let Ok(order) = graph.order() else { return ranges };
    // The values that are valid for all uses of a node's results.
    let mut entries: Vec<Option<i64>> = vec![None; graph.id_bound()];
    for id in order.into_iter().rev() {
        let node = graph.node(id);
        let operands = graph.operands(id);
        let (sources, own) = match (node.kind(), operands.as_slice()) {
            (NodeKind::Op(op), operands) => match named(graph, op, operands) {
                Some((source, own)) => (vec![source], Some(own)),
                None if keeps_elements(op) => (operands.to_vec(), entries[id.index()]),
                None => continue,
            },
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

/// The operand of an operator that holds indices or lengths, and the number of values valid there.
fn named(graph: &Graph, op: &Op, operands: &[Value]) -> Option<(Value, i64)> {
    let sizes = |i: usize| operands.get(i).map(|v| &graph.ty(*v).shape);
    let size = |listed: i64| {
        let shape = sizes(0)?;
        let axis = crate::op::infer::axis("axis", listed, shape.rank()).ok()?;
        shape.get(axis)?.as_const()
    };
    let smallest = |leading: i64| {
        let count = usize::try_from(sizes(1)?.last()?.as_const()?).ok()?;
        let picked = sizes(0)?.iter().skip(usize::try_from(leading).ok()?).take(count);
        picked.map(Dim::as_const).collect::<Option<Vec<i64>>>()?.into_iter().min()
    };
    // Of a sequence all steps may be taken, and none.
    let lengths = |listed: i64| size(listed).and_then(|steps| steps.checked_add(1));
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "no other operator takes numbers of entries"
    )]
    let (operand, count) = match op {
        Op::Gather(Gather { axis })
        | Op::GatherAt(GatherAt::Elements { axis })
        | Op::Scatter(Scatter::Elements { axis, .. }) => (1, size(*axis)?),
        Op::GatherAt(GatherAt::Nd { batch_dims }) => (1, smallest(*batch_dims)?),
        Op::Scatter(Scatter::Nd { .. }) => (1, smallest(0)?),
        Op::ReverseSequence(ReverseSequence { time_axis, .. }) => (1, lengths(*time_axis)?),
        Op::Recurrent(op) => (op.lengths_operand()?, lengths(i64::from(op.order().1))?),
        _ => return None,
    };
    Some((*operands.get(operand)?, count))
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
