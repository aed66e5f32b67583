//! Rule P5 of the proof: clones of the template's operators.
//!
//! The operator that a node is a clone of is found here, from the meanings of the node's operands:
//! the pass says nothing of it. Whatever is found is compared: operator, attributes, operands in
//! order, types at the replica's rows, device.

use std::sync::Arc;

use super::relate::{Broken, Meaning, Relation, Results, is_cut, is_moved};
use super::rule::ProofRule;
use super::template::{Operands, form};
use crate::ir::{Node, NodeId, Value};
use crate::op::{Op, Traits};
use crate::types::invariant::invariant;
use crate::types::{Claim, TensorType};

/// The number of candidates that are compared one after the other before the rest are looked up by
/// their printed form. Clones come in the order of the template, so the next candidate is nearly
/// always the right one, and printing all candidates would cost more than a few comparisons.
const LINEAR_TRIES: usize = 8;

/// The number of the template's operators behind the last one found that a clone is compared with
/// before it is looked up: the pass leaves out what is written once for all replicas.
const AHEAD: usize = 2;

impl Relation<'_, '_> {
    /// The template's operator whose clone this is (rule P5).
    pub(super) fn clone_of(
        &mut self,
        id: NodeId,
        op: &Arc<Op>,
        operands: &[Meaning],
        replica: u32,
    ) -> Result<Results, Broken> {
        let broken = |reason: String| Err((ProofRule::P5, reason));
        let mut values = Operands::new();
        for (i, operand) in operands.iter().enumerate() {
            match self.own_part(*operand, replica) {
                Some(value) => values.push(value),
                None => return broken(format!("operand {i} is not a part of replica {replica}")),
            }
        }
        let found = self.candidate(op, &values, replica);
        let Some(found) = found else {
            return broken(format!(
                "the template has no such `{}` on these operands{}",
                op.name(),
                origin(self.graph.node(id))
            ));
        };
        self.fits(id, found, replica)?;
        self.passed(found, replica);
        self.proof.clones += 1;
        Ok(Results::Parts(found, replica))
    }

    /// The template's value, in canonical form, that a replica may use in place of an operand; none
    /// of another replica's part.
    fn own_part(&self, operand: Meaning, replica: u32) -> Option<Value> {
        let own = operand.replica.is_none_or(|own| own == replica);
        let seen = self.seen_by_replica(operand).filter(|_| own);
        seen.map(|value| self.template.canonical(value))
    }

    /// Fails unless a clone of `found` runs on the replica's device, and its results have the types
    /// that the template's have at the replica's rows.
    fn fits(&mut self, id: NodeId, found: NodeId, replica: u32) -> Result<(), Broken> {
        let broken = |reason: String| Err((ProofRule::P5, reason));
        let (node, template) = (self.graph.node(id), self.template);
        let device = node.place().device;
        // What takes rows may run where the whole is, so that only the rows travel.
        let moves = node.op().is_some_and(is_cut);
        if self.split.devices().get(replica as usize) != Some(&device) && !moves {
            return broken(format!("runs on {device}, which is not that of replica {replica}"));
        }
        // Alone it would take the replica's part for the whole.
        let is_whole = |value: &Value| template.claim(*value) == Claim::Invariant;
        let joins = node.op().is_some_and(|op| op.is(Traits::COLLECTIVE));
        if joins && !template.graph.operands(found).iter().all(is_whole) {
            return broken(format!("joins the parts of all replicas in replica {replica} alone"));
        }
        let Some(at) = template.slot(found, replica) else {
            return broken(format!("belongs to replica {replica}, which the split has not"));
        };
        let same = if let Some(like) = self.found[at] {
            // Types of clones on equally many rows are mostly one object.
            types(node).eq(types(self.graph.node(like)))
        } else {
            let (own, whole) = (types(node), types(template.graph.node(found)));
            let is_type = |(own, whole)| template.is_type(found, whole, own, replica);
            own.len() == whole.len() && own.zip(whole).all(is_type)
        };
        if !same {
            return broken("has results of other types than the template's operator".to_owned());
        }
        self.found[at] = Some(id);
        Ok(())
    }

    /// Looks for the next clone of a replica behind an operator that was found.
    fn passed(&mut self, found: NodeId, replica: u32) {
        if let Some(next) = self.next.get_mut(replica as usize) {
            *next = self.template.position(found) + 1;
        }
    }

