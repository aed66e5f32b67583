//! Files in and out: ONNX and Keras models, `.npy` and `.npz` arrays, `.safetensors` weights.
//!
//! A reader trusts nothing in a file: sizes are checked, and charged to a [`Budget`], before memory
//! is taken. A writer leaves the whole file or none.

#[cfg(feature = "keras")]
pub(crate) mod keras;
pub mod npy;
pub mod npz;
pub mod onnx;
pub mod safetensors;

mod array;
mod atomic;
mod budget;
mod error;
pub(crate) mod head;
mod limited;
pub(crate) mod mmap;
mod windows;

pub use array::Array;
#[cfg(feature = "train")]
pub(crate) use atomic::is_unfinished;
pub use budget::{Budget, OverBudget};
pub use error::FileError;
#[cfg(feature = "train")]
pub(crate) use error::open;
pub(crate) use error::said;

use std::io::Write;
use std::path::Path;

use bytes::Bytes;

use crate::types::{Escaped, Quoted};

/// Writes a text file, whole or not at all.
///
/// # Errors
/// If the file cannot be written; one that was there is then as it was.
pub(crate) fn write_text(path: &Path, text: &str) -> Result<(), FileError> {
    write_bytes(path, text.as_bytes())
}

/// Writes a file, whole or not at all.
///
/// # Errors
/// If the file cannot be written; one that was there is then as it was.
pub(crate) fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    atomic::write(path, |file| file.write_all(bytes)).map_err(|e| FileError::write(path, e))
}

/// Writes a file through `write`, whole or not at all.
///
/// # Errors
/// If the file cannot be written; one that was there is then as it was.
#[cfg(feature = "cli")]
pub(crate) fn write_with(
    path: &Path,
    write: impl FnOnce(&mut std::fs::File) -> std::io::Result<()>,
) -> Result<(), FileError> {
    atomic::write(path, write).map_err(|e| FileError::write(path, e))
}

/// Fails where a file could not be written, and leaves everything as it is.
///
/// # Errors
/// Then.
pub(crate) fn check_write(path: &Path) -> Result<(), FileError> {
    atomic::check(path).map_err(|e| FileError::write(path, e))
}

/// The bytes of a regular file, mapped unless it is small.
///
/// # Errors
/// If it cannot be read.
pub(crate) fn map_file(path: &Path) -> Result<Bytes, FileError> {
    Ok(mmap::Map::open(path, |_| Ok::<(), FileError>(()))?.bytes().clone())
}
