//! The loop: batches in, new parameters out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::checkpoint::Checkpoint;
use super::data::{Change, DataError, Feed, Loader, LoaderOptions, Position, Source};
use super::history::{Epoch, History, Logs, Sums};
use super::schedule::Schedule;
use super::stage::{Evaluator, Place, Predictor, Stage};
use crate::analysis::ProofError;
use crate::backend::{Backend, CompileError, RunError, run_each};
use crate::format::Model;
use crate::ir::{Graph, GraphError, VerifyErrors, Weights};
use crate::lower::LowerError;
use crate::pass::{self, Mode, Optimizer, PassError, Training, TrainingError};
use crate::types::{DType, Escaped, Quoted, Tensor};

/// For what a model is trained, and where.
#[derive(Clone, Debug)]
pub struct TrainerOptions {
    /// Losses, metrics, the optimizer.
    pub training: Training,
    /// The devices.
    pub place: Place,
}

/// Why training failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// There is no training graph of the model.
    #[error(transparent)]
    Training(#[from] TrainingError),
    /// It may not be split.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// The graph is damaged: a bug in what made it.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A graph breaks an invariant.
    #[error("the graph is damaged\n{0}")]
    Invalid(VerifyErrors),
    /// The replicas do not compute what one device does.
    #[error("the replicas do not compute what the model does\n{0}")]
    Unproved(#[from] ProofError),
    /// It could not be lowered.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// It could not be readied.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A step failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The data do not suit, or could not be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A number of devices that eight shards cannot be dealt out to.
    #[error("eight shards cannot be dealt out to {0} devices: 1, 2, 4 and 8 give the same bits")]
    Shards(usize),
    /// Statistics that depend on the number of devices, where the bits shall not.
    #[error(
        "the same bits on any number of devices need batch normalisation with the statistics `sync` or `ghost:G`; those \
         that are `local` to devices differ with their number"
    )]
    Local,
    /// An output that is not there.
    #[error("a step gives no `{0}`")]
    Missing(String),
    /// Outputs of batches do not fit together.
    #[error("the outputs of batches cannot be joined: {0}")]
    Rows(String),
    /// A checkpoint is of another model or optimizer.
    #[error("the checkpoint is of another training: `{0}` is a variable of one of them only")]
    Foreign(String),
    /// A checkpoint is of a run with another optimizer, schedule, batches or seed.
    #[error(
        "the checkpoint is of a run with the {} {}, not {}",
        Escaped(what),
        Quoted(before),
        Quoted(now)
    )]
    Terms {
        /// What differs.
        what: String,
        /// What it was.
        before: String,
        /// What it is now.
        now: String,
    },
    /// The learning rate follows a number that no epoch tells.
    #[error("the learning rate follows `{0}`, which no epoch tells")]
    Monitor(String),
    /// A step made a variable infinite or NaN.
    #[error(
        "`{0}` is no longer finite, and nothing is learned from there on; try a lower learning rate, or clipped gradients"
    )]
    Diverged(String),
    /// A watcher of the training failed.
    #[error("{0}")]
    Watch(String),
}

/// A model in training.
pub struct Trainer {
    model: Model,
    optimizer: Optimizer,
    mode: Mode,
    /// Parameters and the variables that are their moving averages.
    averages: Vec<(String, String)>,
    train: Stage,
    evaluator: Evaluator,
    predictor: Predictor,
    /// The training graph of one device.
    graph: Graph,
    /// Parameters that are not trained, and why.
    untrained: Vec<(String, &'static str)>,
    /// True while evaluation and prediction have the parameters that training has.
    synced: bool,
}

/// How long and on what to train.
pub struct FitOptions<'a> {
    /// The batches.
    pub data: Arc<Loader>,
    /// The batches that evaluate every epoch.
    pub validation: Option<Arc<Loader>>,
    /// The number of epochs in all.
    pub epochs: u64,
    /// How the learning rate changes.
    pub schedule: Schedule,
    /// Where to go on.
    pub resume: Option<Checkpoint>,
    /// What watches the training, in order.
    pub observers: Vec<&'a mut dyn Observer>,
}

/// What a watcher of training sees.
pub struct Watch<'t> {
    /// The place of the next batch.
    pub at: Position,
    /// The epoch so far.
    pub logs: Logs,
    /// Its batches in all, where that is known.
    pub steps: Option<u64>,
    trainer: &'t Trainer,
    terms: &'t BTreeMap<String, String>,
    history: &'t History,
    sums: &'t Sums,
}

