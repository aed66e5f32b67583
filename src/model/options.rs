//! Options of loading a model.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::error::ModelError;
use super::untie;
use crate::format::onnx::{ImportError, ImportOptions, Reader};
use crate::ir::Model;
use crate::op::{Assume, CustomOps};
use crate::pass::{PassError, SimplifyOptions, simplify};
use crate::types::Tensor;

/// Whether a constant batch size of the inputs of an ONNX file becomes the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreeBatch {
    /// It does where the file leaves no leading size open and the freed graph may be split: then it
    /// computes each row from itself alone, so that it is right for every number of rows.
    #[default]
    Proved,
    /// It does; a number that may stand for the batch, and is not proved to, is an error.
    Always,
}

/// What a file leaves open, and where else to look.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The batch axis of inputs, by name.
    pub batch_axis: BTreeMap<String, usize>,
    /// The sizes that the file names.
    pub dims: BTreeMap<String, i64>,
    /// The values of inputs, by name: constants in place of inputs of a run.
    pub set: BTreeMap<String, Tensor>,
    /// Whether a constant batch size of the inputs becomes `N`.
    pub free_batch: FreeBatch,
    /// What is assumed of operators of an ONNX file that are not known, by name.
    pub assume: BTreeMap<String, Assume>,
    /// The operators of a framework that a graph in text or JSON form may have.
    pub ops: CustomOps,
    /// A file of weights (`.safetensors` or `.npz`): those of an ONNX file or a model of the zoo
    /// take its elements by name; a graph in text or JSON form takes all of them from it, or from
    /// an ONNX file, instead of from those that it names.
    pub params: Option<PathBuf>,
    /// Whether elements may be others than those that a graph in text or JSON form was made for.
    pub params_unchecked: bool,
    /// Whether the model is to be trained: what inference has no use for stays.
    pub for_training: bool,
    /// Simplifications that are left out, by the names that `fanwise passes` lists; other names
    /// have no effect.
    pub without: Vec<String>,
    /// The bytes that files and weights may take.
    pub max_memory: u64,
}

impl Default for LoadOptions {
    /// Nothing declared, nothing bound, no bound on memory; a constant batch size becomes `N` where
    /// that is proved.
    fn default() -> Self {
        Self {
            batch_axis: BTreeMap::new(),
            dims: BTreeMap::new(),
            set: BTreeMap::new(),
            free_batch: FreeBatch::Proved,
            assume: BTreeMap::new(),
            ops: CustomOps::default(),
            params: None,
            params_unchecked: false,
            for_training: false,
            without: Vec::new(),
            max_memory: u64::MAX,
        }
    }
}

/// The model as inference, or training where that is asked for, takes it.
pub(super) fn simplified(mut model: Model, options: &LoadOptions) -> Result<Model, ModelError> {
    if options.for_training {
        untie::untie(&mut model).map_err(PassError::from)?;
        model.graph.remove_unused();
    }
    let held =
        model.weights.iter().fold(0u64, |sum, (_, t)| sum.saturating_add(t.byte_len() as u64));
    let left = options.max_memory.saturating_sub(held);
    let limit = SimplifyOptions::default().max_bytes.min(left);
    let LoadOptions { for_training, without, .. } = options;
    let (for_training, without) = (*for_training, without.clone());
    let options = SimplifyOptions { max_bytes: limit, for_training, without };
    simplify(&mut model.graph, &mut model.weights, &options)?;
    Ok(model)
}

/// What an ONNX file is read with.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    pub(super) options: LoadOptions,
    /// The values of inputs that each run gives again.
    pub(super) given: BTreeMap<String, Tensor>,
}

impl Reading {
    /// The model as the file has it.
    pub(super) fn import(&self, reader: &Reader) -> Result<Model, ImportError> {
        reader.import_for(&import_options(&self.options), &self.given)
    }
}

/// What an import is told.
pub(super) fn import_options(options: &LoadOptions) -> ImportOptions {
    ImportOptions {
        batch_axis: options.batch_axis.clone(),
        dims: options.dims.clone(),
        set: options.set.clone(),
        free_batch: options.free_batch == FreeBatch::Always,
        symbols: BTreeMap::new(),
        assume: options.assume.clone(),
        max_memory: options.max_memory,
    }
}
