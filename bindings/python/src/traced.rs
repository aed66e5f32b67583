//! Models that a framework traced, and their programs: it holds the parameters, and computes the
//! loss and the steps of an optimizer itself.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fanwise::format::onnx::ImportOptions;
use fanwise::internal::{pullback, traced};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array;
use crate::detached::detached;
use crate::error::Raise as _;
use crate::model::{PyModel, tensors};
use crate::options::Options;
use crate::program::PyProgram;

/// The model that the ONNX model in `data` is, of which the inputs that `params` names are
/// parameters with these elements. `batch_axis` says which inputs carry the batch; with
/// `free_batch` its size is a number in the model.
#[pyfunction]
pub(crate) fn traced_model(
    py: Python<'_>,
    data: Vec<u8>,
    params: &Bound<'_, PyDict>,
    batch_axis: BTreeMap<String, usize>,
    free_batch: bool,
) -> PyResult<PyModel> {
    let params = tensors(params)?;
    let options =
        ImportOptions { batch_axis, free_batch, max_memory: u64::MAX, ..ImportOptions::default() };
    let model = detached(py, move || Ok(traced(Bytes::from(data), &options, params)?))?;
    Ok(PyModel { model })
}

/// Prepares a program of a traced model: its outputs, or with `wanted`, names of inputs and
/// parameters, their gradients for those of the outputs `of`.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives sets and a dict")]
pub(crate) fn traced_program(
    py: Python<'_>,
    model: &PyModel,
    of: BTreeSet<String>,
    wanted: BTreeSet<String>,
    options: Options,
    reproducible: bool,
) -> PyResult<PyProgram> {
    let (graph, weights) = (&model.model.graph, &model.model.weights);
    let (graph, weights) = pullback(graph, weights, &of, &wanted).raise(py)?;
    Ok(PyProgram::new(options.ready(py, graph, weights, reproducible)?))
}

/// What tells the elements of an array, in their order, from others.
#[pyfunction]
pub(crate) fn fingerprint(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<[u8; 32]> {
    let tensor = array::tensor(array)?;
    Ok(py.detach(|| blake3::hash(tensor.bytes()).into()))
}
