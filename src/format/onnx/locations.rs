//! Locations of nodes in an ONNX file, for error messages.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::file::File;
use super::store::Store;
use super::{Budget, ImportError, external};

/// A node of a model's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeLocation {
    /// Its position among the nodes of the file's graph, from 0.
    pub(crate) index: usize,
    /// Its operator, after its domain where that is not ONNX's own.
    pub(crate) op: String,
    /// Whether the label is that of a node inside the function that this node calls.
    pub(crate) inside: bool,
}

/// The locations of the nodes with these labels in the model at `path`, as far as they exist. The
/// label of a node is the origin that it has in the graph: its name, or its first result; inside a
/// function, the label of the call precedes it.
///
/// # Errors
/// If the file is no model.
pub(crate) fn locate(
    path: &Path,
    labels: &BTreeSet<&str>,
) -> Result<BTreeMap<String, NodeLocation>, ImportError> {
    let store = Store::open(path, &Budget::new(u64::MAX))?;
    let file = File::new(external::Folder::of(path, store).structure())?;
    let mut found: BTreeMap<String, NodeLocation> = BTreeMap::new();
    for (index, span) in file.graph.nodes.iter().enumerate() {
        let head = file.head(*span)?;
        let results = head.outputs.iter().copied();
        let label = [head.name].into_iter().chain(results).find(|name| !name.is_empty());
        let Some(label) = label else { continue };
        let place = |inside| NodeLocation { index, op: head.full_op(), inside };
        if labels.contains(label) {
            found.insert(label.to_owned(), place(false));
        }
        let within = format!("{label}/");
        for inner in labels.range(&*within..).take_while(|l| l.starts_with(&within)) {
            found.entry((*inner).to_owned()).or_insert_with(|| place(true));
        }
    }
    Ok(found)
}
