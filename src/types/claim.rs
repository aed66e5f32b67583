//! Claims: the relation of a value to its per-replica parts.

use std::fmt;
use std::str::FromStr;

use super::ParseValueError;
use super::{Dim, Hint, Symbol};

/// The relation between a value of the whole batch and the values that the replicas hold.
///
/// Elsewhere: sharding (XLA); placement (PyTorch); sharding attribute (MLIR); layout (Keras);
/// replicated (XLA); Replicate (PyTorch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Claim {
    /// Every replica holds the whole value.
    Invariant,
    /// Every replica holds its own rows.
    Shard(Shard),
    /// Every replica that has rows holds a value of the same type as the whole; together they give
    /// the whole.
    Partial(Combine),
    /// Every replica holds a value that follows from its rows, or from those before them, and that
    /// one operator alone can use: the one that it was computed for.
    Own,
    /// Nothing is known: a replica would need the rows of others.
    Mixed,
}

/// The combination of the parts of a partial value. The parts are taken in the order of the
/// replicas; those of replicas without rows are left out.
///
/// Elsewhere: unreduced (XLA); Partial (PyTorch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Combine {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// The largest, element by element.
    Max,
    /// The smallest, element by element.
    Min,
    /// The logarithm of the sum of their exponentials.
    Lse,
    /// The square root of the sum of their squares.
    L2,
    /// Their mean, each weighted by the rows of its replica.
    Mean,
    /// Their sum, of parts that have what rounding lost of them beside them: the components of each
    /// lie on the first axis.
    WideSum,
    /// Their product, of parts in digits and powers of 2, which lie on the first axis.
    WideProd,
    /// The number, the mean and the sum of squared distances from the mean of all elements, of
    /// parts that are those of some elements each: the three lie on the first axis.
    Moments,
}

impl Combine {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Sum,
        Self::Prod,
        Self::Max,
        Self::Min,
        Self::Lse,
        Self::L2,
        Self::Mean,
        Self::WideSum,
        Self::WideProd,
        Self::Moments,
    ];

    /// The word in the text form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Max => "max",
            Self::Min => "min",
            Self::Lse => "lse",
            Self::L2 => "l2",
            Self::Mean => "mean",
            Self::WideSum => "wide_sum",
            Self::WideProd => "wide_prod",
            Self::Moments => "moments",
        }
    }

    /// True where the parts have several components, which lie on the first axis.
    pub const fn is_wide(self) -> bool {
        matches!(self, Self::WideSum | Self::WideProd | Self::Moments)
    }

    /// True where the whole has the same bits however the rows are divided, for floats too.
    pub(crate) const fn is_exact(self) -> bool {
        matches!(self, Self::Max | Self::Min)
    }
}

/// Rows of one axis: the axis has `outer * N * inner` entries, which are `outer` blocks of
/// `N * inner`, and a replica whose rows are `o..e` of the batch holds the entries
/// `o * inner..e * inner` of each block, one block after the other. `inner > 1` where further axes
/// were folded into the batch axis behind it, `outer > 1` where some were before it, or several
/// values were joined along it.
///
/// Elsewhere: tiled (XLA); Shard (PyTorch).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shard {
    /// The axis that carries the batch.
    pub axis: usize,
    /// Blocks of the axis, each with entries of every row of the batch; 1 or more.
    pub outer: u64,
    /// Entries of a block per row of the batch; 1 or more.
    pub inner: u64,
}

impl Shard {
    /// The entries of one block, of all rows.
    pub(crate) fn block(self) -> Dim {
        Dim::n() * i64::try_from(self.inner).unwrap_or(i64::MAX)
    }

    /// The entries of the axis, of all rows.
    pub fn size(self) -> Dim {
        self.block() * i64::try_from(self.outer).unwrap_or(i64::MAX)
    }

    /// True if an axis of `size` entries has the entries of all rows.
    pub(crate) fn is_size(self, size: &Dim) -> bool {
        if self.outer == 1 && self.inner == 1 {
            return size.as_symbol() == Some(Symbol::BATCH);
        }
        *size == self.size()
    }

    /// The number of whole blocks that `entries` of the axis are, if they are some.
    pub(crate) fn blocks(self, entries: &Dim) -> Option<u64> {
        entries.exact_div(&self.block()).and_then(|d| u64::try_from(d.as_const()?).ok())
    }
}

impl Claim {
    /// One entry of `axis` per row of the batch.
    pub const fn rows(axis: usize) -> Self {
        Self::Shard(Shard { axis, outer: 1, inner: 1 })
    }

