//! Nodes for updates that no sample changes, such as the step of an optimizer.
//!
//! They are written once instead of for each replica: a replica without rows is skipped in a run,
//! and its updates would then be missing. Values of a parameter on one device are computed where
//! outputs are merged and copied to it; values of a mirrored parameter on each device that holds
//! it.

use std::sync::Arc;

use crate::analysis::ClaimMap;
use crate::ir::{Graph, NodeId, NodeKind, NodeMap, Value};
use crate::op::{Op, Traits};
use crate::types::Claim;

/// Classification of the nodes of a template by whether updates and replicas need them.
///
/// The nodes of a template that are written once.
#[derive(Default)]
pub(super) struct UpdateNodes {
    /// By node: whether it is written for updates, and whether no replica needs it. Empty in a
    /// graph without updates.
    nodes: NodeMap<(bool, bool)>,
}

impl UpdateNodes {
    /// Classifies the nodes in one backward sweep from the updates.
    pub(super) fn new(template: &Graph, claims: &ClaimMap) -> Self {
        if template.updates().is_empty() {
            return Self::default();
        }
        let recomputable = recomputable(template, claims);
        let mut nodes = template.node_map((false, false));
        let updates = template.updates().iter().flat_map(|update| &update.values);
        for value in updates.clone() {
            nodes[value.node].0 = true;
        }
        let mut is_output = template.node_map(false);
        template.outputs().iter().for_each(|o| is_output[o.value.node] = true);
        for id in claims.order().iter().rev() {
            let users = template.users(*id);
            let reaches = nodes[*id].0 || users.iter().any(|(user, ..)| nodes[*user].0);
            // A node that replicas need as well is written once more for updates where what every
            // device has suffices for it; else updates take it from the first replica.
            let only = !is_output[*id] && users.iter().all(|(user, ..)| nodes[*user].1);
            let only = reaches && only && is_whole(template, claims, *id);
            let is_joined = is_joined(template, claims, *id);
            nodes[*id] = (only || (reaches && recomputable[*id] && !is_joined), only);
        }
        Self { nodes }
    }

    /// True for a node that no replica needs.
    pub(super) fn is_update_only(&self, id: NodeId) -> bool {
        self.nodes.get(id).is_some_and(|(_, only)| *only)
    }

    /// True for a node that is written for updates.
    pub(super) fn contains(&self, id: NodeId) -> bool {
        self.nodes.get(id).is_some_and(|(once, _)| *once)
    }

    /// The names that must stay free for such nodes of a template and their copies.
    pub(super) fn names(template: &Graph) -> Vec<Arc<str>> {
        if template.updates().is_empty() {
            return Vec::new();
        }
        let results = template.ids().flat_map(|id| template.node(id).results());
        results.map(|result| result.name.clone()).collect()
    }
}

/// True for an operator with whole operands and results that is no redistribution.
fn is_whole(template: &Graph, claims: &ClaimMap, id: NodeId) -> bool {
    let node = template.node(id);
    let brings = |op: &Op| op.is(Traits::COLLECTIVE) || matches!(op, Op::OwnRows(_) | Op::First(_));
    let gathers = |v: &Value| matches!(template.node(v.node).op(), Some(Op::AllGather(_)));
    let Some(op) = node.op().filter(|op| !brings(op)) else { return false };
    let operands = template.operands(id);
    // A reshape of gathered rows is written once with the gather.
    let reshapes = matches!(op, Op::Reshape(_)) && operands.iter().any(gathers);
    let results = (0u32..).zip(node.results()).map(|(output, _)| Value { node: id, output });
    !reshapes && operands.into_iter().chain(results).all(|v| claims.get(v) == Claim::Invariant)
}

/// True for a collective that gives every device the same whole, but for gathered rows, which are
/// many.
fn is_joined(template: &Graph, claims: &ClaimMap, id: NodeId) -> bool {
    let node = template.node(id);
    let joins = |op: &Op| op.is(Traits::COLLECTIVE) && !matches!(op, Op::AllGather(_));
    let results = (0u32..).zip(node.results()).map(|(output, _)| Value { node: id, output });
    node.op().is_some_and(joins) && results.into_iter().all(|v| claims.get(v) == Claim::Invariant)
}

/// The nodes, by index, that depend on parameters, constants and whole inputs alone, and elements
/// of what collectives give to every device. Updates compute them again rather than take them from
/// a replica.
fn recomputable(template: &Graph, claims: &ClaimMap) -> NodeMap<bool> {
    let mut recomputable = template.node_map(false);
    let mut comes_joined = template.node_map(false);
    for id in claims.order() {
        recomputable[*id] = match template.node(*id).kind() {
            NodeKind::Param(_) => true,
            NodeKind::Input => claims.get(Value { node: *id, output: 0 }) == Claim::Invariant,
            NodeKind::Op(_) => {
                let operands = template.operands(*id);
                let of_joined = operands.iter().any(|v| comes_joined[v.node]);
                let moves = template.node(*id).op().is_some_and(|op| op.is(Traits::MOVES));
                let is_joined = is_joined(template, claims, *id);
                comes_joined[*id] = is_joined || of_joined;
                is_joined
                    || is_whole(template, claims, *id)
                        && (moves || !of_joined)
                        && operands.iter().all(|v| recomputable[v.node])
            }
        };
    }
    recomputable
}
