//! A model in training: steps, evaluation, prediction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::TrainError;
use super::bytes;
use super::data::{Data, Feed, Loader, LoaderOptions, Names};
use super::history::{Epoch, Logs, Sums};
use super::options::TrainerOptions;
use super::stage::{Evaluator, Predictor, StepRunner};
use crate::Error;
#[cfg(feature = "cli")]
use crate::analysis;
#[cfg(feature = "cli")]
use crate::backend::Executable;
use crate::backend::{Backend, CompileError};
use crate::ir::Model;
use crate::ir::{Graph, Weights};
use crate::pass::{self, Mode, Optimizer, Training};
use crate::types::Tensor;

/// A model in training.
pub struct Trainer {
    pub(super) model: Model,
    pub(super) optimizer: Optimizer,
    pub(super) mode: Mode,
    /// Parameters and the variables that are their moving averages.
    averages: Vec<(String, String)>,
    pub(super) train: StepRunner,
    pub(super) evaluator: Evaluator,
    predictor: Predictor,
    /// The training graph of one device.
    pub(super) graph: Graph,
    /// Parameters that are not trained, and why.
    untrained: Vec<(String, &'static str)>,
    notes: Vec<String>,
    /// True while evaluation and prediction have the parameters that training has.
    pub(super) synced: bool,
}

impl Trainer {
    /// Readies a model for training; it must have been read for that
    /// ([`LoadOptions`](crate::model::LoadOptions)).
    ///
    /// # Errors
    /// If there is no gradient, the training graph may not be split, or it cannot be prepared.
    pub fn new(
        model: Model,
        options: &TrainerOptions,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let template = bytes::taken(&model.graph, &options.distribution.bytes)?;
        let training = pass::training(&template, &model.weights, &options.training)?;
        drop(template);
        let (graph, averages) = (training.graph.clone(), training.averages.clone());
        let (untrained, notes) = (training.untrained.clone(), training.notes.clone());
        let train = StepRunner::of(&model, training, options, backend)?;
        let evaluator = Evaluator::new(&model, options, backend)?;
        let predictor = Predictor::new(&model, &options.distribution, backend)?;
        let Training { optimizer, mode, .. } = options.training;
        let synced = true;
        Ok(Self {
            model,
            optimizer,
            mode,
            averages,
            train,
            evaluator,
            predictor,
            graph,
            untrained,
            notes,
            synced,
        })
    }

    /// The parameters that are floats, but not trained, and why: clauses after their names.
    pub(crate) fn untrained(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.untrained.iter().map(|(name, why)| (&**name, *why))
    }

    /// What should be known of the training, as sentences: batch normalisation that may be missing.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The largest momentum of the running statistics that steps move, if there are some.
    pub(crate) fn momentum(&self) -> Option<f64> {
        pass::largest_momentum(&self.graph)
    }

    /// The parameters of the model that a step changes: those that are trained, and running
    /// statistics.
    pub(crate) fn changed(&self) -> impl Iterator<Item = &str> {
        let params =
            self.graph.updates().iter().map(|update| &*self.graph.param(update.param).name);
        params.filter(|name| self.model.weights.get(name).is_some())
    }

    /// Fails unless epochs tell a number of this name ([`Epoch::numbers`]), with validation or
    /// without.
    ///
    /// # Errors
    /// Then.
    pub(crate) fn check_number(&self, name: &str, validated: bool) -> Result<(), TrainError> {
        let metrics = self.train.metrics.iter().map(|name| (name.clone(), 0.0)).collect();
        let logs = Logs { metrics, ..Logs::default() };
        let validation = validated.then(|| logs.clone());
        let epoch = Epoch { training: logs, validation, ..Epoch::default() };
        let known: Vec<String> = epoch.numbers().into_iter().map(|(name, _)| name).collect();
        if known.iter().any(|own| own == name) {
            return Ok(());
        }
        Err(TrainError::Number { name: name.to_owned(), known })
    }

