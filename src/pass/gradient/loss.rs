//! Losses: the cost of each row of an output, given its target.
//!
//! Formulas are those of Keras 3. Where a softmax or a sigmoid computes the output, the loss takes
//! its logits instead (`classes.rs`).

use std::fmt;
use std::str::FromStr;

use super::names::{self, DidYouMean};
use super::writer::Writer;
use crate::ir::Value;
use crate::op::{Emit, Formula, RuleError};
use crate::types::invariant::invariant;
use crate::types::{DType, Dim, ParseValueError, Quoted, Tensor};

/// The lower bound of probabilities in logarithms, and of divisors (Keras' `epsilon`).
const EPSILON: f64 = 1e-7;

/// A loss function, with `y` for the target and `p` for the output.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Loss {
    /// `-sum(y * ln p)` over the last axis, of probabilities; `smoothing` moves that part of each
    /// target to all classes.
    CategoricalCrossentropy {
        /// Whether the output is the logarithm of odds.
        from_logits: bool,
        /// The part of a target that all classes share.
        smoothing: f64,
    },
    /// The same with the number of the class as target; rows of the class `ignore_class` cost
    /// nothing and are not counted.
    SparseCategoricalCrossentropy {
        /// Whether the output is the logarithm of odds.
        from_logits: bool,
        /// The class that is not counted.
        ignore_class: Option<i64>,
    },
    /// The mean of `-y * ln p - (1 - y) * ln(1 - p)`.
    BinaryCrossentropy {
        /// Whether the output is the logarithm of odds.
        from_logits: bool,
        /// The part of a target that goes to one half.
        smoothing: f64,
    },
    /// The mean of the squares of differences.
    MeanSquaredError,
    /// The mean of the magnitudes of differences.
    MeanAbsoluteError,
    /// 100 times the mean of the magnitudes of differences divided by those of the targets.
    MeanAbsolutePercentageError,
    /// The mean of the squares of differences of `ln(1 + x)`.
    MeanSquaredLogarithmicError,
    /// Half the square of differences up to `delta`, beyond it `delta * (|d| - delta / 2)`.
    Huber {
        /// The difference from which on it is linear.
        delta: f64,
    },
    /// The mean of `ln cosh` of differences.
    LogCosh,
    /// `sum(y * ln(y / p))`.
    KlDivergence,
    /// The mean of `max(1 - y * p, 0)`, of targets -1 and 1; 0 is taken as -1.
    Hinge,
    /// The mean of its squares.
    SquaredHinge,
    /// `max(1 + max((1 - y) * p) - sum(y * p), 0)`.
    CategoricalHinge,
    /// Minus the cosine of the angle between the vectors of the last axis.
    CosineSimilarity,
    /// The mean of `p - y * ln p`.
    Poisson,
}

impl Loss {
    /// All names, in alphabetical order.
    pub const NAMES: [&'static str; 15] = {
        let mut names = [""; 15];
        let mut i = 0;
        while i < names.len() {
            names[i] = Self::DEFAULTS[i].0.name();
            i += 1;
        }
        names
    };

