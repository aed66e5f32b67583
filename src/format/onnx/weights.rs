//! The tensors of a model file without its graph.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::super::Budget;
use super::calls::MAX_DEPTH;
use super::external::Folder;
use super::file::File;
use super::flat::PLACE;
use super::proto::TensorProto;
use super::store::Store;
use super::wire::Span;
use super::{ImportError, tensor};
use crate::ir::Weights;

/// Reads the tensors of the model at `path` that `wanted` names: its initializers, the values of
/// its `Constant` nodes, and those of its functions and bodies, whose keys name their place. The
/// rest of the graph is not read.
///
/// # Errors
/// If the file is no model, or these tensors cannot be read within `budget`.
pub fn initializers(
    path: &Path,
    budget: &mut Budget,
    wanted: &BTreeSet<&str>,
) -> Result<Weights, ImportError> {
    let mut folder = Folder::of(path, Store::open(path, budget)?);
    let file = File::new(folder.structure())?;
    let mut weights = Weights::default();
    for span in &file.graph.initializers {
        let name = file.tensor_name(*span)?;
        if wanted.contains(name) {
            let tensor = tensor::read(&file.tensor(*span)?, name, &mut folder, budget)?;
            weights.insert(name, tensor);
        }
    }
    for span in &file.graph.nodes {
        let head = file.head(*span)?;
        let [name, ..] = head.outputs[..] else { continue };
        if head.op != "Constant" || head.has_graph || !wanted.contains(name) {
            continue;
        }
        for proto in file.attributes(*span)?.iter().filter_map(|(a, _)| a.t.as_ref()) {
            weights.insert(name, tensor::read(proto, name, &mut folder, budget)?);
        }
    }
    for (key, proto) in placed(&file, wanted)? {
        weights.insert(key, tensor::read(&proto, key, &mut folder, budget)?);
    }
    folder.check()?;
    Ok(weights)
}

/// The tensors whose keys name their place.
fn placed<'k>(
    file: &File,
    wanted: &BTreeSet<&'k str>,
) -> Result<Vec<(&'k str, TensorProto)>, ImportError> {
    let place = |key: &&'k str| {
        let (_, at) = key.rsplit_once(PLACE)?;
        Some((at.parse::<usize>().ok()?, *key))
    };
    let places: BTreeMap<usize, &str> = wanted.iter().filter_map(place).collect();
    let mut found = Vec::new();
    if places.is_empty() {
        return Ok(found);
    }
    let at = |span: &Span| places.get(&span.range().start).copied();
    let attribute = |span: &Span| {
        let Some(key) = at(span) else { return Ok(None) };
        Ok::<_, ImportError>(file.attribute(*span)?.t.map(|tensor| (key, tensor)))
    };
    let functions = file.functions.iter();
    let given = functions.clone().flat_map(|function| &function.defaults);
    for span in given {
        found.extend(attribute(span)?);
    }
    let own = file.graph.nodes.iter().chain(functions.flat_map(|function| &function.nodes));
    let mut nodes: Vec<(Span, usize)> = own.map(|node| (*node, 0)).collect();
    while let Some((node, depth)) = nodes.pop() {
        for span in file.attribute_spans(node)? {
            found.extend(attribute(&span)?);
        }
        if depth >= MAX_DEPTH {
            continue;
        }
        // Nodes with lists of bodies are refused before weights are read.
        for (_, body) in file.bodies(node)?.unwrap_or_default() {
            let graph = file.graph(body)?;
            for span in &graph.initializers {
                if let Some(key) = at(span) {
                    found.push((key, file.tensor(*span)?));
                }
            }
            nodes.extend(graph.nodes.iter().map(|node| (*node, depth + 1)));
        }
    }
    Ok(found)
}
