//! Metrics as pairs of sums over rows, so that the metrics of shards and batches add up: a mean of
//! means would weight rows by the size of their batch.

use std::fmt;
use std::str::FromStr;

use super::cost::{self, Compared, Cost};
use super::error::TrainingError;
use super::loss::Loss;
use super::names::{self, DidYouMean};
use super::writer::{Writer, emit_formula};
use crate::ir::{Builder, Value};
use crate::op::{Emit, Formula, RuleError};
use crate::types::invariant::invariant;
use crate::types::{DType, Dim, ParseValueError, Quoted, Shape};

/// The largest number of thresholds of an area under a curve.
const MOST: i64 = 1 << 20;

/// A metric, computed from two sums over rows.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Metric {
    /// The fraction of correct rows: binary, categorical or sparse categorical accuracy, by the
    /// shapes of output and target.
    Accuracy,
    /// The part of targets that are 1 where the output is above `threshold`, and 0 elsewhere.
    BinaryAccuracy {
        /// The output above which the answer is yes.
        threshold: f64,
    },
    /// The part of rows whose largest output is where the largest target is.
    CategoricalAccuracy,
    /// The part of rows whose largest output is at the number of their class.
    SparseCategoricalAccuracy,
    /// The part of rows whose class is among the `k` largest outputs; targets are numbers of
    /// classes or one number for each class.
    TopK {
        /// The number of outputs that count.
        k: i64,
    },
    /// The area under the curve of the part of positive targets above a threshold over that of the
    /// others, between whose points it is straight. Of `n` thresholds the first lies below 0, the
    /// last above 1, and the others at `i / (n - 1)`.
    Auc {
        /// The number of thresholds, from 2 on.
        thresholds: i64,
    },
    /// The part of the outputs above `threshold` whose target is not 0.
    Precision {
        /// The output above which the answer is yes.
        threshold: f64,
    },
    /// The part of the targets other than 0 whose output is above `threshold`.
    Recall {
        /// The output above which the answer is yes.
        threshold: f64,
    },
    /// The mean of a loss.
    Mean(Loss),
}

impl Metric {
    /// The names of the metrics that are no means of losses, in alphabetical order.
    pub const NAMES: [&'static str; 8] = [
        "accuracy",
        "auc",
        "binary_accuracy",
        "categorical_accuracy",
        "precision",
        "recall",
        "sparse_categorical_accuracy",
        "top_k_accuracy",
    ];

    /// The name.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Accuracy => "accuracy".to_owned(),
            Self::BinaryAccuracy { .. } => "binary_accuracy".to_owned(),
            Self::CategoricalAccuracy => "categorical_accuracy".to_owned(),
            Self::SparseCategoricalAccuracy => "sparse_categorical_accuracy".to_owned(),
            Self::TopK { k } => format!("top_{k}_accuracy"),
            Self::Auc { .. } => "auc".to_owned(),
            Self::Precision { .. } => "precision".to_owned(),
            Self::Recall { .. } => "recall".to_owned(),
            Self::Mean(loss) => loss.name().to_owned(),
        }
    }

    /// The metric of this name with its default settings; `None` for means of losses.
    fn with_defaults(name: &str) -> Option<Self> {
        const TOP_K: &[&str] =
            &["top_k", "top_k_categorical_accuracy", "sparse_top_k_categorical_accuracy"];
        let (threshold, none) = (0.5, &[] as &[&str]);
        let table = [
            (Self::Accuracy, "accuracy", &["acc"] as &[&str]),
            (Self::Auc { thresholds: 200 }, "auc", none),
            (Self::BinaryAccuracy { threshold }, "binary_accuracy", none),
            (Self::CategoricalAccuracy, "categorical_accuracy", none),
            (Self::Precision { threshold }, "precision", none),
            (Self::Recall { threshold }, "recall", none),
            (Self::SparseCategoricalAccuracy, "sparse_categorical_accuracy", none),
            (Self::TopK { k: 5 }, "top_k_accuracy", TOP_K),
        ];
        let k = name.strip_prefix("top_").and_then(|t| t.strip_suffix("_accuracy"));
        let k = k.and_then(|k| k.parse().ok()).filter(|k| *k > 0);
        k.map(|k| Self::TopK { k }).or_else(|| names::find(name, table))
    }

    /// Sets one setting; the error says which settings there are.
    fn set(&mut self, setting: &str) -> Result<(), &'static str> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let whole = |from: i64| value.parse().ok().filter(|n| *n >= from);
        match (self, names::setting(key)) {
            (
                Self::BinaryAccuracy { threshold }
                | Self::Precision { threshold }
                | Self::Recall { threshold },
                "threshold",
            ) => {
                let part = value.parse().ok().filter(|x| (0.0..=1.0).contains(x));
                *threshold = part.ok_or("threshold is one number from 0 to 1")?;
            }
            (Self::TopK { k }, "k") => *k = whole(1).ok_or("k is an integer of at least 1")?,
            (Self::Auc { thresholds }, "num_thresholds") => {
                let number = whole(2).filter(|n| *n <= MOST);
                *thresholds = number.ok_or("num_thresholds is an integer from 2 to 1048576")?;
            }
            (Self::BinaryAccuracy { .. } | Self::Precision { .. } | Self::Recall { .. }, _) => {
                return Err("it has threshold");
            }
            (Self::TopK { .. }, _) => return Err("it has k"),
            (Self::Auc { .. }, _) => return Err("it has num_thresholds"),
            _ => return Err("it has none"),
        }
        Ok(())
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// The names of all metrics.
fn known() -> Vec<&'static str> {
    Metric::NAMES.into_iter().chain(Loss::NAMES).collect()
}

