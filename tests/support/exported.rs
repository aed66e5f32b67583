//! The models of `tests/models/exported`, as exporters of frameworks wrote them.

use std::path::{Path, PathBuf};

use crate::turn::scattered;

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

/// These models and the supported files, each with counts of devices, of rows and of threads, which
/// are others in each turn. Where everything is checked the models have each number of rows, on
/// other devices.
///
/// # Panics
/// If a file is missing, or its path is no text.
pub fn with_counts(models: &[&str]) -> impl Iterator<Item = (String, [String; 3])> {
    /// Numbers that differ by 5 of 8 counts of devices, and by 1 of 3 of rows.
    const SHIFTS: [usize; 3] = [0, 37, 74];
    let shift = scattered();
    let rounds = shift.map_or_else(|| SHIFTS.to_vec(), |shift| vec![shift]);
    let models: Vec<String> = models.iter().map(|model| format!("zoo:{model}")).collect();
    let files: Vec<String> =
        supported().iter().map(|path| path.to_str().expect("a text").to_owned()).collect();
    let first = rounds[0];
    let of_models = rounds.into_iter().flat_map(move |shift| {
        models.clone().into_iter().enumerate().map(move |(i, model)| (model, i + shift))
    });
    let of_files = files.into_iter().enumerate().map(move |(i, file)| (file, i + first));
    of_models.chain(of_files).map(|(model, i)| (model, counts(i).map(|count| count.to_string())))
}

/// Counts of devices, of rows and of threads: 96 numbers in a row have each of the 96 triples.
const fn counts(i: usize) -> [usize; 3] {
    [i % 8 + 1, [7, 1, 10][i % 3], (i / 8 + i) % 4 + 1]
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
