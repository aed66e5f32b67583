//! Programs of a model that Python runs batch by batch: training steps, evaluation, prediction.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use fanwise::Error;
use fanwise::backend::{Executable, RunOptions};
use fanwise::ir::Weights;
use fanwise::pass::{
    self, Constraint, Metric, Mode, OutputLoss, Penalty, Recompute, Training, TrainingGraph,
    Weighted,
};
use fanwise::types::{Dim, TensorType};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::array::{PyTensor, tensor};
use crate::batches::{Batches, Outputs};
use crate::detached::{Home, Pending, Worker};
use crate::error::Raise as _;
use crate::model::{PyModel, tensors};
use crate::options::Options;

/// The loss of one output.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct LossSpec {
    output: String,
    loss: String,
    class_axis: Option<i64>,
    weight: f64,
    weighted: String,
    metrics: Vec<String>,
    weighted_metrics: Vec<String>,
}

/// What is trained, and how.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct TrainingSpec {
    losses: Vec<LossSpec>,
    optimizer: String,
    frozen: BTreeSet<String>,
    learned: BTreeSet<String>,
    /// Parameters with their factors.
    l1: Vec<(String, f64)>,
    l2: Vec<(String, f64)>,
    /// Parameters with their rules.
    constraints: Vec<(String, String)>,
    /// Outputs of the model that the program gives as well.
    outputs: BTreeSet<String>,
    seed: i64,
}

/// Reads a text of the library.
fn read<T: FromStr<Err: std::fmt::Display>>(text: &str) -> PyResult<T> {
    text.parse().map_err(|e: T::Err| PyValueError::new_err(e.to_string()))
}

impl LossSpec {
    fn read(self) -> PyResult<OutputLoss> {
        let metrics = |list: &[String]| -> PyResult<Vec<Metric>> {
            list.iter().map(|text| read(text)).collect()
        };
        Ok(OutputLoss {
            loss: read(&self.loss)?,
            class_axis: self.class_axis,
            weight: self.weight,
            weighted: match &*self.weighted {
                "rows" => Weighted::Rows,
                "costs" => Weighted::Costs,
                _ => Weighted::Nothing,
            },
            masked: false,
            metrics: metrics(&self.metrics)?,
            weighted_metrics: metrics(&self.weighted_metrics)?,
            output: self.output,
        })
    }
}

impl TrainingSpec {
    fn read(self) -> PyResult<Training> {
        let penalties = |list: Vec<(String, f64)>| {
            list.into_iter().map(|(name, factor)| Penalty { params: Some(name), factor }).collect()
        };
        let constraint = |(params, rule): (String, String)| {
            Ok(Constraint { params, ..read(&format!("*={rule}"))? })
        };
        let constraints = self.constraints.into_iter().map(constraint).collect::<PyResult<_>>()?;
        Ok(Training {
            constraints,
            losses: self.losses.into_iter().map(LossSpec::read).collect::<Result<_, _>>()?,
            metrics: Vec::new(),
            weighted_metrics: Vec::new(),
            optimizer: read(&self.optimizer)?,
            frozen: self.frozen,
            learned: self.learned,
            l1: penalties(self.l1),
            l2: penalties(self.l2),
            mode: Mode { seed: self.seed, momentum: None },
            recompute: Recompute::default(),
            outputs: self.outputs,
        })
    }
}

/// A program with the elements of its parameters, on its devices.
#[pyclass(frozen, module = "fanwise", name = "Program")]
pub(crate) struct PyProgram {
    executable: Arc<dyn Executable>,
    about: About,
    worker: Worker,
    home: Home,
}

/// The outputs of a run by name.
type ByName = BTreeMap<String, PyTensor>;

/// A run of a program that was started.
#[pyclass(frozen, module = "fanwise", name = "Run")]
pub(crate) struct PyRun(Mutex<Option<Pending<Outputs>>>);

#[pymethods]
impl PyRun {
    /// Waits for the run; the outputs by name. There is one result to take.
    fn result(&self, py: Python<'_>) -> PyResult<ByName> {
        let run = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let run = run.ok_or_else(|| PyRuntimeError::new_err("the result was taken before"))?;
        let outputs = run.wait(py)?;
        Ok(outputs.into_iter().map(|(name, t)| (name.to_string(), t.into())).collect())
    }
}

/// An output, the input that has its target, and that of its weights.
type Target = (String, String, Option<String>);

/// What its inputs and outputs are.
#[derive(Clone, Default)]
struct About {
    /// Of each output with a loss: its name and the inputs of its target and weights.
    targets: Vec<Target>,
    metrics: Vec<String>,
    rate: Option<String>,
    trained: Vec<String>,
    averages: Vec<(String, String)>,
    notes: Vec<String>,
}

/// Prepares a program of a model: its inference, a step of training, or the evaluation.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python gives a dict")]
pub(crate) fn program(
    py: Python<'_>,
    model: &PyModel,
    kind: &str,
    training: Option<TrainingSpec>,
    options: Options,
    reproducible: bool,
) -> PyResult<PyProgram> {
    let training = training.map(TrainingSpec::read).transpose()?;
    let (graph, weights) = (&model.model.graph, &model.model.weights);
    let (graph, weights, about) = match training {
        None => (pass::inference(graph).raise(py)?, weights.clone(), About::default()),
        Some(training) => {
            let make = if kind == "training" { pass::training } else { pass::evaluation };
            let made = make(graph, weights, &training).raise(py)?;
            let about = About::of(&made);
            (made.graph, made.weights, about)
        }
    };
    let executable = options.ready(py, graph, weights, reproducible)?;
    Ok(PyProgram { about, ..PyProgram::new(executable) })
}

