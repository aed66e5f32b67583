//! Models that a framework traced, and their programs: it holds the parameters, and computes the
//! loss and the steps of an optimizer itself.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use fanwise::backend::Backend as _;
use fanwise::format::onnx::ImportOptions;
use fanwise::internal::{pullback, replicated, traced};
use fanwise::pass::Repair;
use fanwise::train::Distribution;
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
    let place = Distribution {
        replicate: options.replicate(Repair::Comm)?,
        batch_norm: options.batch_norm()?,
        invariant: reproducible,
        max_memory: None,
    };
    let (graph, weights) = (&model.model.graph, &model.model.weights);
    let (graph, weights) = pullback(graph, weights, &of, &wanted).raise(py)?;
    let backend = options.backend(py)?;
    let executable = detached(py, move || {
        let graph = replicated(&graph, &place)?;
        backend.ready(&graph, &weights)
    })?;
    Ok(PyProgram::new(executable.into()))
}

/// The words that are mixed side by side: a product waits for the one before.
const LANES: usize = 8;

/// An odd number with as many ones as zeros: a product with it loses nothing.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A number that tells the elements of an array, in their order, from others.
#[pyfunction]
pub(crate) fn fingerprint(py: Python<'_>, array: &Bound<'_, PyAny>) -> PyResult<u64> {
    let tensor = array::tensor(array)?;
    Ok(py.detach(|| {
        let mut lanes = [0u64; LANES];
        let (blocks, rest) = tensor.bytes().as_chunks::<{ 8 * LANES }>();
        let mut mix = |block: &[u8; 8 * LANES]| {
            for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
                *lane = (lane.rotate_left(29) ^ u64::from_ne_bytes(*word)).wrapping_mul(MIX);
            }
        };
        blocks.iter().for_each(&mut mix);
        let mut last = [0; 8 * LANES];
        last[..rest.len()].copy_from_slice(rest);
        mix(&last);
        lanes.iter().fold(0, |all: u64, lane| (all.rotate_left(29) ^ lane).wrapping_mul(MIX))
    }))
}
