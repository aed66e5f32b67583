//! The numbers by which epochs are compared.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::TrainError;
use super::history::{Epoch, History};
use crate::Error;

/// A number of every epoch by which epochs are compared: `loss`, `val_loss`, `val_accuracy`, …
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Monitor {
    /// Its name.
    pub name: String,
    /// True if larger is better.
    pub more: bool,
}

impl Monitor {
    /// The number of this name: of accuracies, `auc`, `precision`, `recall` and the metric
    /// `cosine_similarity` more is better, of all else less.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        // The second metric of a name has a number behind it.
        let numbered = name.rsplit_once('_').filter(|(_, n)| n.parse::<u32>().is_ok());
        let kind = numbered.map_or(&*name, |(kind, _)| kind);
        let ends = ["accuracy", "auc", "precision", "recall", "cosine_similarity"];
        let more = ends.iter().any(|end| kind.ends_with(end));
        Self { name, more }
    }

    /// The improvement of `value` over `other`; NaN is worse than all numbers.
    fn gain(&self, value: f64, other: f64) -> f64 {
        match (value.is_nan(), other.is_nan()) {
            (true, _) => f64::NEG_INFINITY,
            (false, true) => f64::INFINITY,
            _ if self.more => value - other,
            _ => other - value,
        }
    }

    /// The epochs that were better than all before them by more than `least`, the first one among
    /// them, as places in the history. Epochs without the number do not count.
    ///
    /// # Errors
    /// If the last epoch has no such number.
    pub(crate) fn better(&self, history: &History, least: f64) -> Result<Vec<usize>, Error> {
        self.better_of(&history.epochs, least)
    }

    /// [`Self::better`] of some epochs.
    pub(super) fn better_of(&self, epochs: &[Epoch], least: f64) -> Result<Vec<usize>, Error> {
        let (mut found, mut best) = (Vec::new(), f64::NAN);
        for (at, epoch) in epochs.iter().enumerate() {
            let Some(value) = epoch.get(&self.name) else {
                if at + 1 < epochs.len() {
                    continue;
                }
                let known: Vec<String> = epoch.numbers().into_iter().map(|(n, _)| n).collect();
                let known = known.join(", ");
                let reason = format!("unknown metric `{self}`; an epoch has {known}");
                return Err(TrainError::Watch(reason).into());
            };
            if self.gain(value, best) > least {
                found.push(at);
                best = value;
            }
        }
        Ok(found)
    }
}

impl fmt::Display for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}
