//! Where nodes stand in a file, for those who look for them there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::file::File;
use super::store::Store;
use super::{Budget, ImportError, external};

/// A node of a model's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePlace {
    /// Its position among the nodes of the file's graph, from 0.
    pub index: usize,
    /// Its operator, after its domain where that is not ONNX's own.
    pub op: String,
    /// Whether it calls a function of the model, in which that stands what was looked for.
    pub inside: bool,
}

/// Where the nodes with these labels stand in the model at `path`, as far as they are found. The
/// label of a node is the origin that it has in the graph: its name, or its first result; inside a
/// function, the call stands before it.
///
/// # Errors
/// If the file is no model.
pub fn places(
    path: &Path,
    labels: &BTreeSet<&str>,
) -> Result<BTreeMap<String, NodePlace>, ImportError> {
    let store = Store::open(path, &Budget::new(u64::MAX))?;
    let file = File::new(external::Folder::of(path, store).structure())?;
    let mut found: BTreeMap<String, NodePlace> = BTreeMap::new();
    for (index, span) in file.graph.nodes.iter().enumerate() {
        let head = file.head(*span)?;
        let results = head.outputs.iter().copied();
        let label = [head.name].into_iter().chain(results).find(|name| !name.is_empty());
        let Some(label) = label else { continue };
        let place = |inside| NodePlace { index, op: head.full_op(), inside };
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