    /// The split axis, if there is one.
    pub const fn shard(self) -> Option<Shard> {
        match self {
            Self::Shard(s) => Some(s),
            Self::Invariant | Self::Partial(_) | Self::Own | Self::Mixed => None,
        }
    }

    /// The combination of the parts, if the value is partial.
    pub const fn partial(self) -> Option<Combine> {
        match self {
            Self::Partial(by) => Some(by),
            Self::Invariant | Self::Shard(_) | Self::Own | Self::Mixed => None,
        }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invariant => f.write_str("invariant"),
            Self::Shard(Shard { axis, outer: 1, inner: 1 }) => write!(f, "shard({axis})"),
            Self::Shard(Shard { axis, outer: 1, inner }) => write!(f, "shard({axis};{inner})"),
            Self::Shard(Shard { axis, outer, inner }) => {
                write!(f, "shard({axis};{outer},{inner})")
            }
            Self::Partial(by) => write!(f, "partial({})", by.name()),
            Self::Own => f.write_str("own"),
            Self::Mixed => f.write_str("mixed"),
        }
    }
}

/// Why a graph may not be split; the stable codes `R0001` to `R0199`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Code {
    /// `R0001`: no input carries a batch axis.
    NoBatchAxis,
    /// `R0002`: several axes may carry the batch, and nothing says which.
    AmbiguousBatchAxis,
    /// `R0101`: operands are split along different axes.
    Misaligned,
    /// `R0102`: an operand of one sample meets all samples of another.
    SampleBySample,
    /// `R0103`: the batch lies on an axis over which a window or the channels run.
    WindowAxis,
    /// `R0104`: statistics are taken over the batch.
    BatchStatistics,
    /// `R0105`: a normalisation, scan or quantisation runs across samples.
    AcrossSamples,
    /// `R0106`: the result holds positions within the whole batch.
    GlobalIndex,
    /// `R0107`: which operators run depends on the samples.
    ControlFlow,
    /// `R0108`: samples are selected or reordered.
    Reorders,
    /// `R0109`: random numbers are drawn for the whole batch.
    Random,
    /// `R0110`: the batch size is baked into a constant or a size.
    BakedBatch,
    /// `R0111`: an output is not per sample.
    NotPerSample,
    /// `R0112`: there are fewer rows than replicas.
    EmptyShards,
    /// `R0199`: the operator has no split rule.
    NoRule,
}

impl Code {
    /// Every code, in ascending order.
    pub const ALL: [Self; 15] = [
        Self::NoBatchAxis,
        Self::AmbiguousBatchAxis,
        Self::Misaligned,
        Self::SampleBySample,
        Self::WindowAxis,
        Self::BatchStatistics,
        Self::AcrossSamples,
        Self::GlobalIndex,
        Self::ControlFlow,
        Self::Reorders,
        Self::Random,
        Self::BakedBatch,
        Self::NotPerSample,
        Self::EmptyShards,
        Self::NoRule,
    ];

    /// The code as printed, `R0104`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::NoBatchAxis => "R0001",
            Self::AmbiguousBatchAxis => "R0002",
            Self::Misaligned => "R0101",
            Self::SampleBySample => "R0102",
            Self::WindowAxis => "R0103",
            Self::BatchStatistics => "R0104",
            Self::AcrossSamples => "R0105",
            Self::GlobalIndex => "R0106",
            Self::ControlFlow => "R0107",
            Self::Reorders => "R0108",
            Self::Random => "R0109",
            Self::BakedBatch => "R0110",
            Self::NotPerSample => "R0111",
            Self::EmptyShards => "R0112",
            Self::NoRule => "R0199",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Code {
    type Err = ParseValueError;

    /// Reads a code as printed; a lower case `r` will do.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        Self::ALL.into_iter().find(|code| code.name().eq_ignore_ascii_case(text)).ok_or_else(|| {
            let all = Self::ALL.map(Self::name).join(", ");
            ParseValueError::new(format!("there is no such code; the codes are {all}"))
        })
    }
}

/// A split rule's refusal: which rule, what would go wrong, and through which operand.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {reason}")]
pub struct Refusal {
    /// The rule that forbids the split.
    pub code: Code,
    /// The effect of the operator on the batch, as a clause that follows its name.
    pub reason: String,
    /// The operand that carries the batch into it.
    pub operand: usize,
    /// A way out that only this operator has.
    pub hint: Option<Box<Hint>>,
}