    /// The losses with their default settings and their aliases.
    const DEFAULTS: [(Self, &'static [&'static str]); 15] = [
        (Self::BinaryCrossentropy { from_logits: false, smoothing: 0.0 }, &["bce"]),
        (Self::CategoricalCrossentropy { from_logits: false, smoothing: 0.0 }, &["cce"]),
        (Self::CategoricalHinge, &[]),
        (Self::CosineSimilarity, &["cosine", "cosine_proximity"]),
        (Self::Hinge, &[]),
        (Self::Huber { delta: 1.0 }, &["huber_loss"]),
        (Self::KlDivergence, &["kl", "kld", "kldiv", "kullback_leibler_divergence"]),
        (Self::LogCosh, &[]),
        (Self::MeanAbsoluteError, &["mae"]),
        (Self::MeanAbsolutePercentageError, &["mape"]),
        (Self::MeanSquaredError, &["mse"]),
        (Self::MeanSquaredLogarithmicError, &["msle"]),
        (Self::Poisson, &[]),
        (
            Self::SparseCategoricalCrossentropy { from_logits: false, ignore_class: None },
            &["scce", "sparse_cce"],
        ),
        (Self::SquaredHinge, &[]),
    ];

    /// The name.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::BinaryCrossentropy { .. } => "binary_crossentropy",
            Self::CategoricalCrossentropy { .. } => "categorical_crossentropy",
            Self::CategoricalHinge => "categorical_hinge",
            Self::CosineSimilarity => "cosine_similarity",
            Self::Hinge => "hinge",
            Self::Huber { .. } => "huber",
            Self::KlDivergence => "kl_divergence",
            Self::LogCosh => "log_cosh",
            Self::MeanAbsoluteError => "mean_absolute_error",
            Self::MeanAbsolutePercentageError => "mean_absolute_percentage_error",
            Self::MeanSquaredError => "mean_squared_error",
            Self::MeanSquaredLogarithmicError => "mean_squared_logarithmic_error",
            Self::Poisson => "poisson",
            Self::SparseCategoricalCrossentropy { .. } => "sparse_categorical_crossentropy",
            Self::SquaredHinge => "squared_hinge",
        }
    }

    /// The function from logits to probabilities that the loss can absorb.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others have another form")]
    pub(super) const fn link(&self) -> Option<Link> {
        match self {
            Self::CategoricalCrossentropy { from_logits: false, .. }
            | Self::SparseCategoricalCrossentropy { from_logits: false, .. } => Some(Link::Softmax),
            Self::BinaryCrossentropy { from_logits: false, .. } => Some(Link::Sigmoid),
            _ => None,
        }
    }

    /// The same loss of logits.
    #[must_use]
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others have another form")]
    pub(super) const fn of_logits(self) -> Self {
        match self {
            Self::CategoricalCrossentropy { smoothing, .. } => {
                Self::CategoricalCrossentropy { from_logits: true, smoothing }
            }
            Self::SparseCategoricalCrossentropy { ignore_class, .. } => {
                Self::SparseCategoricalCrossentropy { from_logits: true, ignore_class }
            }
            Self::BinaryCrossentropy { smoothing, .. } => {
                Self::BinaryCrossentropy { from_logits: true, smoothing }
            }
            other => other,
        }
    }

    /// Whether targets are class numbers.
    pub(crate) const fn takes_classes(&self) -> bool {
        matches!(self, Self::SparseCategoricalCrossentropy { .. })
    }
}

/// A function that turns logits into probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    Softmax,
    Sigmoid,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Loss {
    type Err = ParseValueError;

    /// Reads a name, or another that the loss is known by, and settings behind it: `huber:delta=2`,
    /// `categorical_crossentropy:smoothing=0.1,from_logits=true`. Those that are not given have
    /// their defaults. Names are read without regard to case, `_` and `-`.
    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let (name, settings) = text.split_once(':').unwrap_or((text, ""));
        let mut loss = Self::with_defaults(name).ok_or_else(|| {
            ParseValueError::new(format!(
                "{} is not a loss{}; the losses are {}",
                Quoted(name),
                DidYouMean(name, &Self::NAMES),
                Self::NAMES.join(", ")
            ))
        })?;
        for setting in settings.split(',').filter(|s| !s.is_empty()) {
            loss.set(setting).map_err(|expected| {
                ParseValueError::new(format!(
                    "{} has no setting {}: {expected}",
                    loss.name(),
                    Quoted(setting)
                ))
            })?;
        }
        Ok(loss)
    }
}

impl Loss {
    /// The loss of that name, with its default settings.
    pub(super) fn with_defaults(name: &str) -> Option<Self> {
        let all = Self::DEFAULTS.iter().map(|(loss, others)| (*loss, loss.name(), *others));
        names::find(name, all)
    }

    /// Sets one setting; the error is what may be set.
    fn set(&mut self, setting: &str) -> Result<(), &'static str> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let truth = || value.parse::<bool>().ok();
        let part = || value.parse::<f64>().ok().filter(|x| (0.0..=1.0).contains(x));
        match (self, names::setting(key)) {
            (
                Self::CategoricalCrossentropy { from_logits, .. }
                | Self::SparseCategoricalCrossentropy { from_logits, .. }
                | Self::BinaryCrossentropy { from_logits, .. },
                "from_logits",
            ) => *from_logits = truth().ok_or("from_logits is true or false")?,
            (
                Self::CategoricalCrossentropy { smoothing, .. }
                | Self::BinaryCrossentropy { smoothing, .. },
                "smoothing",
            ) => *smoothing = part().ok_or("smoothing is a number from 0 to 1")?,
            (Self::SparseCategoricalCrossentropy { ignore_class, .. }, "ignore_class") => {
                *ignore_class = Some(value.parse().map_err(|_| "ignore_class is an integer")?);
            }
            (Self::Huber { delta }, "delta") => {
                let found = value.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
                *delta = found.ok_or("delta is a number above 0")?;
            }
            (Self::SparseCategoricalCrossentropy { .. }, _) => {
                return Err("it has from_logits and ignore_class");
            }
            (Self::CategoricalCrossentropy { .. } | Self::BinaryCrossentropy { .. }, _) => {
                return Err("it has from_logits and smoothing");
            }
            (Self::Huber { .. }, _) => return Err("it has delta"),
            _ => return Err("it has none"),
        }
        Ok(())
    }
}

