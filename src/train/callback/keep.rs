//! Checkpoints at the ends of epochs and between.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::Error;
use crate::train::checkpoint::{BEST, Checkpoint, OF_EPOCH};
use crate::train::error::CheckpointError;
use crate::train::history::History;
use crate::train::monitor::Monitor;
use crate::train::observer::{Observer, TrainState};
use crate::types::{ParseValueError, Quoted};

/// The checkpoints that are kept besides the last one, from which training resumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// None.
    #[default]
    Last,
    /// The checkpoint of the best epoch, in the folder `best`.
    Best,
    /// The checkpoint of every epoch, in the folder `epoch-` with its number from 1.
    Every,
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Last => "last",
            Self::Best => "best",
            Self::Every => "every",
        })
    }
}

/// The error for a text that does not fit.
fn wrong(text: &str) -> ParseValueError {
    ParseValueError::new(format!(
        "unknown checkpoints to keep: {}; use `last`, `best` or `every`",
        Quoted(text)
    ))
}

impl FromStr for Keep {
    type Err = ParseValueError;

    fn from_str(text: &str) -> Result<Self, ParseValueError> {
        let all = [Self::Last, Self::Best, Self::Every];
        let found = all.into_iter().find(|keep| keep.to_string() == text);
        found.ok_or_else(|| wrong(text))
    }
}

/// Keeps checkpoints of a training in a folder.
#[derive(Clone, Debug)]
pub struct ModelCheckpoint {
    /// The folder.
    pub folder: PathBuf,
    /// The checkpoints that are kept.
    pub keep: Keep,
    /// By what the best epoch is found.
    pub monitor: Monitor,
    /// Also after so many batches.
    pub every: Option<u64>,
    /// The settings that checkpoints hold.
    pub settings: BTreeMap<String, Vec<String>>,
}

impl ModelCheckpoint {
    /// Keeps the last checkpoint in this folder, after every epoch; the best one would be that of
    /// the least loss of validation.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
            keep: Keep::Last,
            monitor: Monitor::new("val_loss"),
            every: None,
            settings: BTreeMap::new(),
        }
    }

    /// The folder of the best epoch.
    pub(crate) fn best(&self) -> PathBuf {
        self.folder.join(BEST)
    }

    /// The number by which the checkpoint in the folder of the best epoch was found to be that, if
    /// it is another one than the epochs of this run are compared by: what is kept there is then no
    /// longer the best one.
    ///
    /// # Errors
    /// If the checkpoint cannot be read.
    pub(crate) fn replaces(&self) -> Result<Option<Monitor>, CheckpointError> {
        let kept = (self.keep == Keep::Best).then(|| Checkpoint::read_state(&self.best()));
        let by = kept.transpose()?.flatten().and_then(|kept| kept.best_by);
        Ok(by.filter(|by| *by != self.monitor))
    }

    /// Writes the checkpoint of a state, to a second folder as well if one is named.
    ///
    /// # Errors
    /// If it cannot be written, or a variable is no longer finite.
    pub(crate) fn write(&self, watch: &TrainState<'_>, also: Option<&Path>) -> Result<(), Error> {
        let mut checkpoint = watch.checkpoint()?;
        checkpoint.settings.clone_from(&self.settings);
        // The last one comes last: until it is there, a training that goes on writes the others
        // again.
        if let Some(folder) = also {
            checkpoint.best_by = (self.keep == Keep::Best).then(|| self.monitor.clone());
            checkpoint.write(folder)?;
            checkpoint.best_by = None;
        }
        Ok(checkpoint.write(&self.folder)?)
    }

    /// The best checkpoint so far, without its variables. One that does not say by what it was
    /// found is that.
    fn kept(&self) -> Result<Option<Checkpoint>, Error> {
        let kept = Checkpoint::read_state(&self.best())?;
        Ok(kept.filter(|kept| kept.best_by.as_ref().is_none_or(|by| *by == self.monitor)))
    }

    /// True if the last epoch is better than the best checkpoint.
    fn is_best(&self, history: &History) -> Result<bool, Error> {
        let all = &history.epochs;
        let until = |epochs: usize| Some(History { epochs: all.get(..epochs)?.to_vec() }.csv());
        let ours = |kept: &Checkpoint| until(kept.history.epochs.len()) == Some(kept.history.csv());
        // One that was kept within an epoch is not that of any epoch; the next whole one is better.
        let kept = self.kept()?.filter(ours).filter(|kept| kept.at.step == 0);
        let kept = kept.and_then(|kept| all.get(kept.history.epochs.len().checked_sub(1)?));
        let epochs: Vec<_> = kept.into_iter().chain(all.last()).cloned().collect();
        let better = self.monitor.better_of(&epochs, 0.0)?;
        Ok(better.last().is_none_or(|at| at + 1 == epochs.len()))
    }
}

impl Observer for ModelCheckpoint {
    fn begin(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        if self.keep == Keep::Best {
            watch.check_number(&self.monitor.name)?;
        }
        // Where a run goes on that kept no best epoch, or one that was so by another number, what
        // it has is the best that is known.
        let goes_on = !watch.history().epochs.is_empty();
        if self.keep == Keep::Best && self.kept()?.is_none() && goes_on {
            self.write(watch, Some(&self.best()))?;
        }
        Ok(true)
    }

    fn batch(&mut self, watch: &TrainState<'_>) -> Result<(), Error> {
        match self.every {
            Some(every) if watch.at.step.is_multiple_of(every.max(1)) => self.write(watch, None),
            _ => Ok(()),
        }
    }

    fn epoch(&mut self, watch: &TrainState<'_>) -> Result<bool, Error> {
        let epochs = watch.history().epochs.len();
        let also = match self.keep {
            Keep::Last => None,
            Keep::Every => Some(self.folder.join(format!("{OF_EPOCH}{epochs}"))),
            Keep::Best => self.is_best(watch.history())?.then(|| self.best()),
        };
        self.write(watch, also.as_deref())?;
        Ok(true)
    }
}
