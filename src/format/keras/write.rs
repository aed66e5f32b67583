//! Writing of weights: a file of Keras with other elements of its variables.
//!
//! Everything else of the file stays as it is, byte for byte: its configuration, how the model was
//! compiled, and the state of its optimizer. Keras writes datasets in one piece each, so that their
//! elements are replaced where they lie.

use std::cell::Cell;
use std::io::{Cursor, Read, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::error::KerasError;
use super::file::{WEIGHTS, not_zip};
use super::hdf5::{Hdf5, Run};
use super::variables::Variables;
use super::weights::Layout;
use crate::format::limited::{Limited, MAX_LIST};
use crate::format::{FileError, error};
use crate::ir::Weights;
use crate::op::converted;
use crate::types::DType;

/// The bytes of the file at `path` with these elements of its variables; variables that are not
/// among them keep theirs.
pub(super) fn with_weights(
    path: &Path,
    variables: &Variables,
    weights: &Weights,
    max_memory: u64,
) -> Result<Vec<u8>, KerasError> {
    let (file, size) = error::open(path)?;
    if size > max_memory {
        let reason = format!("it has {size} bytes; the limit is {max_memory}");
        return Err(FileError::content(path, reason).into());
    }
    let mut bytes = Vec::new();
    file.take(size).read_to_end(&mut bytes).map_err(|e| FileError::read(path, e))?;
    if !bytes.starts_with(b"PK") {
        return patched(path, bytes, variables, weights);
    }
    let left = Cell::new(MAX_LIST);
    let archive = Limited { file: Cursor::new(bytes.as_slice()), left: &left };
    let mut archive = ZipArchive::new(archive).map_err(|e| not_zip(path, &e))?;
    left.set(u64::MAX);
    let mut new = ZipWriter::new(Cursor::new(Vec::new()));
    let failed = |e: zip::result::ZipError| not_zip(path, &e);
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(failed)?;
        if entry.name() != WEIGHTS {
            new.raw_copy_file(entry).map_err(failed)?;
            continue;
        }
        let most = entry.size().min(max_memory);
        let mut inner = Vec::new();
        let read = Read::by_ref(&mut entry).take(most).read_to_end(&mut inner);
        read.map_err(|e| FileError::read(path, e))?;
        let inner = patched(path, inner, variables, weights)?;
        // As Keras writes it: stored, and with no time in it.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(inner.len() >= u32::MAX as usize);
        new.start_file(WEIGHTS, options).map_err(failed)?;
        new.write_all(&inner).map_err(|e| FileError::write(path, e))?;
    }
    Ok(new.finish().map_err(failed)?.into_inner())
}

/// An HDF5 file with these elements of its variables.
fn patched(
    path: &Path,
    mut bytes: Vec<u8>,
    variables: &Variables,
    weights: &Weights,
) -> Result<Vec<u8>, KerasError> {
    let label = path.display().to_string();
    let runs = {
        let file = Hdf5::of(bytes.clone(), &label)?;
        let layout = Layout::of(&file, &label, variables)?;
        let runs = layout.paths.iter().map(|place| file.run(place));
        runs.collect::<Result<Vec<Run>, FileError>>()?
    };
    for (variable, run) in variables.iter().zip(runs) {
        let Some(tensor) = weights.get(&variable.name) else { continue };
        let wrong = |reason: String| KerasError::Weights {
            path: label.clone(),
            variable: variable.name.to_string(),
            reason,
        };
        let Run { dtype, is_big, place } = run;
        let tensor = converted(tensor, dtype).map_err(|e| wrong(e.to_string()))?;
        let target = place.and_then(|place| bytes.get_mut(place));
        let target = target.filter(|target| target.len() == tensor.bytes().len());
        let target = target.ok_or_else(|| wrong("lies in pieces in the file".to_owned()))?;
        target.copy_from_slice(tensor.bytes());
        if is_big && dtype != DType::Bool {
            target.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
        }
    }
    Ok(bytes)
}