/// A target and the output to compare with it.
#[derive(Clone, Copy)]
pub(super) struct Compared {
    /// The target.
    pub(super) target: Value,
    /// The model's output.
    pub(super) predicted: Value,
}

/// The cost of each row, and 1 or 0 for whether it is counted; `None` counts all.
pub(super) struct Cost {
    pub(super) values: Value,
    pub(super) counted: Option<Value>,
}

/// Writes a loss for each row of an output `[N, …, C]`. The result lacks the last axis.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others have another form")]
pub(super) fn write(at: &mut Writer<'_>, loss: Loss, of: Compared) -> Result<Cost, RuleError> {
    if let Loss::SparseCategoricalCrossentropy { from_logits, ignore_class } = loss {
        return sparse(at, of, from_logits, ignore_class);
    }
    let p = of.predicted;
    let to = at.ty(p).dtype;
    let y = at.cast(of.target, to)?;
    let of = Compared { target: y, predicted: p };
    let values = match loss {
        Loss::CategoricalCrossentropy { from_logits, smoothing } => {
            categorical(at, of, from_logits, smoothing)?
        }
        Loss::BinaryCrossentropy { from_logits, smoothing } => {
            binary(at, of, from_logits, smoothing)?
        }
        Loss::KlDivergence => {
            let (y, p) = (clip(at, y, EPSILON, 1.0)?, clip(at, p, EPSILON, 1.0)?);
            let ratio = at.div(y, p)?;
            let log = at.log(ratio)?;
            let terms = at.mul(y, log)?;
            total(at, terms)?
        }
        Loss::CategoricalHinge => {
            let own = at.mul(y, p)?;
            let own = total(at, own)?;
            let rest = at.complement(y)?;
            let rest = at.mul(rest, p)?;
            let rest = at.reduce_max(rest, vec![-1], false)?;
            let margin = at.sub(rest, own)?;
            let margin = at.shift(margin, 1.0)?;
            at.relu(margin)?
        }
        Loss::CosineSimilarity => {
            let (y, p) = (direction(at, y)?, direction(at, p)?);
            let terms = at.mul(y, p)?;
            let cosine = total(at, terms)?;
            at.neg(cosine)?
        }
        other => {
            let terms = elementwise(at, other, of)?;
            mean(at, terms)?
        }
    };
    Ok(Cost { values, counted: None })
}

