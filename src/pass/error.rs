use super::refusal::{SplitRefused, list};
use crate::ir::GraphError;
use crate::types::SplitError;

/// More devices than this are refused.
pub(super) const MAX_DEVICES: i64 = 4096;

/// Why a pass did not give a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PassError {
    /// The devices asked for cannot be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The rows cannot be divided as asked.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// The graph may not be split along the batch.
    #[error("{}", list(.0))]
    Refused(Vec<SplitRefused>),
    /// The graph is replicated already.
    #[error(
        "the graph is already replicated over {0} devices; give the graph before the pass (`--emit \
         graph:input`), \
         or leave `--gpus` out to run it as it is"
    )]
    AlreadyReplicated(usize),
    /// Replicas take the statistics of their own rows, so that there is nothing to compare them
    /// with.
    #[error(
        "`{0}` takes the statistics of each replica's own rows, as was asked for: that gives other \
         results than one \
         device, so there is nothing to compare; `--batch-norm sync` and `--batch-norm ghost:G` \
         can be checked"
    )]
    LocalStatistics(String),
    /// Rows that are not on the first axis are in no groups.
    #[error(
        "`{0}` has no rows on axis 0, which ghost batch normalisation divides into groups; \
         `--batch-norm sync` takes \
         the statistics of the whole batch"
    )]
    NoGroups(String),
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

/// Why the devices asked for cannot be had: what was asked, what exists, what to try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A count that is no number of devices.
    #[error("`--gpus {0}` asks for {0} GPUs; ask for at least 1, or name ids as in `--gpus 0,1`")]
    NoDevice(i64),
    /// An id occurs twice.
    #[error("`--gpus {asked}` names GPU {id} twice; name each GPU once")]
    Duplicate {
        /// The ids asked for.
        asked: String,
        /// The repeated one.
        id: i64,
    },
    /// An id is negative.
    #[error("`--gpus {asked}` names GPU {id}; ids begin at 0")]
    Negative {
        /// The ids asked for.
        asked: String,
        /// The negative one.
        id: i64,
    },
    /// A list of fewer than two ids.
    #[error(
        "`--gpus {asked}` lists {count} of the at least 2 ids that a list has; write a bare number \
         for a count"
    )]
    ShortList {
        /// The ids asked for.
        asked: String,
        /// How many there are.
        count: usize,
    },
    /// The machine has GPUs, but not those.
    #[error("`--gpus {asked}` needs {}; this machine has {}; try `--gpus {found}` or \
        fewer", gpus(missing), count(*found))]
    Absent {
        /// What was asked for.
        asked: String,
        /// The ids that do not exist.
        missing: Vec<i64>,
        /// How many GPUs exist.
        found: usize,
    },
    /// All GPUs of a machine that has none.
    #[error(
        "`--gpus all` needs a GPU and this machine has none; `--gpus 4` runs 4 virtual devices on \
         the CPU"
    )]
    AllOfNone,
    /// More replicas than can be told apart.
    #[error("`--gpus {0}` asks for more than {max} devices", max = MAX_DEVICES)]
    TooMany(i64),
}

fn gpus(ids: &[i64]) -> String {
    ids.iter().map(|id| format!("gpu:{id}")).collect::<Vec<_>>().join(", ")
}

fn count(found: usize) -> String {
    match found {
        1 => "1 GPU (gpu:0)".to_owned(),
        n => format!("{n} GPUs (gpu:0 to gpu:{})", n - 1),
    }
}
