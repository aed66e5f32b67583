//! Context of a repair: the insertion point of its nodes, its cause, and its failures.

use crate::ir::{DevicePlacement, GraphError, Origin};
use crate::op::{Op, OpError};
use crate::types::Refusal;

/// The insertion point of new nodes: placement, origin and label of the operator they stand for.
#[derive(Clone)]
pub(super) struct InsertionPoint {
    pub(super) place: DevicePlacement,
    pub(super) origin: Origin,
    pub(super) label: String,
}

/// The cause of a repair, for its report.
#[derive(Clone, Copy)]
pub(super) struct Cause<'a> {
    /// The refusal that the repair removes.
    pub(super) refusal: &'a Refusal,
    /// The refused operator.
    pub(super) op: &'a Op,
    /// Its insertion point.
    pub(super) at: &'a InsertionPoint,
}

/// The reason why an operator was not written.
pub(super) enum Failure {
    /// No allowed repair helps it.
    Refused,
    /// It depends on a refused operator, so that nothing is known of its operands.
    Mixed,
    /// The graph is damaged.
    Graph(GraphError),
}

impl From<GraphError> for Failure {
    fn from(error: GraphError) -> Self {
        Self::Graph(error)
    }
}

impl From<OpError> for Failure {
    // A formula whose steps do not infer is no repair for this operator; the refusal stands.
    fn from(_: OpError) -> Self {
        Self::Refused
    }
}
