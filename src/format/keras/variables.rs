//! The variables of a model: what Keras calls its weights.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value as Json;

use super::error::KerasError;
use crate::ir::Value;
use crate::types::TensorType;

/// A variable of a Keras model, which is a parameter of the graph.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    /// Its name in the graph: those of its layer and of the models around it, then its own, as in
    /// `encoder/dense/kernel`.
    pub(crate) name: Arc<str>,
    /// Its path in the files of Keras 3.
    pub(crate) store: String,
    /// The class of the layer that has it, and whether its images have their channels first.
    pub(super) layer: (Arc<str>, bool),
    /// Its position among the variables of the model.
    pub(super) order: Vec<usize>,
    /// Whether it is learned.
    pub(crate) is_trainable: bool,
    /// Whether it follows the batches in training, without being learned.
    pub(crate) is_running: bool,
    /// Its regularizer and its constraint, as the file has them.
    pub(crate) regularizer: Option<Json>,
    pub(crate) constraint: Option<Json>,
    /// Its type in Keras.
    pub(crate) ty: TensorType,
    /// Its value in the graph.
    pub(super) value: Value,
}

/// The variables of a model.
#[derive(Clone, Debug, Default)]
pub(crate) struct Variables {
    all: Vec<Variable>,
    by_name: HashMap<Arc<str>, usize>,
    /// Other paths of objects that stand at several places: what they begin with, and what that of
    /// the first place begins with.
    others: Vec<(String, String)>,
}

impl Variables {
    /// The value of the variable with this name.
    pub(super) fn value(&self, name: &str) -> Option<Value> {
        self.by_name.get(name).map(|at| self.all[*at].value)
    }

    /// Says that the variable with this name follows the batches.
    pub(super) fn set_running(&mut self, name: &str) {
        if let Some(at) = self.by_name.get(name) {
            self.all[*at].is_running = true;
        }
    }

    /// Moves the variable with this name to a position among those of the model.
    pub(super) fn set_order(&mut self, name: &str, order: Vec<usize>) {
        if let Some(at) = self.by_name.get(name) {
            self.all[*at].order = order;
        }
    }

    /// Says that the object at the path `first` also stands at another one.
    pub(super) fn set_other(&mut self, first: &str, other: &str) {
        self.others.push((first.to_owned(), other.to_owned()));
    }

    /// The paths at which a file may have a variable.
    pub(super) fn stores<'a>(&'a self, variable: &'a Variable) -> impl Iterator<Item = String> {
        let own = variable.store.as_str();
        let others = self.others.iter().filter_map(move |(first, other)| {
            let rest = own.strip_prefix(first.as_str())?;
            rest.starts_with('/').then(|| format!("{other}{rest}"))
        });
        std::iter::once(own.to_owned()).chain(others)
    }

    pub(super) fn add(&mut self, variable: Variable) {
        self.by_name.insert(variable.name.clone(), self.all.len());
        self.all.push(variable);
    }

    /// Puts them in the order of `model.weights`.
    pub(super) fn sort(&mut self) {
        self.all.sort_by(|a, b| a.order.cmp(&b.order));
        let names = self.all.iter().map(|variable| variable.name.clone());
        self.by_name = names.enumerate().map(|(at, name)| (name, at)).collect();
    }

    /// All of them, in the order of `model.weights`.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = &Variable> {
        self.all.iter()
    }

    /// The bytes that they take.
    ///
    /// # Errors
    /// If there are too many, with the variable of a file from which on they cannot be counted.
    pub(super) fn bytes(&self, path: &str) -> Result<u64, KerasError> {
        let bytes = |v: &Variable| u64::try_from(v.ty.bytes().as_const()?).ok();
        self.all.iter().try_fold(0u64, |sum, v| {
            let sum = bytes(v).and_then(|bytes| sum.checked_add(bytes));
            sum.ok_or_else(|| KerasError::Weights {
                path: path.to_owned(),
                variable: v.name.to_string(),
                reason: "its bytes cannot be counted".to_owned(),
            })
        })
    }
}
