//! The invariants of graphs, checked after every pass; only a graph that satisfies them is lowered.
//!
//! - V1: every node has a result; every value has a name, and the names of inputs and results are
//!   unique.
//! - V2: the results of an operator have the types and the known elements that its inference gives.
//! - V3: the graph has no cycle.
//! - V4: an operand is on the device of its operator; only `copy` takes an operand from another
//!   device.
//! - V5: a node belongs to a replica only if the graph has a split with this replica.
//! - V6: an operator of replica `i` runs on device `i` of the split; `copy` and `slice` may also
//!   run on the host or on another device of the split.
//! - V7: the operands of a replica's operator belong to the same replica or to none; outside
//!   replicas only the merges, `concat` and `first`, take operands of replicas.
//! - V8: every parameter has a unique name and a type with constant, valid sizes.
//! - V9: every device that holds a parameter has one node for it, shared by all replicas; only a
//!   graph with a split has mirrored parameters.
//! - V10: the sizes of an input are valid, and at least 0 for every `N >= 0`.
//! - V11: every output has a unique name, and a value of the graph outside replicas.
//! - V12: types and attributes have no symbol but `N` and the graph's open sizes.
//! - V13: a tensor attribute has at most [`MAX_CONSTANT`] elements; larger tensors are parameters.
//! - V14: a parameter has at most one update, with one value for each device that holds it, in the
//!   order of the split. Each value has the type of the parameter, is on that device, and belongs
//!   to no replica.

mod check;
mod checked;
mod error;
mod held;
mod names;
#[cfg(test)]
mod tests;

use std::ops::Deref;

use super::{Graph, NodeId};
use crate::types::invariant::invariant;
use check::Check;
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
    let order = match graph.order() {
        Ok(order) if run(Check::new(graph, false)).finds_nothing() => {
            return Ok(Verified { graph, order });
        }
        // A broken graph is checked again, so that its errors come in order.
        order => order,
    };
    let mut check = Check::new(graph, true);
    if order.is_err() {
        check.cycle();
    }
    match (order, run(check).finish()) {
        (Ok(order), None) => Ok(Verified { graph, order }),
        (_, errors) => Err(invariant(errors, "that a graph without an order has a cycle")),
    }
}

/// Runs all checks but that for cycles.
fn run(mut check: Check<'_>) -> Check<'_> {
    check.params();
    check.inputs();
    check.outputs();
    check.updates();
    check.nodes();
    check
}
