//! The types that a file declares for results of operators that are not ONNX's own.

use std::collections::{BTreeMap, BTreeSet};

use super::ImportError;
use super::file::File;
use super::flat::{Flat, FlatNode, NONE, ValueId};
use super::inputs::Inputs;
use super::known::Size;
use crate::op::Assume;
use crate::types::{DType, FastMap, Setting};

/// Assumptions about operators, by name.
pub(super) type Assumptions = BTreeMap<String, Assume>;

/// The types that a file declares for results of foreign operators.
#[derive(Default)]
pub(super) struct Declared(FastMap<ValueId, Result<(DType, Vec<Size>), String>>);

impl Declared {
    /// Reads the types of all results of operators in `assume`; `known` says which are read.
    ///
    /// # Errors
    /// If the file is damaged, an operator in `assume` is known, or the model has no such operator.
    pub(super) fn read(
        file: &File,
        flat: &Flat<'_>,
        nodes: &[FlatNode],
        inputs: &Inputs,
        assume: &Assumptions,
        known: fn(&str) -> bool,
    ) -> Result<Self, ImportError> {
        let mut found = FastMap::default();
        if assume.is_empty() {
            return Ok(Self(found));
        }
        let mut unused: BTreeSet<&str> = assume.keys().map(String::as_str).collect();
        let mut wanted: FastMap<&str, ValueId> = FastMap::default();
        for node in nodes {
            let Some(head) = node.span.map(|span| file.head(span)).transpose()? else { continue };
            let name = head.full_op();
            if known(&name) {
                continue;
            }
            unused.remove(name.as_str());
            for id in node.outputs.iter().filter(|id| **id != NONE) {
                wanted.extend(flat.own_name(*id).map(|text| (text, *id)));
            }
        }
        if let Some(name) = unused.first() {
            let reason = if known(name) {
                "the operator is known, and nothing needs to be assumed of it"
            } else {
                "the model has no such operator"
            };
            let (setting, value) = (Setting::Assume, (*name).to_owned());
            let reason = reason.to_owned();
            return Err(ImportError::Setting { setting, value, reason });
        }
        for span in file.declared_values()? {
            let Some(id) = wanted.get(file.value_name(span)?) else { continue };
            if !matches!(found.get(id), Some(Ok(_))) {
                found.insert(*id, inputs.declared(&file.value(span)?));
            }
        }
        Ok(Self(found))
    }

    /// The declared type of the value `id`.
    pub(super) fn get(&self, id: ValueId) -> Result<&(DType, Vec<Size>), String> {
        match self.0.get(&id) {
            Some(Ok(declared)) => Ok(declared),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("the file does not declare it (`value_info`)".to_owned()),
        }
    }
}
