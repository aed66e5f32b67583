//! The variables of optimizers in files.

use serde_json::Value as Json;

use super::error::KerasError;
use super::hdf5::{Hdf5, NewGroup, Text};
use crate::format::Budget;
use crate::types::Tensor;

/// The group of the optimizer in the files of Keras 3, and the one inside with its variables.
const OPTIMIZER: [&str; 2] = ["optimizer", "vars"];

/// The group of its variables in whole-model HDF5 files.
const LEGACY: &str = "optimizer_weights";

/// The list of their names.
const NAMES: &str = "weight_names";

/// The variables of an optimizer in the order of the file.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// Their names; archives have none.
    pub(crate) names: Option<Vec<String>>,
    /// Their elements.
    pub(crate) tensors: Vec<Tensor>,
}

/// How a model was trained, as a file of it says.
pub(crate) struct Learned {
    /// The name of the optimizer.
    pub(crate) name: String,
    /// The compile configuration, in the form of Keras 3.
    pub(crate) compiled: Json,
    /// The variables of the optimizer.
    pub(crate) slots: Slots,
}

impl Slots {
    pub(super) fn read(file: &Hdf5, budget: &mut Budget) -> Result<Self, KerasError> {
        let mut tensors = Vec::new();
        if file.has_group(LEGACY) {
            // An optimizer without variables has no list of their names.
            let names = file.words(LEGACY, NAMES)?.unwrap_or_default();
            for name in &names {
                tensors.push(file.read(&format!("{LEGACY}/{name}"), budget)?);
            }
            return Ok(Self { names: Some(names), tensors });
        }
        let [outer, inner] = OPTIMIZER;
        for at in 0.. {
            let path = format!("{outer}/{inner}/{at}");
            if !file.has_dataset(&path) {
                break;
            }
            tensors.push(file.read(&path, budget)?);
        }
        Ok(Self { names: None, tensors })
    }
}

impl Learned {
    /// The group of these variables of the optimizer, in an archive or in a whole-model HDF5 file.
    pub(super) fn group(&self, is_archive: bool, tensors: &[Tensor]) -> NewGroup<'_> {
        let names = &self.slots.names;
        let name = |at: usize| match names.as_ref().filter(|_| !is_archive) {
            Some(names) => names.get(at).cloned().unwrap_or_else(|| at.to_string()),
            None if is_archive => at.to_string(),
            None => format!("{}/{at}", self.name),
        };
        let datasets = tensors.iter().enumerate().map(|(at, tensor)| (name(at), tensor.clone()));
        let datasets: Vec<(String, Tensor)> = datasets.collect();
        if is_archive {
            let [name, inner] = OPTIMIZER;
            return NewGroup { name, inner, attr: ("name", Text::One(&self.name)), datasets };
        }
        let names = datasets.iter().map(|(name, _)| name.clone()).collect();
        NewGroup { name: LEGACY, inner: "", attr: (NAMES, Text::List(names)), datasets }
    }
}
