use super::SimplifyOptions;
use crate::ir::{Graph, NodeId, Value, Weights};
use crate::op::Op;
use crate::pass::PassError;

/// Replaces the result of every operator that gives its operand back by that operand.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    options: SimplifyOptions,
) -> Result<(), PassError> {
    for id in graph.order()? {
        let result = Value { node: id, output: 0 };
        let drops = matches!(graph.node(id).op(), Some(Op::Dropout(dropout)) if dropout.rate > 0.0);
        if !(drops && options.for_training)
            && let Some(operand) = same_as_operand(graph, id)
            && graph.ty(operand) == graph.ty(result)
        {
            graph.replace(result, operand)?;
        }
    }
    graph.remove_unused();
    Ok(())
}

/// The operand that the first result of this operator equals.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "an operator that is not listed computes something"
)]
fn same_as_operand(graph: &Graph, id: NodeId) -> Option<Value> {
    let node = graph.node(id);
    let operands = graph.operands(id);
    let first = *operands.first()?;
    let unchanged = match node.op()? {
        Op::Identity(_) | Op::Dropout(_) => true,
        // These keep the order of elements, so an equal type means equal elements.
        Op::Reshape(_) | Op::Flatten(_) | Op::Squeeze(_) | Op::Unsqueeze(_) | Op::Cast(_) => {
            graph.ty(first) == &node.results().first()?.ty
        }
        Op::Expand(_) | Op::Slice(_) => {
            graph.ty(first) == &node.results().first()?.ty && is_plain(node.op()?)
        }
        Op::Concat(_) => operands.len() == 1,
        Op::Transpose(transpose) => transpose.perm.iter().enumerate().all(|(i, p)| i == *p),
        _ => false,
    };
    unchanged.then_some(first)
}

/// True unless the operator reverses an axis.
fn is_plain(op: &Op) -> bool {
    if let Op::Slice(slice) = op { slice.steps.iter().all(|s| *s > 0) } else { true }
}
