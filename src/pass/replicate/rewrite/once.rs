//! What only updates need, and no sample changes: it is written once, not for each replica, so that
//! it is computed also where a replica has no rows. What one device holds is computed where outputs
//! are merged and copied there, what is mirrored on each device that holds it.

use std::sync::Arc;

use crate::analysis::ClaimMap;
use crate::ir::{Graph, NodeId, NodeKind, Value};
use crate::op::{Op, Traits};
use crate::types::Claim;

/// The nodes of a template that are written once.
#[derive(Default)]
pub(super) struct Once {
    /// Which nodes these are, by node, and which of them no replica needs. Empty where nothing is
    /// updated.
    nodes: Vec<(bool, bool)>,
}

impl Once {
    pub(super) fn new(template: &Graph, claims: &ClaimMap) -> Self {
        if template.updates().is_empty() {
            return Self::default();
        }
        let free = free(template, claims);
        let mut nodes = vec![(false, false); template.id_bound()];
        let updates = template.updates().iter().flat_map(|update| &update.values);
        for value in updates.clone() {
            nodes[value.node.index()].0 = true;
        }
        let mut is_output = vec![false; template.id_bound()];
        template.outputs().iter().for_each(|o| is_output[o.value.node.index()] = true);
        for id in claims.order().iter().rev() {
            let i = id.index();
            let users = template.users(*id);
            let reaches = nodes[i].0 || users.iter().any(|(user, ..)| nodes[user.index()].0);
            let only = !is_output[i] && users.iter().all(|(user, ..)| nodes[user.index()].1);
            let only = reaches && only && is_whole(template, claims, *id);
            nodes[i] = (only || (reaches && free[i]), only);
        }
        Self { nodes }
    }

    /// True of a node that no replica needs.
    pub(super) fn only(&self, id: NodeId) -> bool {
        self.nodes.get(id.index()).is_some_and(|(_, only)| *only)
    }

    pub(super) fn has(&self, id: NodeId) -> bool {
        self.nodes.get(id.index()).is_some_and(|(once, _)| *once)
    }

    /// The names that its nodes have, and those that copies for it might take.
    pub(super) fn names(&self, template: &Graph) -> Vec<Arc<str>> {
        if self.nodes.is_empty() {
            return Vec::new();
        }
        let results = template.ids().flat_map(|id| template.node(id).results());
        results.map(|result| result.name.clone()).collect()
    }
}

/// True of an operator that no sample changes, of values that none changes, and that brings nothing
/// to replicas.
fn is_whole(template: &Graph, claims: &ClaimMap, id: NodeId) -> bool {
    let node = template.node(id);
    let brings = |op: &Op| op.is(Traits::COLLECTIVE) || matches!(op, Op::OwnRows(_) | Op::First(_));
    let gathers = |v: &Value| matches!(template.node(v.node).op(), Some(Op::AllGather(_)));
    let Some(op) = node.op().filter(|op| !brings(op)) else { return false };
    let operands = template.operands(id);
    // What reshapes gathered rows is written once in any case.
    let reshapes = matches!(op, Op::Reshape(_)) && operands.iter().any(gathers);
    let results = (0u32..).zip(node.results()).map(|(output, _)| Value { node: id, output });
    !reshapes && operands.into_iter().chain(results).all(|v| claims.get(v) == Claim::Invariant)
}

/// Which operators depend on parameters, constants and whole inputs alone: they are computed again
/// for the updates rather than taken from a replica.
fn free(template: &Graph, claims: &ClaimMap) -> Vec<bool> {
    let mut free = vec![false; template.id_bound()];
    for id in claims.order() {
        free[id.index()] = match template.node(*id).kind() {
            NodeKind::Param(_) => true,
            NodeKind::Input => claims.get(Value { node: *id, output: 0 }) == Claim::Invariant,
            NodeKind::Op(_) => {
                is_whole(template, claims, *id)
                    && template.operands(*id).iter().all(|v| free[v.node.index()])
            }
        };
    }
    free
}