impl FromStr for Metric {
    type Err = ParseValueError;

    /// Reads a name, or another that the metric is known by, and settings behind it:
    /// `auc:num_thresholds=500`, `precision:threshold=0.9`, `top_k_accuracy:k=3`, which is
    /// `top_3_accuracy`; or a [`Loss`] with its own. Names are read without regard to case, `_` and
    /// `-`.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let Some(mut metric) = Self::with_defaults(name) else {
            if Loss::with_defaults(name).is_some() {
                return text.parse().map(Self::Mean);
            }
            return Err(ParseValueError::new(format!(
                "{} is not a metric{}; the metrics are {}, top_K_accuracy with a number K, and \
                 the losses",
                Quoted(name),
                DidYouMean(name, &known()),
                Self::NAMES.join(", ")
            )));
        };
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            metric.set(setting).map_err(|expected| {
                ParseValueError::new(format!(
                    "{} has no setting {}: {expected}",
                    metric.name(),
                    Quoted(setting)
                ))
            })?;
        }
        Ok(metric)
    }
}

/// The operands of the metrics of one output.
pub(super) struct MetricInputs {
    /// The prefix of their names.
    pub(super) before: String,
    /// The target.
    pub(super) y: Value,
    /// The output.
    pub(super) p: Value,
    /// The weights of rows.
    pub(super) w: Option<Value>,
    /// 1 for each vector of the last axis that the mask keeps, else 0.
    pub(super) kept: Option<Value>,
}

/// The pairs of sums of all metrics with their names, in the order of reports: losses, metrics,
/// weighted metrics.
#[derive(Default)]
pub(super) struct Metrics {
    pub(super) losses: Vec<(String, Value, Value)>,
    plain: Vec<(String, Value, Value)>,
    weighted: Vec<(String, Value, Value)>,
}

impl Metrics {
    /// Adds the metrics of one output.
    pub(super) fn add(
        &mut self,
        b: &mut Builder,
        of: &MetricInputs,
        metrics: &[Metric],
        weighted: bool,
    ) -> Result<(), TrainingError> {
        for metric in metrics {
            let name = self.name(&of.before, &metric.name(), weighted);
            let weights = [of.kept, of.w.filter(|_| weighted)];
            let (total, count) = emit_formula(b, &name, &metric.name(), |at| {
                let weights: Vec<Value> = weights.into_iter().flatten().collect();
                sums(at, *metric, Compared { target: of.y, predicted: of.p }, &weights)
            })?;
            let list = if weighted { &mut self.weighted } else { &mut self.plain };
            list.push((name, total, count));
        }
        Ok(())
    }

    /// A unique name for a metric: its own, else with `weighted_` if it is weighted, else numbered.
    fn name(&self, before: &str, own: &str, weighted: bool) -> String {
        let taken = |name: &str| {
            let all = self.losses.iter().chain(&self.plain).chain(&self.weighted);
            all.map(|(name, ..)| &**name).chain(["loss"]).any(|other| other == name)
        };
        let weighted = weighted.then(|| format!("{before}weighted_{own}"));
        let numbered = (1u32..).map(|i| format!("{before}{own}_{i}"));
        let mut names = [format!("{before}{own}")].into_iter().chain(weighted).chain(numbered);
        invariant(names.find(|name| !taken(name)), "that a number is free")
    }

