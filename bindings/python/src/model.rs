//! Models: graphs with their weights.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fanwise::Error;
use fanwise::internal::live;
use fanwise::ir::{self, Model};
use fanwise::model::{self, FreeBatch, LoadOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::{self, PyTensor};
use crate::detached::detached;

/// A model: a graph with its weights.
#[pyclass(frozen, module = "fanwise", name = "Model")]
pub(crate) struct PyModel {
    pub(crate) model: Model,
}

/// What a file leaves open, as Python writes it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Settings<'py> {
    dims: BTreeMap<String, i64>,
    set: Bound<'py, PyDict>,
    batch_axis: BTreeMap<String, usize>,
    free_batch: bool,
    params: Option<PathBuf>,
    for_training: bool,
    max_memory: Option<u64>,
}

/// Reads a model: a path, or `zoo:NAME`.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a path")]
pub(crate) fn load(py: Python<'_>, path: PathBuf, settings: Settings<'_>) -> PyResult<PyModel> {
    let Settings { dims, set, batch_axis, free_batch, params, for_training, max_memory } = settings;
    let options = LoadOptions {
        dims,
        set: tensors(&set)?,
        batch_axis,
        free_batch: if free_batch { FreeBatch::Always } else { FreeBatch::Proved },
        params,
        for_training,
        max_memory: max_memory.unwrap_or(u64::MAX),
        ..LoadOptions::default()
    };
    let spec = path.to_string_lossy().into_owned();
    let model = detached(py, move || Ok(model::load(&spec, &options)?))?;
    Ok(PyModel { model })
}

/// The model that a live one of Keras is, by its architecture as JSON and the values of its weights
/// in Keras' order; and the names of these.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a list")]
pub(crate) fn keras_model(
    py: Python<'_>,
    architecture: String,
    values: Vec<Bound<'_, PyAny>>,
    for_training: bool,
) -> PyResult<(PyModel, Vec<String>)> {
    let values = values.iter().map(array::tensor).collect::<Result<Vec<_>, _>>()?;
    let (model, names) = detached(py, move || Ok(live(&architecture, values, for_training)?))?;
    Ok((PyModel { model }, names))
}

/// The tensors of a dict of arrays.
pub(crate) fn tensors(
    arrays: &Bound<'_, PyDict>,
) -> PyResult<BTreeMap<String, fanwise::types::Tensor>> {
    arrays.iter().map(|(name, array)| Ok((name.extract()?, array::tensor(&array)?))).collect()
}

/// A graph as one of these kinds of text.
pub(crate) fn graph_text(graph: &ir::Graph, kind: &str) -> Option<String> {
    match kind {
        "graph" => Some(graph.to_string()),
        "json" => Some(ir::to_json(graph)),
        "dot" => Some(ir::to_dot(graph)),
        _ => None,
    }
}

#[pymethods]
impl PyModel {
    /// The name.
    #[getter]
    fn name(&self) -> &str {
        self.model.graph.name()
    }

    /// The inputs: names and types.
    #[getter]
    fn inputs(&self) -> Vec<(String, String)> {
        let graph = &self.model.graph;
        graph.inputs().map(|v| (graph.info(v).name.to_string(), graph.ty(v).to_string())).collect()
    }

    /// The parameters: names and types.
    #[getter]
    fn params(&self) -> Vec<(String, String)> {
        let params = self.model.graph.params().iter();
        params.map(|param| (param.name.to_string(), param.ty.to_string())).collect()
    }

    /// The outputs: names and types.
    #[getter]
    fn outputs(&self) -> Vec<(String, String)> {
        let graph = &self.model.graph;
        let outputs = graph.outputs().iter();
        outputs.map(|o| (o.name.to_string(), graph.ty(o.value).to_string())).collect()
    }

    /// The parameters, by name.
    #[getter]
    fn weights(&self) -> BTreeMap<String, PyTensor> {
        let weights = self.model.weights.iter();
        weights.map(|(name, tensor)| (name.to_string(), PyTensor::from(tensor.clone()))).collect()
    }

    /// What the reader decided or ignored.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.model.notes.iter().map(ToString::to_string).collect()
    }

    /// The graph as text: `graph`, `json` or `dot`.
    #[pyo3(signature = (kind="graph"))]
    fn emit(&self, kind: &str) -> PyResult<String> {
        graph_text(&self.model.graph, kind).ok_or_else(|| {
            PyValueError::new_err(format!("`{kind}` is no kind: write graph, json or dot"))
        })
    }

    /// Writes the model: an ONNX file (`.onnx`), or a graph with its weights beside it (`.fan`,
    /// `.json`).
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        save(py, path, &self.model)
    }
}

/// Writes a model in the form that the ending of the path names.
pub(crate) fn save(py: Python<'_>, path: PathBuf, model: &Model) -> PyResult<()> {
    let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
    let form = match ending.as_deref() {
        Some("onnx") => None,
        Some("fan") => Some(model::GraphForm::Text),
        Some("json") => Some(model::GraphForm::Json),
        _ => {
            let shown = path.display();
            return Err(PyValueError::new_err(format!(
                "`{shown}` has none of the endings .onnx, .fan and .json"
            )));
        }
    };
    let Model { graph, weights, .. } = model.clone();
    detached(py, move || {
        match form {
            Some(form) => {
                let graph = model::with_weights(&graph, &weights);
                model::save(&path, &graph, &weights, form)?;
            }
            None => model::export_onnx(&path, &graph, &weights)?,
        }
        Ok::<_, Error>(())
    })
}
