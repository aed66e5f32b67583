//! The programs of a model: one step of training, evaluation, prediction.

use std::borrow::Cow;
use std::collections::BTreeMap;
#[cfg(feature = "cli")]
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::TrainError;
use super::bytes;
use super::data::{
    CastColumns, Column, Data, DataError, Feed, Loader, LoaderOptions, Names, Ones, Position,
    SAMPLE_MASK, SAMPLE_WEIGHT,
};
use super::history::{Logs, Sums};
use super::options::{Distribution, TrainerOptions};
use super::targets::{self, LossTarget};
use crate::Error;

use crate::backend::{Backend, Executable, RunOptions, RunOutput, Staged, run_each};
use crate::ir::Model;
use crate::ir::{self, Graph, Weights};
use crate::op::{Concat, OpDef};
use crate::pass::{
    self, BatchStatistics, LossInputs, Repair, RepairOptions, Repaired, Replicate, TrainingGraph,
};
#[cfg(feature = "cli")]
use crate::types::TensorError;
use crate::types::{Device, Dim, Quoted, ShardRule, Tensor};

/// The output that has the loss.
pub(super) const LOSS: &str = "loss";

/// Runs a program for batches: binds columns to its inputs and adds up its outputs.
pub(super) struct StepRunner {
    pub(super) executable: Box<dyn Executable>,
    /// The inputs of the model.
    inputs: Vec<String>,
    targets: Vec<LossInputs>,
    pub(super) loss_targets: Vec<LossTarget>,
    pub(super) metrics: Vec<String>,
    rate: Option<String>,
    max_memory: Option<u64>,
}

impl StepRunner {
    /// The runner of a training or evaluation graph.
    pub(super) fn of(
        model: &Model,
        graph: TrainingGraph,
        options: &TrainerOptions,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let TrainerOptions { training, distribution } = options;
        let executable = ready(&graph.graph, &graph.weights, distribution, backend)?;
        Ok(Self {
            executable,
            inputs: inputs(&model.graph),
            targets: graph.targets,
            loss_targets: targets::loss_targets(&model.graph, &training.losses),
            metrics: graph.metrics,
            rate: graph.learning_rate,
            max_memory: distribution.max_memory,
        })
    }

    /// Sets those parameters of the program that `variables` has.
    pub(super) fn set(&self, variables: &Weights) -> Result<(), Error> {
        let mut known = Weights::default();
        for port in &self.executable.program().params {
            if let Some(tensor) = variables.get(&port.name) {
                known.insert(port.name.clone(), tensor.clone());
            }
        }
        Ok(self.executable.set_weights(&known)?)
    }

    /// Those of the program's inputs that are of the data: inputs of the model, and targets, of
    /// which integers become 0.
    #[cfg(feature = "cli")]
    pub(super) fn feed(&self, mut all: BTreeMap<String, Tensor>) -> Result<Feed, TensorError> {
        let mut feed = Feed::default();
        for LossInputs { output, input, .. } in &self.targets {
            if let Some(target) = all.remove(input) {
                let (dtype, dims) = (target.dtype(), target.dims());
                let zeros = dtype.is_integer().then(|| Tensor::zeros(dtype, dims)).transpose()?;
                feed.targets.insert(output.clone(), zeros.unwrap_or(target));
            }
        }
        all.retain(|name, _| self.inputs.contains(name));
        feed.inputs = all;
        Ok(feed)
    }

    /// The columns that hold its inputs, targets, weights and masks.
    pub(super) fn names(&self, columns: &[Column]) -> Result<Names, Error> {
        let inputs: Vec<&str> = self.inputs.iter().map(String::as_str).collect();
        let outputs: Vec<&str> = self.targets.iter().map(|t| &*t.output).collect();
        Ok(Names::of(columns, &inputs, &outputs)?)
    }

