//! Translation validation: the proof that a replicated graph computes what its template does.
//!
//! It shares the operators' split rules with the passes that plan and write replicas, and nothing
//! else. Every value of the replicated graph is given a meaning in terms of the template, from the
//! inputs on: the whole of one of the template's values, or a replica's part of one. The part is
//! the replica's rows where the split rules say that the value carries the batch, and all of the
//! value where they say that it does not. A node has a meaning only by one of these rules, and the
//! graph is right if every output and every update means the template's:
//!
//! - P1: the inputs and the outputs are the template's, by name, order and type.
//! - P2: the shards of the split are in order and cover the rows `0..N` once.
//! - P3: a parameter is one of the template's, by name, type and content.
//! - P4: a slice that belongs to a replica takes that replica's rows of a whole value, on the axis
//!   of its batch; of a value that every replica holds whole only where the template has
//!   `own_rows`. There a replica may also draw these rows of random numbers instead of all.
//! - P5: every other operator of a replica is one of the template's, with `N` replaced by the
//!   replica's rows where its results have rows, on that replica's parts of the same operands in
//!   the same order. An operator outside the replicas is one of the template's, unchanged; its
//!   results depend on no row, and its operands are whole values that the template brings whole to
//!   every replica.
//! - P6: a copy changes nothing but the device, and does not bring the whole of a value to a
//!   replica that works on rows or a part of it, unless the template has an `all_gather` or an
//!   `all_reduce` of it.
//! - P7: a merge joins the parts of all replicas, each once and in order: rows by `concat` or
//!   `all_gather` on the axis of the batch, where they are one block; values that depend on no row
//!   by `first`.
//! - P8: an output is the whole of the template's value.
//! - P9: an `all_reduce` combines the parts of all replicas, each once and in order, as the split
//!   rules say that the parts of the value combine, weighted by the replicas' rows. The whole of it
//!   reaches a replica only where the template has an `all_reduce`: nothing is combined twice, and
//!   nothing that needs the whole works on a part.
//! - P10: an `exclusive_scan` takes the parts of all replicas, each once and in order, of what the
//!   template scans by the same rule and in the same direction. Its result number `i`, the scan of
//!   the rows before those of replica `i`, reaches replica `i` alone.
//! - P11: a `merge_top_k` takes the candidates of all replicas, each once and in order, with the
//!   entries that the replicas have, and as many of them as the template takes of all rows.
//! - P12: the updated parameters are the template's, in its order, and each value of an update is
//!   the whole of the template's.
//!
//! Induction over the nodes gives the claim: if the split rules are right, the outputs and updates
//! are equal, and by induction over the runs those of every run after others. Devices and transfers
//! between them are rules of [`verify`](crate::ir::verify), which the graph has passed.
//!
//! The mapping of nodes to those of the template is found here, and takes nothing from the pass: a
//! node of a replica is compared with the template's operators behind the last one that this
//! replica has a clone of, and looked up by the meanings of its operands where it is none of them.
//! Either way operator, attributes, operands, types, device and rows are compared before the node
//! has a meaning. Attributes are compared by the address of the operator where the graphs share it.

mod clones;
mod merge;
mod relate;
mod rule;
mod search;
mod template;

pub use rule::{Proof, ProofError, ProofRule, Violation};

use super::claims::claims_over;
use crate::ir::{Graph, Verified};
use relate::Relation;
use template::Template;

/// Proves that `replicated` computes what `template` does, for every batch.
///
/// For a repaired model the template is the repaired graph. That it computes what the model does
/// follows from the meaning of the operators that repairs insert, which tests check by running
/// both.
///
/// A graph without replicas must equal the template.
///
/// Elsewhere: translation validation (MLIR).
pub fn prove(template: &Graph, replicated: &Verified<'_>) -> Result<Proof, ProofError> {
    let Some(split) = replicated.split() else {
        return if template == replicated.graph() {
            Ok(Proof::default())
        } else {
            let message = "the graph has no replicas and differs from the template".to_owned();
            Err(ProofError::Violations(vec![Violation {
                rule: ProofRule::P5,
                message,
                node: None,
            }]))
        };
    };
    let claims = claims_over(template, split.replicas()).map_err(ProofError::Template)?;
    let template = Template::new(template, &claims, split);
    let mut relation = Relation::new(&template, replicated, split);
    relation.boundary();
    relation.nodes(replicated.order());
    relation.outputs();
    relation.updates();
    relation.finish()
}