    /// All metrics in the order of reports.
    pub(super) fn finish(self) -> Vec<(String, Value, Value)> {
        self.losses.into_iter().chain(self.plain).chain(self.weighted).collect()
    }
}

/// Writes the two sums of a metric, for an output `[N, …, C]` and its target. Each row or vector of
/// the last axis is weighted by the product of `weights`.
///
/// The metric is the ratio of the sums. For [`Metric::Auc`] they are the weights of positive and of
/// negative targets between one threshold and the next, from which [`Logs`](crate::train::Logs)
/// compute the area.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are means over rows")]
fn sums(
    at: &mut Writer<'_>,
    metric: Metric,
    of: Compared,
    weights: &[Value],
) -> Result<(Value, Value), RuleError> {
    match metric {
        Metric::Precision { threshold } => {
            let LabelWeights { positive: yes, negative: no } = label_weights(at, of, weights)?;
            let p = of.predicted;
            let (right, wrong) = (above(at, p, threshold, yes)?, above(at, p, threshold, no)?);
            Ok((right, at.add(right, wrong)?))
        }
        Metric::Recall { threshold } => {
            let yes = label_weights(at, of, weights)?.positive;
            Ok((above(at, of.predicted, threshold, yes)?, at.total(yes)?))
        }
        Metric::Auc { thresholds } => {
            let labels = label_weights(at, of, weights)?;
            between_thresholds(at, thresholds, of.predicted, labels)
        }
        other => means(at, other, of, weights),
    }
}

/// The weights of outputs, separated by their targets; each is 0 where the other is not.
#[derive(Clone, Copy)]
struct LabelWeights {
    /// The weights of outputs whose targets are not 0.
    positive: Value,
    /// The weights of outputs whose targets are 0.
    negative: Value,
}

/// The weights of outputs by their targets, from the product of `weights`.
fn label_weights(
    at: &mut Writer<'_>,
    of: Compared,
    weights: &[Value],
) -> Result<LabelWeights, RuleError> {
    let shape = at.shape(of.predicted);
    let yes = positive(at, of)?;
    let no = at.complement(yes)?;
    match product(at, weights, shape.len())? {
        Some(w) => Ok(LabelWeights { positive: at.mul(yes, w)?, negative: at.mul(no, w)? }),
        None => Ok(LabelWeights { positive: yes, negative: no }),
    }
}

/// The sum of the weights `of` outputs above a threshold.
fn above(at: &mut Writer<'_>, p: Value, threshold: f64, of: Value) -> Result<Value, RuleError> {
    let above = at.is_above(p, threshold)?;
    let only = at.only(above, of)?;
    at.total(only)
}

/// The sum and the count of a metric that is a mean over rows.
fn means(
    at: &mut Writer<'_>,
    metric: Metric,
    of: Compared,
    weights: &[Value],
) -> Result<(Value, Value), RuleError> {
    let Cost { mut values, counted } = write(at, metric, of)?;
    let weights: Vec<Value> = weights.iter().copied().chain(counted).collect();
    let shape = at.shape(values);
    let count = match product(at, &weights, shape.len())? {
        None => at.size(values, shape.elements())?,
        Some(w) => {
            let w = at.expand(w, &shape)?;
            // A cost of weight 0 may be NaN or infinite, and 0 times it would be NaN.
            let (nothing, weighed) = (at.is(w, 0.0)?, at.mul(values, w)?);
            let zero = at.number(weighed, 0.0)?;
            values = at.choose(nothing, zero, weighed)?;
            at.total(w)?
        }
    };
    Ok((at.total(values)?, count))
}

/// The product of weights, with axes that broadcast to values of this rank.
fn product(
    at: &mut Writer<'_>,
    weights: &[Value],
    rank: usize,
) -> Result<Option<Value>, RuleError> {
    let mut product = None;
    for w in weights {
        let w = cost::aligned(at, *w, rank)?;
        product = Some(match product {
            Some(product) => at.mul(product, w)?,
            None => w,
        });
    }
    Ok(product)
}

/// 1 for each output whose target is not 0, else 0.
fn positive(at: &mut Writer<'_>, of: Compared) -> Result<Value, RuleError> {
    let Compared { target: y, predicted: p } = of;
    let shape = at.shape(p);
    if at.shape(y).elements() != shape.elements() {
        return Err(RuleError::Undefined("its targets are class indices"));
    }
    let y = at.reshape(y, &shape)?;
    let is_zero = at.is(y, 0.0)?;
    let (zero, one) = (at.number(p, 0.0)?, at.number(p, 1.0)?);
    at.choose(is_zero, zero, one)
}

