//! What repairs may do, and what they did.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::types::{Code, Combine, Dim};

/// Which repairs are allowed.
///
/// Elsewhere: resharding (XLA); redistribute (PyTorch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// None: what may not be split is refused.
    None,
    /// Those that need nothing of other replicas.
    #[default]
    Local,
    /// Also those that exchange values between replicas.
    Comm,
}

/// Whose statistics batch normalisation in training uses.
///
/// Elsewhere: `SyncBatchNorm` (PyTorch); synchronized batch normalization (Keras).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStatistics {
    /// Those of the whole batch, combined over all replicas: what one device computes.
    Sync,
    /// Each replica those of its own rows: not what one device computes.
    Local,
    /// Those of so many groups of rows: group `g` of `G` has the rows `g*N/G..(g+1)*N/G` of the
    /// batch, rounded down. That is another function of the batch, and the same one for any number
    /// of devices.
    Ghost(NonZeroU32),
}

impl BatchStatistics {
    /// The groups that there may be, at most.
    pub const MAX_GROUPS: u32 = 1 << 16;
}

impl fmt::Display for BatchStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sync => f.write_str("sync"),
            Self::Local => f.write_str("local"),
            Self::Ghost(groups) => write!(f, "ghost:{groups}"),
        }
    }
}

/// A text that names no statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write local, sync, or ghost:G with G groups of rows, from 1 to {}",
    BatchStatistics::MAX_GROUPS
)]
pub struct ParseBatchStatisticsError;

impl FromStr for BatchStatistics {
    type Err = ParseBatchStatisticsError;

    fn from_str(text: &str) -> Result<Self, ParseBatchStatisticsError> {
        let groups =
            |text: &str| text.parse().ok().filter(|g: &NonZeroU32| g.get() <= Self::MAX_GROUPS);
        match text {
            "sync" => Ok(Self::Sync),
            "local" => Ok(Self::Local),
            _ => {
                let groups = text.strip_prefix("ghost:").and_then(groups);
                groups.map(Self::Ghost).ok_or(ParseBatchStatisticsError)
            }
        }
    }
}

/// What may be done to a graph that cannot be split as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// Which repairs are allowed.
    pub allowed: Repair,
    /// Whose statistics batch normalisation uses; without a choice those of the whole batch, where
    /// repairs that exchange values are allowed.
    pub batch_norm: Option<BatchStatistics>,
    /// The bytes of values for updates from which on replicas sum them, as one; 0 for each by
    /// itself.
    pub bucket: u64,
}

impl RepairOptions {
    /// The bytes of a bucket, where nothing else is said.
    pub const BUCKET: u64 = 25 << 20;

    /// These repairs, and the defaults for all else.
    pub const fn new(allowed: Repair) -> Self {
        Self { allowed, batch_norm: None, bucket: Self::BUCKET }
    }
}

impl Default for RepairOptions {
    fn default() -> Self {
        Self::new(Repair::default())
    }
}

/// What a repair does at an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Each replica takes its own rows of a value that it holds whole.
    OwnRows,
    /// The parts of all replicas are combined.
    AllReduce(Combine),
    /// Each replica gets what the rows before its own give.
    ExclusiveScan(Combine),
    /// Of the best rows of each replica the best are taken.
    MergeTopK,
    /// An output of rows in several blocks is merged block by block.
    Blocks,
    /// A value of equal elements is made with its rows in the blocks that it meets.
    Filled,
    /// The rows of all replicas are joined, and each replica does the operator's work for all of
    /// them.
    AllGather,
    /// The operator is written as several.
    Formula,
    /// Each replica uses the statistics of its own rows, which changes what is computed.
    LocalStatistics,
    /// So many groups of rows are normalised by their own statistics, which changes what is
    /// computed.
    GhostStatistics(u32),
    /// Sizes read from a value are written as formulas of the whole batch.
    Sizes,
}

/// One repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRepair {
    /// Why it was needed.
    pub code: Code,
    /// The label of the operator that needed it.
    pub label: String,
    /// That operator's name.
    pub op: &'static str,
    /// What was done.
    pub action: Action,
    /// The value that is exchanged, or of which rows are taken.
    pub value: String,
    /// The bytes that each replica sends, or receives of gathered rows; 0 where nothing is
    /// exchanged.
    pub bytes: Dim,
}

impl AppliedRepair {
    /// The least choice of repairs that allows it.
    pub(crate) fn needs(&self) -> Repair {
        match self.action {
            Action::OwnRows | Action::Sizes | Action::Blocks | Action::Filled => Repair::Local,
            Action::AllReduce(_)
            | Action::ExclusiveScan(_)
            | Action::MergeTopK
            | Action::AllGather
            | Action::Formula
            | Action::LocalStatistics
            | Action::GhostStatistics(_) => Repair::Comm,
        }
    }

    /// What was done, without where.
    pub(crate) fn what(&self) -> String {
        let Self { value, bytes, .. } = self;
        match self.action {
            Action::Filled => format!("%{value} anew, with its rows in blocks"),
            Action::Blocks => format!("a merge of %{value} block by block"),
            Action::OwnRows => format!("own_rows of %{value}"),
            Action::AllReduce(by) => {
                format!("all_reduce({}) of %{value}, {bytes} bytes of each replica", by.name())
            }
            Action::ExclusiveScan(by) => {
                let by = by.name();
                format!("exclusive_scan({by}) of %{value}, {bytes} bytes of each replica")
            }
            Action::MergeTopK => {
                format!("merge_top_k of %{value}, {bytes} bytes of each replica")
            }
            Action::AllGather => format!("all_gather of %{value}, {bytes} bytes to each replica"),
            Action::Formula => "several operators in its place".to_owned(),
            Action::LocalStatistics => {
                "statistics of each replica's own rows, which gives other results than one device"
                    .to_owned()
            }
            Action::GhostStatistics(groups) => format!(
                "statistics of {groups} groups of rows, which gives other results than those of \
                 the whole batch, \
                 the same for any number of devices"
            ),
            Action::Sizes => "dims in its place, the sizes of the whole batch".to_owned(),
        }
    }
}

impl fmt::Display for AppliedRepair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, label, op, .. } = self;
        write!(f, "{} for `{label}` ({op}): {code}", self.what())
    }
}

#[cfg(test)]
mod tests {
    use super::BatchStatistics;

    #[test]
    fn statistics_are_read_as_they_are_written() {
        for text in ["sync", "local", "ghost:1", "ghost:8", "ghost:65536"] {
            assert_eq!(text.parse::<BatchStatistics>().unwrap().to_string(), text);
        }
        for text in ["", "ghost", "ghost:", "ghost:0", "ghost:-1", "ghost:65537", "ghost:x", "Sync"]
        {
            assert!(text.parse::<BatchStatistics>().is_err(), "{text}");
        }
    }
}
