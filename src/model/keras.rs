//! Keras files, and the graphs of what they leave open beside the batch.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::error::ModelError;
use super::head::head;
use super::open::STATED;
use super::options::{FreeBatch, LoadOptions, simplified};
use super::params;
use crate::Error;
use crate::format::keras::{
    Architecture, BuildOptions, KerasError, Learned, Reader, WeightsFile, architecture_of,
};
use crate::format::{self, Budget};
use crate::ir::{ContentHash, Model, Open, ParamId, Specialize, Weights};
use crate::types::{Note, Setting, Tensor};

/// The models of a Keras file that leaves sizes open beside the batch.
#[derive(Debug)]
struct OpenFile {
    reader: Arc<Reader>,
    options: LoadOptions,
    open: Vec<Open>,
    stated: Vec<i64>,
}

impl OpenFile {
    /// The sizes with these numbers, beside those that the options give.
    fn sizes(&self, numbers: &[i64]) -> BTreeMap<String, i64> {
        let mut sizes = self.options.dims.clone();
        for (open, number) in self.open.iter().zip(numbers) {
            if let Open::Size { name, .. } = open {
                sizes.insert(name.clone(), *number);
            }
        }
        sizes
    }
}

impl Specialize for OpenFile {
    fn open(&self) -> &[Open] {
        &self.open
    }

    fn stated(&self) -> &[i64] {
        &self.stated
    }

    fn at(&self, numbers: &[i64]) -> Result<Model, Error> {
        Ok(with_sizes(&self.reader, &self.options, &self.sizes(numbers), &[])?)
    }

    fn symbolic(&self, kept: &[bool]) -> Result<Model, Error> {
        let names = self.open.iter().zip(kept).filter(|(_, kept)| **kept);
        let symbols: Vec<String> = names
            .filter_map(|(open, _)| match open {
                Open::Size { name, .. } => Some(name.clone()),
                Open::Value { .. } => None,
            })
            .collect();
        Ok(with_sizes(&self.reader, &self.options, &self.sizes(&self.stated), &symbols)?)
    }

    fn max_memory(&self) -> u64 {
        self.options.max_memory
    }

    fn undecided(&self) -> Option<Error> {
        None
    }
}

/// Reads a Keras file. Sizes that it leaves open beside the batch get numbers, which each run
/// chooses again; for training they must be bound.
pub(super) fn read(path: &Path, first: &[u8], options: &LoadOptions) -> Result<Model, ModelError> {
    let reader = Arc::new(Reader::open(path, first)?);
    let mut model = match with_sizes(&reader, options, &options.dims, &[]) {
        Err(ModelError::Keras(KerasError::Open { sizes, .. })) if !options.for_training => {
            stated(&reader, options, &sizes)?
        }
        other => other?,
    };
    model.notes.extend(unused(options));
    Ok(model)
}

/// A Keras file and the variables of its model.
#[derive(Debug)]
pub(crate) struct Variables {
    reader: Reader,
    /// The graph of the file, and its variables.
    pub(crate) built: Architecture,
    options: BuildOptions,
}

impl Variables {
    /// The variables of a Keras file; `None` if `spec` is none.
    ///
    /// # Errors
    /// If it is damaged.
    pub(crate) fn of(spec: &str) -> Result<Option<Self>, ModelError> {
        if spec.starts_with("zoo:") {
            return Ok(None);
        }
        let path = Path::new(spec);
        let first = head(path)?;
        if !format::keras::is_keras(path, &first) {
            return Ok(None);
        }
        let reader = Reader::open(path, &first)?;
        let mut options = BuildOptions::default();
        let built = match reader.architecture(&options) {
            Err(KerasError::Open { sizes, .. }) => {
                // Variables have the same sizes whatever is open.
                options.sizes = sizes.into_iter().map(|name| (name, STATED[0])).collect();
                reader.architecture(&options)
            }
            other => other,
        }?;
        Ok(Some(Self { reader, built, options }))
    }

    /// The file.
    pub(crate) fn reader(&self) -> &Reader {
        &self.reader
    }

    /// The bytes of the file with other elements of its variables, and how they were learned; all
    /// else stays as it is.
    ///
    /// # Errors
    /// If the file is damaged, or has no weights.
    pub(crate) fn file(
        &self,
        weights: &Weights,
        learned: Option<&Learned>,
        max_memory: u64,
    ) -> Result<Vec<u8>, ModelError> {
        Ok(self.reader.with_weights(&self.options, weights, learned, max_memory)?)
    }
}

/// The notes about options that only ONNX files take.
fn unused(options: &LoadOptions) -> Option<Note> {
    let LoadOptions { batch_axis, set, free_batch, assume, .. } = options;
    let given = [
        (Setting::BatchAxis, !batch_axis.is_empty()),
        (Setting::Set, !set.is_empty()),
        (Setting::FreeBatch, *free_batch == FreeBatch::Always),
        (Setting::Assume, !assume.is_empty()),
    ];
    let given: Vec<Setting> = given.iter().filter(|(_, set)| *set).map(|(s, _)| *s).collect();
    let why = "a Keras model has its batch on the first axis of all inputs";
    (!given.is_empty()).then(|| Note::ignored(given, why))
}

