//! Choice of the batch among several open sizes: the only one along which the model may be split.

use std::collections::BTreeMap;

use super::options::{Reading, simplified};
use crate::analysis;
use crate::format::onnx::{BatchCandidate, ImportError, Reader, UnboundDim};
use crate::ir::{Graph, Model};
use crate::pass::{Repair, repair};
use crate::types::{Dim, Note};

/// The candidates that are tried, each by a reading of the file; of more nothing is said.
const MOST: usize = 8;

/// What stands for the other sizes while a candidate is tried: steps or pixels as models have them.
const STAND_INS: [i64; 3] = [128, 224, 7];

/// What exporters and people call the batch.
const NAMES: [&str; 6] = ["batch", "batch_size", "bs", "N", "n", "B"];

/// The size that is the batch, and those that are not.
#[derive(Clone)]
pub(super) struct Found {
    batch: BatchCandidate,
    /// Why it is the only one, as a clause.
    reason: &'static str,
    /// The other open sizes.
    pub(super) others: Vec<UnboundDim>,
}

impl Found {
    /// The inputs that carry the batch, each with its axis.
    pub(super) fn axes(&self) -> BTreeMap<String, usize> {
        self.batch.axes().map(|(input, axis)| (input.to_owned(), axis)).collect()
    }

    /// The remark that names the batch.
    pub(super) fn note(&self) -> Note {
        format!("the batch is {}: {}", self.batch.text(), self.reason).into()
    }

    /// The error where the other sizes must be bound.
    pub(super) fn refusal(self) -> ImportError {
        let Self { batch, reason, others } = self;
        ImportError::OtherSizes { batch, reason, others }
    }
}

/// True if a size is named as people name the batch.
pub(super) fn has_its_name(size: &UnboundDim) -> bool {
    NAMES.contains(&size.name.as_str())
}

/// The one size that leads an input and has a name that the batch has.
fn named(candidates: &[BatchCandidate]) -> Option<&BatchCandidate> {
    let is_batch = |s: &UnboundDim| s.axis == 0 && has_its_name(s);
    let mut found = candidates.iter().filter(|c| c.sizes.iter().any(is_batch));
    found.next().filter(|_| found.next().is_none())
}

/// The one of several open sizes that is the batch: that with such a name, that along which alone
/// the model may be split, or that with which alone inputs lead where it may be split along none.
/// Else the error that lists all that may be.
pub(super) fn choose(
    reader: &Reader,
    reading: &Reading,
    candidates: Vec<BatchCandidate>,
) -> Result<Found, ImportError> {
    let is_open = |c: &BatchCandidate| c.open().next().is_some();
    let all_open = candidates.iter().all(is_open);
    let found = |batch: &BatchCandidate, reason| {
        let others = others(batch, &candidates).cloned().collect();
        Ok(Found { batch: batch.clone(), reason, others })
    };
    if let Some(batch) = named(&candidates).filter(|_| all_open) {
        return found(batch, "no other leading open size has such a name");
    }
    if !all_open {
        return Err(ImportError::Batches(candidates));
    }
    let splits = |c: &BatchCandidate| splits_along(reader, reading, c, &candidates);
    let tried = if candidates.len() <= MOST { &candidates[..] } else { &[] };
    let good: Vec<&BatchCandidate> = tried.iter().filter(|c| splits(c)).collect();
    // Where two of them are inputs of one operator, neither is the batch without the other.
    if let Some(batch) = united(&candidates).filter(|batch| good.is_empty() && splits(batch)) {
        return found(&batch, "they lead inputs, and the model can be split along them together");
    }
    if let Some(batch) = equated(reader, reading, tried).filter(|_| good.is_empty()) {
        return found(&batch, "the graph equates them once the other open size is a number");
    }
    let leading: Vec<&BatchCandidate> = candidates.iter().filter(|c| leads(c)).collect();
    match (&*good, &*leading) {
        ([one], _) => found(one, "the model cannot be split along any other open size"),
        ([], [one]) => found(one, "no other open size is the leading size of an input"),
        ([], _) => Err(ImportError::Batches(candidates)),
        _ => Err(ImportError::Batches(good.into_iter().cloned().collect())),
    }
}

/// True if a size is the first of an input, where batches are.
fn leads(candidate: &BatchCandidate) -> bool {
    candidate.sizes.iter().any(|s| s.axis == 0)
}

