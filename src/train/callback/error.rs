//! The error of what watches a training.

use crate::Error;
use crate::train::TrainError;

/// The error of a watcher.
pub(super) fn failed(error: impl std::fmt::Display) -> Error {
    TrainError::Watch(error.to_string()).into()
}
