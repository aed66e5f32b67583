//! Ends of a training before its last epoch.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::failed;
use crate::Error;
use crate::train::history::{Epoch, History};
use crate::train::observer::{Observer, Watch};

/// A number of every epoch by which epochs are compared: `loss`, `val_loss`, `val_accuracy`, …
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Monitor {
    /// Its name.
    pub name: String,
    /// Whether more of it is better.
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

    /// How much better `value` is than `other`; a number that is none is worse than all others.
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
    pub fn better(&self, history: &History, least: f64) -> Result<Vec<usize>, Error> {
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
                return Err(failed(format!("no epoch has a number `{self}`; it has {known}")));
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

/// Ends a training that gets no better.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopping {
    /// What should get better.
    pub monitor: Monitor,
    /// The epochs without improvement after which the training ends, at least 1.
    pub patience: u64,
    /// The least that counts as an improvement.
    pub least: f64,
}

impl EarlyStopping {
    /// Ends a training after the first epoch that does not improve this number, as Keras' default.
    pub fn new(monitor: impl Into<String>) -> Self {
        Self { monitor: Monitor::new(monitor), patience: 1, least: 0.0 }
    }

    fn goes_on(&self, history: &History) -> Result<bool, Error> {
        let best = self.monitor.better(history, self.least)?.last().map_or(0, |at| at + 1);
        let since = history.epochs.len() - best;
        Ok((since as u64) < self.patience.max(1))
    }
}

impl Observer for EarlyStopping {
    fn begin(&mut self, watch: &Watch<'_>) -> Result<bool, Error> {
        watch.check_number(&self.monitor.name)?;
        // A checkpoint may be that of a training that has ended.
        Ok(watch.at.step > 0 || self.goes_on(watch.history())?)
    }

    fn epoch(&mut self, watch: &Watch<'_>) -> Result<bool, Error> {
        self.goes_on(watch.history())
    }
}

/// Ends a training whose loss is no finite number: nothing can be learned any more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finite;

impl Observer for Finite {
    fn batch(&mut self, watch: &Watch<'_>) -> Result<(), Error> {
        let loss = watch.logs().loss;
        if loss.is_finite() {
            return Ok(());
        }
        let (epoch, batch) = (watch.at.epoch + 1, watch.at.step);
        Err(failed(format!(
            "the loss became {loss} at batch {batch} of epoch {epoch}, and nothing is learned from \
             there on; try a \
             lower learning rate, or clipped gradients"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::{EarlyStopping, Monitor};
    use crate::train::{Epoch, History, Logs};

    fn history(losses: &[f64]) -> History {
        let epoch = |(i, loss): (usize, &f64)| Epoch {
            epoch: i as u64,
            training: Logs { rows: 1, loss: *loss, metrics: vec![("accuracy".to_owned(), -*loss)] },
            ..Epoch::default()
        };
        History { epochs: losses.iter().enumerate().map(epoch).collect() }
    }

    #[test]
    fn better_epochs_are_found() {
        let losses = history(&[f64::NAN, 3.0, 3.0, 2.5, 2.9, 1.0, f64::NAN]);
        for name in ["loss", "accuracy"] {
            let monitor = Monitor::new(name);
            assert_eq!(monitor.better(&losses, 0.0).unwrap(), [1, 3, 5]);
            assert_eq!(monitor.better(&losses, 0.6).unwrap(), [1, 5]);
        }
        let error = Monitor::new("val_loss").better(&losses, 0.0).unwrap_err().to_string();
        assert!(error.contains("it has loss, accuracy, learning_rate"), "{error}");
        assert!(Monitor::new("val_loss").better(&history(&[]), 0.0).unwrap().is_empty());
    }

    #[test]
    fn patience_ends() {
        let stop = |patience| EarlyStopping { monitor: Monitor::new("loss"), patience, least: 0.0 };
        let goes_on = |patience, losses: &[f64]| stop(patience).goes_on(&history(losses)).unwrap();
        assert!(goes_on(1, &[]) && goes_on(1, &[2.0]) && goes_on(1, &[2.0, 1.0]));
        assert!(!goes_on(1, &[2.0, 2.0]) && goes_on(2, &[2.0, 2.0]));
        assert!(!goes_on(2, &[2.0, 3.0, 2.5]) && goes_on(0, &[2.0]));
        assert!(!goes_on(2, &[f64::NAN, f64::NAN]));
    }
}
