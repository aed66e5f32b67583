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

/// These models and the supported files, each with counts of devices, of rows and of threads.
///
/// # Panics
/// If a file is missing, or its path is no text.
pub fn with_counts(
    models: impl Iterator<Item = String>,
) -> impl Iterator<Item = (String, [String; 3])> {
    let files = supported().into_iter().map(|path| path.to_str().expect("a text").to_owned());
    models.chain(files).enumerate().map(|(i, model)| {
        let counts = [i % 8 + 1, [7, 1, 10][i % 3], i % 4 + 1];
        (model, counts.map(|count| count.to_string()))
    })
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