/// Histograms of the weights of positive and of negative targets, with one bin for the outputs
/// above each threshold and not above the next one.
///
/// Histograms of shards add up. Counts above each threshold would add up too, but take `thresholds`
/// comparisons for each output instead of one.
fn between_thresholds(
    at: &mut Writer<'_>,
    thresholds: i64,
    p: Value,
    of: LabelWeights,
) -> Result<(Value, Value), RuleError> {
    let flat: Shape = [at.shape(p).elements()].into_iter().collect();
    let p = at.clip(p, 0.0, 1.0)?;
    // Threshold `i` is `i / (n - 1)`: an output `p` lies above threshold `ceil(p * (n - 1)) - 1`
    // but not above the next. An output of 0 is above the first threshold only, which lies below 0.
    let place = at.scale(p, (thresholds - 1) as f64)?;
    let place = at.ceil(place)?;
    let place = at.shift(place, -1.0)?;
    let place = at.relu(place)?;
    let place = at.cast(place, DType::I64)?;
    let place = at.reshape(place, &flat)?;
    let mut sum = |each: Value| {
        let each = at.reshape(each, &flat)?;
        at.segment_sum(each, place, thresholds)
    };
    Ok((sum(of.positive)?, sum(of.negative)?))
}

/// The reason why a metric does not suit targets that are class numbers (`numbers`), or that have
/// one number for each class.
fn unsuited(metric: Metric, numbers: bool) -> Option<&'static str> {
    let is_mean = |sparse| matches!(metric, Metric::Mean(loss) if loss.takes_classes() == sparse);
    if numbers {
        let accuracy =
            matches!(metric, Metric::CategoricalAccuracy | Metric::BinaryAccuracy { .. });
        return (accuracy || is_mean(false)).then_some("its targets are class indices");
    }
    if metric == Metric::SparseCategoricalAccuracy {
        return Some("its targets have one number for each class; take `categorical_accuracy`");
    }
    is_mean(true)
        .then_some("its targets have one number for each class; take `categorical_crossentropy`")
}

/// Writes a metric for each row of an output `[N, …, C]`. The result lacks the last axis.
fn write(at: &mut Writer<'_>, metric: Metric, of: Compared) -> Result<Cost, RuleError> {
    let Compared { target: y, predicted: p } = of;
    // A scalar output has one class.
    let classes = at.shape(p).last().cloned().unwrap_or(Dim::ONE);
    let (of_y, of_p) = (at.ty(y).clone(), at.ty(p).clone());
    let to = of_p.dtype;
    // Targets are class numbers if they lack the class axis, or have size 1 there.
    let numbers = of_y.rank() + 1 == of_p.rank()
        || (of_y.rank() == of_p.rank()
            && of_y.shape.last() == Some(&Dim::ONE)
            && classes != Dim::ONE);
    if let Some(reason) = unsuited(metric, numbers).filter(|_| classes != Dim::ONE) {
        return Err(RuleError::Undefined(reason));
    }
    let values = match metric {
        Metric::Accuracy if classes == Dim::ONE => {
            return write(at, Metric::BinaryAccuracy { threshold: 0.5 }, of);
        }
        Metric::Accuracy if numbers => return write(at, Metric::SparseCategoricalAccuracy, of),
        Metric::Accuracy => return write(at, Metric::CategoricalAccuracy, of),
        Metric::BinaryAccuracy { threshold } => {
            let y = at.cast(y, to)?;
            let yes = at.is_above(p, threshold)?;
            let yes = at.cast(yes, to)?;
            let right = at.equal(y, yes)?;
            let right = at.cast(right, to)?;
            cost::mean(at, right)
        }
        Metric::CategoricalAccuracy => {
            let (y, p) = (largest(at, y)?, largest(at, p)?);
            let right = at.equal(y, p)?;
            at.cast(right, to)
        }
        Metric::SparseCategoricalAccuracy => {
            let (y, p) = (numbers_of(at, of)?, largest(at, p)?);
            let right = at.equal(y, p)?;
            at.cast(right, to)
        }
        Metric::TopK { k } => {
            let y = if numbers { numbers_of(at, of)? } else { largest(at, y)? };
            among_largest(at, y, p, &classes, k)
        }
        Metric::Mean(loss) => {
            let cost = cost::write(at, loss, of)?;
            // As a loss it is negated to be minimised; as a metric it is the similarity itself.
            let is_negated = loss == Loss::CosineSimilarity;
            let values = if is_negated { at.neg(cost.values) } else { Ok(cost.values) };
            return Ok(Cost { values: values?, ..cost });
        }
        Metric::Auc { .. } | Metric::Precision { .. } | Metric::Recall { .. } => {
            Err(RuleError::Undefined("it is not a mean over rows"))
        }
    };
    Ok(Cost { values: values?, counted: None })
}

