//! The `replicate` pass: one clone of the template for each device, on its own rows of the batch.
//!
//! Every input that carries the batch is sliced on the host by the split's offsets, every other
//! input goes whole to each device; the clones compute their rows; each output is merged: rows are
//! concatenated, partial values are combined, a value that no sample changes is taken from the
//! first replica that has rows. Inputs, outputs, their names, order and types are the template's.
//!
//! What the repairs bring to replicas is written for all of them at once: `own_rows` becomes the
//! slice that each takes, `all_reduce` and `all_gather` join the replicas' values where outputs are
//! merged, and each replica copies the result.

mod devices;
mod options;
mod rewrite;
#[cfg(test)]
mod tests;

use crate::analysis::{NoClaims, claims};
use crate::ir::Graph;
use crate::types::Split;

use super::refusal::Told;
use super::repair::{Repair, repair};
use super::{PassError, PassInfo};
pub use devices::Gpus;
pub use options::{Merge, Replicate, WeightPlacement};

pub(super) const INFO: PassInfo = PassInfo {
    name: "replicate",
    about: "clones the graph onto each device, slices the batch, merges the outputs",
};

fn split(template: &Graph, options: &Replicate) -> Result<Split, PassError> {
    match template.split() {
        Some(split) => Err(PassError::AlreadyReplicated(split.replicas())),
        None => Ok(Split::new(options.devices.clone(), options.rule.clone())?),
    }
}

/// Writes the replicas of `repaired`, the repaired `template`; refusals speak of the template.
pub(super) fn write(
    template: &Graph,
    repaired: &Graph,
    options: &Replicate,
) -> Result<Graph, PassError> {
    let split = &split(template, options)?;
    let claims = claims(repaired).map_err(|none| match none {
        NoClaims::Graph(error) => PassError::Graph(error),
        NoClaims::Refused(refused) => {
            let repairs = repair(repaired, Repair::Comm.into()).map(|(_, repairs)| repairs);
            // They are only a hint: the refusal stands without them.
            let repairs = repairs.unwrap_or_default();
            let told = Told::new(template, repaired, split, &repairs);
            PassError::Refused(refused.iter().map(|r| told.refusal(r)).collect())
        }
    })?;
    rewrite::Rewrite::new(repaired, &claims, split, options).run()
}