    /// The meaning of a clone that comes in the order of the template (rule P5), by a comparison
    /// with the template's next operators: they have the same operator and operands, or the node is
    /// looked up.
    pub(super) fn next_clone(
        &mut self,
        id: NodeId,
        op: &Arc<Op>,
        operands: &[Value],
    ) -> Option<Results> {
        let replica = self.graph.node(id).place().replica?;
        if is_moved(op) || is_cut(op) {
            return None;
        }
        let template = self.template;
        let rest = template.operators().get(*self.next.get(replica as usize)?..)?;
        let means = |value: Value, whole: Value| {
            let meaning = self.meaning(value);
            meaning.and_then(|m| self.own_part(m, replica)) == Some(whole)
        };
        let is_clone = |id: &&NodeId| {
            let whole = template.operands(**id);
            whole.len() == operands.len()
                && operands.iter().zip(whole).all(|(value, whole)| means(*value, *whole))
                && template.is_clone(**id, op, replica)
        };
        let found = *rest.iter().take(AHEAD).find(is_clone)?;
        let original = template.original(found)?;
        self.fits(id, found, replica).ok()?;
        if let Some(place) = template.place(original) {
            let search = self.searches.entry((replica, place.group)).or_default();
            search.next = search.next.max(place.at as usize + 1);
        }
        self.passed(found, replica);
        self.proof.clones += 1;
        Some(Results::Parts(original, replica))
    }

    /// The template's operator on these operands that `replica` runs as `op`, found in amortised
    /// constant time for clones in the order of the template.
    fn candidate(&mut self, op: &Arc<Op>, operands: &[Value], replica: u32) -> Option<NodeId> {
        let template = self.template;
        match template.with_operands(operands) {
            [] => None,
            [only] => Some(*only).filter(|only| template.is_clone(*only, op, replica)),
            several @ [first, ..] => {
                let place = template.place(*first);
                let group = invariant(place, "that an operator of a list has a place").group;
                let search = self.searches.entry((replica, group)).or_default();
                // Clones come in the template's order but for those that replicas leave out, so a
                // few steps ahead nearly always suffice; else the form decides.
                // Past the last operator there is none ahead.
                let rest = several.get(search.next..).unwrap_or_default();
                let ahead = rest.iter().take(LINEAR_TRIES);
                if let Some((i, found)) =
                    ahead.enumerate().find(|(_, id)| template.is_clone(**id, op, replica))
                {
                    search.next += i + 1;
                    return Some(*found);
                }
                if search.forms.is_empty() {
                    search.forms = template.forms(operands, replica);
                }
                // Equal operators are interchangeable. The next one after the last hit keeps the
                // search moving forward, so that each is used once before any is used twice.
                let alike = search.forms.get(&form(op))?;
                let is_clone = |at: &&usize| {
                    several.get(**at).is_some_and(|id| template.is_clone(*id, op, replica))
                };
                let behind = alike.iter().filter(|at| **at >= search.next).find(is_clone);
                let at = *behind.or_else(|| alike.iter().find(is_clone))?;
                search.next = search.next.max(at + 1);
                several.get(at).copied()
            }
        }
    }

    /// The template's operator on whole values, for a node of no replica (rule P5).
    pub(super) fn once(
        &mut self,
        id: NodeId,
        op: &Arc<Op>,
        operands: &[Meaning],
    ) -> Result<Results, Broken> {
        // No replica has this number, so that attributes are compared without replacing N.
        const ONE_DEVICE: u32 = u32::MAX;
        let whole = |of: &Meaning| {
            let value = self.seen_by_replica(*of).filter(|_| of.replica.is_none())?;
            Some(self.template.canonical(value))
        };
        let on: Option<Operands> = operands.iter().map(whole).collect();
        let found = on.and_then(|on| self.candidate(op, &on, ONE_DEVICE));
        let invariant = |node: &NodeId| {
            let results = self.template.graph.node(*node).results().len();
            (0u32..).take(results).all(|output| {
                self.template.claim(Value { node: *node, output }) == Claim::Invariant
            })
        };
        let (own, whole) = (self.graph.node(id), self.template.graph);
        let is_alike = |node: &NodeId| types(own).eq(types(whole.node(*node)));
        found.filter(invariant).filter(is_alike).map(Results::Whole).ok_or_else(|| {
            let name = op.name();
            let reason = format!(
                "`{name}` belongs to no replica, is not a merge, and does not match the template \
                 on whole values"
            );
            (ProofRule::P5, reason)
        })
    }
}

/// The types of a node's results.
fn types(node: &Node) -> impl ExactSizeIterator<Item = &TensorType> {
    node.results().iter().map(|result| &result.ty)
}

/// The origin of a node as part of a message; empty if unknown.
fn origin(node: &Node) -> String {
    node.origin().0.as_ref().map_or_else(String::new, |name| format!(" (it came from `{name}`)"))
}
