//! Checkpoints at the ends of epochs and between.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::{Monitor, failed};
use crate::train::checkpoint::Checkpoint;
use crate::train::trainer::{Observer, TrainError, Watch};
use crate::types::Quoted;

/// Which checkpoints stay, besides the last one, from which a training goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// None.
    #[default]
    Last,
    /// That of the best epoch, in the folder `best`.
    Best,
    /// That of every epoch, in the folder `epoch-` with its number from 1.
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

/// A text that names no choice of checkpoints.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checkpoints that stay are `last`, `best` or `every`, not {}", Quoted(.0))]
pub struct ParseKeepError(String);

impl FromStr for Keep {
    type Err = ParseKeepError;

    fn from_str(text: &str) -> Result<Self, ParseKeepError> {
        let all = [Self::Last, Self::Best, Self::Every];
        let found = all.into_iter().find(|keep| keep.to_string() == text);
        found.ok_or_else(|| ParseKeepError(text.to_owned()))
    }
}

/// Keeps checkpoints of a training in a folder.
#[derive(Clone, Debug)]
pub struct Keeper {
    /// The folder.
    pub folder: PathBuf,
    /// Which ones stay.
    pub keep: Keep,
    /// By what the best epoch is found.
    pub monitor: Monitor,
    /// Also after so many batches.
    pub every: Option<u64>,
    /// What checkpoints say of the run.
    pub settings: BTreeMap<String, Vec<String>>,
}

impl Keeper {
    /// The folder of the best epoch.
    pub fn best(&self) -> PathBuf {
        self.folder.join("best")
    }

    fn write(&self, watch: &Watch<'_>, also: Option<&Path>) -> Result<(), TrainError> {
        let mut checkpoint = watch.checkpoint()?;
        checkpoint.settings.clone_from(&self.settings);
        // The last one comes last: until it is there, a training that goes on writes the others again.
        for folder in also.into_iter().chain([&*self.folder]) {
            checkpoint.write(folder).map_err(failed)?;
        }
        Ok(())
    }
}

impl Observer for Keeper {
    fn begin(&mut self, watch: &Watch<'_>) -> Result<bool, TrainError> {
        // Where a run goes on that kept no best epoch, what it has is the best that is known.
        let goes_on = !watch.history().epochs.is_empty();
        if self.keep == Keep::Best && goes_on && !Checkpoint::is_in(&self.best()) {
            self.write(watch, Some(&self.best()))?;
        }
        Ok(true)
    }

    fn batch(&mut self, watch: &Watch<'_>) -> Result<(), TrainError> {
        match self.every {
            Some(every) if watch.at.step.is_multiple_of(every.max(1)) => self.write(watch, None),
            _ => Ok(()),
        }
    }

    fn epoch(&mut self, watch: &Watch<'_>) -> Result<bool, TrainError> {
        let epochs = watch.history().epochs.len();
        let also = match self.keep {
            Keep::Last => None,
            Keep::Every => Some(self.folder.join(format!("epoch-{epochs}"))),
            Keep::Best => {
                let best = self.monitor.better(watch.history(), 0.0)?;
                (best.last().is_none_or(|at| at + 1 == epochs)).then(|| self.best())
            }
        };
        self.write(watch, also.as_deref())?;
        Ok(true)
    }
}
