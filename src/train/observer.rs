//! Observers of training and the state that they see.

use std::collections::BTreeMap;

use super::data::Position;
use super::history::{History, Logs};
use super::run::Run;
use super::{Checkpoint, TrainError, Trainer, cause};
use crate::Error;
use crate::types::Tensor;

/// The state of a training that an observer sees.
pub struct TrainState<'t> {
    /// The place of the next batch.
    pub at: Position,
    /// The batches before it, of all epochs.
    pub done: u64,
    /// The learning rate of the batch before; none before the first.
    pub rate: Option<f64>,
    /// The batches of an epoch, where that is known.
    pub steps: Option<u64>,
    /// The rows of an epoch, where that is known.
    pub rows: Option<u64>,
    /// The epochs in all.
    pub epochs: u64,
    /// True if validation data evaluate every epoch.
    pub validated: bool,
    /// The inputs of the batch before, behind it.
    pub(super) batch: Option<&'t BTreeMap<String, Tensor>>,
    pub(super) trainer: &'t Trainer,
    pub(super) terms: &'t BTreeMap<String, String>,
    pub(super) run: &'t Run,
}

impl TrainState<'_> {
    /// The loss and the metrics of the epoch so far.
    pub(crate) fn logs(&self) -> Logs {
        self.run.sums.logs()
    }

    /// The whole epochs before.
    pub fn history(&self) -> &History {
        &self.run.history
    }

    /// All that is needed to go on from here: the weights, the variables of the optimizer and the
    /// step, the optimizer, the schedule and the seeds as texts, the place in the data, and the
    /// history. What a run was given besides goes into [`Checkpoint::settings`].
    ///
    /// # Errors
    /// If devices do not give the variables, or one that steps change is no longer finite.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        let variables = self.trainer.train.executable.weights()?;
        self.trainer.assert_finite(&variables)?;
        let Run { at, done, rate, history, sums } = self.run;
        Ok(Checkpoint {
            variables,
            at: *at,
            history: history.clone(),
            terms: self.terms.clone(),
            partial: sums.clone(),
            done: *done,
            rate: *rate,
            ..Checkpoint::default()
        })
    }

    /// A clause that says where the loss of the batch before began not to be finite; none where
    /// that cannot be found. Its step must have changed nothing.
    pub(crate) fn cause(&self) -> Option<String> {
        let stage = &self.trainer.train;
        let weights = stage.executable.weights().ok()?;
        cause::of(&self.trainer.graph, &weights, self.batch?, stage.options().max_memory)
    }

    /// Fails unless epochs tell a number of this name.
    ///
    /// # Errors
    /// Then.
    pub(crate) fn check_number(&self, name: &str) -> Result<(), TrainError> {
        self.trainer.check_number(name, self.validated)
    }
}

/// Something that watches a training, sets its learning rate, and may end it.
///
/// One that fails does so with an error of a layer, or with [`TrainError::Watch`] and a sentence
/// that says why.
///
/// Elsewhere: hook (PyTorch); callback (Keras).
pub trait Observer {
    /// Before the first batch; false ends the training.
    ///
    /// # Errors
    /// If it cannot do its work; the training ends.
    fn begin(&mut self, _watch: &TrainState<'_>) -> Result<bool, Error> {
        Ok(true)
    }

    /// Before a batch: its learning rate, where the schedule and the observers before give it
    /// `rate`. A training that is resumed goes on as if it had not stopped where this follows from
    /// what `watch` shows.
    ///
    /// # Errors
    /// If it cannot do its work; the training ends.
    fn learning_rate(&mut self, _watch: &TrainState<'_>, rate: f64) -> Result<f64, Error> {
        Ok(rate)
    }

    /// After a batch.
    ///
    /// # Errors
    /// If it cannot do its work; the training ends.
    fn batch(&mut self, _watch: &TrainState<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// After a batch of the validation data, which come behind the last batch of an epoch.
    ///
    /// # Errors
    /// If it cannot do its work; the training ends.
    #[doc(hidden)]
    fn validation_batch(&mut self, _watch: &TrainState<'_>) -> Result<(), Error> {
        Ok(())
    }

    /// True if steps whose loss is not finite shall change nothing, so that their cause can be
    /// found.
    #[doc(hidden)]
    fn keeps_finite(&self) -> bool {
        false
    }

    /// After an epoch, the last of the history; false ends the training.
    ///
    /// # Errors
    /// If it cannot do its work; the training ends.
    fn epoch(&mut self, _watch: &TrainState<'_>) -> Result<bool, Error> {
        Ok(true)
    }
}

/// What every observer says, though one says no: true if all say yes.
pub(super) fn each(
    observers: &mut [&mut dyn Observer],
    mut ask: impl FnMut(&mut dyn Observer) -> Result<bool, Error>,
) -> Result<bool, Error> {
    let mut all = true;
    for observer in observers {
        all &= ask(&mut **observer)?;
    }
    Ok(all)
}
