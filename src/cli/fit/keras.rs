//! Training that goes on where a Keras file ends, and the file after it.

use crate::Error;
use crate::ir::Weights;
use crate::pass::{STEP, Training};
use crate::train::keras::{Compiled, Decay, Written};
use crate::train::{History, LearningRate, Observer, TrainState, Trainer};
use crate::types::invariant::invariant;
use anyhow::anyhow;

use super::args::FitArgs;
use crate::cli::ui;

/// A Keras file and the training of its model.
pub(super) struct KerasFile<'a> {
    pub(super) file: Compiled,
    pub(super) training: Training,
    pub(super) args: &'a FitArgs,
    /// The schedule of the file, where it gives the learning rate.
    pub(super) decay: Option<Decay>,
}

impl KerasFile<'_> {
    /// Whether the optimizer is that of the file.
    fn own_optimizer(&self) -> bool {
        !self.args.optimizer.has_optimizer() && matches!(self.file.optimizer(), Ok(Some(_)))
    }

    /// Gives the trainer the variables of the file's optimizer, and returns the batches that it has
    /// seen. A run that is resumed gets those of its checkpoint later.
    pub(super) fn begin(&self, trainer: &mut Trainer) -> anyhow::Result<u64> {
        if !self.own_optimizer() {
            return Ok(0);
        }
        let optimizer = self.file.optimizer().ok().flatten();
        let Some((optimizer, decay)) = optimizer else { return Ok(0) };
        let own = trainer.variables()?;
        let state = self.file.state(&optimizer, decay.is_some(), &own).map_err(Error::from)?;
        let Some(state) = state else {
            ui::note(
                "the optimizer begins anew: the file has no state of it, or one of other variables",
            );
            return Ok(0);
        };
        trainer.set_weights(&state)?;
        let step = state.get(STEP).and_then(|step| step.as_slice::<i64>().first().copied());
        let step = invariant(step, "that an optimizer's state has the number of its step");
        u64::try_from(step).map_err(|_| anyhow!("the file says that {step} steps were made"))
    }

    /// The learning rates of the file's schedule, from this number of batches on.
    pub(super) fn rate(&self, begun: u64) -> Option<Box<dyn Observer>> {
        let decay = self.decay.clone()?;
        let rate = move |watch: &TrainState<'_>, _| decay.rate(begun + watch.done);
        Some(Box::new(LearningRate::new(rate)))
    }

    /// Fails if the file cannot be written.
    pub(super) fn check(&self, trainer: &Trainer) -> anyhow::Result<()> {
        let checked = self.written(None).check();
        checked.map_err(|e| anyhow!("{e}; save to a .fan or .safetensors file"))?;
        self.bytes(trainer, None).map(drop)
    }

    fn written(&self, history: Option<&History>) -> Written<'_> {
        let [loss, metrics, weighted] = self.args.objective.tells();
        let base = self.training.optimizer.learning_rate;
        // Another schedule has no form in Keras: it goes on with the last rate.
        let last = history.and_then(|history| history.epochs.last()).map(|e| e.learning_rate);
        Written {
            training: &self.training,
            own_loss: !loss,
            own_metrics: [!metrics, !weighted],
            own_optimizer: self.own_optimizer(),
            rate: self.decay.is_none().then(|| last.unwrap_or(base)),
        }
    }

    /// The bytes of the file after the training.
    pub(super) fn bytes(
        &self,
        trainer: &Trainer,
        history: Option<&History>,
    ) -> anyhow::Result<Vec<u8>> {
        let weights: Weights = trainer.weights()?;
        let new = self.written(history);
        let variables = trainer.variables()?;
        Ok(self.file.written(&new, &weights, &variables).map_err(Error::from)?)
    }
}