    /// A loader that casts columns to the types of the program's inputs.
    pub(super) fn loader(&self, data: Data, options: LoaderOptions) -> Result<Arc<Loader>, Error> {
        let given = self.names(&data.columns()?)?;
        let data = self.completed(data)?;
        let columns = data.columns()?;
        let names = self.names(&columns)?;
        let data = targets::converted(data, &self.loss_targets, &names, &columns);
        let ports = &self.executable.program().inputs;
        let wanted = |column: &str, input: &str| {
            let port = ports.iter().find(|port| *port.name == *input)?;
            Column::of(column, &port.ty)
        };
        let mut fit: BTreeMap<String, Column> = BTreeMap::new();
        let mut want = |column: &str, input: &str| {
            if let Some(wanted) = wanted(column, input) {
                fit.insert(column.to_owned(), wanted);
            }
        };
        for (input, column) in &names.inputs {
            want(column, input);
        }
        for target in &self.targets {
            let LossInputs { output, input, weight, mask } = target;
            for (input, column) in [
                (Some(input), names.targets.get(output)),
                (weight.as_ref(), names.weights.get(output)),
                (mask.as_ref(), names.masks.get(output)),
            ] {
                if let (Some(input), Some(column)) = (input, column) {
                    want(column, input);
                }
            }
        }
        let data = data.changed(Arc::new(CastColumns { wanted: fit.into_values().collect() }));
        let columns = data.columns()?;
        let inputs = names.inputs.values().cloned().collect();
        let validated = targets::validated(&self.loss_targets, &names, &columns, inputs, &given);
        Ok(Loader::new(data.changed(Arc::new(validated)), options)?)
    }

    /// The data with weights and masks of 1 if they lack them.
    fn completed(&self, mut data: Data) -> Result<Data, Error> {
        let columns = data.columns()?;
        let names = self.names(&columns)?;
        let ports = &self.executable.program().inputs;
        for LossInputs { output, weight, mask, .. } in &self.targets {
            for (what, kind, input, own) in [
                ("weights", SAMPLE_WEIGHT, weight, names.weights.get(output)),
                ("a mask", SAMPLE_MASK, mask, names.masks.get(output)),
            ] {
                match (input, own) {
                    (Some(_), Some(_)) | (None, None) => {}
                    (None, Some(column)) => return Err(surplus(what, output, column)),
                    (Some(input), None) => {
                        let port = ports.iter().find(|port| *port.name == **input);
                        let column = format!("{kind}:{output}");
                        let column = port.and_then(|port| Column::of(column, &port.ty));
                        let column = column.ok_or_else(|| unsized_ones(kind, output))?;
                        data = data.changed(Arc::new(Ones::new(column)?));
                    }
                }
            }
        }
        Ok(data)
    }

    /// A loader of all rows of data in their order.
    fn in_order(&self, data: Data, mut options: LoaderOptions) -> Result<Arc<Loader>, Error> {
        (options.shuffle, options.drop_last) = (false, false);
        self.loader(data, options)
    }

    /// Runs the program on a batch and adds the results to `sums`.
    pub(super) fn run(&self, feed: &Feed, rate: Option<f64>, sums: &mut Sums) -> Result<(), Error> {
        let inputs = self.inputs(feed, rate)?;
        self.add(&self.executable.run(&inputs, &self.options())?, sums)
    }

    /// Runs a staged batch at this learning rate and adds the results to `sums`.
    pub(super) fn run_staged(
        &self,
        mut staged: Box<dyn Staged + '_>,
        rate: f64,
        sums: &mut Sums,
    ) -> Result<(), Error> {
        if let Some(name) = &self.rate {
            staged.set(name, &Tensor::scalar(rate))?;
        }
        self.add(&staged.run()?, sums)
    }

