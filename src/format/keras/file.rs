//! The files of Keras: what is read of them, and within which bounds.

use std::cell::Cell;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use serde_json::Value as Json;
use zip::ZipArchive;
use zip::result::ZipError;

use super::error::KerasError;
use super::hdf5::Hdf5;
use crate::format::limited::{Limited, MAX_LIST};
use crate::format::{Budget, FileError, error};
use crate::types::QuotedMessage;

/// The most bytes of a configuration.
const MAX_CONFIG: u64 = 32 << 20;

/// The bytes of an HDF5 file beside those of the datasets that are read.
const BESIDE: u64 = 16 << 20;

/// The variables of an optimizer for each of the model, and the model's own.
const COPIES: u64 = 6;

/// The entry of an archive that holds the weights.
pub(super) const WEIGHTS: &str = "model.weights.h5";

/// The entry that holds the configuration.
pub(super) const CONFIG: &str = "config.json";

/// The attribute of an HDF5 file that says how its model was compiled.
pub(super) const TRAINING: &str = "training_config";

/// The form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// An archive of a configuration and weights.
    Archive,
    /// An HDF5 file; of a whole model, or of weights.
    Hdf5,
    /// The configuration alone.
    Json,
}

/// A file of Keras.
pub(super) struct Source {
    form: Form,
    /// The configuration of the model; null if the file has none.
    pub(super) config: Json,
    /// How the model was compiled, in the form of Keras 3; null if it was not.
    pub(super) compiled: Json,
    /// The version of Keras that wrote the file.
    pub(super) version: Option<String>,
}

/// The form of the file whose first bytes are `head`.
pub(crate) fn is_keras(path: &Path, head: &[u8]) -> bool {
    form(path, head).is_some()
}

fn form(path: &Path, head: &[u8]) -> Option<Form> {
    if head.starts_with(b"\x89HDF\r\n\x1a\n") {
        return Some(Form::Hdf5);
    }
    if head.starts_with(b"PK\x03\x04") {
        return has_config(path).then_some(Form::Archive);
    }
    let is_json = head.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    // So begin architectures; the JSON form of a graph has no such fields.
    let names = |word: &[u8]| head.windows(word.len()).any(|own| own == word);
    (is_json && (names(b"\"class_name\"") || names(b"\"module\""))).then_some(Form::Json)
}

/// Whether an archive holds a configuration.
fn has_config(path: &Path) -> bool {
    let found = with_archive(path, |archive| Ok(archive.index_for_name(CONFIG).is_some()));
    found.unwrap_or(false) // it is another archive then
}

type Archive<'l> = ZipArchive<Limited<'l, BufReader<File>>>;

