//! The beginning of a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::ModelError;

/// The error of a file.
pub(super) fn io(path: &Path, error: std::io::Error) -> ModelError {
    ModelError::Io { path: path.display().to_string(), error }
}

/// The first bytes of a regular file.
pub(super) fn head(path: &Path) -> Result<Vec<u8>, ModelError> {
    let meta = std::fs::metadata(path).map_err(|e| io(path, e))?;
    if !meta.is_file() {
        return Err(ModelError::NotAFile(path.display().to_string()));
    }
    let mut head = Vec::new();
    let file = File::open(path).map_err(|e| io(path, e))?;
    file.take(64).read_to_end(&mut head).map_err(|e| io(path, e))?;
    Ok(head)
}
