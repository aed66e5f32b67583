//! Replicated graphs, ready to run.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use fanwise::internal::{claims_text, random_inputs};
use fanwise::ir::{self, Label, Model};
use fanwise::pass::{self, PassError, Repair, RepairOptions};
use fanwise::types::Tensor;
use fanwise::{Session, SessionBuilder};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::PyTensor;
use crate::detached::{Home, detached};
use crate::error::Raise as _;
use crate::model::{PyModel, graph_text, save, tensors};
use crate::options::Options;

/// The kinds of text that a graph has.
const KINDS: &str =
    "graph, graph:input, graph:repaired, json, dot, claims, explain, program or memory";

/// A model on its devices.
#[pyclass(frozen, module = "fanwise", name = "Graph")]
pub(crate) struct PyGraph {
    model: Model,
    session: Arc<Session>,
    options: Options,
    home: Home,
}

/// One output of a check: its name and type, what is promised, whether it is kept, the difference.
type Checked = (String, String, String, bool, f64);

/// Replicates a model: repairs, replicates, proves, lowers and loads it.
#[pyfunction]
pub(crate) fn replicate(py: Python<'_>, model: &PyModel, options: Options) -> PyResult<PyGraph> {
    let model = model.model.clone();
    let mut builder = builder(py, &model, &options)?;
    if let Some(replicate) = options.replicate(Repair::Local)? {
        let pass::Replicate { devices, rule, merge, weights, repair } = replicate;
        builder = builder.devices(devices).shards(rule).merge(merge);
        builder = builder.weights(weights).repair(repair);
    }
    let session = Arc::new(detached(py, move || builder.build())?);
    Ok(PyGraph { model, session, options, home: Home::here() })
}

/// The settings of a session on one device.
fn builder(py: Python<'_>, model: &Model, options: &Options) -> PyResult<SessionBuilder> {
    let mut builder = Session::builder(model.clone()).backend(options.backend(py)?);
    if let Some(statistics) = options.batch_norm()? {
        builder = builder.batch_norm(statistics);
    }
    Ok(builder)
}

impl PyGraph {
    /// The template with the repairs that the options allow.
    fn repaired(&self, py: Python<'_>) -> PyResult<pass::Repaired<'_>> {
        let replicate = self.options.replicate(Repair::Local)?;
        let allowed = replicate.map_or(Repair::None, |replicate| replicate.repair);
        let allowed =
            RepairOptions { batch_norm: self.options.batch_norm()?, ..RepairOptions::new(allowed) };
        pass::repair(&self.model.graph, allowed).map_err(PassError::from).raise(py)
    }

    fn text(&self, py: Python<'_>, kind: &str, batch: i64) -> PyResult<String> {
        let graph = self.session.graph();
        if let Some(text) = graph_text(graph, kind) {
            return Ok(text);
        }
        let program = self.session.program();
        Ok(match kind {
            "graph:input" => self.model.graph.to_string(),
            "graph:repaired" => self.session.template().to_string(),
            "claims" => claims_text(self.session.template()).raise(py)?,
            "explain" => {
                let repairs = self.session.repairs();
                pass::report(self.session.template(), repairs, graph).raise(py)?
            }
            "program" => program.to_string(),
            "memory" => program.bind(batch).raise(py)?.report(program).to_string(),
            _ => {
                let reason = format!("`{kind}` is no kind of text: write {KINDS}");
                return Err(PyValueError::new_err(reason));
            }
        })
    }
}

#[pymethods]
impl PyGraph {
    /// The devices with the formulas of their rows.
    #[getter]
    fn shards(&self) -> Vec<(String, String)> {
        let Some(split) = self.session.graph().split() else { return Vec::new() };
        let rows = (0..split.replicas()).filter_map(|r| split.rows(r)).map(|d| d.to_string());
        split.devices().iter().map(ToString::to_string).zip(rows).collect()
    }

    /// A text of this kind; of a memory plan for `batch` rows.
    #[pyo3(signature = (kind="graph", *, batch=32))]
    fn emit(&self, py: Python<'_>, kind: &str, batch: i64) -> PyResult<String> {
        self.text(py, kind, batch)
    }

    /// The claim of every value: whether a replica has its rows, all of it, or a part.
    fn claims(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, "claims", 0)
    }

    /// What is split, repaired, merged and moved.
    fn explain(&self, py: Python<'_>) -> PyResult<String> {
        self.text(py, "explain", 0)
    }

    /// Proves again that the replicas compute what the model does; the counts of the proof.
    fn verify(&self, py: Python<'_>) -> PyResult<String> {
        let graph = self.session.graph();
        if graph.split().is_none() {
            return Ok("the graph is the model itself".to_owned());
        }
        let verified = ir::verify(graph).raise(py)?;
        Ok(self.repaired(py)?.prove(verified).raise(py)?.proof().to_string())
    }

    /// Runs the model on one device and on all, with random rows, and compares the outputs.
    fn compared(&self, py: Python<'_>, batch: i64, seed: u64) -> PyResult<Vec<Checked>> {
        self.home.check()?;
        let single = builder(py, &self.model, &self.options)?;
        let (many, graph) = (Arc::clone(&self.session), self.model.graph.clone());
        detached(py, move || {
            let inputs = random_inputs(&graph, batch, seed)?;
            let one = single.build()?.run(inputs.clone())?;
            let all = many.run(inputs)?;
            let labels = many.graph().labels();
            let outputs = one.iter().zip(all.iter()).enumerate();
            Ok(outputs
                .map(|(i, ((name, a), (other, b)))| {
                    // A graph without replicas promises nothing: its outputs are those.
                    let label = labels.get(i).copied().unwrap_or(Label::RowExact);
                    let difference = difference(a, b);
                    let near = difference <= a.dtype().rounding() * largest(a);
                    let same = a == b || (label == Label::Reassociated && near);
                    let ty = a.tensor_type().to_string();
                    (name.to_owned(), ty, label.to_string(), same && name == other, difference)
                })
                .collect())
        })
    }

    /// The outputs for these inputs, by name.
    fn run(
        &self,
        py: Python<'_>,
        inputs: &Bound<'_, PyDict>,
    ) -> PyResult<BTreeMap<String, PyTensor>> {
        self.home.check()?;
        let (inputs, session) = (tensors(inputs)?, Arc::clone(&self.session));
        let outputs = detached(py, move || session.run(inputs))?;
        Ok(outputs.into_iter().map(|(name, t)| (name.to_string(), t.into())).collect())
    }

    /// Writes the model before replication: `.onnx`, `.fan` or `.json`.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        save(py, path, &self.model)
    }
}

/// The largest finite magnitude.
fn largest(tensor: &Tensor) -> f64 {
    tensor.to_f64().into_iter().map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// The largest difference; infinite where the types differ, or only one has a NaN.
fn difference(a: &Tensor, b: &Tensor) -> f64 {
    if a.tensor_type() != b.tensor_type() {
        return f64::INFINITY;
    }
    let pairs = a.to_f64().into_iter().zip(b.to_f64());
    let differences = pairs.map(|(x, y)| match (x.is_nan(), y.is_nan()) {
        (true, true) => 0.0,
        (false, false) if x.to_bits() == y.to_bits() => 0.0,
        (false, false) => (x - y).abs(),
        _ => f64::INFINITY,
    });
    differences.fold(0.0, f64::max)
}