/// The model where the sizes that are open have the first number for which its layers agree.
fn stated(
    reader: &Arc<Reader>,
    options: &LoadOptions,
    sizes: &[String],
) -> Result<Model, ModelError> {
    let mut failed = None;
    for number in STATED {
        let mut dims = options.dims.clone();
        dims.extend(sizes.iter().map(|name| (name.clone(), number)));
        match with_sizes(reader, options, &dims, &[]) {
            Ok(mut model) => {
                let open = sizes.iter().filter_map(|name| size(name)).collect();
                let (reader, options) = (Arc::clone(reader), options.clone());
                let stated = vec![number; sizes.len()];
                model.open = Some(Arc::new(OpenFile { reader, options, open, stated }));
                return Ok(model);
            }
            Err(error @ ModelError::Keras(KerasError::Layers { .. })) => {
                failed.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    let open = || KerasError::Open { path: String::new(), sizes: sizes.to_vec() }.into();
    Err(failed.unwrap_or_else(open))
}

/// The open size with a name `INPUT[AXIS]`.
fn size(name: &str) -> Option<Open> {
    let (input, axis) = name.strip_suffix(']')?.rsplit_once('[')?;
    let axis = axis.parse().ok()?;
    Some(Open::Size { name: name.to_owned(), input: input.to_owned(), axis })
}

/// The model with these numbers of sizes.
fn with_sizes(
    reader: &Reader,
    options: &LoadOptions,
    sizes: &BTreeMap<String, i64>,
    symbols: &[String],
) -> Result<Model, ModelError> {
    let build = BuildOptions {
        sizes: sizes.clone(),
        symbols: symbols.to_vec(),
        for_training: options.for_training,
        is_before_3: false,
    };
    let budget = &mut Budget::new(options.max_memory);
    let Some(from) = &options.params else {
        return simplified(reader.model(&build, None, budget)?, options);
    };
    let first = head(from)?;
    if format::keras::is_keras(from, &first) {
        let weights = WeightsFile { path: from, head: &first };
        let model = reader.model(&build, Some(weights), budget)?;
        return simplified(model, options);
    }
    let mut model = reader.named(&build, budget)?;
    params::replace(&mut model, from, options.max_memory)?;
    reader.complete(&model)?;
    let mut model = simplified(model, options)?;
    model.notes.extend(params::missing(&model, from));
    Ok(model)
}

/// The model of an architecture as `model.to_json()` gives it, without weights, with these sizes of
/// its inputs; `source` names it.
///
/// # Errors
/// If it is damaged, a layer is not supported, or a size of an input is open.
pub fn keras_architecture(
    text: &str,
    source: &str,
    sizes: BTreeMap<String, i64>,
) -> Result<Model, ModelError> {
    let options = BuildOptions { sizes, ..BuildOptions::default() };
    let Architecture { graph, constants, notes, .. } = architecture_of(text, source, &options)?;
    Ok(Model { notes, ..Model::new(graph, constants) })
}

/// The model that a live one of Keras is, by its architecture as JSON and the values of its weights
/// in Keras' order; and the names of these weights, which are the parameters: nothing is computed
/// from them beforehand.
///
/// # Errors
/// If a layer is not supported, a size of an input is open, or the values are not those of the
/// architecture.
pub fn live(
    architecture: &str,
    values: Vec<Tensor>,
    for_training: bool,
) -> Result<(Model, Vec<String>), ModelError> {
    let build = BuildOptions { for_training, ..BuildOptions::default() };
    let wrong = |variable: &str, reason: String| KerasError::Weights {
        path: "model".to_owned(),
        variable: variable.to_owned(),
        reason,
    };
    let built = architecture_of(architecture, "model", &build)?;
    let Architecture { mut graph, variables, constants, notes, .. } = built;
    let names: Vec<String> = variables.iter().map(|v| v.name.to_string()).collect();
    if names.len() != values.len() {
        let reason = format!("there are {} values for {} weights", values.len(), names.len());
        return Err(wrong("weights", reason).into());
    }
    let mut weights = constants;
    for (variable, value) in variables.iter().zip(values) {
        let ty = value.tensor_type();
        if ty != variable.ty {
            return Err(wrong(&variable.name, format!("is {ty}, not {}", variable.ty)).into());
        }
        weights.insert(variable.name.clone(), value);
    }
    for id in (0u32..).map(ParamId).take(graph.params().len()) {
        if let Some(value) = weights.get(&graph.param(id).name) {
            let hash = ContentHash::of(value);
            graph.set_hash(id, hash);
        }
    }
    // Nothing is computed from weights that may change, whatever the model is for.
    let options = LoadOptions { for_training: true, ..LoadOptions::default() };
    let model = simplified(Model { notes, ..Model::new(graph, weights) }, &options)?;
    Ok((model, names))
}
