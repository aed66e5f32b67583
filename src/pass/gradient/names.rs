//! Names of losses, metrics, optimizers and settings, with aliases from other frameworks.

use std::fmt;

use crate::types::{alike, closest};

/// The entry of a table with this name or alias.
pub(super) fn find<'t, T>(
    name: &str,
    table: impl IntoIterator<Item = (T, &'t str, &'t [&'t str])>,
) -> Option<T> {
    let known = |own: &str, others: &[&str]| [own].iter().chain(others).any(|n| alike(n, name));
    table.into_iter().find(|(_, own, others)| known(own, others)).map(|(entry, ..)| entry)
}

/// The settings with their aliases.
const SETTINGS: [(&str, &[&str]); 33] = [
    ("alpha", &[]),
    ("amsgrad", &[]),
    ("apply_class_balancing", &[]),
    ("beta", &[]),
    ("beta_1", &[]),
    ("beta_2", &[]),
    ("centered", &[]),
    ("clipnorm", &[]),
    ("clipvalue", &[]),
    ("delta", &[]),
    ("ema_momentum", &[]),
    ("ema_overwrite_frequency", &[]),
    ("epsilon", &["eps"]),
    ("from_logits", &[]),
    ("global_clipnorm", &[]),
    ("gamma", &[]),
    ("gradient_accumulation_steps", &[]),
    ("ignore_class", &["ignore_index"]),
    ("initial_accumulator_value", &[]),
    ("k", &[]),
    ("l1_regularization_strength", &[]),
    ("l2_regularization_strength", &[]),
    ("l2_shrinkage_regularization_strength", &[]),
    ("learning_rate", &["lr"]),
    ("learning_rate_power", &[]),
    ("momentum", &[]),
    ("nesterov", &[]),
    ("num_thresholds", &[]),
    ("rho", &[]),
    ("smoothing", &["label_smoothing"]),
    ("threshold", &["thresholds"]),
    ("use_ema", &["ema"]),
    ("weight_decay", &[]),
];

/// The canonical name of a setting; an unknown one is returned unchanged, for the error.
pub(super) fn setting(key: &str) -> &str {
    find(key, SETTINGS.map(|(own, others)| (own, own, others))).unwrap_or(key)
}

/// The suffix of an error about an unknown name, with the closest known name.
pub(super) struct DidYouMean<'a>(pub(super) &'a str, pub(super) &'a [&'a str]);

impl fmt::Display for DidYouMean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match closest(self.0, self.1.iter().copied()) {
            Some(name) => write!(f, " (did you mean `{name}`?)"),
            None => Ok(()),
        }
    }
}
