//! Trainings whose loss or weights are no longer finite: what is kept of them, and how to start
//! anew, because a run that is resumed keeps its learning rate.

use crate::Error;
use crate::train::{Checkpoint, Finite, Keep, ModelCheckpoint, Observer, TrainError, TrainState};

use super::lines::after;
use crate::cli::report::quoted;

/// The file for the model of a checkpoint: hardly the name of the model that the run is of.
const MODEL: &str = "restart.fan";

/// Ends a training whose loss is no finite number, and says what is kept.
pub(super) struct FiniteLoss {
    /// The callback that keeps checkpoints.
    pub(super) keeper: Option<ModelCheckpoint>,
}

impl Observer for FiniteLoss {
    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        Finite.batch(watch).map_err(|error| match &self.keeper {
            Some(keeper) => with_way(error, keeper),
            None => error,
        })
    }

    fn keeps_finite(&self) -> bool {
        Finite.keeps_finite()
    }
}

/// Keeps checkpoints, and says what is kept where the weights are no longer finite.
pub(super) struct FiniteWeights(pub(super) ModelCheckpoint);

impl Observer for FiniteWeights {
    fn begin(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        self.0.begin(watch)
    }

    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        self.0.batch(watch).map_err(|error| with_way(error, &self.0))
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        self.0.epoch(watch).map_err(|error| with_way(error, &self.0))
    }
}

/// The error of numbers that are not finite, with the way to start anew from what is kept.
fn with_way(error: Error, keeper: &ModelCheckpoint) -> Error {
    let Error::Train(own @ (TrainError::Watch(_) | TrainError::Diverged(_))) = &error else {
        return error;
    };
    match way(keeper) {
        Some(way) => TrainError::Watch(format!("{own}; {way}")).into(),
        None => error,
    }
}

/// How to start anew from the checkpoint that is kept, that of the best epoch where there is one.
/// One that cannot be read is no start.
fn way(keeper: &ModelCheckpoint) -> Option<String> {
    let best = Some(keeper.best()).filter(|_| keeper.keep == Keep::Best);
    let mut folders = best.into_iter().chain([keeper.folder.clone()]);
    let (at, folder) =
        folders.find_map(|folder| Some((Checkpoint::read_state(&folder).ok()??.at, folder)))?;
    let (shown, folder) = (folder.display(), quoted(&folder.display().to_string()));
    Some(format!(
        "the checkpoint {} stays in {shown}; to start anew from its weights with other settings: \
         `fanwise compile {folder} --emit graph={MODEL}`, then `fanwise fit {MODEL} …`",
        after(at)
    ))
}

#[cfg(test)]
mod tests {
    use super::{Checkpoint, Error, Keep, ModelCheckpoint, TrainError, with_way};

    #[test]
    fn what_is_kept_is_a_start() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a run");
        let mut keeper = ModelCheckpoint::new(&folder);
        keeper.keep = Keep::Best;
        let said = |keeper: &ModelCheckpoint| {
            let text = with_way(TrainError::Diverged("w".to_owned()).into(), keeper).to_string();
            text.replace(&folder.display().to_string(), "RUN")
        };
        assert!(said(&keeper).ends_with("clipped gradients"), "{}", said(&keeper));
        let mut kept = Checkpoint::default();
        (kept.at.epoch, kept.at.step) = (2, 3);
        kept.write(&folder).unwrap();
        let end = "; the checkpoint after batch 3 of epoch 3 stays in RUN; to start anew from its \
                   weights with other settings: `fanwise compile 'RUN' --emit graph=restart.fan`, \
                   then `fanwise fit restart.fan …`";
        assert!(said(&keeper).ends_with(end), "{}", said(&keeper));
        kept.at.step = 0;
        kept.write(&keeper.best()).unwrap();
        let best = "the checkpoint after epoch 2 stays in RUN/best; ";
        assert!(said(&keeper).contains(best), "{}", said(&keeper));
        keeper.keep = Keep::Last;
        assert!(said(&keeper).ends_with(end), "{}", said(&keeper));
        let other: Error = TrainError::Shards(3).into();
        assert!(!with_way(other, &keeper).to_string().contains("stays"));
    }
}
