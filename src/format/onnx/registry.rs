//! The importers of ONNX's operators by name.

use super::ImportError;
use super::control::Control;
use super::file::ML;
use super::node::{Done, Node};
use crate::types::FastMap;

/// Reads a node: adds the operators that mean the same.
pub(super) type Convert = fn(&mut Node<'_, '_>) -> Done;

/// Reads a node with bodies: runs those that it decides to.
pub(super) type Decide = fn(&mut Control<'_, '_>) -> Result<(), ImportError>;

/// How a node is read.
#[derive(Clone, Copy)]
pub(super) enum Reader {
    Node(Convert),
    Control(Decide),
}

/// Importer of an ONNX operator.
pub(super) struct Import {
    /// The most operands it takes.
    pub(super) operands: usize,
    pub(super) reader: Reader,
}

/// An operator that takes any number of operands.
pub(super) const ANY: usize = usize::MAX;

/// Importers of operators by domain and name.
#[derive(Default)]
pub(super) struct Imports(FastMap<(&'static str, &'static str), Import>);

impl Imports {
    /// Adds an operator of ONNX's own domain, of at most so many operands.
    pub(super) fn add(&mut self, name: &'static str, operands: usize, convert: Convert) {
        self.insert("", name, Import { operands, reader: Reader::Node(convert) });
    }

    /// Adds an operator of the domain [`ML`], of at most so many operands.
    pub(super) fn add_ml(&mut self, name: &'static str, operands: usize, convert: Convert) {
        self.insert(ML, name, Import { operands, reader: Reader::Node(convert) });
    }

    /// Adds an operator that has bodies.
    pub(super) fn control(&mut self, name: &'static str, operands: usize, decide: Decide) {
        self.insert("", name, Import { operands, reader: Reader::Control(decide) });
    }

    fn insert(&mut self, domain: &'static str, name: &'static str, import: Import) {
        // Two files that claim one operator would hide each other by their order.
        let before = self.0.insert((domain, name), import);
        debug_assert!(before.is_none(), "{name} is read twice");
    }

    /// Adds the operators of a table, which are read alike.
    pub(super) fn table<T>(
        &mut self,
        rows: &[(&'static str, T)],
        operands: usize,
        convert: Convert,
    ) {
        for (name, _) in rows {
            self.add(name, operands, convert);
        }
    }

    /// The importer of the operator `name` of a domain, if it is supported.
    pub(super) fn get<'a>(&'a self, domain: &'a str, name: &'a str) -> Option<&'a Import> {
        let map: &FastMap<(&'a str, &'a str), Import> = &self.0;
        map.get(&(domain, name))
    }

    /// The domains and names of all operators that are read.
    pub(super) fn names(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.0.keys().copied()
    }
}
