//! Nodes that were checked, to compare their clones with.

use std::sync::Arc;

use super::super::{Graph, Node, NodeId, NodeKind, ResultInfo};
use crate::op::Op;
use crate::types::FastMap;

/// Of so many nodes one is looked up by its operator. Clones come in runs, in the order of the
/// nodes that they are clones of, so that one is enough to find the others behind it.
const EVERY: usize = 8;

/// The number of nodes behind the last one found that are no operators and are passed over.
const PASSED: u32 = 8;

/// What is known of a node's operator and operands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// The operator, its operands and its results are those of a node without errors. Inference is
    /// a function of operator and operands: it would give the same results.
    All,
    /// The operator is that of a node without errors.
    Operator,
    /// Nothing.
    Nothing,
}

/// Nodes without errors, and where the next clone of one is expected.
#[derive(Default)]
pub(super) struct Checked {
    last: Option<NodeId>,
    by_op: FastMap<*const Op, NodeId>,
    count: usize,
}

impl Checked {
    /// What is known of a node if no node before it has an error. An operator that is shared is one
    /// object, so that its address tells that it is the same.
    pub(super) fn known(&mut self, graph: &Graph, id: NodeId, op: &Arc<Op>) -> Known {
        // An operator that no other node shares has no clone.
        if Arc::strong_count(op) == 1 {
            return Known::Nothing;
        }
        let next = self.last.and_then(|last| next(graph, last, id));
        let next = next.filter(|next| is(graph.node(*next), op));
        let like = next.or_else(|| self.by_op.get(&Arc::as_ptr(op)).copied());
        self.last = like.or(self.last);
        match like {
            Some(like) if is_alike(graph, like, id) => Known::All,
            Some(_) => Known::Operator,
            None => Known::Nothing,
        }
    }

    /// Takes a node without errors.
    pub(super) fn add(&mut self, id: NodeId, op: &Arc<Op>) {
        if Arc::strong_count(op) == 1 {
            return;
        }
        if self.count.is_multiple_of(EVERY) {
            self.by_op.insert(Arc::as_ptr(op), id);
        }
        self.count += 1;
    }
}

/// The next operator behind a node, before another one.
fn next(graph: &Graph, last: NodeId, before: NodeId) -> Option<NodeId> {
    let end = before.0.min(last.0 + 1 + PASSED);
    let mut behind = (last.0 + 1..end).map(NodeId);
    behind.find(|id| graph.find(*id).is_some_and(|node| node.op().is_some()))
}

/// True if the node has this operator.
fn is(node: &Node, op: &Arc<Op>) -> bool {
    matches!(node.kind(), NodeKind::Op(own) if Arc::ptr_eq(own, op))
}

/// True if the operands and results of two nodes have the same types and known elements.
fn is_alike(graph: &Graph, like: NodeId, id: NodeId) -> bool {
    let same = |a: &ResultInfo, b: &ResultInfo| a.ty == b.ty && a.ints == b.ints;
    let (known, found) = (graph.operand_list(like), graph.operand_list(id));
    let (results, own) = (graph.node(like).results(), graph.node(id).results());
    results.len() == own.len()
        && known.len() == found.len()
        && results.iter().zip(own).all(|(a, b)| same(a, b))
        && known.iter().zip(found).all(|(a, b)| same(graph.info(*a), graph.info(*b)))
}