impl Watch<'_> {
    /// All that is needed to go on from here: the weights, the variables of the optimizer and the step, the optimizer, the
    /// schedule and the seeds as texts, the place in the data, and the history. What a run was given besides goes into
    /// [`Checkpoint::settings`].
    ///
    /// # Errors
    /// If devices do not give the variables, or one that steps change is no longer finite.
    pub fn checkpoint(&self) -> Result<Checkpoint, TrainError> {
        let variables = self.trainer.train.executable.weights()?;
        self.trainer.assert_finite(&variables)?;
        let (history, partial) = (self.history.clone(), self.sums.parts());
        let terms = self.terms.clone();
        Ok(Checkpoint { variables, at: self.at, history, terms, partial, ..Checkpoint::default() })
    }

    /// The whole epochs before.
    pub fn history(&self) -> &History {
        self.history
    }
}

/// Something that watches a training and may end it.
pub trait Observer {
    /// Before the first batch; false ends the training.
    ///
    /// # Errors
    /// If it cannot do its work; the training ends.
    fn begin(&mut self, _watch: &Watch<'_>) -> Result<bool, TrainError> {
        Ok(true)
    }

    /// After a batch.
    ///
    /// # Errors
    /// If it cannot do its work; the training ends.
    fn batch(&mut self, _watch: &Watch<'_>) -> Result<(), TrainError> {
        Ok(())
    }

    /// After an epoch, the last of the history; false ends the training.
    ///
    /// # Errors
    /// If it cannot do its work; the training ends.
    fn epoch(&mut self, _watch: &Watch<'_>) -> Result<bool, TrainError> {
        Ok(true)
    }
}

