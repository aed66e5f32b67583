//! Metrics: sums over rows and what they are divided by, so that those of shards and of batches add up.

use std::fmt;
use std::str::FromStr;

use super::loss::{self, Loss};
use crate::op::{Arg, Compare, Draft, RuleError, Squeeze, Term, TopK};
use crate::types::{DType, Dim, Quoted};

/// A metric: a mean over rows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Metric {
    /// The part of rows that are right; how a row is right follows from the shapes of output and target.
    Accuracy,
    /// The part of targets that are 1 where the output is above one half, and 0 elsewhere.
    BinaryAccuracy,
    /// The part of rows whose largest output is where the largest target is.
    CategoricalAccuracy,
    /// The part of rows whose largest output is at the number of their class.
    SparseCategoricalAccuracy,
    /// The part of rows whose class is among the `k` largest outputs; targets are numbers of classes or one number for
    /// each class.
    TopK(i64),
    /// The mean of a loss.
    Mean(Loss),
}

impl Metric {
    /// The name.
    pub fn name(&self) -> String {
        match self {
            Self::Accuracy => "accuracy".to_owned(),
            Self::BinaryAccuracy => "binary_accuracy".to_owned(),
            Self::CategoricalAccuracy => "categorical_accuracy".to_owned(),
            Self::SparseCategoricalAccuracy => "sparse_categorical_accuracy".to_owned(),
            Self::TopK(k) => format!("top_{k}_accuracy"),
            Self::Mean(loss) => loss.name().to_owned(),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// A text that names no metric.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} is no metric; write accuracy, binary_accuracy, categorical_accuracy, sparse_categorical_accuracy, \
     top_K_accuracy, or the name of a loss",
    Quoted(.0)
)]
pub struct ParseMetricError(String);

impl FromStr for Metric {
    type Err = ParseMetricError;

    fn from_str(text: &str) -> Result<Self, ParseMetricError> {
        let wrong = || ParseMetricError(text.to_owned());
        match text {
            "accuracy" | "acc" => Ok(Self::Accuracy),
            "binary_accuracy" => Ok(Self::BinaryAccuracy),
            "categorical_accuracy" => Ok(Self::CategoricalAccuracy),
            "sparse_categorical_accuracy" => Ok(Self::SparseCategoricalAccuracy),
            _ => {
                let k = text.strip_prefix("top_").and_then(|t| t.strip_suffix("_accuracy"));
                if let Some(k) = k {
                    return k.parse().ok().filter(|k| *k > 0).map(Self::TopK).ok_or_else(wrong);
                }
                text.parse().map(Self::Mean).map_err(|_| wrong())
            }
        }
    }
}

/// Writes what a metric says of each row: `p: [N, …, C]` is the output, `y` the target, and both without the last axis
/// the result.
pub(super) fn write(
    at: &mut Draft<'_>,
    metric: Metric,
    y: Term,
    p: Term,
) -> Result<Term, RuleError> {
    let classes = at.shape(p).last().cloned().unwrap_or(Dim::ONE);
    let (of_y, of_p) = (at.ty(y).clone(), at.ty(p).clone());
    let to = of_p.dtype;
    let numbers = of_y.rank() + 1 == of_p.rank()
        || (of_y.rank() == of_p.rank()
            && of_y.shape.last() == Some(&Dim::ONE)
            && classes != Dim::ONE);
    match metric {
        Metric::Accuracy if classes == Dim::ONE => write(at, Metric::BinaryAccuracy, y, p),
        Metric::Accuracy if numbers => write(at, Metric::SparseCategoricalAccuracy, y, p),
        Metric::Accuracy => write(at, Metric::CategoricalAccuracy, y, p),
        Metric::CategoricalAccuracy | Metric::BinaryAccuracy if numbers && classes != Dim::ONE => {
            Err(RuleError::Undefined("its targets are numbers of classes"))
        }
        Metric::Mean(loss) if numbers && classes != Dim::ONE && !loss.takes_classes() => {
            Err(RuleError::Undefined("its targets are numbers of classes"))
        }
        Metric::BinaryAccuracy => {
            let y = at.cast(y, to)?;
            let yes = at.compare(Compare::Greater, p, 0.5)?;
            let yes = at.cast(yes, to)?;
            let right = at.op(Compare::Equal, &[y, yes])?;
            let right = at.cast(right, to)?;
            loss::mean(at, right)
        }
        Metric::CategoricalAccuracy => {
            let (y, p) = (largest(at, y)?, largest(at, p)?);
            let right = at.op(Compare::Equal, &[y, p])?;
            at.cast(right, to)
        }
        Metric::SparseCategoricalAccuracy => {
            let (y, p) = (numbers_of(at, y, p)?, largest(at, p)?);
            let right = at.op(Compare::Equal, &[y, p])?;
            at.cast(right, to)
        }
        Metric::TopK(k) => {
            let y = if numbers { numbers_of(at, y, p)? } else { largest(at, y)? };
            let mut column = at.shape(y).to_vec();
            column.push(Dim::ONE);
            let y = at.reshape(y, &column.into_iter().collect())?;
            let k = k.min(classes.as_const().unwrap_or(k)).into();
            let top = at.ops(TopK { axis: -1, k, largest: true, local: false }, &[p])?;
            let Some(places) = top.get(1).copied() else {
                return Err(RuleError::Undefined("the largest outputs have no places"));
            };
            let among = at.op(Compare::Equal, &[places, y])?;
            let among = at.cast(among, to)?;
            loss::total(at, among)
        }
        Metric::Mean(loss) => Ok(loss::write(at, loss, y, p)?.values),
    }
}

/// The places of the largest elements of the last axis.
fn largest(at: &mut Draft<'_>, a: Term) -> Result<Term, RuleError> {
    at.op(Arg::Max { axis: -1, keepdims: false, select_last_index: false }, &[a])
}

/// The numbers of classes that `y` holds.
fn numbers_of(at: &mut Draft<'_>, y: Term, p: Term) -> Result<Term, RuleError> {
    let y = at.cast(y, DType::I64)?;
    if at.ty(y).rank() < at.ty(p).rank() {
        return Ok(y);
    }
    at.op(Squeeze { axes: vec![-1] }, &[y])
}
