//! Metrics: sums over rows and what they are divided by, so that those of shards and of batches add up.

use std::fmt;
use std::str::FromStr;

use super::loss::{self, Cost, Loss};
use super::training::{TrainingError, aligned, all, draft};
use crate::ir::{Builder, Value};
use crate::op::{Arg, Compare, Draft, RuleError, SegmentSum, Squeeze, Term, TopK, Unary, Where};
use crate::types::{DType, Dim, Quoted, Shape};

/// The thresholds of the area under a curve.
const THRESHOLDS: i64 = 200;

/// A metric: what two sums over rows say.
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
    /// The area under the curve of the part of positive targets above a threshold over that of the others, for 200 even
    /// thresholds, between which it is straight.
    Auc,
    /// The part of the outputs above one half whose target is not 0.
    Precision,
    /// The part of the targets other than 0 whose output is above one half.
    Recall,
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
            Self::Auc => "auc".to_owned(),
            Self::Precision => "precision".to_owned(),
            Self::Recall => "recall".to_owned(),
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
     top_K_accuracy, auc, precision, recall, or the name of a loss",
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
            "auc" => Ok(Self::Auc),
            "precision" => Ok(Self::Precision),
            "recall" => Ok(Self::Recall),
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

/// What the metrics of one output are computed from.
pub(super) struct Of {
    /// How their names begin.
    pub(super) before: String,
    /// The target.
    pub(super) y: Value,
    /// The output.
    pub(super) p: Value,
    /// The weights of rows.
    pub(super) w: Option<Value>,
    /// 1 for each vector of the last axis that the mask leaves, else 0.
    pub(super) kept: Option<Value>,
}

/// The sums that metrics are made of, with the names of the metrics, in the order in which they are told.
#[derive(Default)]
pub(super) struct Metrics {
    pub(super) losses: Vec<(String, Value, Value)>,
    plain: Vec<(String, Value, Value)>,
    weighted: Vec<(String, Value, Value)>,
}

impl Metrics {
    /// Adds metrics of one output.
    pub(super) fn add(
        &mut self,
        b: &mut Builder,
        of: &Of,
        metrics: &[Metric],
        weighted: bool,
    ) -> Result<(), TrainingError> {
        for metric in metrics {
            let name = self.name(&of.before, &metric.name(), weighted);
            let weights = [of.kept, of.w.filter(|_| weighted)];
            let (total, count) = draft(b, (&name, &metric.name()), |writer| {
                let (y, p) = (writer.term(of.y), writer.term(of.p));
                let weights: Vec<Term> =
                    weights.into_iter().flatten().map(|w| writer.term(w)).collect();
                let (total, count) =
                    sums(&mut Draft::new(&mut *writer), *metric, (y, p), &weights)?;
                Ok((writer.value(total), writer.value(count)))
            })?;
            let list = if weighted { &mut self.weighted } else { &mut self.plain };
            list.push((name, total, count));
        }
        Ok(())
    }

    /// The name of a metric, which no other has.
    fn name(&self, before: &str, own: &str, weighted: bool) -> String {
        let taken = |name: &str| {
            let all = self.losses.iter().chain(&self.plain).chain(&self.weighted);
            all.map(|(name, ..)| &**name).chain(["loss"]).any(|other| other == name)
        };
        let weighted = weighted.then(|| format!("{before}weighted_{own}"));
        let numbered = (1u32..).map(|i| format!("{before}{own}_{i}"));
        let mut names = [format!("{before}{own}")].into_iter().chain(weighted).chain(numbered);
        names.find(|name| !taken(name)).unwrap_or_default()
    }

    /// All of them, in the order in which they are told.
    pub(super) fn finish(self) -> Vec<(String, Value, Value)> {
        self.losses.into_iter().chain(self.plain).chain(self.weighted).collect()
    }
}

