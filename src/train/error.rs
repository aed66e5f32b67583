use std::io::ErrorKind;
use std::path::Path;

use crate::format::{FileError, said};
use crate::pass::Metric;
use crate::types::{Diagnostic, Escaped, Hint, Quoted};

/// Why training failed, where it is not a layer below that did.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// A number of devices that eight shards cannot be dealt out to.
    #[error("eight shards cannot be distributed over {0} devices; use 1, 2, 4 or 8")]
    Shards(usize),
    /// Statistics that depend on the number of devices, where the bits shall not.
    #[error(
        "the same bits on any number of devices need batch normalisation with the statistics \
         `sync` or `ghost:G`; those \
         that are `local` to devices differ with their number"
    )]
    Local,
    /// An output that is not there.
    #[error("a step gives no `{0}`")]
    Missing(String),
    /// Outputs of batches do not fit together.
    #[error("the outputs of batches cannot be joined: {0}")]
    Rows(String),
    /// A checkpoint is of another model or optimizer.
    #[error("the checkpoint is of another training: only one of them has the variable `{0}`")]
    Foreign(String),
    /// A checkpoint is of a run with another optimizer, schedule, batches or seed.
    #[error(
        "the checkpoint is of a run with the {} {}, not {}",
        Escaped(what),
        Quoted(before),
        Quoted(now)
    )]
    Terms {
        /// The name of the term that differs.
        what: String,
        /// Its earlier value.
        before: String,
        /// Its present value.
        now: String,
    },
    /// A number is to be followed that no epoch tells.
    #[error(
        "unknown metric {}; an epoch has {}{}",
        Quoted(.name),
        .known.join(", "),
        way(.name, .known)
    )]
    Number {
        /// Its name.
        name: String,
        /// The names of those that epochs tell.
        known: Vec<String>,
    },
    /// An observer gave a learning rate that is none.
    #[error(
        "the learning rate of batch {batch} of epoch {epoch} became {rate}; it must be a finite \
         number of at least 0"
    )]
    Rate {
        /// The rate that it gave.
        rate: f64,
        /// The epoch, from 1.
        epoch: u64,
        /// The batch of the epoch, from 1.
        batch: u64,
    },
    /// A step made a variable infinite or NaN.
    #[error(
        "`{0}` is no longer finite, so training cannot continue; try a lower learning \
         rate, or clipped gradients"
    )]
    Diverged(String),
    /// A watcher of the training failed.
    #[error("{0}")]
    Watch(String),
}

/// What gives a run a metric that it has not.
fn way(name: &str, known: &[String]) -> String {
    const VALIDATED: &str = "val_";
    if let Some((name, settings)) = name.split_once(':') {
        let (name, settings) = (Quoted(name), Quoted(settings));
        return format!(
            "; a metric has no settings: give {name} alone, and {settings} as a setting of its own"
        );
    }
    let own = name.strip_prefix(VALIDATED);
    let is_validated = known.iter().any(|own| own.starts_with(VALIDATED));
    if own.is_some() && !is_validated {
        return "; give validation data, or split some off, for those of `val_`".to_owned();
    }
    let Ok(metric) = own.unwrap_or(name).parse::<Metric>() else { return String::new() };
    let metric = metric.name();
    if known.iter().any(|known| *known == *metric) {
        return format!("; name it `{}{metric}`", if own.is_some() { VALIDATED } else { "" });
    }
    format!("; ask for the metric `{metric}` to have it")
}

impl Diagnostic for TrainError {
    fn code(&self) -> &'static str {
        match self {
            Self::Shards(_)
            | Self::Local
            | Self::Foreign(_)
            | Self::Terms { .. }
            | Self::Number { .. } => "E0611",
            Self::Missing(_) | Self::Rows(_) => "E0612",
            Self::Watch(_) | Self::Diverged(_) | Self::Rate { .. } => "E0613",
        }
    }
}

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file could not be written or read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The folder cannot be used.
    #[error("{path}: {}", said(.error))]
    Io {
        /// The file or folder.
        path: String,
        /// The operation that failed.
        error: std::io::Error,
    },
    /// The state is damaged.
    #[error("{path} is not a training state: {error}")]
    State {
        /// The file.
        path: String,
        /// The reason.
        error: String,
    },
    /// The state is of another version.
    #[error("{path} is a training state of version {version}; version 1 is supported")]
    Version {
        /// The file.
        path: String,
        /// Its version.
        version: u32,
    },
    /// A checkpoint cannot be read.
    #[error("{error}")]
    Damaged {
        /// The reason.
        error: Box<CheckpointError>,
        /// The folder of the checkpoint.
        folder: String,
        /// The newest whole checkpoint of the same run, if there is one: its folder, and how far it
        /// is.
        whole: Option<(String, String)>,
    },
}

impl CheckpointError {
    /// True if files are missing, are cut off, or have other contents than what was written.
    pub(super) fn is_of_damage(&self) -> bool {
        match self {
            Self::Io { error, .. } | Self::File(FileError::Read { error, .. }) => matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::InvalidData
            ),
            Self::State { .. }
            | Self::File(FileError::Content { .. } | FileError::Tensor { .. }) => true,
            Self::File(FileError::Write { .. } | FileError::Memory(_))
            | Self::Version { .. }
            | Self::Damaged { .. } => false,
        }
    }
}

/// The path of a folder that a message can name.
pub(super) fn named(folder: &Path) -> &Path {
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// What to do with a checkpoint that cannot be read.
fn way_out(folder: &str, whole: Option<&(String, String)>) -> String {
    match whole {
        None => {
            "no other checkpoint of the run is whole: start a new run, in another folder".to_owned()
        }
        Some((at, how_far)) if Path::new(folder).parent().map(named) == Some(Path::new(at)) => {
            format!("use the checkpoint in {at}, {how_far}, which is whole, and remove {folder}")
        }
        Some((at, how_far)) => format!("use the checkpoint in {at}, {how_far}, which is whole"),
    }
}

impl Diagnostic for CheckpointError {
    fn code(&self) -> &'static str {
        "E0620"
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Damaged { folder, whole, .. } => {
                vec![Hint::advice(way_out(folder, whole.as_ref()))]
            }
            Self::File(error) => error.hints(),
            Self::Version { .. } => {
                vec![Hint::advice("use the fanwise that wrote it, or a newer one")]
            }
            Self::State { .. } | Self::Io { .. } => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TrainError;

    #[test]
    fn an_unknown_metric_says_what_would_give_it() {
        for (name, known, way) in [
            ("val_loss", "loss", "; give validation data, or split some off, for those of `val_`"),
            ("val_auc", "val_loss", "; ask for the metric `auc` to have it"),
            ("auc", "loss", "; ask for the metric `auc` to have it"),
            ("val_acc", "val_loss", "; ask for the metric `accuracy` to have it"),
            ("acc", "accuracy", "; name it `accuracy`"),
            ("val_x", "val_loss", ""),
            (
                "val_loss:patience=2",
                "loss",
                "; a metric has no settings: give `val_loss` alone, and `patience=2` as a setting \
                 of its own",
            ),
        ] {
            let error = TrainError::Number { name: name.to_owned(), known: vec![known.to_owned()] };
            assert_eq!(
                error.to_string(),
                format!("unknown metric `{name}`; an epoch has {known}{way}")
            );
        }
    }
}
