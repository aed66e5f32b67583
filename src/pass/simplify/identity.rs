//! Removal of identities: operators whose result equals an operand.

use std::borrow::Cow;

use super::options::SimplifyOptions;
use crate::ir::{Graph, GraphError, NodeId, Value, Weights};
use crate::op::{Known, Op, Traits};
use crate::pass::PassError;

/// Replaces the result of every identity by its operand.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    options: &SimplifyOptions,
) -> Result<(), PassError> {
    Ok(remove_identities(graph, options.for_training)?)
}

/// Removes identities; with `for_training` those stay that training gives another meaning.
pub(in crate::pass) fn remove_identities(
    graph: &mut Graph,
    for_training: bool,
) -> Result<(), GraphError> {
    for id in graph.order()? {
        let result = Value { node: id, output: 0 };
        let trains = graph.node(id).op().is_some_and(|op| op.is(Traits::TRAINS));
        if !(trains && for_training)
            && let Some(operand) = same_as_operand(graph, id)
            && graph.ty(operand) == graph.ty(result)
        {
            graph.replace(result, operand)?;
        }
    }
    graph.remove_unused();
    Ok(())
}

/// The graph without what it says about training alone, for formats that cannot state it.
pub(crate) fn without_training(graph: &Graph) -> Result<Cow<'_, Graph>, PassError> {
    let own = |id: &NodeId| matches!(graph.node(*id).op(), Some(Op::ForTraining(_)));
    let all: Vec<NodeId> = graph.ids().filter(own).collect();
    if all.is_empty() {
        return Ok(Cow::Borrowed(graph));
    }
    let mut plain = graph.clone();
    for id in all {
        if let Some(x) = plain.operands(id).first().copied() {
            plain.replace(Value { node: id, output: 0 }, x)?;
        }
    }
    plain.remove_unused();
    Ok(Cow::Owned(plain))
}

/// The value that equals the operator's first result, provided that both have the same type, which
/// the caller compares.
fn same_as_operand(graph: &Graph, id: NodeId) -> Option<Value> {
    let node = graph.node(id);
    let (op, operands) = (node.op()?, graph.operands(id));
    // Two operators may cancel where neither is an identity, as two transposes.
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
