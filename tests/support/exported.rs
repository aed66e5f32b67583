//! The models of `tests/models/exported`, as exporters of frameworks wrote them.

use std::path::{Path, PathBuf};

/// Those that hold what is not supported, and the operator that is named.
pub const REFUSED: [(&str, &str); 1] = [("keras_erfc", "Erfc")];

/// The files of a folder that are ONNX models, in order.
///
/// # Panics
/// If the folder cannot be read.
pub fn models(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the models");
    let mut models: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "onnx"))
        .collect();
    models.sort();
    models
}

/// The models that are supported.
///
/// # Panics
/// If some are missing.
pub fn supported() -> Vec<PathBuf> {
    let is = |path: &Path, name: &str| path.file_stem().is_some_and(|stem| stem == name);
    let mut all = models(&crate::root("tests/models/exported"));
    all.retain(|path| !REFUSED.iter().any(|(name, _)| is(path, name)));
    assert!(all.len() >= 49, "{all:?}");
    all
}