impl Trainer {
    /// Readies a model for training; it must have been read for that ([`LoadOptions`](crate::model::LoadOptions)).
    ///
    /// # Errors
    /// If there is no gradient, the training graph may not be split, or it cannot be readied.
    pub fn new(
        model: Model,
        options: &TrainerOptions,
        backend: &dyn Backend,
    ) -> Result<Self, TrainError> {
        let training = pass::training(&model.graph, &model.weights, &options.training)?;
        let (graph, averages) = (training.graph.clone(), training.averages.clone());
        let untrained = training.untrained.clone();
        let train = Stage::of(&model, training, &options.place, backend)?;
        let evaluator = Evaluator::new(&model, options, backend)?;
        let predictor = Predictor::new(&model, &options.place, backend)?;
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
            synced,
        })
    }

    /// The training graph of one device.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The parameters that are floats, but not trained, and why: clauses after their names.
    pub fn untrained(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.untrained.iter().map(|(name, why)| (&**name, *why))
    }

    /// The parameters of the model that a step changes: those that are trained, and running statistics.
    pub fn changed(&self) -> impl Iterator<Item = &str> {
        let params =
            self.graph.updates().iter().map(|update| &*self.graph.param(update.param).name);
        params.filter(|name| self.model.weights.get(name).is_some())
    }

    /// The names of the numbers that an epoch tells ([`Epoch::numbers`]), with validation or without.
    pub fn numbers(&self, validated: bool) -> Vec<String> {
        let metrics = self.train.metrics.iter().map(|name| (name.clone(), 0.0)).collect();
        let logs = Logs { metrics, ..Logs::default() };
        let validation = validated.then(|| logs.clone());
        let epoch = Epoch { training: logs, validation, ..Epoch::default() };
        epoch.numbers().into_iter().map(|(name, _)| name).collect()
    }

    /// The learning rate before any schedule.
    pub fn learning_rate(&self) -> f64 {
        self.optimizer.learning_rate
    }

    /// The parameters of the model as they are now, under the names that the model has for them.
    ///
    /// # Errors
    /// If devices do not give them.
    pub fn weights(&self) -> Result<Weights, TrainError> {
        let mut weights = self.model.weights.clone();
        for (name, tensor) in self.train.executable.weights()?.iter() {
            if weights.get(name).is_some() {
                weights.insert(name.clone(), tensor.clone());
            }
        }
        Ok(weights)
    }

    /// Fails if the last step made a variable infinite or NaN.
    ///
    /// # Errors
    /// If it did, or if devices do not give the variables.
    pub fn check(&self) -> Result<(), TrainError> {
        self.assert_finite(&self.train.executable.weights()?)
    }

    fn assert_finite(&self, variables: &Weights) -> Result<(), TrainError> {
        for update in self.graph.updates() {
            let name = &self.graph.param(update.param).name;
            if variables.get(name).is_some_and(|tensor| !is_finite(tensor)) {
                return Err(TrainError::Diverged(name.to_string()));
            }
        }
        Ok(())
    }

    /// Gives all variables the values of a checkpoint.
    ///
    /// # Errors
    /// If it is that of another training: it lacks a variable, has one more, or one of another type.
    pub fn restore(&mut self, variables: &Weights) -> Result<(), TrainError> {
        let known = self.train.executable.program().params.iter().map(|port| port.name.clone());
        let known: BTreeSet<Arc<str>> = known.collect();
        let given: BTreeSet<Arc<str>> = variables.iter().map(|(name, _)| name.clone()).collect();
        if let Some(name) = known.symmetric_difference(&given).next() {
            return Err(TrainError::Foreign(name.to_string()));
        }
        self.synced = false;
        self.train.set(variables)
    }

    /// One step with this learning rate; the loss and the metrics are those before it.
    ///
    /// # Errors
    /// If a tensor is missing or of another type, or a device fails: no variable changes then.
    pub fn train_on_batch(&mut self, feed: &Feed, rate: f64) -> Result<Logs, TrainError> {
        let mut sums = Sums::default();
        self.synced = false;
        self.train.run(feed, Some(rate), &mut sums)?;
        Ok(sums.logs())
    }

    /// The loss and the metrics of some rows.
    ///
    /// # Errors
    /// As [`Self::train_on_batch`].
    pub fn test_on_batch(&mut self, feed: &Feed) -> Result<Logs, TrainError> {
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
    ) -> Result<Vec<(Arc<str>, Tensor)>, TrainError> {
        self.sync()?;
        self.predictor.predict_on_batch(inputs)
    }

    /// The loss and the metrics of all rows of the data.
    ///
    /// # Errors
    /// As [`Self::fit`].
    pub fn evaluate(&mut self, data: &Arc<Loader>) -> Result<Logs, TrainError> {
        self.sync()?;
        self.evaluator.evaluate(data)
    }

    /// The outputs for all rows of the data, in their order.
    ///
    /// # Errors
    /// As [`Self::fit`].
    pub fn predict(&mut self, data: &Arc<Loader>) -> Result<BTreeMap<String, Tensor>, TrainError> {
        self.sync()?;
        self.predictor.predict(data)
    }

    /// Evaluation and prediction get the parameters of training.
    fn sync(&mut self) -> Result<(), TrainError> {
        if !self.synced {
            let now = self.train.executable.weights()?;
            self.evaluator.stage.set(&now)?;
            self.predictor.stage.set(&now)?;
            self.synced = true;
        }
        Ok(())
    }

    /// A loader of data for this model: what it takes is brought to its types.
    ///
    /// # Errors
    /// If something is missing, or cannot be brought to its type.
    pub fn loader(
        &self,
        source: Arc<dyn Source>,
        changes: Vec<Arc<dyn Change>>,
        options: LoaderOptions,
    ) -> Result<Arc<Loader>, TrainError> {
        self.train.loader(source, changes, options)
    }

    /// Trains for some epochs. Where the optimizer keeps moving averages, the parameters are these in the end.
    ///
    /// # Errors
    /// If data cannot be read, a step fails, or an observer does; if the schedule follows a number that there is not; if the
    /// checkpoint is of another model, or has other [`terms`](Checkpoint::terms).
    pub fn fit(&mut self, options: FitOptions<'_>) -> Result<History, TrainError> {
        let FitOptions { data, validation, epochs, schedule, resume, mut observers } = options;
        let names = self.train.names(data.columns())?;
        self.follows(&schedule, validation.is_some())?;
        if let Some(validation) = &validation {
            self.evaluator.stage.names(validation.columns())?;
        }
        let (mut at, mut history, mut sums) =
            (Position::default(), History::default(), Sums::default());
        let terms = self.terms(&schedule, &data);
        if let Some(checkpoint) = resume {
            if let Some([what, before, now]) = checkpoint.contradiction(&terms) {
                return Err(TrainError::Terms { what, before, now });
            }
            self.restore(&checkpoint.variables)?;
            (at, history) = (checkpoint.at, checkpoint.history);
            sums = Sums::of(checkpoint.partial);
        }
        let mut batches = data.batches(at, epochs)?;
        // Behind its last batch an epoch only has to be ended: what follows are the batches of the next one.
        let mut over = at.step > 0 && data.steps() == Some(at.step);
        let watch = self.watch(at, (&data, &terms), &history, &sums);
        let mut go_on = each(&mut observers, |o| o.begin(&watch))?;
        while go_on && at.epoch < epochs {
            let began = Instant::now();
            let rate = schedule.rate(self.learning_rate(), at.epoch, &history);
            let own = if std::mem::take(&mut over) { 0 } else { usize::MAX };
            self.synced = false;
            let train = &self.train;
            let steps = batches.by_ref().take(own).map(|batch| {
                let batch = batch?;
                Ok((batch.at, train.inputs(&names.feed(&batch)?, Some(rate))?))
            });
            run_each(&*train.executable, &train.options(), steps, |of, given| {
                train.add(&given, &mut sums)?;
                at = Position { epoch: of.epoch, step: of.step + 1 };
                let watch = self.watch(at, (&data, &terms), &history, &sums);
                observers.iter_mut().try_for_each(|o| o.batch(&watch))
            })?;
            let training = sums.logs();
            let validated = match &validation {
                Some(data) => Some(self.evaluate(data)?),
                None => None,
            };
            history.epochs.push(Epoch {
                epoch: at.epoch,
                learning_rate: rate,
                training,
                validation: validated,
                seconds: began.elapsed().as_secs_f64(),
            });
            at = Position { epoch: at.epoch + 1, step: 0 };
            sums = Sums::default();
            let watch = self.watch(at, (&data, &terms), &history, &sums);
            go_on = each(&mut observers, |o| o.epoch(&watch))?;
        }
        self.average()?;
        Ok(history)
    }

    /// Fails if a schedule follows a number that epochs do not tell.
    fn follows(&self, schedule: &Schedule, validated: bool) -> Result<(), TrainError> {
        let Schedule::Plateau(plateau) = schedule else { return Ok(()) };
        let monitor = &*plateau.monitor;
        let own = if validated { monitor.strip_prefix("val_").unwrap_or(monitor) } else { monitor };
        let known = own == "loss" || self.train.metrics.iter().any(|name| name == own);
        if known { Ok(()) } else { Err(TrainError::Monitor(monitor.to_owned())) }
    }

    /// Gives parameters the values of their moving averages, where the optimizer keeps these.
    ///
    /// # Errors
    /// If devices do not give or take them.
    pub fn average(&mut self) -> Result<(), TrainError> {
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

    fn watch<'t>(
        &'t self,
        at: Position,
        (data, terms): (&Loader, &'t BTreeMap<String, String>),
        history: &'t History,
        sums: &'t Sums,
    ) -> Watch<'t> {
        Watch { at, logs: sums.logs(), steps: data.steps(), trainer: self, terms, history, sums }
    }

    /// What a training depends on, as a checkpoint says it.
    fn terms(&self, schedule: &Schedule, data: &Loader) -> BTreeMap<String, String> {
        let LoaderOptions { batch, shuffle, seed, drop_last, steps, .. } = data.options();
        let steps = steps.map_or_else(String::new, |steps| format!(",steps={steps}"));
        let batches =
            format!("batch={batch},shuffle={shuffle},seed={seed},drop_last={drop_last}{steps}");
        let Mode { momentum, seed } = self.mode;
        let texts = [
            ("optimizer", self.optimizer.to_string()),
            ("schedule", schedule.to_string()),
            ("batches", batches),
            ("mode", format!("seed={seed},momentum={momentum}")),
        ];
        texts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
    }
}

/// What every observer says, though one says no: true if all say yes.
fn each(
    observers: &mut [&mut dyn Observer],
    mut ask: impl FnMut(&mut dyn Observer) -> Result<bool, TrainError>,
) -> Result<bool, TrainError> {
    let mut all = true;
    for observer in observers {
        all &= ask(&mut **observer)?;
    }
    Ok(all)
}

/// Whether all elements of floats, which training works with, are finite.
fn is_finite(tensor: &Tensor) -> bool {
    let dtype = tensor.dtype();
    (dtype != DType::F32 || tensor.as_slice::<f32>().iter().all(|x| x.is_finite()))
        && (dtype != DType::F64 || tensor.as_slice::<f64>().iter().all(|x| x.is_finite()))
}