/// Writes the two sums that a metric is made of, of an output `p: [N, …, C]` and its target `y`, where each row or each vector
/// of the last axis has the product of `weights`: numbers whose ratio it is, or of [`Metric::Auc`] the weights of the positive targets and of the
/// others between one threshold and the next, which [`Logs`](crate::train::Logs) turn into the area.
fn sums(
    at: &mut Draft<'_>,
    metric: Metric,
    (y, p): (Term, Term),
    weights: &[Term],
) -> Result<(Term, Term), RuleError> {
    if !matches!(metric, Metric::Auc | Metric::Precision | Metric::Recall) {
        let Cost { mut values, counted } = write(at, metric, y, p)?;
        let weights: Vec<Term> = weights.iter().copied().chain(counted).collect();
        let shape = at.shape(values);
        let count = match product(at, &weights, shape.len())? {
            None => at.size(values, shape.elements())?,
            Some(w) => {
                let w = at.expand(w, &shape)?;
                values = at.mul(values, w)?;
                all(at, w)?
            }
        };
        return Ok((all(at, values)?, count));
    }
    let shape = at.shape(p);
    let mut yes = positive(at, y, p)?;
    let no = at.neg(yes)?;
    let mut no = at.shift(no, 1.0)?;
    if let Some(w) = product(at, weights, shape.len())? {
        (yes, no) = (at.mul(yes, w)?, at.mul(no, w)?);
    }
    if metric == Metric::Auc {
        return between_thresholds(at, p, (yes, no));
    }
    let above = at.compare(Compare::Greater, p, 0.5)?;
    let found = at.only(above, yes)?;
    let other = if metric == Metric::Recall { yes } else { at.only(above, no)? };
    let (found, other) = (all(at, found)?, all(at, other)?);
    if metric == Metric::Recall { Ok((found, other)) } else { Ok((found, at.add(found, other)?)) }
}

/// The product of weights, to multiply values of this rank.
fn product(at: &mut Draft<'_>, weights: &[Term], rank: usize) -> Result<Option<Term>, RuleError> {
    let mut product = None;
    for w in weights {
        let w = aligned(at, *w, rank)?;
        product = Some(match product {
            Some(product) => at.mul(product, w)?,
            None => w,
        });
    }
    Ok(product)
}

/// 1 for each output whose target is not 0, else 0.
fn positive(at: &mut Draft<'_>, y: Term, p: Term) -> Result<Term, RuleError> {
    let shape = at.shape(p);
    if at.shape(y).elements() != shape.elements() {
        return Err(RuleError::Undefined("its targets are numbers of classes"));
    }
    let y = at.reshape(y, &shape)?;
    let is_zero = at.compare(Compare::Equal, y, 0.0)?;
    let (zero, one) = (at.number(p, 0.0)?, at.number(p, 1.0)?);
    at.op(Where {}, &[is_zero, zero, one])
}

/// The weights of positive targets and of the others whose outputs lie above each of the thresholds, and not above the
/// next one.
fn between_thresholds(
    at: &mut Draft<'_>,
    p: Term,
    (yes, no): (Term, Term),
) -> Result<(Term, Term), RuleError> {
    let flat: Shape = [at.shape(p).elements()].into_iter().collect();
    let p = at.op(Unary::Clip { min: Some(0.0), max: Some(1.0) }, &[p])?;
    let place = at.scale(p, (THRESHOLDS - 1) as f64)?;
    let place = at.op(Unary::Ceil, &[place])?;
    let place = at.shift(place, -1.0)?;
    let place = at.op(Unary::Relu, &[place])?;
    let place = at.cast(place, DType::I64)?;
    let place = at.reshape(place, &flat)?;
    let mut of = |each: Term| {
        let each = at.reshape(each, &flat)?;
        at.op(SegmentSum { segments: THRESHOLDS }, &[each, place])
    };
    Ok((of(yes)?, of(no)?))
}

/// Writes what a metric says of each row: `p: [N, …, C]` is the output, `y` the target, and both without the last axis
/// the result.
fn write(at: &mut Draft<'_>, metric: Metric, y: Term, p: Term) -> Result<Cost, RuleError> {
    let classes = at.shape(p).last().cloned().unwrap_or(Dim::ONE);
    let (of_y, of_p) = (at.ty(y).clone(), at.ty(p).clone());
    let to = of_p.dtype;
    let numbers = of_y.rank() + 1 == of_p.rank()
        || (of_y.rank() == of_p.rank()
            && of_y.shape.last() == Some(&Dim::ONE)
            && classes != Dim::ONE);
    let values = match metric {
        Metric::Accuracy if classes == Dim::ONE => return write(at, Metric::BinaryAccuracy, y, p),
        Metric::Accuracy if numbers => return write(at, Metric::SparseCategoricalAccuracy, y, p),
        Metric::Accuracy => return write(at, Metric::CategoricalAccuracy, y, p),
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
        Metric::Mean(loss) => return loss::write(at, loss, y, p),
        Metric::Auc | Metric::Precision | Metric::Recall => {
            Err(RuleError::Undefined("it is no mean over rows"))
        }
    };
    Ok(Cost { values: values?, counted: None })
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