impl PyProgram {
    /// A program of a model whose inputs and outputs are all that there is to say.
    pub(crate) fn new(executable: Arc<dyn Executable>) -> Self {
        Self { executable, about: About::default(), worker: Worker::default(), home: Home::here() }
    }

    /// Starts work on it, after what was started before.
    fn begin(
        &self,
        run: impl FnOnce() -> Result<Outputs, Error> + Send + 'static,
    ) -> PyResult<PyRun> {
        self.home.check()?;
        Ok(PyRun(Mutex::new(Some(self.worker.start(run)?))))
    }
}

impl About {
    fn of(made: &TrainingGraph) -> Self {
        let targets =
            made.targets.iter().map(|of| (of.output.clone(), of.input.clone(), of.weight.clone()));
        Self {
            targets: targets.collect(),
            metrics: made.metrics.clone(),
            rate: made.learning_rate.clone(),
            trained: made.trained.clone(),
            averages: made.averages.clone(),
            notes: made.notes.clone(),
        }
    }
}

/// A type as Python takes it: the element type, and the sizes, of which those that depend on the
/// batch are `None`.
fn of_type(ty: &TensorType) -> (&'static str, Vec<Option<i64>>) {
    (ty.dtype.name(), ty.shape.iter().map(Dim::as_const).collect())
}

/// A name with a type.
type Port = (String, (&'static str, Vec<Option<i64>>));

#[pymethods]
impl PyProgram {
    /// The inputs with their types.
    #[getter]
    fn inputs(&self) -> Vec<Port> {
        let inputs = self.executable.program().inputs.iter();
        inputs.map(|port| (port.name.to_string(), of_type(&port.ty))).collect()
    }

    /// The outputs with their types.
    #[getter]
    fn outputs(&self) -> Vec<Port> {
        let outputs = self.executable.program().outputs.iter();
        outputs.map(|port| (port.name.to_string(), of_type(&port.ty))).collect()
    }

    /// The parameters and variables with their types.
    #[getter]
    fn params(&self) -> Vec<Port> {
        let params = self.executable.program().params.iter();
        params.map(|port| (port.name.to_string(), of_type(&port.ty))).collect()
    }

    /// The parameters that a run on the CPU reads where the caller has them.
    #[getter]
    fn shared(&self) -> BTreeSet<String> {
        let shared = self.executable.program().shared_params();
        shared.map(|port| port.name.to_string()).collect()
    }

    /// Of each output with a loss: its name and the inputs of its target and weights.
    #[getter]
    fn targets(&self) -> Vec<Target> {
        self.about.targets.clone()
    }

    /// The names of the metrics.
    #[getter]
    fn metrics(&self) -> Vec<String> {
        self.about.metrics.clone()
    }

    /// The input that has the learning rate.
    #[getter]
    fn learning_rate(&self) -> Option<String> {
        self.about.rate.clone()
    }

    /// The parameters that are trained.
    #[getter]
    fn trained(&self) -> Vec<String> {
        self.about.trained.clone()
    }

    /// Parameters and the variables that are their moving averages.
    #[getter]
    fn averages(&self) -> Vec<(String, String)> {
        self.about.averages.clone()
    }

    /// What should be known of it, as sentences.
    #[getter]
    fn notes(&self) -> Vec<String> {
        self.about.notes.clone()
    }

    /// Runs it on a batch; the outputs by name.
    fn run(&self, py: Python<'_>, inputs: &Bound<'_, PyDict>) -> PyResult<ByName> {
        self.start(inputs)?.result(py)
    }

    /// Starts a run on a batch, after what was started before. The arrays must not change until
    /// its result was taken.
    fn start(&self, inputs: &Bound<'_, PyDict>) -> PyResult<PyRun> {
        let (inputs, executable) = (tensors(inputs)?, Arc::clone(&self.executable));
        self.begin(move || Ok(executable.run(&inputs, &RunOptions::default())?.outputs))
    }

    /// Starts runs on batches of `batch` rows, after what was started before. `order` has the
    /// numbers of their rows in `inputs`. Inputs without rows have an element for each batch, and
    /// outputs are joined likewise. The arrays must not change until the result was taken.
    fn start_batches(
        &self,
        inputs: &Bound<'_, PyDict>,
        order: &Bound<'_, PyAny>,
        batch: usize,
    ) -> PyResult<PyRun> {
        let executable = Arc::clone(&self.executable);
        let batches = Batches::new(tensors(inputs)?, &tensor(order)?, batch, &*executable)?;
        self.begin(move || batches.run(&*executable))
    }

    /// The elements of these parameters and variables as they are now.
    #[expect(clippy::needless_pass_by_value, reason = "Python gives a set")]
    fn weights(
        &self,
        py: Python<'_>,
        names: BTreeSet<String>,
    ) -> PyResult<BTreeMap<String, PyTensor>> {
        let executable = Arc::clone(&self.executable);
        let weights = self.worker.run(py, move || Ok(executable.weights()?))?;
        let wanted = weights.iter().filter(|(name, _)| names.contains(&***name));
        Ok(wanted.map(|(name, tensor)| (name.to_string(), tensor.clone().into())).collect())
    }

    /// Gives parameters and variables other elements.
    fn set_weights(&self, py: Python<'_>, given: &Bound<'_, PyDict>) -> PyResult<()> {
        let mut weights = Weights::default();
        for (name, array) in given.iter() {
            let name: String = name.extract()?;
            weights.insert(name, tensor(&array)?);
        }
        let executable = Arc::clone(&self.executable);
        self.worker.run(py, move || Ok(executable.set_weights(&weights)?))
    }
}
