//! Learning rates that a function gives.

use crate::Error;
use crate::train::observer::{Observer, TrainState};

/// Sets the learning rate of every batch: `f` is given what there is to see before it, and the rate
/// that the schedule says.
///
/// A rate for every epoch looks at the epoch alone:
///
/// ```
/// use fanwise::train::LearningRate;
///
/// let halves = LearningRate::new(|watch, rate| rate * 0.5f64.powf(watch.at.epoch as f64));
/// let rises = LearningRate::new(|watch, rate| rate * ((watch.done + 1) as f64 / 100.0).min(1.0));
/// # let _ = (halves, rises);
/// ```
pub struct LearningRate<F> {
    f: F,
}

impl<F: FnMut(&TrainState<'_>, f64) -> f64> LearningRate<F> {
    /// The rates that `f` gives, finite numbers from 0 on; others end the training with an error.
    pub fn new(f: F) -> Self {
        Self { f }
    }
}

impl<F: FnMut(&TrainState<'_>, f64) -> f64> Observer for LearningRate<F> {
    fn learning_rate(&mut self, watch: &TrainState<'_>, rate: f64) -> Result<f64, Error> {
        Ok((self.f)(watch, rate))
    }
}
