//! The elements of variables, from the layouts in which versions of Keras have them.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::KerasError;
use super::hdf5::Hdf5;
use super::stored::{Form, Stored, Writer};
use super::variables::{Variable, Variables};
use crate::format::{Budget, FileError};
use crate::ir::Weights;
use crate::op::converted;
use crate::types::{DType, Tensor};

/// Where each variable lies in a file of weights.
pub(super) struct Layout {
    /// In the order of the variables.
    pub(super) places: Vec<Stored>,
    /// The datasets of all variables, in the order of a file of before Keras 3.
    pub(super) datasets: Vec<String>,
}

impl Layout {
    /// The places of variables in a file.
    pub(super) fn of(file: &Hdf5, path: &str, variables: &Variables) -> Result<Self, KerasError> {
        if let Some(root) = legacy_root(file)? {
            return legacy(file, path, root, variables);
        }
        let place = |variable: &Variable| {
            // Keras writes what stands at several places once.
            let found = variables.stores(variable).find(|store| file.info(store).is_ok());
            let path = found.unwrap_or_else(|| variable.store.clone());
            Stored { paths: vec![path], form: Form::default() }
        };
        let places = variables.iter().map(place).collect();
        Ok(Self { places, datasets: Vec::new() })
    }
}

/// The group of weights of a file of before Keras 3, or in its form; `None` for another file.
fn legacy_root(file: &Hdf5) -> Result<Option<&'static str>, FileError> {
    if file.words("", "layer_names")?.is_some() {
        return Ok(Some(""));
    }
    Ok(file.has_group("model_weights").then_some("model_weights"))
}

/// The variables of each layer of the model, in the order in which old files have them: those that
/// are learned come first.
fn by_layer(variables: &Variables) -> Vec<Vec<usize>> {
    let mut layers: Vec<Vec<usize>> = Vec::new();
    let mut last = None;
    for (at, variable) in variables.iter().enumerate() {
        let layer = variable.order.first().copied();
        if last != layer {
            layers.push(Vec::new());
            last = layer;
        }
        if let Some(layer) = layers.last_mut() {
            layer.push(at);
        }
    }
    let all: Vec<&Variable> = variables.iter().collect();
    for layer in &mut layers {
        layer.sort_by_key(|at| !all[*at].is_trainable);
    }
    layers
}

/// The places of variables in a file that has them layer by layer, in the order of the layers.
fn legacy(
    file: &Hdf5,
    path: &str,
    root: &str,
    variables: &Variables,
) -> Result<Layout, KerasError> {
    let join = |a: &str, b: &str| if a.is_empty() { b.to_owned() } else { format!("{a}/{b}") };
    let wrong = |reason: String| FileError::content(std::path::Path::new(path), reason);
    let names = file.words(root, "layer_names")?;
    let names = names.ok_or_else(|| wrong("it has no list of layers".to_owned()))?;
    let mut groups = Vec::new();
    for name in names {
        let group = join(root, &name);
        // Layers without weights may lack the attribute.
        let weights = file.words(&group, "weight_names")?.unwrap_or_default();
        if !weights.is_empty() {
            let weights = weights.iter().map(|weight| join(&group, weight)).collect::<Vec<_>>();
            groups.push((name, weights));
        }
    }
    let layers = by_layer(variables);
    let all: Vec<&Variable> = variables.iter().collect();
    if layers.len() != groups.len() {
        let reason = format!(
            "it has weights of {} layers; the architecture has {}",
            groups.len(),
            layers.len()
        );
        return Err(wrong(reason).into());
    }
    // By their names where the file has them; else in the order of the file.
    let by_name: HashMap<&str, usize> =
        groups.iter().enumerate().map(|(at, (name, _))| (name.as_str(), at)).collect();
    let own = |layer: &[usize]| {
        let name = layer.first().map(|at| all[*at].name.split('/').next());
        by_name.get(name.flatten()?).copied()
    };
    let writer = Writer::of(file, root)?;
    // Models inside others have no names in Keras 1, which goes by the order.
    let named = layers.iter().filter(|_| !writer.is_1).map(|layer| own(layer));
    let named: Option<Vec<usize>> = named.collect();
    let named = named.filter(|order| order.len() == layers.len());
    let order = named.unwrap_or_else(|| (0..layers.len()).collect());
    let mut places = vec![Stored::default(); all.len()];
    for (layer, at) in layers.iter().zip(order) {
        let (name, weights) = &groups[at];
        let own: Vec<&Variable> = layer.iter().map(|at| all[*at]).collect();
        let stored = writer.stored(file, &own, weights);
        let stored = stored.map_err(|why| wrong(format!("layer `{name}` {why}")))?;
        for (variable, place) in layer.iter().zip(stored) {
            places[*variable] = place;
        }
    }
    let datasets = groups.into_iter().flat_map(|(_, weights)| weights).collect();
    Ok(Layout { places, datasets })
}

