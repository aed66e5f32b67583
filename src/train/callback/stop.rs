//! Ends of a training before its last epoch.

use super::error::failed;
use crate::Error;
use crate::train::history::History;
use crate::train::monitor::Monitor;
use crate::train::observer::{Observer, TrainState};

/// Ends a training that gets no better.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopping {
    /// The monitored number.
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
    fn begin(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        watch.check_number(&self.monitor.name)?;
        // A checkpoint may be that of a training that has ended.
        Ok(watch.at.step > 0 || self.goes_on(watch.history())?)
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        self.goes_on(watch.history())
    }
}

/// Ends a training whose loss is no finite number: nothing can be learned any more.
#[derive(Clone, Copy, Debug, Default)]
pub struct Finite;

impl Observer for Finite {
    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        let loss = watch.logs().loss;
        if loss.is_finite() {
            return Ok(());
        }
        let (epoch, batch) = (watch.at.epoch + 1, watch.at.step);
        let cause = watch.cause().unwrap_or_else(|| {
            "training cannot continue; try a lower learning rate, or clipped gradients".to_owned()
        });
        Err(failed(format!("the loss became {loss} at batch {batch} of epoch {epoch}: {cause}")))
    }

    fn keeps_finite(&self) -> bool {
        true
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
        assert!(error.contains("an epoch has loss, accuracy, learning_rate"), "{error}");
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