/// 1 for each vector of the last axis in which fewer than `k` elements are larger than the element
/// at position `y`, else 0. As in Keras, ties count as among the largest, and a NaN never does.
fn among_largest(
    at: &mut Writer<'_>,
    y: Value,
    p: Value,
    classes: &Dim,
    k: i64,
) -> Result<Value, RuleError> {
    let to = at.ty(p).dtype;
    let ends = at.zero_and_one()?;
    let ends = at.cast(ends, to)?;
    let is_own = at.one_hot(y, ends, classes.clone())?;
    let is_own = at.is_above(is_own, 0.0)?;
    let least = at.number(p, f64::NEG_INFINITY)?;
    let own = at.choose(is_own, p, least)?;
    let own = at.reduce_max(own, vec![-1], true)?;
    // `not (p <= own)` rather than `p > own`: where `own` is NaN, all elements then count as
    // larger.
    let is_less = at.less_or_equal(p, own)?;
    let is_larger = at.not(is_less)?;
    let is_larger = at.cast(is_larger, to)?;
    let larger = cost::total(at, is_larger)?;
    let is_among = at.is_below(larger, k as f64)?;
    at.cast(is_among, to)
}

/// The positions of the largest elements of the last axis.
fn largest(at: &mut Writer<'_>, a: Value) -> Result<Value, RuleError> {
    at.arg_max(a, -1)
}

/// The class numbers of a target, without an axis of size 1 for them.
fn numbers_of(at: &mut Writer<'_>, of: Compared) -> Result<Value, RuleError> {
    let y = at.cast(of.target, DType::I64)?;
    if at.ty(y).rank() < at.ty(of.predicted).rank() {
        return Ok(y);
    }
    at.squeeze(y, vec![-1])
}

#[cfg(test)]
mod tests {
    use super::{Loss, Metric, ParseValueError};

    fn read(text: &str) -> Result<Metric, String> {
        text.parse().map_err(|error: ParseValueError| error.to_string())
    }

    #[test]
    fn every_name_is_read() {
        for name in Metric::NAMES.into_iter().chain(Loss::NAMES) {
            let metric = read(name).unwrap();
            let own = if name == "top_k_accuracy" { "top_5_accuracy" } else { name };
            assert_eq!(metric.name(), own);
            assert_eq!(read(own), Ok(metric));
        }
        for (text, same) in [
            ("acc", "accuracy"),
            ("AUC", "auc"),
            ("AUC:num_thresholds=200", "auc"),
            ("Precision:thresholds=0.5", "precision"),
            ("TopKCategoricalAccuracy:k=3", "top_3_accuracy"),
            ("sparse_top_k_categorical_accuracy", "top_5_accuracy"),
            ("MSE", "mean_squared_error"),
            ("bce:label_smoothing=0.1", "binary_crossentropy:smoothing=0.1"),
        ] {
            assert_eq!(read(text), read(same), "{text}");
            assert!(read(text).is_ok(), "{text}");
        }
        assert_eq!(read("recall:threshold=0.25"), Ok(Metric::Recall { threshold: 0.25 }));
        assert_ne!(read("recall:threshold=0.25"), read("recall"));
    }

    #[test]
    fn what_no_metric_has_is_refused() {
        for (text, part) in [
            (
                "acuracy",
                "`acuracy` is not a metric (did you mean `accuracy`?); the metrics are accuracy",
            ),
            ("top_0_accuracy", "is not a metric"),
            (
                "auc:num_thresholds=1",
                "auc has no setting `num_thresholds=1`: num_thresholds is an integer",
            ),
            ("auc:num_thresholds=999999999999", "from 2 to 1048576"),
            ("precision:threshold=0.5,thresholds=2", "threshold is one number from 0 to 1"),
            ("precision:threshold=NaN", "threshold is one number from 0 to 1"),
            ("recall:k=2", "recall has no setting `k=2`: it has threshold"),
            ("top_k:k=0", "k is an integer"),
            ("accuracy:k=2", "it has none"),
            ("huber:delta=x", "huber has no setting `delta=x`: delta is a number above 0"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
