use std::fmt;
use std::str::FromStr;

use super::ParseValueError;
use super::{Device, Dim, Quoted};

/// The number of rows of the batch for each replica.
///
/// Elsewhere: uneven sharding (XLA, PyTorch).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShardRule {
    /// `N/K` rows each; the last replica takes the remainder as well.
    #[default]
    RemainderLast,
    /// Replica `i` ends at row `N*(i+1)/K`: sizes differ by one row at most.
    Balanced,
    /// `(N+K-1)/K` rows each, as long as there are rows.
    Ceil,
    /// Rows in proportion to these weights, one per replica.
    Weighted(Vec<u32>),
}

impl ShardRule {
    /// The row offsets `o_0..=o_k` of `k` replicas over the batch `N`.
    pub(crate) fn offsets(&self, k: u32) -> Result<Vec<Dim>, SplitError> {
        if k == 0 {
            return Err(SplitError::NoReplica);
        }
        let (count, n) = (i64::from(k), Dim::n());
        let offsets = (0..=count).map(|i| match self {
            Self::RemainderLast if i == count => n.clone(),
            Self::RemainderLast => n.floor_div(&count.into()) * i,
            Self::Balanced => (n.clone() * i).floor_div(&count.into()),
            Self::Ceil => ((n.clone() + (count - 1)).floor_div(&count.into()) * i).minimum(&n),
            Self::Weighted(weights) => {
                let upto: i64 = weights
                    .iter()
                    .take(usize::try_from(i).unwrap_or(0))
                    .map(|w| i64::from(*w))
                    .sum();
                let all: i64 = weights.iter().map(|w| i64::from(*w)).sum();
                (n.clone() * upto).floor_div(&all.into())
            }
        });
        if let Self::Weighted(weights) = self {
            if weights.len() != k as usize {
                return Err(SplitError::WeightCount { weights: weights.len(), replicas: k });
            }
            if weights.iter().all(|w| *w == 0) {
                return Err(SplitError::NoWeight);
            }
        }
        let mut offsets: Vec<Dim> = offsets.collect();
        if let Some(last) = offsets.last_mut() {
            *last = n;
        }
        if let Some(first) = offsets.first_mut() {
            *first = Dim::ZERO;
        }
        Ok(offsets)
    }
}

impl fmt::Display for ShardRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemainderLast => f.write_str("remainder-last"),
            Self::Balanced => f.write_str("balanced"),
            Self::Ceil => f.write_str("ceil"),
            Self::Weighted(weights) => {
                let weights: Vec<String> = weights.iter().map(u32::to_string).collect();
                write!(f, "weighted:{}", weights.join(","))
            }
        }
    }
}

/// The error for a text that does not fit.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!(
        "{} is not a shard rule; write remainder-last, balanced, ceil, or weighted:3,1 with a \
         weight for each GPU",
        Quoted(text)
    ))
}

impl FromStr for ShardRule {
    type Err = ParseValueError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let wrong = || wrong(s);
        match s {
            "remainder-last" => Ok(Self::RemainderLast),
            "balanced" => Ok(Self::Balanced),
            "ceil" => Ok(Self::Ceil),
            _ => {
                let weights = s.strip_prefix("weighted:").ok_or_else(wrong)?;
                let weights = weights.split(',').map(str::parse).collect::<Result<_, _>>();
                weights.map(Self::Weighted).map_err(|_| wrong())
            }
        }
    }
}

/// The rows of the batch that each device gets: monotone offsets `0 = o_0 <= … <= o_K = N`, so the
/// shards cover every row exactly once.
///
/// Elsewhere: device mesh (XLA); `DeviceMesh` (PyTorch, Keras); mesh (MLIR).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Split {
    devices: Vec<Device>,
    rule: ShardRule,
    offsets: Vec<Dim>,
}

impl Split {
    /// The split of the batch over these devices, in this order, by a rule.
    pub fn new(devices: Vec<Device>, rule: ShardRule) -> Result<Self, SplitError> {
        let replicas = u32::try_from(devices.len()).map_err(|_| SplitError::NoReplica)?;
        let offsets = rule.offsets(replicas)?;
        Self::with_offsets(devices, rule, offsets)
    }

    /// The split with offsets that are given, not computed; they are checked, not trusted.
    pub(crate) fn with_offsets(
        devices: Vec<Device>,
        rule: ShardRule,
        offsets: Vec<Dim>,
    ) -> Result<Self, SplitError> {
        if devices.is_empty() {
            return Err(SplitError::NoReplica);
        }
        if offsets.len() != devices.len() + 1 {
            return Err(SplitError::OffsetCount {
                offsets: offsets.len(),
                replicas: devices.len(),
            });
        }
        if offsets.first() != Some(&Dim::ZERO) || offsets.last() != Some(&Dim::n()) {
            return Err(SplitError::Ends);
        }
        for pair in offsets.windows(2) {
            if let [from, to] = pair
                && !(to.clone() - from.clone()).is_nonnegative()
            {
                return Err(SplitError::NotMonotone { from: from.clone(), to: to.clone() });
            }
        }
        Ok(Self { devices, rule, offsets })
    }