    /// The learning rate before any schedule.
    pub fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate
    }

    /// The parameters of the model as they are now, under the names that the model has for them.
    ///
    /// # Errors
    /// If devices do not give them.
    pub fn weights(&self) -> Result<Weights, Error> {
        let mut weights = self.model.weights.clone();
        for (name, tensor) in self.train.executable.weights()?.iter() {
            if weights.get(name).is_some() {
                weights.insert(name.clone(), tensor.clone());
            }
        }
        Ok(weights)
    }

    /// The variables of training as they are now: the parameters that its graph uses, and what the
    /// optimizer remembers, under names that begin with `optimizer.`.
    ///
    /// # Errors
    /// If devices do not give them.
    pub fn variables(&self) -> Result<Weights, Error> {
        Ok(self.train.executable.weights()?)
    }

    /// Gives parameters of the model, and variables of the optimizer, other values. Those that are
    /// not named stay as they are.
    ///
    /// Elsewhere: `set_weights` (Keras), `load_state_dict` (PyTorch).
    ///
    /// # Errors
    /// If there is no such parameter or variable, or it is of another type, and nothing changes; or
    /// if devices do not take the values.
    pub fn set_weights(&mut self, weights: &Weights) -> Result<(), Error> {
        let ports = &self.train.executable.program().params;
        for (name, tensor) in weights.iter() {
            let own = self.model.weights.get(name).map(Tensor::tensor_type);
            let port = || ports.iter().find(|port| port.name == *name).map(|port| port.ty.clone());
            let Some(expected) = own.or_else(port) else {
                return Err(CompileError::UnknownParam(name.to_string()).into());
            };
            let found = tensor.tensor_type();
            if found != expected {
                let (expected, found) = (Box::new(expected), Box::new(found));
                let name = name.to_string();
                return Err(CompileError::ParamType { name, expected, found }.into());
            }
        }
        for stage in [&self.train, &self.evaluator.stage, &self.predictor.stage] {
            stage.set(weights)?;
        }
        for (name, tensor) in weights.iter() {
            if self.model.weights.get(name).is_some() {
                self.model.weights.insert(name.clone(), tensor.clone());
            }
        }
        Ok(())
    }

