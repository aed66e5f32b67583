//! Common subexpressions: operators of the same kind with the same attributes and operands.

use smallvec::SmallVec;

use super::options::SimplifyOptions;
use crate::ir::{Graph, NodeId, Value, Weights};
use crate::op::{Op, Traits};
use crate::pass::PassError;
use crate::types::FastMap;
use crate::types::invariant::int;

/// Replaces the results of an operator by those of an earlier one that computes the same.
///
/// Not for training, where the gradients of both would be added in another order.
pub(super) fn run(
    graph: &mut Graph,
    _: &mut Weights,
    options: &SimplifyOptions,
) -> Result<(), PassError> {
    if options.for_training {
        return Ok(());
    }
    // The earlier ones, by what is cheap to compare.
    let mut seen: FastMap<_, SmallVec<[NodeId; 1]>> = FastMap::default();
    for id in graph.order()? {
        let Some(op) = graph.node(id).op() else { continue };
        if op.is(Traits::UNREPEATABLE) {
            continue;
        }
        let alike = seen.entry((op.name(), graph.operands(id))).or_default();
        match alike.iter().copied().find(|other| computes_the_same(graph, *other, id)) {
            None => alike.push(id),
            Some(other) => {
                for output in 0..int(graph.node(id).results().len()) {
                    graph.replace(Value { node: id, output }, Value { node: other, output })?;
                }
            }
        }
    }
    graph.remove_unused();
    Ok(())
}

/// True for operators of one kind and the same operands if they have the same place, results and
/// attributes. These are compared as text, in which each element has its bits.
fn computes_the_same(graph: &Graph, one: NodeId, other: NodeId) -> bool {
    let (a, b) = (graph.node(one), graph.node(other));
    let attrs = |op: &Op| -> Vec<(&str, String)> {
        op.attrs().into_iter().map(|(name, value)| (name, value.to_string())).collect()
    };
    let types = |node: NodeId| graph.node(node).results().iter().map(|result| &result.ty);
    a.place() == b.place() && types(one).eq(types(other)) && a.op().map(attrs) == b.op().map(attrs)
}
