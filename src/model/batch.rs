//! Which of several sizes of a file is the batch: that along which alone the model may be split.

use std::path::Path;

use super::options::{LoadOptions, import_options, simplified};
use crate::analysis;
use crate::format::onnx::{self, BatchCandidate, ImportError, UnboundDim};
use crate::pass::{Repair, repair};

/// The candidates that are tried, each by a reading of the file; of more nothing is said.
const MOST: usize = 8;

/// What stands for the other sizes while a candidate is tried: steps or pixels as models have them.
const STAND_INS: [i64; 3] = [128, 224, 7];

/// The error for sizes of which the file and the options leave open which is the batch: one size if
/// the model may be split along it alone, or if inputs lead with it alone where it may be split
/// along none; else all that may be.
pub(super) fn choose(
    path: &Path,
    options: &LoadOptions,
    candidates: Vec<BatchCandidate>,
) -> ImportError {
    let named = |c: &BatchCandidate| c.open().next().is_some();
    if candidates.len() > MOST || !candidates.iter().all(named) {
        return ImportError::Batches(candidates);
    }
    let splits = |c: &&BatchCandidate| may_be_split(path, options, c, &candidates);
    let good: Vec<&BatchCandidate> = candidates.iter().filter(splits).collect();
    let leads = |c: &&BatchCandidate| c.sizes.iter().any(|s| s.axis == 0);
    let leading: Vec<&BatchCandidate> = candidates.iter().filter(leads).collect();
    let (batch, reason) = match (&*good, &*leading) {
        ([one], _) => (*one, "along no other open size may the model be split"),
        ([], [one]) => (*one, "no other open size stands first in an input"),
        ([], _) => return ImportError::Batches(candidates),
        _ => return ImportError::Batches(good.into_iter().cloned().collect()),
    };
    let others = others(batch, &candidates).cloned().collect();
    ImportError::OtherSizes { batch: batch.clone(), reason, others }
}

/// The open sizes of the other candidates.
fn others<'c>(
    batch: &'c BatchCandidate,
    candidates: &'c [BatchCandidate],
) -> impl Iterator<Item = &'c UnboundDim> {
    candidates.iter().filter(move |c| *c != batch).flat_map(BatchCandidate::open)
}

/// True if the model may be split along `batch`, where numbers stand for the other sizes.
fn may_be_split(
    path: &Path,
    options: &LoadOptions,
    batch: &BatchCandidate,
    candidates: &[BatchCandidate],
) -> bool {
    let mut tried = options.clone();
    tried.batch_axis = batch.axes().map(|(input, axis)| (input.to_owned(), axis)).collect();
    for stand_in in STAND_INS {
        tried.dims.extend(others(batch, candidates).map(|s| (s.name.clone(), stand_in)));
        let model = onnx::import(path, &import_options(&tried)).ok();
        let Some(model) = model.and_then(|m| simplified(m, &tried).ok()) else { continue };
        let repaired = repair(&model.graph, Repair::Local);
        return repaired.is_ok_and(|repaired| analysis::claims(repaired.graph()).is_ok());
    }
    false
}