/// What `read` makes of the archive at `path`.
fn with_archive<T>(
    path: &Path,
    read: impl FnOnce(&mut Archive<'_>) -> Result<T, FileError>,
) -> Result<T, FileError> {
    let (file, _) = error::open(path)?;
    let left = Cell::new(MAX_LIST);
    let file = Limited { file: BufReader::new(file), left: &left };
    let mut archive = ZipArchive::new(file).map_err(|e| not_zip(path, &e))?;
    // From here on each entry has a size of its own that bounds it.
    left.set(u64::MAX);
    read(&mut archive)
}

pub(super) fn not_zip(path: &Path, error: &ZipError) -> FileError {
    let said = error.to_string();
    FileError::content(path, format!("it is not a .keras archive: {}", QuotedMessage(&said)))
}

/// The bytes of an entry of at most `most`; `None` if there is no such entry.
fn entry(
    path: &Path,
    archive: &mut Archive<'_>,
    name: &str,
    most: u64,
) -> Result<Option<Vec<u8>>, FileError> {
    let Some(at) = archive.index_for_name(name) else { return Ok(None) };
    let wrong = |reason: String| FileError::content(path, format!("`{name}`: {reason}"));
    let entry =
        archive.by_index(at).map_err(|e| wrong(QuotedMessage(&e.to_string()).to_string()))?;
    let size = entry.size();
    if size > most {
        return Err(wrong(format!("it has {size} bytes; the limit is {most}")));
    }
    let mut bytes = Vec::new();
    // An entry may be longer than it says.
    entry.take(most + 1).read_to_end(&mut bytes).map_err(|e| wrong(e.to_string()))?;
    if bytes.len() as u64 != size {
        return Err(wrong(format!("it has {} bytes, not {size}", bytes.len())));
    }
    Ok(Some(bytes))
}

/// The JSON of a part of a file.
fn json(path: &Path, place: &str, text: &[u8]) -> Result<Json, FileError> {
    serde_json::from_slice(text).map_err(|e| {
        let reason = e.to_string();
        let place = if place.is_empty() { String::new() } else { format!("`{place}`: ") };
        let reason = QuotedMessage(&reason);
        let reason = format!("{place}it is not valid JSON: {reason}; copy or download it again");
        FileError::content(path, reason)
    })
}

impl Source {
    /// Reads the configuration of the file at `path`, whose first bytes are `head`.
    pub(super) fn open(path: &Path, head: &[u8]) -> Result<Self, KerasError> {
        let other = || FileError::content(path, "it is no file of Keras");
        match form(path, head).ok_or_else(other)? {
            Form::Archive => Self::of_archive(path),
            Form::Hdf5 => Self::of_hdf5(path),
            Form::Json => Self::of_json(path),
        }
    }

    fn of_archive(path: &Path) -> Result<Self, KerasError> {
        let (config, metadata) = with_archive(path, |archive| {
            let config = entry(path, archive, CONFIG, MAX_CONFIG)?;
            Ok((config, entry(path, archive, "metadata.json", MAX_CONFIG)?))
        })?;
        let missing = || FileError::content(path, "it has no `config.json`");
        let config = json(path, CONFIG, &config.ok_or_else(missing)?)?;
        // A model that was not compiled has none.
        let compiled = config.get("compile_config").cloned().unwrap_or_default();
        let metadata = metadata.map(|text| json(path, "metadata.json", &text)).transpose()?;
        let version = metadata.as_ref().and_then(|m| m.get("keras_version")).and_then(Json::as_str);
        let version = version.map(str::to_owned);
        Ok(Self { form: Form::Archive, config, compiled, version })
    }

    fn of_hdf5(path: &Path) -> Result<Self, KerasError> {
        let file = Hdf5::open(path)?;
        let config = file.text("", "model_config")?;
        let Some(config) = config else {
            return Err(KerasError::NoArchitecture(path.display().to_string()));
        };
        let config = json(path, "model_config", config.as_bytes())?;
        let compiled = file.text("", TRAINING)?.map(|text| json(path, TRAINING, text.as_bytes()));
        // A model that was not compiled has none.
        let mut compiled = compiled.transpose()?.unwrap_or_default();
        if let Some(fields) = compiled.as_object_mut()
            && let Some(optimizer) = fields.remove("optimizer_config")
        {
            fields.insert("optimizer".to_owned(), optimizer);
        }
        let version = file.text("", "keras_version")?;
        Ok(Self { form: Form::Hdf5, config, compiled, version })
    }

    fn of_json(path: &Path) -> Result<Self, KerasError> {
        let (file, size) = error::open(path)?;
        if size > MAX_CONFIG {
            let reason = format!("it has {size} bytes; the limit is {MAX_CONFIG}");
            return Err(FileError::content(path, reason).into());
        }
        let mut text = Vec::new();
        file.take(MAX_CONFIG).read_to_end(&mut text).map_err(|e| FileError::read(path, e))?;
        let config = json(path, "", &text)?;
        let version = config.get("keras_version").and_then(Json::as_str).map(str::to_owned);
        Ok(Self { form: Form::Json, config, compiled: Json::Null, version })
    }

    /// The first number of the version of Keras that wrote the file.
    pub(super) fn major(&self) -> u32 {
        // Only Keras 3 writes archives; files of Keras 1 may not name their version, and what is a
        // list in architectures is an object since.
        let is_list = self.config.get("config").is_some_and(Json::is_array);
        let unnamed = if self.form == Form::Hdf5 || is_list { 1 } else { 3 };
        self.version.as_deref().and_then(major).unwrap_or(unnamed)
    }
}

/// The first number of a version.
pub(super) fn major(version: &str) -> Option<u32> {
    version.split('.').next()?.parse().ok()
}

/// The weights of a file: those of a whole model, or weights alone. Those of an archive are read
/// into memory, within what variables of `bytes` bytes take.
pub(super) fn weights(
    path: &Path,
    head: &[u8],
    bytes: u64,
    budget: &mut Budget,
) -> Result<Option<Hdf5>, KerasError> {
    let label = path.display().to_string();
    match form(path, head) {
        Some(Form::Hdf5) => Ok(Some(Hdf5::open(path)?)),
        Some(Form::Archive) => {
            let most = bytes.saturating_mul(COPIES).saturating_add(BESIDE);
            let found = with_archive(path, |archive| entry(path, archive, WEIGHTS, most))?;
            let Some(found) = found else { return Ok(None) };
            budget.charge(WEIGHTS, found.len() as u64)?;
            Ok(Some(Hdf5::of(found, &label)?))
        }
        Some(Form::Json) | None => Ok(None),
    }
}