    /// Fails if the last step made a variable infinite or NaN.
    ///
    /// # Errors
    /// If it did, or if devices do not give the variables.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.assert_finite(&self.train.executable.weights()?)
    }

    pub(super) fn assert_finite(&self, variables: &Weights) -> Result<(), Error> {
        for update in self.graph.updates() {
            let name = &self.graph.param(update.param).name;
            if variables.get(name).is_some_and(|tensor| !tensor.is_finite()) {
                return Err(TrainError::Diverged(name.to_string()).into());
            }
        }
        Ok(())
    }

    /// Gives all variables the values of a checkpoint.
    ///
    /// # Errors
    /// If it is that of another training: it lacks a variable, has one more, or one of another
    /// type.
    pub(crate) fn restore(&mut self, variables: &Weights) -> Result<(), Error> {
        let known = self.train.executable.program().params.iter().map(|port| port.name.clone());
        let known: BTreeSet<Arc<str>> = known.collect();
        let given: BTreeSet<Arc<str>> = variables.iter().map(|(name, _)| name.clone()).collect();
        if let Some(name) = known.symmetric_difference(&given).next() {
            return Err(TrainError::Foreign(name.to_string()).into());
        }
        self.synced = false;
        self.train.set(variables)
    }

    /// One step with this learning rate; the loss and the metrics are those before it.
    ///
    /// # Errors
    /// If a tensor is missing or of another type, or a device fails: no variable changes then.
    pub fn train_on_batch(&mut self, feed: &Feed, rate: f64) -> Result<Logs, Error> {
        let mut sums = Sums::default();
        self.synced = false;
        self.train.run(feed, Some(rate), &mut sums)?;
        Ok(sums.logs())
    }

    /// The program of a step.
    #[cfg(feature = "cli")]
    pub(crate) fn step(&self) -> &dyn Executable {
        &*self.train.executable
    }

    /// Random rows to train on. The numbers of classes are 0.
    #[cfg(feature = "cli")]
    pub(crate) fn random_feed(&self, rows: i64, seed: u64) -> Result<Feed, Error> {
        let of_graph = analysis::random_inputs(&self.graph, rows, seed)?;
        Ok(self.train.feed(of_graph)?)
    }

    /// The loss and the metrics of some rows.
    ///
    /// # Errors
    /// As [`Self::train_on_batch`].
    pub fn test_on_batch(&mut self, feed: &Feed) -> Result<Logs, Error> {
        self.sync()?;
        self.evaluator.test_on_batch(feed)
    }

    /// The outputs of the model, by name.
    ///
    /// # Errors
    /// As [`Self::train_on_batch`].
    pub fn predict_on_batch(
        &mut self,
        inputs: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<(Arc<str>, Tensor)>, Error> {
        self.sync()?;
        self.predictor.predict_on_batch(inputs)
    }

    /// The loss and the metrics of all rows of the data. How they become batches changes no more
    /// than the rounding of sums, unless some costs are not counted, because of a mask or of
    /// `ignore_class`: the loss is the mean of the batches' losses, weighted by all their rows, as
    /// in Keras.
    ///
    /// # Errors
    /// If the data lack something, cannot be brought to the model's types or be read, or a run
    /// fails.
    pub fn evaluate(
        &mut self,
        data: impl Into<Data>,
        batches: LoaderOptions,
    ) -> Result<Logs, Error> {
        self.sync()?;
        self.evaluator.evaluate(data, batches, &AtomicU64::new(0))
    }

    /// The outputs for all rows of the data, in their order whether batches are shuffled or not.
    ///
    /// # Errors
    /// If the data lack an input, cannot be brought to the model's types or be read, or a run
    /// fails.
    pub fn predict(
        &mut self,
        data: impl Into<Data>,
        batches: LoaderOptions,
    ) -> Result<BTreeMap<String, Tensor>, Error> {
        self.sync()?;
        self.predictor.predict(data, batches, &AtomicU64::new(0))
    }

    /// Evaluation and prediction get the parameters of training.
    pub(super) fn sync(&mut self) -> Result<(), Error> {
        if !self.synced {
            let now = self.train.executable.weights()?;
            self.evaluator.stage.set(&now)?;
            self.predictor.stage.set(&now)?;
            self.synced = true;
        }
        Ok(())
    }

    /// A loader of data for this model, for a loop of one's own: what the model takes is brought to
    /// its types, and classes become what the losses take.
    ///
    /// # Errors
    /// If something is missing, or cannot be brought to its type.
    pub fn loader(
        &self,
        data: impl Into<Data>,
        options: LoaderOptions,
    ) -> Result<Arc<Loader>, Error> {
        self.train.loader(data.into(), options)
    }

    /// The columns of a loader that a step takes.
    ///
    /// # Errors
    /// If they have no array for an input or an output.
    pub fn names(&self, loader: &Loader) -> Result<Names, Error> {
        self.train.names(loader.columns())
    }

    /// Gives parameters the values of their moving averages, where the optimizer keeps these.
    ///
    /// # Errors
    /// If devices do not give or take them.
    pub(crate) fn average(&mut self) -> Result<(), Error> {
        if self.averages.is_empty() {
            return Ok(());
        }
        let (now, mut averaged) = (self.train.executable.weights()?, Weights::default());
        if now.get(pass::STEP).is_some_and(|step| *step.as_slice::<i64>() == [0]) {
            // There are no averages before the first batch.
            return Ok(());
        }
        for (name, variable) in &self.averages {
            let tensor = now.get(variable).cloned();
            averaged.insert(&**name, tensor.ok_or_else(|| TrainError::Missing(variable.clone()))?);
        }
        self.synced = false;
        self.train.set(&averaged)
    }
}