    /// The devices, one per replica.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The number of replicas.
    pub fn replicas(&self) -> usize {
        self.devices.len()
    }

    /// The rule that gave the offsets.
    pub(crate) fn rule(&self) -> &ShardRule {
        &self.rule
    }

    /// The row offsets, one more than there are replicas.
    pub(crate) fn offsets(&self) -> &[Dim] {
        &self.offsets
    }

    /// The rows of replica `i`: first and one past the last.
    pub fn range(&self, i: usize) -> Option<(&Dim, &Dim)> {
        Some((self.offsets.get(i)?, self.offsets.get(i + 1)?))
    }

    /// The devices that have no rows of a batch of `n`, in the order of the replicas.
    pub(crate) fn without_rows(&self, n: i64) -> impl Iterator<Item = Device> + '_ {
        let devices = self.devices.iter().enumerate();
        devices.filter(move |(i, _)| self.rows(*i).is_some_and(|r| r.eval(n) <= 0)).map(|(_, d)| *d)
    }

    /// The number of rows of replica `i`.
    pub fn rows(&self, i: usize) -> Option<Dim> {
        let (from, to) = self.range(i)?;
        Some(to.clone() - from.clone())
    }
}

/// Why row offsets make no split.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SplitError {
    /// No device was named.
    #[error("a split needs at least one device")]
    NoReplica,
    /// A weight is missing or too many.
    #[error("{replicas} replicas take a weight each, and there are {weights}; give one for each")]
    WeightCount {
        /// Weights given.
        weights: usize,
        /// Replicas to weigh.
        replicas: u32,
    },
    /// All weights are 0.
    #[error("all weights are 0; at least one replica must get rows")]
    NoWeight,
    /// An offset is missing or too many.
    #[error("{offsets} offsets for {replicas} replicas; there is one more offset than replicas")]
    OffsetCount {
        /// Offsets given.
        offsets: usize,
        /// Replicas they bound.
        replicas: usize,
    },
    /// The rows do not begin at 0 or do not end at `N`.
    #[error("the offsets must begin at 0 and end at N")]
    Ends,
    /// A shard would end before it begins.
    #[error("the offsets {from} and {to} are not provably in order for every N")]
    NotMonotone {
        /// The first row of the shard.
        from: Dim,
        /// Its end.
        to: Dim,
    },
}

#[cfg(test)]
mod tests {
    use super::{Device, Dim, ShardRule, Split, SplitError};

    fn sizes(rule: &str, k: u32, n: i64) -> Vec<i64> {
        let devices = (0..k).map(Device::gpu).collect();
        let split = Split::new(devices, rule.parse().unwrap()).unwrap();
        (0..k as usize).map(|i| split.rows(i).unwrap().eval(n)).collect()
    }

    #[test]
    fn every_rule_covers_the_batch() {
        assert_eq!(sizes("remainder-last", 8, 31), [3, 3, 3, 3, 3, 3, 3, 10]);
        assert_eq!(sizes("remainder-last", 3, 2), [0, 0, 2]);
        assert_eq!(sizes("balanced", 8, 31), [3, 4, 4, 4, 4, 4, 4, 4]);
        assert_eq!(sizes("ceil", 3, 4), [2, 2, 0]);
        assert_eq!(sizes("weighted:3,1", 2, 10), [7, 3]);
        for rule in ["remainder-last", "balanced", "ceil", "weighted:5,0,1,2,9"] {
            for n in 0..40 {
                assert_eq!(sizes(rule, 5, n).iter().sum::<i64>(), n, "{rule} at {n}");
            }
        }
    }

    #[test]
    fn offsets_are_checked() {
        let devices = vec![Device::gpu(0), Device::gpu(1)];
        let with = |middle: Dim| {
            Split::with_offsets(
                devices.clone(),
                ShardRule::Balanced,
                vec![Dim::ZERO, middle, Dim::n()],
            )
        };
        assert!(with(Dim::n().floor_div(&3.into())).is_ok());
        assert!(matches!(with(Dim::n() + 1), Err(SplitError::NotMonotone { .. })));
        assert!(matches!(with(Dim::from(2)), Err(SplitError::NotMonotone { .. })));
        let weights = |w: &str, k| w.parse::<ShardRule>().unwrap().offsets(k);
        assert!(matches!(weights("weighted:1", 2), Err(SplitError::WeightCount { .. })));
        assert_eq!(weights("weighted:0,0", 2), Err(SplitError::NoWeight));
    }
}
