//! The invariants of graphs, checked after every pass; only a graph that satisfies them is lowered.
//!
//! - V1: every node has a result; every value has a name, and no two inputs or results have the
//!   same.
//! - V2: the results of an operator have the types and the known elements that its inference gives.
//! - V3: the values form no cycle.
//! - V4: an operand lives on the device of the operator that takes it; only `copy` takes one from
//!   elsewhere.
//! - V5: a node belongs to a replica only if the graph has a split with a replica of that number.
//! - V6: an operator of replica `i` runs on the split's device `i`; `copy` and `slice` may also run
//!   on the host or on another device of the split.
//! - V7: what a replica takes belongs to it or to no replica; of the operators that belong to no
//!   replica only the merges, `concat` and `first`, take what belongs to one.
//! - V8: every parameter has a name of its own and a type with constant, possible sizes.
//! - V9: a parameter is a value on the devices that hold it, once on each, for all replicas; only a
//!   graph with a split has mirrored parameters.
//! - V10: the sizes of an input are possible, and at least 0 for every `N >= 0`.
//! - V11: every output has a name of its own, and a value of the graph that belongs to no replica.
//! - V12: no symbol but `N` occurs in types and attributes.
//! - V13: a tensor among the attributes has at most [`MAX_CONSTANT`] elements; larger ones are
//!   parameters.
//! - V14: a parameter has at most one update, with a value for each device that holds it, in the
//!   split's order: of the parameter's type, on that device, of no replica.

mod check;
mod error;
#[cfg(test)]
mod tests;

use std::ops::Deref;

use super::{Graph, NodeId};
pub(crate) use check::MAX_CONSTANT;
pub use error::{Rule, VerifyError, VerifyErrors};

/// A graph that satisfies every rule; only [`verify`] makes one.
#[derive(Clone, Debug)]
pub struct Verified<'g> {
    graph: &'g Graph,
    order: Vec<NodeId>,
}

impl<'g> Verified<'g> {
    /// The graph.
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// Its nodes in topological order, as [`Graph::order`] gives them.
    pub(crate) fn order(&self) -> &[NodeId] {
        &self.order
    }
}

impl Deref for Verified<'_> {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        self.graph
    }
}

/// Checks every rule, and reports every place where one is broken.
///
/// Elsewhere: HLO verifier (XLA); verifier (MLIR); checker (ONNX).
pub fn verify(graph: &Graph) -> Result<Verified<'_>, VerifyErrors> {
    let order = graph.order();
    let mut check = check::Check::new(graph);
    if order.is_err() {
        check.cycle();
    }
    check.params();
    check.inputs();
    check.outputs();
    check.updates();
    check.nodes();
    match (order, check.finish()) {
        (Ok(order), None) => Ok(Verified { graph, order }),
        (_, errors) => Err(errors.unwrap_or_default()),
    }
}
