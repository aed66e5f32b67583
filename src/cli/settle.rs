//! Models that are read for given inputs: what must be known before the run is taken from these.

use std::collections::BTreeMap;
use std::path::Path;

use crate::Error;
use crate::format::onnx::{self, BatchCandidate, ImportError, NodeError, UnboundDim};
use crate::ir::Graph;
use crate::model::{self, LoadOptions, Model, ModelError};
use crate::op::infer::MAX_INTS;
use crate::types::Tensor;

/// A model that was read for inputs.
pub(crate) struct Settled {
    pub(crate) model: Model,
    /// The inputs that it still has.
    pub(crate) inputs: BTreeMap<String, Tensor>,
    /// The inputs that became constants.
    pub(crate) constants: Vec<String>,
}

/// Reads the inputs of these names.
pub(crate) type ReadInputs<'a> =
    &'a dyn Fn(Vec<String>) -> anyhow::Result<BTreeMap<String, Tensor>>;

/// Reads the model `spec` for the inputs that `read` gives; `is_of_many` devices.
pub(crate) fn load(
    spec: &str,
    mut options: LoadOptions,
    is_of_many: bool,
    read: ReadInputs<'_>,
) -> anyhow::Result<Settled> {
    let own = options.set.clone();
    let mut given: Option<BTreeMap<String, Tensor>> = None;
    loop {
        let error = match model::load(spec, &options) {
            Ok(model) => {
                let inputs = match &given {
                    Some(given) => given,
                    None => given.insert(read(names(spec, &options, Some(&model.graph))?)?),
                };
                let mut inputs = inputs.clone();
                inputs.retain(|name, _| own.contains_key(name) || !options.set.contains_key(name));
                match model.for_inputs(&inputs) {
                    Ok(model) => {
                        let model = model.into_owned();
                        let set = options.set.into_keys();
                        let constants = set.filter(|name| !own.contains_key(name)).collect();
                        return Ok(Settled { model, inputs, constants });
                    }
                    Err(error) => error,
                }
            }
            Err(error) => error.into(),
        };
        let Error::Model(ModelError::Onnx(reason)) = &error else { return Err(error.into()) };
        if !settles(reason, is_of_many) {
            return Err(error.into());
        }
        let given = match &given {
            Some(given) => given,
            None => given.insert(read(names(spec, &options, None)?)?),
        };
        if !settle(reason, given, &mut options) {
            return Err(error.into());
        }
    }
}

/// The names of the inputs of the file: those that were set are none of the graph's.
fn names(spec: &str, options: &LoadOptions, graph: Option<&Graph>) -> anyhow::Result<Vec<String>> {
    if let Some(graph) = graph.filter(|_| options.set.is_empty()) {
        return Ok(graph.inputs().map(|input| graph.info(input).name.to_string()).collect());
    }
    let names = onnx::input_names(Path::new(spec), options.max_memory);
    Ok(names.map_err(ModelError::from).map_err(Error::from)?)
}

/// True if inputs may say what a model leaves open.
fn settles(error: &ImportError, is_of_many: bool) -> bool {
    // Several devices need to know which of the sizes is the batch.
    let is_batch = matches!(error, ImportError::Batches(_)) && !is_of_many;
    is_batch || matches!(error, ImportError::UnboundDims(_)) || !error.depends().is_empty()
}

/// Takes from the inputs what was not known when the model was read; false if they do not say.
fn settle(
    error: &ImportError,
    given: &BTreeMap<String, Tensor>,
    options: &mut LoadOptions,
) -> bool {
    let mut bind = |sizes: &mut dyn Iterator<Item = &UnboundDim>| {
        let before = options.dims.len();
        for UnboundDim { name, input, axis } in sizes {
            let size = given.get(input).and_then(|tensor| tensor.dims().get(*axis));
            if let Some(size) = size.and_then(|size| i64::try_from(*size).ok()) {
                options.dims.insert(name.clone(), size);
            }
        }
        options.dims.len() > before
    };
    if let ImportError::UnboundDims(sizes) = error {
        return bind(&mut sizes.iter());
    }
    if let ImportError::Batches(candidates) = error {
        return bind(&mut candidates.iter().flat_map(BatchCandidate::open));
    }
    let before = options.set.len();
    for name in error.depends() {
        // Of more elements nothing follows that is known.
        let few = |tensor: &&Tensor| is_the_value(error, name) || tensor.len() <= MAX_INTS;
        if let Some(tensor) = given.get(name).filter(few) {
            options.set.insert(name.clone(), tensor.clone());
        }
    }
    options.set.len() > before
}

/// Whether an operand that must be known is the input itself.
fn is_the_value(error: &ImportError, name: &str) -> bool {
    let ImportError::Node { error: NodeError::NotKnown { value, .. }, .. } = error else {
        return false;
    };
    name == value
}
