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

/// The graph that computes what `template` does on the given devices, or every reason why there is
/// none.
///
/// The template is repaired first, as far as the options allow; a proof of the result is one
/// against that repaired template, which [`repair`] gives.
///
/// Elsewhere: SPMD partitioner (XLA); data parallelism (PyTorch); `multi_gpu_model` (Keras).
pub fn replicate(template: &Graph, options: &Replicate) -> Result<Graph, PassError> {
    let split = split(template, options)?;
    let (repaired, _) = repair(template, options.repair)?;
    write(template, &repaired, &split, options)
}

/// As [`replicate`], where `repaired` is what [`repair_with`](super::repair_with) gave for
/// `template`: refusals speak of the template.
pub fn replicate_repaired(
    template: &Graph,
    repaired: &Graph,
    options: &Replicate,
) -> Result<Graph, PassError> {
    write(template, repaired, &split(template, options)?, options)
}

fn split(template: &Graph, options: &Replicate) -> Result<Split, PassError> {
    match template.split() {
        Some(split) => Err(PassError::AlreadyReplicated(split.replicas())),
        None => Ok(Split::new(options.devices.clone(), options.rule.clone())?),
    }
}

fn write(
    template: &Graph,
    repaired: &Graph,
    split: &Split,
    options: &Replicate,
) -> Result<Graph, PassError> {
    let claims = claims(repaired).map_err(|none| match none {
        NoClaims::Graph(error) => PassError::Graph(error),
        NoClaims::Refused(refused) => {
            let repairs = repair(repaired, Repair::Comm).map(|(_, repairs)| repairs);
            // They are only a hint: the refusal stands without them.
            let repairs = repairs.unwrap_or_default();
            let told = Told::new(template, repaired, split, &repairs);
            PassError::Refused(refused.iter().map(|r| told.refusal(r)).collect())
        }
    })?;
    rewrite::Rewrite::new(repaired, &claims, split, options).run()
}
