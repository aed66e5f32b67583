//! Elements of parameters from a file that is not the model's.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::error::ModelError;
use super::options::{LoadOptions, simplified};
use crate::format::{Budget, npz, safetensors};
use crate::ir::{ContentHash, Model, ParamId, Source};
use crate::types::{Note, Quoted, Tensor};

/// The names of missing parameters that a note lists.
const LISTED: usize = 3;

/// All tensors of a file of weights, by name.
pub(super) fn read(path: &Path, max_memory: u64) -> Result<BTreeMap<String, Tensor>, ModelError> {
    let budget = &mut Budget::new(max_memory);
    match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => {
            let weights = safetensors::read(path, budget, |_| true)?;
            Ok(weights.iter().map(|(name, t)| (name.to_string(), t.clone())).collect())
        }
        Some("npz") => Ok(npz::read(path, budget)?),
        _ => Err(ModelError::ParamsForm(path.display().to_string())),
    }
}

/// The model with the parameters that are asked for, simplified.
pub(super) fn parameterised(mut model: Model, options: &LoadOptions) -> Result<Model, ModelError> {
    let Some(path) = &options.params else { return simplified(model, options) };
    replace(&mut model, path, options.max_memory)?;
    let mut model = simplified(model, options)?;
    model.notes.extend(missing(&model, path));
    Ok(model)
}

/// Gives parameters of the model, before it is simplified, the elements of those of their names.
///
/// # Errors
/// If the file has a tensor that is no parameter, or one of another type, or none.
pub(super) fn replace(model: &mut Model, path: &Path, max_memory: u64) -> Result<(), ModelError> {
    let file: Arc<str> = path.display().to_string().into();
    let tensors = read(path, max_memory)?;
    if tensors.is_empty() {
        return Err(ModelError::NoParams(file.to_string()));
    }
    for (name, tensor) in tensors {
        let found = (0u32..).map(ParamId).zip(model.graph.params()).find(|(_, p)| *p.name == *name);
        let Some((id, param)) = found else {
            return Err(ModelError::UnknownParam { file: file.to_string(), name });
        };
        let ty = tensor.tensor_type();
        if ty != param.ty {
            let what = format!("{ty} instead of {}", param.ty);
            let file = file.to_string();
            return Err(ModelError::Changed { param: name, file, what, fits: false });
        }
        let source = Source { file: file.clone(), key: name.as_str().into() };
        model.graph.set_source(id, source);
        model.graph.set_hash(id, ContentHash::of(&tensor));
        model.weights.insert(name, tensor);
    }
    Ok(())
}

/// What is said of the parameters of a simplified model that the file has not.
pub(super) fn missing(model: &Model, path: &Path) -> Option<Note> {
    let file = path.display().to_string();
    let own = |source: &Source| *source.file != *file && !source.is_folded();
    let left: Vec<String> = model
        .graph
        .params()
        .iter()
        .filter(|p| own(&p.source))
        .map(|p| Quoted(&p.name).to_string())
        .collect();
    let more = left.len().saturating_sub(LISTED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let listed = left.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    let are = if left.len() == 1 { "keeps its" } else { "keep their" };
    (!left.is_empty())
        .then(|| format!("{file} has no {listed}{more}, which {are} own elements").into())
}
