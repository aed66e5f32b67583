//! Writing of weights: a file of Keras with other elements of its variables, and with how they were
//! learned: the compile configuration and the variables of the optimizer.
//!
//! Everything else of the file stays as it is, byte for byte. Keras writes datasets in one piece
//! each, so that the elements of variables are replaced where they lie. The group of the
//! optimizer's variables is written anew: another optimizer has others.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{Cursor, Read, Write};
use std::path::Path;

use serde_json::Value as Json;
use serde_json::value::RawValue;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipArchive, ZipWriter};

use super::error::KerasError;
use super::file::{CONFIG, TRAINING, WEIGHTS, not_zip};
use super::hdf5::{Hdf5, Run, with_group};
use super::slots::{Learned, Slots};
use super::state::State;
use super::stored::Stored;
use super::variables::Variables;
use super::weights::Layout;
use crate::format::limited::{Limited, MAX_LIST};
use crate::format::{FileError, error};
use crate::ir::Weights;
use crate::op::converted;
use crate::types::{DType, Tensor};

/// What is new in a file.
pub(super) struct New<'a> {
    pub(super) variables: &'a Variables,
    /// The elements of variables; those that are not among them keep theirs.
    pub(super) weights: &'a Weights,
    /// How they were learned, if that is to be written.
    pub(super) learned: Option<&'a Learned>,
}

/// The bytes of the file at `path` with what is new in it.
pub(super) fn with_weights(
    path: &Path,
    new: &New<'_>,
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
        let bytes = patched(path, bytes, new)?;
        let Some(learned) = new.learned else { return Ok(bytes) };
        let attrs = [(TRAINING, legacy(&learned.compiled))];
        let tensors = in_form(path, &bytes, new.variables, &learned.slots)?;
        let group = learned.group(false, &tensors);
        return Ok(with_group(&bytes, path, &group, &attrs)?);
    }
    let left = Cell::new(MAX_LIST);
    let archive = Limited { file: Cursor::new(bytes.as_slice()), left: &left };
    let mut archive = ZipArchive::new(archive).map_err(|e| not_zip(path, &e))?;
    left.set(u64::MAX);
    let mut to = ZipWriter::new(Cursor::new(Vec::new()));
    let failed = |e: zip::result::ZipError| not_zip(path, &e);
    for at in 0..archive.len() {
        let mut entry = archive.by_index(at).map_err(failed)?;
        let name = match (entry.name(), new.learned) {
            (WEIGHTS, _) => WEIGHTS,
            (CONFIG, Some(_)) => CONFIG,
            _ => "",
        };
        if name.is_empty() {
            to.raw_copy_file(entry).map_err(failed)?;
            continue;
        }
        let most = entry.size().min(max_memory);
        let mut inner = Vec::new();
        let read = Read::by_ref(&mut entry).take(most).read_to_end(&mut inner);
        read.map_err(|e| FileError::read(path, e))?;
        let inner = match (name, new.learned) {
            (CONFIG, Some(learned)) => compiled(path, &inner, learned)?,
            (_, Some(learned)) => {
                let inner = patched(path, inner, new)?;
                with_group(&inner, path, &learned.group(true, &learned.slots.tensors), &[])?
            }
            (_, None) => patched(path, inner, new)?,
        };
        // As Keras writes it: stored, and with no time in it.
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(inner.len() >= u32::MAX as usize);
        to.start_file(name, options).map_err(failed)?;
        to.write_all(&inner).map_err(|e| FileError::write(path, e))?;
    }
    Ok(to.finish().map_err(failed)?.into_inner())
}

/// The variables of an optimizer as the file has them.
fn in_form(
    path: &Path,
    bytes: &[u8],
    variables: &Variables,
    slots: &Slots,
) -> Result<Vec<Tensor>, KerasError> {
    let own = || slots.tensors.clone();
    if slots.names.is_none() {
        return Ok(own()); // those of another optimizer than that of the file
    }
    let label = path.display().to_string();
    let state = State::of(&Hdf5::of(bytes.to_vec(), &label)?, &label, variables);
    Ok(state.and_then(|state| state.apart(&slots.tensors)).unwrap_or_else(own))
}

/// The configuration of an archive with another compile configuration.
fn compiled(path: &Path, text: &[u8], learned: &Learned) -> Result<Vec<u8>, KerasError> {
    let wrong = |e: serde_json::Error| FileError::content(path, format!("`{CONFIG}`: {e}"));
    // What is not replaced keeps its letters.
    let mut fields: BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(text).map_err(wrong)?;
    let new = serde_json::value::to_raw_value(&learned.compiled).map_err(wrong)?;
    fields.insert("compile_config".to_owned(), new);
    Ok(serde_json::to_vec(&fields).map_err(wrong)?)
}

/// A compile configuration in the form of whole-model HDF5 files.
fn legacy(compiled: &Json) -> String {
    let mut compiled = compiled.clone();
    if let Some(fields) = compiled.as_object_mut()
        && let Some(optimizer) = fields.remove("optimizer")
    {
        fields.insert("optimizer_config".to_owned(), optimizer);
    }
    compiled.to_string()
}

/// An HDF5 file with these elements of its variables.
fn patched(path: &Path, mut bytes: Vec<u8>, new: &New<'_>) -> Result<Vec<u8>, KerasError> {
    let New { variables, weights, .. } = new;
    let label = path.display().to_string();
    let places = {
        let file = Hdf5::of(bytes.clone(), &label)?;
        let layout = Layout::of(&file, &label, variables)?;
        let runs = |place: &Stored| place.paths.iter().map(|path| file.run(path)).collect();
        let runs = layout.places.iter().map(runs).collect::<Result<Vec<Vec<Run>>, FileError>>()?;
        layout.places.into_iter().zip(runs).collect::<Vec<_>>()
    };
    for (variable, place) in variables.iter().zip(places) {
        let Some(tensor) = weights.get(&variable.name) else { continue };
        let wrong = |reason: String| KerasError::Weights {
            path: label.clone(),
            variable: variable.name.to_string(),
            reason,
        };
        let (stored, runs) = place;
        let parts = stored.apart(tensor).map_err(|e| wrong(e.to_string()))?;
        for (Run { dtype, is_big, place }, part) in runs.into_iter().zip(parts) {
            let part = converted(&part, dtype).map_err(|e| wrong(e.to_string()))?;
            let target = place.and_then(|place| bytes.get_mut(place));
            let target = target.filter(|target| target.len() == part.bytes().len());
            let target = target.ok_or_else(|| wrong("lies in pieces in the file".to_owned()))?;
            target.copy_from_slice(part.bytes());
            if is_big && dtype != DType::Bool {
                target.chunks_exact_mut(dtype.bytes()).for_each(<[u8]>::reverse);
            }
        }
    }
    Ok(bytes)
}
