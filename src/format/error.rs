use std::io;
use std::path::Path;

use super::OverBudget;
use crate::types::{Diagnostic, Hint, Quoted, Setting};

/// Why a file of tensors could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file cannot be read.
    #[error("cannot read `{path}`: {}", said(.error))]
    Read {
        /// The file.
        path: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write `{path}`: {}", said(.error))]
    Write {
        /// The file.
        path: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The file is not what its name says.
    #[error("`{path}`: {reason}")]
    Content {
        /// The file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// A tensor in the file is not valid.
    #[error("`{path}`: tensor {}: {reason}", Quoted(.tensor))]
    Tensor {
        /// The file.
        path: String,
        /// The tensor's name.
        tensor: String,
        /// The reason.
        reason: String,
    },
    /// The tensors take more memory than is allowed.
    #[error(transparent)]
    Memory(#[from] OverBudget),
}

/// What the system says, without the number that it has for it.
pub(crate) fn said(error: &io::Error) -> String {
    let text = error.to_string();
    let end = text.find(" (os error").unwrap_or(text.len());
    text[..end].to_owned()
}

impl FileError {
    pub(crate) fn read(path: &Path, error: io::Error) -> Self {
        Self::Read { path: path.display().to_string(), error }
    }

    pub(super) fn write(path: &Path, error: io::Error) -> Self {
        Self::Write { path: path.display().to_string(), error }
    }

    pub(crate) fn content(path: &Path, reason: impl Into<String>) -> Self {
        Self::Content { path: path.display().to_string(), reason: reason.into() }
    }

    pub(super) fn tensor(path: &Path, tensor: &str, reason: impl Into<String>) -> Self {
        let (path, tensor) = (path.display().to_string(), tensor.to_owned());
        Self::Tensor { path, tensor, reason: reason.into() }
    }
}

impl Diagnostic for FileError {
    fn code(&self) -> &'static str {
        "E0110"
    }

    fn hints(&self) -> Vec<Hint> {
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match self {
            Self::Memory(_) => {
                vec![Hint::turn_on(Setting::MaxMemory, "raise the memory limit")]
            }
            Self::Read { error, .. } if is_missing(error) => {
                vec![Hint::advice("name a file that is there: a path begins at the working folder")]
            }
            Self::Write { error, .. } if is_missing(error) => {
                vec![Hint::advice("make its folder first")]
            }
            Self::Write { error, .. } if error.kind() == io::ErrorKind::IsADirectory => {
                vec![Hint::advice("name a file")]
            }
            Self::Write { error, .. } if error.kind() == io::ErrorKind::NotSeekable => {
                vec![Hint::advice("name a file: a pipe or a terminal takes no archive")]
            }
            Self::Read { .. } | Self::Write { .. } | Self::Content { .. } | Self::Tensor { .. } => {
                Vec::new()
            }
        }
    }
}

/// Opens a regular file for reading; returns its length as well.
pub(crate) fn open(path: &Path) -> Result<(std::fs::File, u64), FileError> {
    let read = |e| FileError::read(path, e);
    let regular = |meta: &std::fs::Metadata| {
        let wrong = || FileError::content(path, "it is not a regular file");
        meta.is_file().then_some(()).ok_or_else(wrong)
    };
    // Before it is opened: opening a pipe waits for its other end.
    regular(&std::fs::metadata(path).map_err(read)?)?;
    let file = std::fs::File::open(path).map_err(read)?;
    let meta = file.metadata().map_err(read)?;
    regular(&meta)?;
    Ok((file, meta.len()))
}