    /// The input tensors of the program for a batch.
    pub(super) fn inputs(
        &self,
        feed: &Feed,
        rate: Option<f64>,
    ) -> Result<BTreeMap<String, Tensor>, Error> {
        let mut inputs = feed.inputs.clone();
        for target in &self.targets {
            let missing =
                |what: &str| TrainError::Missing(format!("{what} of `{}`", target.output));
            let y = feed.targets.get(&target.output).ok_or_else(|| missing("target"))?;
            inputs.insert(target.input.clone(), y.clone());
            if let Some(name) = &target.weight {
                let weight = feed.weights.get(&target.output).ok_or_else(|| missing("weight"))?;
                inputs.insert(name.clone(), weight.clone());
            }
            if let Some(name) = &target.mask {
                let mask = feed.masks.get(&target.output).ok_or_else(|| missing("mask"))?;
                inputs.insert(name.clone(), mask.clone());
            }
        }
        if let (Some(name), Some(rate)) = (&self.rate, rate) {
            inputs.insert(name.clone(), Tensor::scalar(rate));
        }
        Ok(inputs)
    }

    /// Adds the results of a run to `sums`.
    pub(super) fn add(&self, given: &RunOutput, sums: &mut Sums) -> Result<(), Error> {
        let numbers = |name: &str| {
            let found = given.outputs.iter().find(|(own, _)| **own == *name);
            let numbers = found.map(|(_, tensor)| tensor.to_f64()).filter(|all| !all.is_empty());
            numbers.ok_or_else(|| TrainError::Missing(name.to_owned()))
        };
        let metrics = self
            .metrics
            .iter()
            .map(|name| {
                let total = numbers(&format!("{name}.total"))?;
                Ok((name.clone(), total, numbers(&format!("{name}.count"))?))
            })
            .collect::<Result<Vec<_>, Error>>()?;
        sums.add(u64::try_from(given.n).unwrap_or(0), numbers(LOSS)?[0], &metrics);
        Ok(())
    }

    pub(super) fn options(&self) -> RunOptions {
        RunOptions { max_memory: self.max_memory, ..RunOptions::default() }
    }

    /// The options of a step; one whose loss is not finite changes nothing if it `keeps_finite`
    /// parameters.
    pub(super) fn step_options(&self, keeps_finite: bool) -> RunOptions {
        RunOptions { finite: keeps_finite.then(|| LOSS.into()), ..self.options() }
    }
}

/// A model and the losses and metrics of its outputs.
pub(crate) struct Evaluator {
    pub(super) stage: StepRunner,
}

impl Evaluator {
    /// Prepares the evaluation of a model.
    ///
    /// # Errors
    /// If a loss does not suit, or the graph may not be split.
    pub(crate) fn new(
        model: &Model,
        options: &TrainerOptions,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let template = bytes::taken(&model.graph, &options.distribution.bytes)?;
        let graph = pass::evaluation(&template, &model.weights, &options.training)?;
        Ok(Self { stage: StepRunner::of(model, graph, options, backend)? })
    }

    /// The loss and the metrics of some rows.
    ///
    /// # Errors
    /// If a tensor is missing or of another type, or a device fails.
    pub(crate) fn test_on_batch(&self, feed: &Feed) -> Result<Logs, Error> {
        let mut sums = Sums::default();
        self.stage.run(feed, None, &mut sums)?;
        Ok(sums.logs())
    }