/// The terms of the losses that are means over the last axis.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others have another form")]
fn elementwise(at: &mut Writer<'_>, loss: Loss, of: Compared) -> Result<Value, RuleError> {
    let Compared { target: y, predicted: p } = of;
    match loss {
        Loss::MeanSquaredLogarithmicError => {
            let mut log = |a| {
                let least = at.number(a, EPSILON)?;
                let a = at.max(a, least)?;
                let above = at.shift(a, 1.0)?;
                at.log(above)
            };
            let (y, p) = (log(y)?, log(p)?);
            let d = at.sub(p, y)?;
            at.square(d)
        }
        Loss::Hinge | Loss::SquaredHinge => {
            let (zero, minus) = (at.number(y, 0.0)?, at.number(y, -1.0)?);
            let is_zero = at.equal(y, zero)?;
            let y = at.choose(is_zero, minus, y)?;
            let product = at.mul(y, p)?;
            let margin = at.complement(product)?;
            let margin = at.relu(margin)?;
            if loss == Loss::Hinge { Ok(margin) } else { at.square(margin) }
        }
        Loss::Poisson => {
            let above = at.shift(p, EPSILON)?;
            let log = at.log(above)?;
            let share = at.mul(y, log)?;
            at.sub(p, share)
        }
        _ => {
            let d = at.sub(p, y)?;
            of_difference(at, loss, y, d)
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the others have another form")]
/// The terms of the losses that depend on the difference `d` alone, or on it and the target.
fn of_difference(at: &mut Writer<'_>, loss: Loss, y: Value, d: Value) -> Result<Value, RuleError> {
    match loss {
        Loss::MeanAbsoluteError => at.abs(d),
        Loss::MeanAbsolutePercentageError => {
            let size = at.abs(y)?;
            let least = at.number(size, EPSILON)?;
            let size = at.max(size, least)?;
            let share = at.div(d, size)?;
            let share = at.abs(share)?;
            at.scale(share, 100.0)
        }
        Loss::Huber { delta } => {
            let size = at.abs(d)?;
            let square = at.square(d)?;
            let near = at.scale(square, 0.5)?;
            let far = at.shift(size, -0.5 * delta)?;
            let far = at.scale(far, delta)?;
            let is_near = at.is_at_most(size, delta)?;
            at.choose(is_near, near, far)
        }
        Loss::LogCosh => {
            let twice = at.scale(d, -2.0)?;
            // `ln cosh d = d + softplus(-2 d) - ln 2`, which does not overflow like `cosh` for
            // large `d`.
            let plus = at.softplus(twice)?;
            let sum = at.add(d, plus)?;
            at.shift(sum, -std::f64::consts::LN_2)
        }
        _ => at.square(d),
    }
}

/// Categorical cross-entropy; smoothing gives each of `C` classes the share `smoothing / C`.
fn categorical(
    at: &mut Writer<'_>,
    of: Compared,
    from_logits: bool,
    smoothing: f64,
) -> Result<Value, RuleError> {
    let mut y = of.target;
    if smoothing != 0.0 {
        let classes = at.shape(of.predicted).last().and_then(Dim::as_const);
        let classes = invariant(classes, "that the number of classes is known");
        y = at.scale(y, 1.0 - smoothing)?;
        y = at.shift(y, smoothing / classes as f64)?;
    }
    cross_entropy(at, Compared { target: y, ..of }, from_logits)
}

/// `-sum(y * ln p)` over the last axis. A class with target 0 adds nothing, even at probability 0.
fn cross_entropy(at: &mut Writer<'_>, of: Compared, from_logits: bool) -> Result<Value, RuleError> {
    let Compared { target: y, predicted: p } = of;
    let mut log = log_probabilities(at, p, from_logits)?;
    if from_logits {
        // A logit of minus infinity has the logarithm minus infinity, and 0 times it would be NaN.
        let is_out = at.is(y, 0.0)?;
        let zero = at.number(log, 0.0)?;
        log = at.choose(is_out, zero, log)?;
    }
    let terms = at.mul(y, log)?;
    let sum = total(at, terms)?;
    at.neg(sum)
}

/// The logarithms of probabilities: the log-softmax of logits, else of outputs normalised to the
/// sum 1 and clipped off 0 and 1.
fn log_probabilities(at: &mut Writer<'_>, p: Value, from_logits: bool) -> Result<Value, RuleError> {
    if from_logits {
        return at.log_softmax(p, -1);
    }
    let sum = at.reduce_sum(p, vec![-1], true)?;
    let share = at.div(p, sum)?;
    let share = clip(at, share, EPSILON, 1.0 - EPSILON)?;
    at.log(share)
}

/// Sparse categorical cross-entropy, by a one-hot target.
fn sparse(
    at: &mut Writer<'_>,
    of: Compared,
    from_logits: bool,
    ignore_class: Option<i64>,
) -> Result<Cost, RuleError> {
    let p = of.predicted;
    let mut labels = at.cast(of.target, DType::I64)?;
    if at.ty(labels).rank() == at.ty(p).rank() {
        labels = at.squeeze(labels, vec![-1])?;
    }
    let mut left_out = None;
    if let Some(ignored) = ignore_class {
        let ignored = at.literal(Tensor::scalar(ignored))?;
        let is_ignored = at.equal(labels, ignored)?;
        left_out = Some(is_ignored);
        // Any valid class will do: the cost is replaced by 0 below.
        let first = at.number(labels, 0.0)?;
        labels = at.choose(is_ignored, first, labels)?;
    }
    let Some(classes) = at.shape(p).last().cloned() else {
        return Err(RuleError::Undefined("the output has no axis of classes"));
    };
    let ends = at.zero_and_one()?;
    let to = at.ty(p).dtype;
    let ends = at.convert(ends, to)?;
    let target = at.one_hot(labels, ends, classes.clone())?;
    let mut values = cross_entropy(at, Compared { target, ..of }, from_logits)?;
    // A label out of range gets the cost NaN, which no average hides.
    let nan = at.number(values, f64::NAN)?;
    let below = at.is_below(labels, 0.0)?;
    let count = invariant(classes.as_const(), "that the number of classes is known");
    let above = at.is_above(labels, count as f64 - 1.0)?;
    for outside in [below, above] {
        values = at.choose(outside, nan, values)?;
    }
    let mut counted = None;
    if let Some(is_ignored) = left_out {
        let (zero, one) = (at.number(p, 0.0)?, at.number(p, 1.0)?);
        values = at.choose(is_ignored, zero, values)?;
        counted = Some(at.choose(is_ignored, zero, one)?);
    }
    Ok(Cost { values, counted })
}

/// Binary cross-entropy, the mean over the last axis; smoothing moves targets towards one half.
fn binary(
    at: &mut Writer<'_>,
    of: Compared,
    from_logits: bool,
    smoothing: f64,
) -> Result<Value, RuleError> {
    let Compared { target: mut y, predicted: p } = of;
    if smoothing != 0.0 {
        y = at.scale(y, 1.0 - smoothing)?;
        y = at.shift(y, 0.5 * smoothing)?;
    }
    let rest = at.complement(y)?;
    // `-ln p` and `-ln (1 - p)`. On logits both are a softplus, which cannot overflow or cancel.
    let (yes, no) = if from_logits {
        let minus = at.neg(p)?;
        (at.softplus(minus)?, at.softplus(p)?)
    } else {
        let p = clip(at, p, EPSILON, 1.0 - EPSILON)?;
        let other = at.complement(p)?;
        let (yes, no) = (at.log(p)?, at.log(other)?);
        (at.neg(yes)?, at.neg(no)?)
    };
    let (yes, no) = (at.mul(y, yes)?, at.mul(rest, no)?);
    let terms = at.add(yes, no)?;
    mean(at, terms)
}

/// The value clipped to `min..=max`.
fn clip(at: &mut Writer<'_>, a: Value, min: f64, max: f64) -> Result<Value, RuleError> {
    at.clip(a, min, max)
}

/// `w` with axes of size 1 appended, so that it broadcasts to values of this rank.
pub(super) fn aligned(at: &mut Writer<'_>, w: Value, rank: usize) -> Result<Value, RuleError> {
    let own = at.shape(w);
    let behind = rank.saturating_sub(own.len());
    let shape = own.iter().cloned().chain((0..behind).map(|_| Dim::ONE)).collect();
    at.reshape(w, &shape)
}

/// The sum over the last axis.
pub(super) fn total(at: &mut Writer<'_>, a: Value) -> Result<Value, RuleError> {
    at.reduce_sum(a, vec![-1], false)
}

/// The mean over the last axis.
pub(super) fn mean(at: &mut Writer<'_>, a: Value) -> Result<Value, RuleError> {
    at.reduce_mean(a, vec![-1], false)
}

/// The vectors of the last axis, normalised to length 1.
fn direction(at: &mut Writer<'_>, a: Value) -> Result<Value, RuleError> {
    let squares = at.reduce_sum_square(a, vec![-1], true)?;
    let least = at.number(squares, EPSILON * EPSILON)?;
    let squares = at.max(squares, least)?;
    let length = at.sqrt(squares)?;
    at.div(a, length)
}

#[cfg(test)]
mod tests {
    use super::Loss;

    #[test]
    fn losses_have_the_names_that_users_know() {
        assert!(Loss::NAMES.is_sorted());
        for (text, name) in [
            ("bce", "binary_crossentropy"),
            ("BinaryCrossentropy", "binary_crossentropy"),
            ("KLDivergence", "kl_divergence"),
            ("kl", "kl_divergence"),
            ("kld", "kl_divergence"),
            ("cosine", "cosine_similarity"),
            ("logcosh", "log_cosh"),
            ("log-cosh", "log_cosh"),
            ("MSE", "mean_squared_error"),
            ("mean-absolute-error", "mean_absolute_error"),
            ("SparseCategoricalCrossentropy", "sparse_categorical_crossentropy"),
        ] {
            assert_eq!(text.parse::<Loss>().unwrap().name(), name, "{text}");
        }
        for name in Loss::NAMES {
            assert_eq!(name.parse::<Loss>().unwrap().name(), name);
        }
        let smooth = "cce:label_smoothing=0.1".parse::<Loss>();
        assert_eq!(smooth, "categorical_crossentropy:smoothing=0.1".parse());
        assert!(smooth.is_ok());
        let error = "categorical_crosentropy".parse::<Loss>().unwrap_err().to_string();
        let known =
            "(did you mean `categorical_crossentropy`?); the losses are binary_crossentropy, ";
        assert!(error.contains(known), "{error}");
        let error = "mse:delta=1".parse::<Loss>().unwrap_err().to_string();
        assert_eq!(error, "mean_squared_error has no setting `delta=1`: it has none");
    }
}