/// The leading sizes whose names say nothing, as one size: an exporter numbers each, though callers
/// give all of them the batch.
fn united(candidates: &[BatchCandidate]) -> Option<BatchCandidate> {
    // The names of symbols of PyTorch: `s` and a number.
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let numbered = |name: &str| name.strip_prefix('s').is_some_and(is_number);
    let says_nothing = |s: &UnboundDim| s.name.ends_with(']') || numbered(&s.name);
    let nameless = candidates.iter().filter(|c| leads(c) && c.sizes.iter().all(says_nothing));
    let nameless: Vec<&BatchCandidate> = nameless.collect();
    let sizes = nameless.iter().flat_map(|c| c.sizes.iter().cloned()).collect();
    (nameless.len() > 1).then_some(BatchCandidate { sizes })
}

/// All sizes but one, where the graph makes them one as soon as that is a number, as a length that
/// decides branches is: the only such sizes that lead an input and along which the model may be
/// split.
fn equated(
    reader: &Reader,
    reading: &Reading,
    candidates: &[BatchCandidate],
) -> Option<BatchCandidate> {
    if candidates.len() < 3 {
        return None;
    }
    let rest = |other: &BatchCandidate| {
        let sizes = candidates.iter().filter(|c| *c != other).flat_map(|c| c.sizes.iter().cloned());
        BatchCandidate { sizes: sizes.collect() }
    };
    let agrees = |other: &&BatchCandidate| {
        let mut tried = reading.clone();
        let agrees = STAND_INS.iter().any(|stand_in| {
            tried.options.dims.extend(other.open().map(|s| (s.name.clone(), *stand_in)));
            let model = tried.import(reader).ok();
            let model = model.and_then(|m| simplified(m, &tried.options).ok());
            model.is_some_and(|model| may_be_split(&model))
        });
        agrees && leads(&rest(other))
    };
    let mut found = candidates.iter().filter(agrees);
    let other = found.next().filter(|_| found.next().is_none())?;
    Some(rest(other))
}

/// The open sizes of the other candidates.
fn others<'c>(
    batch: &'c BatchCandidate,
    candidates: &'c [BatchCandidate],
) -> impl Iterator<Item = &'c UnboundDim> {
    let apart = move |c: &&BatchCandidate| c.sizes.iter().all(|s| !batch.sizes.contains(s));
    candidates.iter().filter(apart).flat_map(BatchCandidate::open)
}

/// True if the model may be split along `batch`, where numbers stand for the other sizes.
fn splits_along(
    reader: &Reader,
    reading: &Reading,
    batch: &BatchCandidate,
    candidates: &[BatchCandidate],
) -> bool {
    let mut tried = reading.clone();
    tried.options.batch_axis = batch.axes().map(|(input, axis)| (input.to_owned(), axis)).collect();
    for stand_in in STAND_INS {
        tried.options.dims.extend(others(batch, candidates).map(|s| (s.name.clone(), stand_in)));
        let model = tried.import(reader).ok();
        let model = model.and_then(|m| simplified(m, &tried.options).ok());
        let Some(model) = model else { continue };
        return may_be_split(&model);
    }
    false
}

/// True if a simplified model may be split along its batch without communication.
pub(super) fn may_be_split(model: &Model) -> bool {
    let repaired = repair(&model.graph, Repair::Local);
    repaired.is_ok_and(|repaired| analysis::claims(repaired.graph()).is_ok())
}

/// The inputs that carry the batch, each with the axis whose size it is; `None` if an input carries
/// it on two axes, or some entries for each row.
pub(super) fn axes_of(graph: &Graph) -> Option<BTreeMap<String, usize>> {
    let mut axes = BTreeMap::new();
    for input in graph.inputs() {
        let shape = &graph.ty(input).shape;
        for axis in (0..shape.rank()).filter(|axis| shape[*axis].depends_on_batch()) {
            let before = axes.insert(graph.info(input).name.to_string(), axis);
            if before.is_some() || shape[axis] != Dim::n() {
                return None;
            }
        }
    }
    Some(axes)
}

/// The foremost axis of an input that carries the batch.
pub(super) fn axis_of(graph: &Graph) -> Option<usize> {
    let axes = graph
        .inputs()
        .filter_map(|input| graph.ty(input).shape.iter().position(Dim::depends_on_batch));
    axes.min()
}
