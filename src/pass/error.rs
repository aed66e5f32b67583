//! Errors of passes: invalid devices, refused splits, damaged graphs.

use super::refusal::{SplitRefused, render};
use crate::ir::GraphError;
use crate::types::hint::with_hints;
use crate::types::invariant::invariant;
use crate::types::{Diagnostic, Hint, Setting, SplitError};

/// The largest number of devices: the pass writes a clone of the graph for each.
pub(super) const MAX_DEVICES: i64 = 4096;

/// The error of a pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The requested devices are invalid or missing.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The rows cannot be divided as requested.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The graph may not be split along the batch.
    #[error("{}", render(.0, &|hint| hint.to_string()))]
    Refused(Vec<SplitRefused>),
    /// The graph is already replicated.
    #[error("the graph is already replicated over {0} devices")]
    AlreadyReplicated(usize),
    /// Replicas normalise by statistics of their own rows, so no run on one device is comparable.
    #[error(
        "`{0}` normalises each replica by the statistics of its own rows, as requested: the result \
         differs from that of one device, so there is nothing to compare"
    )]
    LocalStatistics(String),
    /// Ghost batch normalisation needs the rows on the first axis.
    #[error(
        "`{0}` does not have the rows of the batch on axis 0, which ghost batch normalisation \
         divides into groups"
    )]
    NoGroups(String),
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl Diagnostic for PassError {
    fn code(&self) -> &'static str {
        match self {
            Self::Device(_) => "E0300",
            Self::Split(_) => "E0301",
            Self::Refused(refused) => {
                invariant(refused.first(), "that a refusal names an operator").code.name()
            }
            Self::AlreadyReplicated(_) => "E0303",
            Self::LocalStatistics(_) | Self::NoGroups(_) => "E0304",
            Self::Graph(_) => "E0200",
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Device(error) => error.hints(),
            Self::AlreadyReplicated(_) => vec![
                Hint::turn_on(Setting::InputGraph, "replicate the graph as it was before the pass"),
                Hint::advice("to run it as it is, ask for no devices"),
            ],
            Self::LocalStatistics(_) => vec![
                Hint::set(Setting::BatchNorm, ["sync"], "use the statistics of the whole batch"),
                Hint::set(
                    Setting::BatchNorm,
                    ["ghost:G"],
                    "use the statistics of G groups of rows",
                ),
            ],
            Self::NoGroups(_) => {
                let advice = "use the statistics of the whole batch";
                vec![Hint::set(Setting::BatchNorm, ["sync"], advice)]
            }
            // The text of a refusal holds its hints already, each beside its operator.
            Self::Refused(_) | Self::Split(_) | Self::Graph(_) => Vec::new(),
        }
    }

    fn worded(&self, word: &dyn Fn(&Hint) -> String) -> String {
        if let Self::Refused(refused) = self {
            return render(refused, word);
        }
        with_hints(self.to_string(), &self.hints(), word)
    }
}

/// Invalid devices in a request. The texts name the request, the devices that exist, and a valid
/// form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The count is less than 1.
    #[error("{0} devices were requested; the minimum is 1")]
    NoDevice(i64),
    /// An id occurs twice.
    #[error("the devices `{asked}` name GPU {id} twice; name each GPU once")]
    Duplicate {
        /// The requested ids.
        asked: String,
        /// The repeated one.
        id: i64,
    },
    /// An id is negative.
    #[error("the devices `{asked}` name GPU {id}; ids begin at 0")]
    Negative {
        /// The requested ids.
        asked: String,
        /// The negative one.
        id: i64,
    },
    /// A list of fewer than two ids.
    #[error("the devices `{asked}` are a list of {count}; a list has at least 2 ids")]
    ShortList {
        /// The requested ids.
        asked: String,
        /// Their number.
        count: usize,
    },
    /// The machine has GPUs, but not those.
    #[error("the devices `{asked}` need {}; this machine has {}", gpus(missing), count(*found))]
    Absent {
        /// The requested devices.
        asked: String,
        /// The ids that do not exist.
        missing: Vec<i64>,
        /// The number of GPUs.
        found: usize,
    },
    /// All GPUs of a machine that has none.
    #[error("all GPUs were requested, and this machine has none")]
    AllOfNone,
    /// More devices than the pass supports.
    #[error("{0} devices were requested; the maximum is {max}", max = MAX_DEVICES)]
    TooMany(i64),
}

impl DeviceError {
    fn hints(&self) -> Vec<Hint> {
        let devices = |value: String, advice| vec![Hint::set(Setting::Devices, [value], advice)];
        match self {
            Self::NoDevice(_) => devices("0,1".to_owned(), "name ids, or request at least 1"),
            Self::ShortList { count, .. } => {
                devices(count.to_string(), "write a bare number for a count")
            }
            Self::Absent { found, .. } => devices(found.to_string(), "use the GPUs that exist"),
            Self::AllOfNone => devices("4".to_owned(), "run 4 virtual devices on the CPU"),
            Self::Duplicate { .. } | Self::Negative { .. } | Self::TooMany(_) => Vec::new(),
        }
    }
}

/// The ids as a list of devices: `gpu:0, gpu:3`.
fn gpus(ids: &[i64]) -> String {
    ids.iter().map(|id| format!("gpu:{id}")).collect::<Vec<_>>().join(", ")
}

/// The number of GPUs with the range of their names.
fn count(found: usize) -> String {
    match found {
        1 => "1 GPU (gpu:0)".to_owned(),
        n => format!("{n} GPUs (gpu:0 to gpu:{})", n - 1),
    }
}