/// The elements of all variables.
pub(super) fn read(
    file: &Hdf5,
    path: &str,
    variables: &Variables,
    budget: &mut Budget,
) -> Result<Weights, KerasError> {
    let layout = Layout::of(file, path, variables)?;
    let mut weights = Weights::default();
    for (variable, place) in variables.iter().zip(&layout.places) {
        let tensor = element(file, path, variable, place, budget)?;
        weights.insert(Arc::clone(&variable.name), tensor);
    }
    Ok(weights)
}

fn element(
    file: &Hdf5,
    path: &str,
    variable: &Variable,
    place: &Stored,
    budget: &mut Budget,
) -> Result<Tensor, KerasError> {
    let wrong = |reason: String| unlike(path, variable, reason);
    let expected = variable.ty.shape.as_const();
    let expected = expected.ok_or_else(|| wrong("its size is not known".to_owned()))?;
    let dims = place.dims(&expected);
    let mut dtype = variable.ty.dtype;
    let mut parts: Vec<Tensor> = Vec::new();
    for own in &place.paths {
        dtype = part_type(file, path, variable, own, &dims)?;
        if parts.first().is_some_and(|first| first.dtype() != dtype) {
            return Err(wrong("has parts of several types".to_owned()));
        }
        parts.push(file.read(own, budget)?);
    }
    if !place.is_whole() {
        let bytes: usize = parts.iter().map(|part| part.bytes().len()).sum();
        budget.charge(&variable.name, 2 * bytes as u64)?;
    }
    let tensor = place.joined(&parts, &expected).map_err(|e| wrong(e.to_string()))?;
    if dtype == variable.ty.dtype {
        return Ok(tensor);
    }
    budget.charge(&variable.name, (tensor.len() * variable.ty.dtype.bytes()) as u64)?;
    converted(&tensor, variable.ty.dtype).map_err(|e| wrong(e.to_string()))
}

fn unlike(path: &str, variable: &Variable, reason: String) -> KerasError {
    KerasError::Weights { path: path.to_owned(), variable: variable.name.to_string(), reason }
}

/// The type of the elements of a dataset, which must be those of a part of a variable with the
/// sizes that are given.
fn part_type(
    file: &Hdf5,
    path: &str,
    variable: &Variable,
    place: &str,
    expected: &[usize],
) -> Result<DType, KerasError> {
    let wrong = |reason: String| unlike(path, variable, reason);
    let (dtype, dims) = file.info(place).map_err(|e| match e {
        FileError::Content { reason, .. } => wrong(reason),
        error => error.into(),
    })?;
    let is_same = dims == expected;
    // Kernels of one tap have one axis less in some old files.
    let squeezed = || {
        let own = dims.iter().filter(|size| **size != 1);
        own.eq(expected.iter().filter(|size| **size != 1))
    };
    if !is_same && !squeezed() {
        return Err(wrong(format!("has the sizes {dims:?} in the file, and {expected:?} here")));
    }
    if !dtype.is_float() && variable.ty.dtype.is_float() || dtype == DType::Bool {
        return Err(wrong(format!("has elements of the type {dtype}, not {}", variable.ty.dtype)));
    }
    Ok(dtype)
}