    /// See [`Trainer::evaluate`](super::Trainer::evaluate); `done` counts the batches.
    pub(crate) fn evaluate(
        &self,
        data: impl Into<Data>,
        batches: LoaderOptions,
        done: &AtomicU64,
    ) -> Result<Logs, Error> {
        let count = || {
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        self.all(&self.stage.in_order(data.into(), batches)?, count)
    }

    /// The loss and the metrics of all batches; `each` comes after each of them, and may end it.
    pub(super) fn all(
        &self,
        data: &Arc<Loader>,
        mut each: impl FnMut() -> Result<(), Error>,
    ) -> Result<Logs, Error> {
        let names = self.stage.names(data.columns())?;
        let mut sums = Sums::default();
        let stage = &self.stage;
        let batches = data.batches(Position::default(), 1)?.map(|batch| {
            let feed = names.feed(&batch?)?;
            Ok(((), stage.inputs(&feed, None)?))
        });
        run_each(&*stage.executable, &stage.options(), batches, |(), given| {
            stage.add(&given, &mut sums)?;
            each()
        })?;
        Ok(sums.logs())
    }
}

/// Prediction: the outputs of a model for data.
pub struct Predictor {
    pub(super) stage: StepRunner,
}

impl Predictor {
    /// Prepares a model for prediction.
    ///
    /// # Errors
    /// If it may not be split, or cannot be prepared.
    pub fn new(
        model: &Model,
        distribution: &Distribution,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let template = bytes::taken(&model.graph, &distribution.bytes)?;
        let graph = pass::inference(&template)?;
        let stage = StepRunner {
            executable: ready(&graph, &model.weights, distribution, backend)?,
            inputs: inputs(&model.graph),
            targets: Vec::new(),
            loss_targets: Vec::new(),
            metrics: Vec::new(),
            rate: None,
            max_memory: distribution.max_memory,
        };
        Ok(Self { stage })
    }

