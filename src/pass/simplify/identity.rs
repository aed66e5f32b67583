use super::SimplifyOptions;
use crate::ir::{Graph, GraphError, NodeId, Value, Weights};
use crate::op::{Binary, Op};
use crate::pass::PassError;
use crate::types::DType;

/// Replaces the result of every operator that gives its operand back by that operand.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    options: SimplifyOptions,
) -> Result<(), PassError> {
    Ok(remove_identities(graph, options.for_training)?)
}

/// The same; dropout stays where it is to be trained.
pub(in crate::pass) fn remove_identities(
    graph: &mut Graph,
    for_training: bool,
) -> Result<(), GraphError> {
    for id in graph.order()? {
        let result = Value { node: id, output: 0 };
        let drops = matches!(graph.node(id).op(), Some(Op::Dropout(dropout)) if dropout.rate > 0.0);
        if !(drops && for_training)
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
    match (node.op()?, &operands[..]) {
        (Op::Binary(Binary::Mul | Binary::Div), [x, one]) if is_one(graph, *one) => {
            return Some(*x);
        }
        (Op::Binary(Binary::Mul), [one, x]) if is_one(graph, *one) => return Some(*x),
        (Op::Transpose(back), [turned]) => {
            if let Some(Op::Transpose(first)) = graph.node(turned.node).op()
                && back.perm.iter().enumerate().all(|(i, p)| first.perm.get(*p) == Some(&i))
            {
                return graph.operands(turned.node).first().copied();
            }
        }
        _ => {}
    }
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

/// Whether a value is the constant 1, without axes, of a type in which a product with it is exact.
fn is_one(graph: &Graph, value: Value) -> bool {
    let Some(Op::Constant(constant)) = graph.node(value.node).op() else { return false };
    let one = &constant.value;
    one.rank() == 0 && matches!(one.dtype(), DType::F32 | DType::F64) && one.to_f64() == [1.0]
}

/// True unless the operator reverses an axis.
fn is_plain(op: &Op) -> bool {
    if let Op::Slice(slice) = op { slice.steps.iter().all(|s| *s > 0) } else { true }
}
