use super::options::SimplifyOptions;
use crate::ir::{Graph, GraphError, NodeId, Value, Weights};
use crate::op::Known;
use crate::pass::PassError;

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
        let drops = graph.node(id).op().is_some_and(|op| op.drop_rate() > 0.0);
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

/// The operand that the first result of this operator equals, if it has the same type.
fn same_as_operand(graph: &Graph, id: NodeId) -> Option<Value> {
    let node = graph.node(id);
    let (op, operands) = (node.op()?, graph.operands(id));
    if let [only] = operands[..]
        && graph.node(only.node).op().is_some_and(|before| op.undoes(before))
    {
        return graph.operands(only.node).first().copied();
    }
    let constant = |value: &Value| graph.node(value.node).op()?.known();
    let known: Vec<Known<'_>> =
        operands.iter().map(|v| Known { ty: graph.ty(*v), value: constant(v) }).collect();
    operands.get(op.same_as(&known, &node.results().first()?.ty)?).copied()
}
