//! The tensors of a model file without its graph.

use std::path::Path;

use super::super::Budget;
use super::external::Folder;
use super::file::File;
use super::store::Store;
use super::{ImportError, tensor};
use crate::ir::Weights;

/// Reads the tensors of the model at `path` for which `wanted` is true: its initializers and the
/// values of its `Constant` nodes. The rest of the graph is not read.
///
/// # Errors
/// If the file is no model, or these tensors cannot be read within `budget`.
pub fn initializers(
    path: &Path,
    budget: &mut Budget,
    wanted: impl Fn(&str) -> bool,
) -> Result<Weights, ImportError> {
    let mut folder = Folder::of(path, Store::open(path, budget)?);
    let file = File::new(folder.structure())?;
    let mut weights = Weights::default();
    for span in &file.graph.initializers {
        let name = file.tensor_name(*span)?;
        if wanted(name) {
            let tensor = tensor::read(&file.tensor(*span)?, name, &mut folder, budget)?;
            weights.insert(name, tensor);
        }
    }
    for span in &file.graph.nodes {
        let head = file.head(*span)?;
        let [name, ..] = head.outputs[..] else { continue };
        if head.op != "Constant" || head.has_graph || !wanted(name) {
            continue;
        }
        for proto in file.attributes(*span)?.iter().filter_map(|(a, _)| a.t.as_ref()) {
            weights.insert(name, tensor::read(proto, name, &mut folder, budget)?);
        }
    }
    folder.check()?;
    Ok(weights)
}