    /// The outputs of the model, by name.
    ///
    /// # Errors
    /// If a tensor is missing or of another type, or a device fails.
    pub fn predict_on_batch(
        &self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<(Arc<str>, Tensor)>, Error> {
        Ok(self.stage.executable.run(inputs, &self.stage.options())?.outputs)
    }

    /// See [`Trainer::predict`](super::Trainer::predict); `done` counts the batches.
    pub(crate) fn predict(
        &self,
        data: impl Into<Data>,
        batches: LoaderOptions,
        done: &AtomicU64,
    ) -> Result<BTreeMap<String, Tensor>, Error> {
        let data = self.stage.in_order(data.into(), batches)?;
        let names = self.stage.names(data.columns())?;
        let mut all: BTreeMap<String, Vec<Tensor>> = BTreeMap::new();
        let batches = data
            .batches(Position::default(), 1)?
            .map(|batch| Ok(((), names.feed(&batch?)?.inputs)));
        run_each(&*self.stage.executable, &self.stage.options(), batches, |(), given| {
            done.fetch_add(1, Ordering::Relaxed);
            for (name, mut tensor) in given.outputs {
                // `bytes_mut` copies the tensor out of pinned memory, which the next batches need.
                tensor.bytes_mut();
                all.entry(name.to_string()).or_default().push(tensor);
            }
            Ok::<_, Error>(())
        })?;
        let ports = &self.stage.executable.program().outputs;
        let join = |(name, parts): (String, Vec<Tensor>)| {
            let port = ports.iter().find(|port| *port.name == *name);
            let joined = joined(&name, port.map_or(&[][..], |port| &port.ty.shape), parts)?;
            Ok((name, joined))
        };
        all.into_iter().map(join).collect()
    }
}

/// The error for data that have something of an output for which the model was not prepared.
fn surplus(what: &str, output: &str, column: &str) -> Error {
    let (output, column) = (Quoted(output), Quoted(column));
    let reason =
        format!("the data have {what} for {output}, {column}; the model was not prepared for it");
    let way =
        "give `TrainerOptions::for_columns` the columns of these data too, or leave the array out";
    DataError::Columns(format!("{reason}; {way}")).into()
}

/// The error for data without something of which the number of elements in a row is not known.
fn unsized_ones(kind: &str, output: &str) -> Error {
    let reason = format!("the data have no `{kind}` for {}", Quoted(output));
    let why = "the number of elements in a row is not known before the first batch";
    DataError::Columns(format!("{reason}, and {why}; give these data the array")).into()
}

/// The inputs of a model.
fn inputs(graph: &Graph) -> Vec<String> {
    graph.inputs().map(|v| graph.info(v).name.to_string()).collect()
}

/// What an output of this shape is of all rows: those of the batches one after the other, or what
/// each batch gives that holds no row.
fn joined(name: &str, shape: &[Dim], parts: Vec<Tensor>) -> Result<Tensor, Error> {
    let missing = || TrainError::Missing(name.to_owned());
    let rows = shape.iter().position(|size| *size == Dim::n());
    if rows.is_none() && !shape.iter().any(Dim::depends_on_batch) || parts.len() == 1 {
        return Ok(parts.into_iter().next().ok_or_else(missing)?);
    }
    let axis = rows.and_then(|axis| i64::try_from(axis).ok());
    let axis =
        axis.ok_or_else(|| TrainError::Rows(format!("`{name}` has no axis of rows alone")))?;
    let operands: Vec<&Tensor> = parts.iter().collect();
    let joined = Concat { axis }.eval(&operands).map_err(|e| TrainError::Rows(e.to_string()))?;
    Ok(joined.into_iter().next().ok_or_else(missing)?)
}

/// The devices of eight shards.
fn eight(devices: &[Device]) -> Result<Vec<Device>, Error> {
    let count = devices.len();
    if !matches!(count, 1 | 2 | 4 | 8) {
        return Err(TrainError::Shards(count).into());
    }
    Ok((0..8).map(|i| devices[i * count / 8]).collect())
}

/// A graph after the repairs for the devices of a distribution, and how it is replicated; nothing
/// where it is not.
fn repaired<'a>(
    graph: &'a Graph,
    distribution: &Distribution,
) -> Result<Option<(Repaired<'a>, Replicate)>, Error> {
    let mut replicate = distribution.replicate.clone();
    if distribution.invariant {
        if distribution.batch_norm == Some(BatchStatistics::Local) {
            return Err(TrainError::Local.into());
        }
        let devices =
            replicate.as_ref().map_or_else(|| vec![Device::gpu(0)], |r| r.devices.clone());
        let devices = eight(&devices)?;
        // Shards exchange values whether devices are given or not.
        let given = replicate.unwrap_or_else(|| {
            let repair = Repair::Comm;
            Replicate { repair, ..Replicate::over(devices.clone()) }
        });
        replicate = Some(Replicate { devices, rule: ShardRule::Balanced, ..given });
    }
    let Some(replicate) = replicate else { return Ok(None) };
    let statistics = distribution.batch_norm.unwrap_or(BatchStatistics::Sync);
    let new = RepairOptions::new(replicate.repair);
    let options = RepairOptions { batch_norm: Some(statistics), ..new };
    let repaired = pass::repair_for(graph, replicate.devices.len(), options)?;
    Ok(Some((repaired, replicate)))
}

/// A graph as it runs: over the devices of `place`, and proved to compute what one device does, or
/// as it is.
///
/// # Errors
/// If it may not be split so.
pub fn replicated<'a>(
    graph: &'a Graph,
    distribution: &Distribution,
) -> Result<Cow<'a, Graph>, Error> {
    let Some((repaired, replicate)) = repaired(graph, distribution)? else {
        return match distribution.batch_norm {
            Some(BatchStatistics::Ghost(groups)) => Ok(pass::grouped(graph, groups)?),
            Some(BatchStatistics::Sync | BatchStatistics::Local) | None => Ok(Cow::Borrowed(graph)),
        };
    };
    let replicated = repaired.replicate(&replicate)?;
    repaired.prove(ir::verify(&replicated)?)?;
    Ok(Cow::Owned(replicated))
}

/// The claims of a graph as it is replicated, by the names of its values.
///
/// # Errors
/// As [`replicated`].
#[cfg(feature = "cli")]
pub(crate) fn claims(
    graph: &Graph,
    distribution: &Distribution,
) -> Result<HashMap<String, String>, Error> {
    let repaired = repaired(graph, distribution)?;
    Ok(pass::claims_by_name(repaired.as_ref().map_or(graph, |(repaired, _)| repaired.graph()))?)
}

/// A graph on its devices, ready to run.
fn ready(
    graph: &Graph,
    weights: &Weights,
    distribution: &Distribution,
    backend: &dyn Backend,
) -> Result<Box<dyn Executable>, Error> {
    backend.ready(&*replicated(graph, distribution)?, weights)
}
