use std::error::Error;

use crate::format::{FileError, OverBudget};
use crate::types::{Diagnostic, Hint, TensorError};

/// Why there are no data to train on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file cannot be read, or is not what it should be.
    #[error(transparent)]
    File(#[from] FileError),
    /// The arrays do not fit each other, or not what they are for: their names, types or numbers of
    /// rows.
    #[error("{0}")]
    Columns(String),
    /// A row holds what it may not.
    #[error("{}row {row}: \
        {reason}", file.as_ref().map_or_else(String::new, |file| format!("{file}, ")))]
    Row {
        /// The file or folder that it is of, if it is of one.
        file: Option<String>,
        /// The number of the row in its source.
        row: u64,
        /// The reason.
        reason: String,
    },
    /// A setting is out of its range, or does not fit the data.
    #[error("{0}")]
    Setting(String),
    /// A user's own source, stream or change failed.
    #[error("the source of the data failed: {0}")]
    Source(Box<dyn Error + Send + Sync>),
    /// A thread that reads or changes rows panicked.
    #[error("a thread that reads the data panicked: {0}")]
    Panicked(String),
    /// The threads that read rows could not be started.
    #[error("the threads that read the data could not be started: {0}")]
    Threads(String),
    /// There is no memory for a row or a batch.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

impl Diagnostic for DataError {
    fn code(&self) -> &'static str {
        match self {
            Self::File(error) => error.code(),
            Self::Threads(_) => "E0500",
            Self::Tensor(error) => error.code(),
            Self::Columns(_) => "E0600",
            Self::Row { .. } => "E0601",
            Self::Setting(_) => "E0602",
            Self::Source(_) | Self::Panicked(_) => "E0603",
        }
    }

    fn hints(&self) -> Vec<Hint> {
        if let Self::File(error) = self { error.hints() } else { Vec::new() }
    }
}

impl From<OverBudget> for DataError {
    fn from(error: OverBudget) -> Self {
        Self::File(error.into())
    }
}

impl DataError {
    /// The error of a user's own source, stream or change.
    pub fn source(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Source(error.into())
    }

    pub(super) fn row(row: u64, reason: impl Into<String>) -> Self {
        Self::Row { file: None, row, reason: reason.into() }
    }
}
