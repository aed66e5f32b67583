//! Repairs: the levels a user may allow, and the record of those that were applied.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::types::{Code, Combine, Dim, ParseValueError};

/// The level of repairs that are allowed; each level includes those before it.
///
/// Elsewhere: resharding (XLA); redistribute (PyTorch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Repair {
    /// No repair: operators that may not be split are refused.
    None,
    /// Repairs without communication between replicas.
    #[default]
    Local,
    /// Also repairs that exchange values between replicas.
    Comm,
}

/// The rows over which batch normalisation takes its statistics in training.
///
/// Elsewhere: `SyncBatchNorm` (PyTorch); synchronized batch normalization (Keras).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchStatistics {
    /// The whole batch, combined over all replicas: the result of one device.
    Sync,
    /// The rows of each replica: another result than that of one device.
    Local,
    /// Each of this number of groups of rows (ghost batch normalisation): group `g` of `G` has the
    /// rows `g*N/G..(g+1)*N/G` of the batch, rounded down. That is another function of the batch,
    /// and the same one for any number of devices.
    Ghost(NonZeroU32),
}

impl BatchStatistics {
    /// The largest number of groups.
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

impl FromStr for BatchStatistics {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let groups =
            |text: &str| text.parse().ok().filter(|g: &NonZeroU32| g.get() <= Self::MAX_GROUPS);
        match text {
            "sync" => Ok(Self::Sync),
            "local" => Ok(Self::Local),
            _ => {
                let groups = text.strip_prefix("ghost:").and_then(groups);
                groups.map(Self::Ghost).ok_or_else(|| {
                    ParseValueError::new(format!(
                        "write local, sync, or ghost:G with G groups of rows, from 1 to {}",
                        Self::MAX_GROUPS
                    ))
                })
            }
        }
    }
}

/// Options of the repair pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepairOptions {
    /// The allowed repairs.
    pub allowed: Repair,
    /// The statistics of batch normalisation; `None` for the whole batch, where repairs that
    /// exchange values are allowed.
    pub batch_norm: Option<BatchStatistics>,
    /// The bytes of a gradient bucket: replicas sum the values of updates together once a bucket
    /// has this size. 0 sums each value by itself.
    pub bucket: u64,
}

impl RepairOptions {
    /// The default size of a bucket in bytes, 25 MiB.
    pub const BUCKET: u64 = 25 << 20;

    /// Options with these repairs and defaults for the rest.
    pub const fn new(allowed: Repair) -> Self {
        Self { allowed, batch_norm: None, bucket: Self::BUCKET }
    }
}

impl Default for RepairOptions {
    fn default() -> Self {
        Self::new(Repair::default())
    }
}

/// The change that a repair makes at an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// A slice: each replica takes its own rows of a value that it holds whole.
    OwnRows,
    /// An all-reduce of the parts of all replicas.
    AllReduce(Combine),
    /// An exclusive scan: each replica gets the total of the rows before its own.
    ExclusiveScan(Combine),
    /// A merge of the best candidates of each replica.
    MergeTopK,
    /// A merge, block by block, of an output whose rows stand in several blocks.
    Blocks,
    /// A constant of equal elements, written again with rows in the blocks of another operand.
    Filled,
    /// An all-gather of the rows, for which each replica then does all of the operator's work.
    AllGather,
    /// A decomposition of the operator into several.
    Formula,
    /// Statistics of each replica's own rows, which change the result.
    LocalStatistics,
    /// Statistics of this number of groups of rows, which change the result.
    GhostStatistics(u32),
    /// Sizes read from a value, written as formulas of the whole batch.
    Sizes,
}

/// The record of one repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedRepair {
    /// The code of the refusal that it removed.
    pub code: Code,
    /// The label of the refused operator.
    pub label: String,
    /// The name of the refused operator.
    pub op: &'static str,
    /// The change.
    pub action: Action,
    /// The name of the value that is exchanged or sliced.
    pub value: String,
    /// The bytes that each replica sends, or receives where rows are gathered; 0 without exchange.
    pub bytes: Dim,
}

impl AppliedRepair {
    /// The lowest level that allows it.
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

    /// The text of the change, without the operator.
    pub(crate) fn what(&self) -> String {
        let Self { value, bytes, .. } = self;
        match self.action {
            Action::Filled => format!("%{value} again, with its rows in blocks"),
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
