//! The `replicate` pass: one clone of the template for each device, on its own rows of the batch.
//!
//! Inputs that carry the batch are sliced on the host by the split's offsets, other inputs go whole
//! to each device. The clones compute their rows. Outputs are merged: rows are concatenated,
//! partial values combined, values that no sample changes taken from the first replica that has
//! rows. Inputs and outputs keep their names, order and types.
//!
//! Collectives of the repaired template are written once for all replicas: `all_reduce` and
//! `all_gather` join the replicas' values on the device that merges outputs, and each replica
//! copies the result. `own_rows` becomes the slice that each replica takes.
//!
//! A single replica has all rows. Of a template that may not be split it is the template itself on
//! its device, and its nodes belong to no replica: they run without rows, too.

mod devices;
#[cfg(test)]
mod mutant_tests;
mod options;
mod rewrite;
#[cfg(test)]
mod tests;

use crate::analysis::{ClaimMap, NoClaims, claims_over};
use crate::ir::Graph;
use crate::types::Split;
use crate::types::invariant::invariant;

use super::refusal::Diagnostics;
use super::repair::{Repair, repair};
use super::{PassError, PassInfo};
pub use devices::Gpus;
pub use options::{Merge, Replicate, WeightPlacement};

pub(super) const INFO: PassInfo = PassInfo {
    name: "replicate",
    about: "clones the graph onto each device, slices the batch, merges the outputs",
};

/// The split of the batch that the options ask for.
fn split(template: &Graph, options: &Replicate) -> Result<Split, PassError> {
    match template.split() {
        Some(split) => Err(PassError::AlreadyReplicated(split.replicas())),
        None => Ok(Split::new(options.devices.clone(), options.rule.clone())?),
    }
}

/// Writes the replicas of `repaired`, with its claims if they are known; refusals name operators of
/// `template`, which the user knows.
pub(super) fn write(
    template: &Graph,
    repaired: &Graph,
    known: Option<&ClaimMap>,
    options: &Replicate,
) -> Result<Graph, PassError> {
    let split = &split(template, options)?;
    let found = match known {
        Some(_) => None,
        None => Some(claims_over(repaired, split.replicas()).map_err(|none| match none {
            NoClaims::Graph(error) => PassError::Graph(error),
            NoClaims::Refused(refused) => {
                let repairs = repair(repaired, Repair::Comm.into()).map(|outcome| outcome.done);
                // Repairs are computed for the hints only; the refusal stands without them.
                let repairs = repairs.unwrap_or_default();
                let diagnostics = Diagnostics::new(template, repaired, split, &repairs);
                PassError::Refused(refused.iter().map(|r| diagnostics.refusal(r)).collect())
            }
        })?),
    };
    let claims = invariant(known.or(found.as_ref()), "that a graph that may be split has claims");
    let rewrite = rewrite::Rewrite::new(repaired, claims, split, options);
    let is_split = repaired.inputs().any(|input| claims.get(input).shard().is_some());
    if is_split { rewrite.run() } else { Ok(rewrite.run_whole()) }
}
