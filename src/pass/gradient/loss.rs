//! Losses: their names, settings and text form. `cost.rs` has their formulas.

use std::fmt;
use std::str::FromStr;

use super::names::{self, DidYouMean};
use crate::types::{ParseValueError, Quoted};

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
    /// The mean of `(1 - p_t)^gamma` times the binary cross-entropy, with the probability `p_t =
    /// y * p + (1 - y) * (1 - p)` of the target.
    BinaryFocalCrossentropy {
        /// Whether the output is the logarithm of odds.
        from_logits: bool,
        /// The part of a target that goes to one half.
        smoothing: f64,
        /// The exponent.
        gamma: f64,
        /// The weight of class 1; that of class 0 is `1 - alpha`.
        alpha: f64,
        /// Whether classes have weights.
        balanced: bool,
    },
    /// `-sum(alpha * (1 - p)^gamma * y * ln p)` over the last axis.
    CategoricalFocalCrossentropy {
        /// Whether the output is the logarithm of odds.
        from_logits: bool,
        /// The part of a target that all classes share.
        smoothing: f64,
        /// The exponent.
        gamma: f64,
        /// The weight of all classes.
        alpha: f64,
    },
    /// The mean of the differences `p - y`: an output that is a cost itself has the target 0.
    MeanDifference,
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
    pub const NAMES: [&'static str; 18] = {
        let mut names = [""; 18];
        let mut i = 0;
        while i < names.len() {
            names[i] = Self::DEFAULTS[i].0.name();
            i += 1;
        }
        names
    };

    /// The losses with their default settings and their aliases.
    const DEFAULTS: [(Self, &'static [&'static str]); 18] = [
        (Self::BinaryCrossentropy { from_logits: false, smoothing: 0.0 }, &["bce"]),
        (
            Self::BinaryFocalCrossentropy {
                from_logits: false,
                smoothing: 0.0,
                gamma: 2.0,
                alpha: 0.25,
                balanced: false,
            },
            &[],
        ),
        (Self::CategoricalCrossentropy { from_logits: false, smoothing: 0.0 }, &["cce"]),
        (
            Self::CategoricalFocalCrossentropy {
                from_logits: false,
                smoothing: 0.0,
                gamma: 2.0,
                alpha: 0.25,
            },
            &[],
        ),
        (Self::CategoricalHinge, &[]),
        (Self::CosineSimilarity, &["cosine", "cosine_proximity"]),
        (Self::Hinge, &[]),
        (Self::Huber { delta: 1.0 }, &["huber_loss"]),
        (Self::KlDivergence, &["kl", "kld", "kldiv", "kullback_leibler_divergence"]),
        (Self::LogCosh, &[]),
        (Self::MeanAbsoluteError, &["mae"]),
        (Self::MeanAbsolutePercentageError, &["mape"]),
        (Self::MeanDifference, &[]),
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
            Self::BinaryFocalCrossentropy { .. } => "binary_focal_crossentropy",
            Self::CategoricalCrossentropy { .. } => "categorical_crossentropy",
            Self::CategoricalFocalCrossentropy { .. } => "categorical_focal_crossentropy",
            Self::CategoricalHinge => "categorical_hinge",
            Self::CosineSimilarity => "cosine_similarity",
            Self::Hinge => "hinge",
            Self::Huber { .. } => "huber",
            Self::KlDivergence => "kl_divergence",
            Self::LogCosh => "log_cosh",
            Self::MeanAbsoluteError => "mean_absolute_error",
            Self::MeanAbsolutePercentageError => "mean_absolute_percentage_error",
            Self::MeanDifference => "mean_difference",
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

    /// What may be set, as a clause.
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others have none")]
    const fn settings(&self) -> &'static str {
        match self {
            Self::SparseCategoricalCrossentropy { .. } => "it has from_logits and ignore_class",
            Self::CategoricalCrossentropy { .. } | Self::BinaryCrossentropy { .. } => {
                "it has from_logits and smoothing"
            }
            Self::BinaryFocalCrossentropy { .. } => {
                "it has from_logits, smoothing, gamma, alpha and apply_class_balancing"
            }
            Self::CategoricalFocalCrossentropy { .. } => {
                "it has from_logits, smoothing, gamma and alpha"
            }
            Self::Huber { .. } => "it has delta",
            _ => "it has none",
        }
    }

    /// Sets one setting; the error is what may be set.
    fn set(&mut self, setting: &str) -> Result<(), &'static str> {
        let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
        let truth = || value.parse::<bool>().ok();
        let part = || value.parse::<f64>().ok().filter(|x| (0.0..=1.0).contains(x));
        let size = || value.parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
        let known = self.settings();
        match (self, names::setting(key)) {
            (
                Self::CategoricalCrossentropy { from_logits, .. }
                | Self::SparseCategoricalCrossentropy { from_logits, .. }
                | Self::BinaryCrossentropy { from_logits, .. }
                | Self::BinaryFocalCrossentropy { from_logits, .. }
                | Self::CategoricalFocalCrossentropy { from_logits, .. },
                "from_logits",
            ) => *from_logits = truth().ok_or("from_logits is true or false")?,
            (
                Self::CategoricalCrossentropy { smoothing, .. }
                | Self::BinaryCrossentropy { smoothing, .. }
                | Self::BinaryFocalCrossentropy { smoothing, .. }
                | Self::CategoricalFocalCrossentropy { smoothing, .. },
                "smoothing",
            ) => *smoothing = part().ok_or("smoothing is a number from 0 to 1")?,
            (
                Self::BinaryFocalCrossentropy { gamma, .. }
                | Self::CategoricalFocalCrossentropy { gamma, .. },
                "gamma",
            ) => *gamma = size().ok_or("gamma is a number from 0")?,
            (Self::BinaryFocalCrossentropy { alpha, .. }, "alpha") => {
                *alpha = part().ok_or("alpha is a number from 0 to 1")?;
            }
            (Self::CategoricalFocalCrossentropy { alpha, .. }, "alpha") => {
                *alpha = size().ok_or("alpha is a number from 0")?;
            }
            (Self::BinaryFocalCrossentropy { balanced, .. }, "apply_class_balancing") => {
                *balanced = truth().ok_or("apply_class_balancing is true or false")?;
            }
            (Self::SparseCategoricalCrossentropy { ignore_class, .. }, "ignore_class") => {
                *ignore_class = Some(value.parse().map_err(|_| "ignore_class is an integer")?);
            }
            (Self::Huber { delta }, "delta") => {
                let found = value.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
                *delta = found.ok_or("delta is a number above 0")?;
            }
            _ => return Err(known),
        }
        Ok(())
    }
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
