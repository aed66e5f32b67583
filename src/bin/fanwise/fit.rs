//! `fanwise fit`, `evaluate` and `predict`: a model, data, and what is learned or said of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use fanwise::Error;
use fanwise::format::{self, npz, safetensors};
use fanwise::ir::Graph;
use fanwise::model::{self, GraphForm, Model};
use fanwise::pass::{Loss, Metric, Mode, Optimizer, OutputLoss, Training};
use fanwise::train::data::{self, Loader, LoaderOptions, OpenOptions, Source};
use fanwise::train::{
    Checkpoint, Epoch, Evaluator, FitOptions, Logs, Observer, Place, Predictor, Schedule,
    TrainError, Trainer, TrainerOptions, Watch,
};
use serde_json::json;

use crate::args::{Format, ModelArgs, ReplicateArgs};
use crate::target::{Runner, TargetArgs};
use crate::ui;

/// What a model is trained or evaluated for.
#[derive(Args)]
struct AimArgs {
    /// The loss of every output, or of one: a name, as `categorical_crossentropy` or `mse`
    #[arg(long, value_name = "[OUTPUT=]LOSS", required = true, value_delimiter = ',')]
    loss: Vec<String>,
    /// Metrics: `accuracy`, `top_5_accuracy`, `auc`, `precision`, `recall`, the name of a loss
    #[arg(long, value_name = "METRIC", value_delimiter = ',')]
    metrics: Vec<Metric>,
    /// Metrics in which rows count by their weights
    #[arg(long, value_name = "METRIC", value_delimiter = ',')]
    weighted_metrics: Vec<Metric>,
    /// The factor of the sum of squares of all weights of two axes or more in the loss
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = amount)]
    l2: f64,
    /// The factor of the sum of their magnitudes
    #[arg(long, value_name = "FACTOR", default_value_t = 0.0, value_parser = amount)]
    l1: f64,
}

/// The data and its batches.
#[derive(Args)]
struct DataArgs {
    /// .npz, .npy, .safetensors, .csv, CIFAR's .bin or its folder: arrays named like the inputs and outputs of the
    /// model (`x` and `y` serve for the only ones), and `sample_weight` where rows have weights
    #[arg(long, value_name = "DATA")]
    data: PathBuf,
    /// Rows of a batch
    #[arg(long, value_name = "ROWS", default_value_t = 32)]
    batch: usize,
    /// Worker threads; by default one for each core
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// How the result is printed
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

/// Train a model on one device or many: each step is that of the whole batch
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise fit zoo:mlp --data train.npz --loss categorical_crossentropy --optimizer adam --epochs 20 --batch 64
  fanwise fit model.onnx --data train.npz --validation val.npz --loss sparse_categorical_crossentropy \\
    --metrics accuracy --optimizer sgd:momentum=0.9 --learning-rate 0.005 --schedule polynomial:epochs=70,power=1 \\
    --gpus 4 --batch 256 --checkpoint run --save trained.fan
  fanwise fit model.onnx --data train.npz --loss mse --optimizer rmsprop:rho=0.9,epsilon=outside --resume run")]
pub(crate) struct FitArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    replicate: ReplicateArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    aim: AimArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Data that evaluate every epoch
    #[arg(long, value_name = "DATA", conflicts_with = "validation_split")]
    validation: Option<PathBuf>,
    /// The last part of the data evaluates every epoch instead, before any shuffling
    #[arg(long, value_name = "PART", default_value_t = 0.0)]
    validation_split: f64,
    /// The optimizer with its settings: sgd, rmsprop, adam, adamw, adagrad, adadelta, adamax, nadam, lion
    #[arg(long, value_name = "NAME[:KEY=VALUE,...]", default_value = "rmsprop")]
    optimizer: String,
    /// The learning rate before any schedule; by default the optimizer's own
    #[arg(long, value_name = "RATE", value_parser = amount)]
    learning_rate: Option<f64>,
    /// How the learning rate changes with the epochs
    #[arg(long, value_name = "SCHEDULE", default_value = "constant")]
    schedule: Schedule,
    /// Epochs in all
    #[arg(long, value_name = "EPOCHS", default_value_t = 1)]
    epochs: u64,
    /// Whether every epoch has an order of its own
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    shuffle: bool,
    /// Decides the orders of rows and what dropout drops
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// Parameters that are not trained
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    freeze: Vec<String>,
    /// The part of running statistics that each step of batch normalisation keeps
    #[arg(long, value_name = "PART", default_value_t = 0.99, value_parser = amount)]
    batch_norm_momentum: f64,
    /// `n-invariant` gives the same weights, bit for bit, on 1, 2, 4 and 8 devices
    #[arg(long, value_name = "n-invariant")]
    reproducible: Option<String>,
    /// Keep in this folder what is needed to go on, after every epoch
    #[arg(long, value_name = "DIR")]
    checkpoint: Option<PathBuf>,
    /// Also after so many batches
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every: Option<u64>,
    /// Go on from the checkpoint of this folder, and keep it up to date
    #[arg(long, value_name = "DIR", conflicts_with = "checkpoint")]
    resume: Option<PathBuf>,
    /// End when this number has not improved for `--patience` epochs: `val_loss`, `val_accuracy`, `loss` …
    #[arg(long, value_name = "NUMBER")]
    early_stopping: Option<String>,
    /// Epochs without improvement before the end
    #[arg(long, value_name = "EPOCHS", default_value_t = 5, requires = "early_stopping")]
    patience: u64,
    /// Write a line for each epoch to this file
    #[arg(long, value_name = "FILE.csv")]
    log: Option<PathBuf>,
    /// Write the trained model: .fan (with its weights beside it), or .safetensors for the weights alone
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

/// Evaluate a model: its loss and metrics on data
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise evaluate trained.fan --data test.npz --loss categorical_crossentropy --metrics accuracy
  fanwise evaluate model.onnx --data test.npz --loss mse --gpus 4 --batch 256 --format json")]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    replicate: ReplicateArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    aim: AimArgs,
    #[command(flatten)]
    data: DataArgs,
}

/// Write what a model gives for all rows of data
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise predict trained.fan --data test.npz --outputs out.npz
  fanwise predict model.onnx --data test.npz --outputs out.npz --gpus 4 --batch 256")]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    replicate: ReplicateArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    data: DataArgs,
    /// Write an array for each output to this .npz file
    #[arg(long, value_name = "OUT.npz")]
    outputs: PathBuf,
}

impl AimArgs {
    /// The losses of the outputs of a graph.
    fn losses(&self, graph: &Graph, weights: &BTreeSet<String>) -> anyhow::Result<Vec<OutputLoss>> {
        let outputs: Vec<String> = graph.outputs().iter().map(|o| o.name.to_string()).collect();
        let of = |output: &str, loss: &str| {
            let loss: Loss = loss.parse()?;
            let own = format!("{}:{output}", data::SAMPLE_WEIGHT);
            let weighted = weights.contains(data::SAMPLE_WEIGHT) || weights.contains(&own);
            anyhow::Ok(OutputLoss { output: output.to_owned(), loss, weight: 1.0, weighted })
        };
        let mut losses = Vec::new();
        for text in &self.loss {
            match text.rsplit_once('=') {
                Some((output, loss)) => losses.push(of(output, loss)?),
                None if self.loss.len() > 1 => {
                    bail!("write OUTPUT=LOSS where there are several losses")
                }
                None => {
                    for output in &outputs {
                        losses.push(of(output, text)?);
                    }
                }
            }
        }
        Ok(losses)
    }

    fn training(
        &self,
        model: &Model,
        source: &dyn Source,
        optimizer: Optimizer,
    ) -> anyhow::Result<Training> {
        let columns = source.columns().iter().map(|column| column.name.clone()).collect();
        Ok(Training {
            losses: self.losses(&model.graph, &columns)?,
            metrics: self.metrics.clone(),
            weighted_metrics: self.weighted_metrics.clone(),
            optimizer,
            frozen: BTreeSet::new(),
            l1: self.l1,
            l2: self.l2,
            mode: Mode::default(),
        })
    }
}

/// Reads a number that is finite and not negative.
fn amount(text: &str) -> anyhow::Result<f64> {
    let number = text.parse().ok().filter(|x: &f64| x.is_finite() && *x >= 0.0);
    number.with_context(|| format!("`{text}` is no finite number from 0 on"))
}

/// The data at a path.
fn open(path: &Path, limit: u64) -> anyhow::Result<Arc<dyn Source>> {
    let options = OpenOptions { max_memory: limit, ..OpenOptions::default() };
    Ok(data::open(path, &options).map_err(Error::from)?)
}

impl DataArgs {
    fn in_order(&self) -> LoaderOptions {
        LoaderOptions {
            batch: self.batch,
            threads: self.threads.unwrap_or(0),
            ..LoaderOptions::default()
        }
    }
}

fn place(replicate: &ReplicateArgs, runner: &Runner, limit: u64) -> anyhow::Result<Place> {
    Ok(Place {
        replicate: replicate.choice(runner.place())?,
        batch_norm: replicate.statistics(),
        invariant: false,
        max_memory: Some(limit),
    })
}

fn options(
    training: Training,
    replicate: &ReplicateArgs,
    runner: &Runner,
    limit: u64,
) -> anyhow::Result<TrainerOptions> {
    Ok(TrainerOptions { training, place: place(replicate, runner, limit)? })
}

/// Refuses before anything is read what would fail after training.
fn check(args: &FitArgs) -> anyhow::Result<()> {
    if let Some(path) = &args.save {
        let known = path.extension().is_some_and(|e| e == "fan" || e == "safetensors");
        if !known {
            bail!("{}: trained models are .fan, their weights .safetensors", path.display());
        }
    }
    if args.reproducible.is_some() && args.replicate.divides() {
        bail!(
            "`--reproducible n-invariant` cuts the batch into eight even shards, `--shards` into others"
        );
    }
    if args.checkpoint_every.is_some() && args.checkpoint.is_none() && args.resume.is_none() {
        bail!("`--checkpoint-every` says when, not where: give `--checkpoint` or `--resume`");
    }
    let kept = args.checkpoint.as_ref().filter(|folder| folder.join("state.json").exists());
    if let Some(folder) = kept {
        bail!("{} has a checkpoint; go on from it with `--resume`, or remove it", folder.display());
    }
    Ok(())
}

/// Trains.
pub(crate) fn fit(args: &FitArgs) -> anyhow::Result<ExitCode> {
    check(args)?;
    let limit = args.model.max_memory();
    let runner = args.target.runner(args.data.threads)?;
    let model = args.model.load_for_training()?;
    let mut optimizer: Optimizer = args.optimizer.parse()?;
    if let Some(rate) = args.learning_rate {
        optimizer.learning_rate = rate;
    }
    let mut source = open(&args.data.data, limit)?;
    let mut training = args.aim.training(&model, &*source, optimizer)?;
    training.frozen = args.freeze.iter().cloned().collect();
    #[expect(clippy::cast_possible_truncation, reason = "rounded to the type of the attribute")]
    let momentum = args.batch_norm_momentum.min(1.0) as f32;
    training.mode = Mode { momentum, seed: args.seed.into() };
    let mut options = options(training, &args.replicate, &runner, limit)?;
    options.place.invariant = match args.reproducible.as_deref() {
        None => false,
        Some("n-invariant") => true,
        Some(other) => bail!("`--reproducible {other}`: write n-invariant"),
    };
    let mut validation: Option<Arc<dyn Source>> = match &args.validation {
        Some(path) => Some(open(path, limit)?),
        None => None,
    };
    if args.validation_split != 0.0 {
        let (first, last) = data::split(&source, args.validation_split).map_err(Error::from)?;
        source = Arc::new(first);
        validation = Some(Arc::new(last));
    }
    let graph = model.graph.clone();
    let mut trainer = Trainer::new(model, &options, runner.backend()).map_err(Error::from)?;
    let shuffled =
        LoaderOptions { shuffle: args.shuffle, seed: args.seed.into(), ..args.data.in_order() };
    let load = |trainer: &Trainer, source, options| -> anyhow::Result<Arc<Loader>> {
        Ok(trainer.loader(source, Vec::new(), options).map_err(Error::from)?)
    };
    let data = load(&trainer, source, shuffled)?;
    let validation = match validation {
        Some(source) => Some(load(&trainer, source, args.data.in_order())?),
        None => None,
    };
    let resume = resumed(args, limit)?;
    let mut report =
        Report { format: args.data.format, log: args.log.clone(), epochs: args.epochs };
    let mut keeper = Keeper {
        folder: args.checkpoint.clone().or_else(|| args.resume.clone()),
        every: args.checkpoint_every,
    };
    let mut patience = Patience { number: args.early_stopping.clone(), epochs: args.patience };
    let observers: Vec<&mut dyn Observer> = vec![&mut report, &mut keeper, &mut patience];
    let (epochs, schedule) = (args.epochs, args.schedule.clone());
    let fitting = FitOptions { data, validation, epochs, schedule, resume, observers };
    runner.traced(|| Ok(trainer.fit(fitting).map_err(Error::from)?))?;
    if let Some(path) = &args.save {
        save(path, &trainer, &graph)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The checkpoint to go on from.
fn resumed(args: &FitArgs, limit: u64) -> anyhow::Result<Option<Checkpoint>> {
    let Some(folder) = &args.resume else { return Ok(None) };
    let found = Checkpoint::read(folder, limit).map_err(Error::from)?;
    Ok(Some(found.with_context(|| format!("{} has no checkpoint", folder.display()))?))
}

fn save(path: &Path, trainer: &Trainer, graph: &Graph) -> anyhow::Result<()> {
    let weights = trainer.weights().map_err(Error::from)?;
    match path.extension().and_then(|e| e.to_str()) {
        Some("safetensors") => safetensors::write(path, &weights).map_err(Error::from)?,
        Some("fan") => {
            let trained = model::with_weights(graph, &weights);
            model::save(path, &trained, &weights, GraphForm::Text).map_err(Error::from)?;
        }
        _ => bail!("{}: trained models are .fan, their weights .safetensors", path.display()),
    }
    Ok(())
}

/// Tells what an epoch gave.
struct Report {
    format: Format,
    log: Option<PathBuf>,
    epochs: u64,
}

/// `loss 0.1234  accuracy 0.9`.
fn told(logs: &Logs, before: &str) -> String {
    let metrics = logs.metrics.iter().map(|(name, x)| format!("  {before}{name} {x:.4}"));
    format!("{before}loss {:.6}{}", logs.loss, metrics.collect::<String>())
}

fn numbers(epoch: &Epoch) -> serde_json::Value {
    let mut all = serde_json::Map::new();
    all.insert("epoch".to_owned(), json!(epoch.epoch));
    for (name, x) in epoch.numbers() {
        all.insert(name, json!(x));
    }
    all.insert("seconds".to_owned(), json!(epoch.seconds));
    all.into()
}

impl Observer for Report {
    fn epoch(&mut self, watch: &Watch<'_>) -> Result<bool, TrainError> {
        let Some(epoch) = watch.history().epochs.last() else { return Ok(true) };
        let line = match self.format {
            Format::Json => numbers(epoch).to_string(),
            Format::Text => {
                let validation = epoch.validation.as_ref();
                let validation =
                    validation.map_or(String::new(), |v| format!("  {}", told(v, "val_")));
                let rate = epoch.training.rows as f64 / epoch.seconds.max(1e-9);
                format!(
                    "epoch {}/{}  {}{validation}  {:.2} s, {rate:.0} rows/s",
                    epoch.epoch + 1,
                    self.epochs,
                    told(&epoch.training, ""),
                    epoch.seconds,
                )
            }
        };
        ui::out(&line).map_err(|e| TrainError::Watch(e.to_string()))?;
        if let Some(path) = &self.log {
            format::write_text(path, &watch.history().csv())
                .map_err(|e| TrainError::Watch(e.to_string()))?;
        }
        Ok(true)
    }
}

/// Keeps checkpoints.
struct Keeper {
    folder: Option<PathBuf>,
    every: Option<u64>,
}

impl Keeper {
    fn keep(&self, watch: &Watch<'_>) -> Result<(), TrainError> {
        let Some(folder) = &self.folder else { return Ok(()) };
        watch.checkpoint()?.write(folder).map_err(|e| TrainError::Watch(e.to_string()))
    }
}

impl Observer for Keeper {
    fn batch(&mut self, watch: &Watch<'_>) -> Result<(), TrainError> {
        match self.every {
            Some(every) if watch.at.step.is_multiple_of(every) => self.keep(watch),
            _ => Ok(()),
        }
    }

    fn epoch(&mut self, watch: &Watch<'_>) -> Result<bool, TrainError> {
        self.keep(watch)?;
        Ok(true)
    }
}

/// Ends a training that gets no better.
struct Patience {
    number: Option<String>,
    epochs: u64,
}

impl Observer for Patience {
    fn epoch(&mut self, watch: &Watch<'_>) -> Result<bool, TrainError> {
        let Some(name) = &self.number else { return Ok(true) };
        let values: Option<Vec<f64>> = watch.history().epochs.iter().map(|e| e.get(name)).collect();
        let Some(values) = values else {
            return Err(TrainError::Watch(format!("an epoch has no number `{name}` to stop by")));
        };
        // Of accuracies more is better, of all else less.
        let sign = if name.ends_with("accuracy") { -1.0 } else { 1.0 };
        let rank = |x: f64| if x.is_nan() { f64::INFINITY } else { x * sign };
        let best = values.iter().enumerate().min_by(|a, b| rank(*a.1).total_cmp(&rank(*b.1)));
        let since = best.map_or(0, |(at, _)| values.len() - 1 - at);
        Ok((since as u64) < self.epochs.max(1))
    }
}

/// Evaluates.
pub(crate) fn evaluate(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let limit = args.model.max_memory();
    let runner = args.target.runner(args.data.threads)?;
    let model = args.model.load_for_training()?;
    let source = open(&args.data.data, limit)?;
    let training = args.aim.training(&model, &*source, "sgd".parse()?)?;
    let options = options(training, &args.replicate, &runner, limit)?;
    let evaluator = Evaluator::new(&model, &options, runner.backend()).map_err(Error::from)?;
    let data = evaluator.loader(source, Vec::new(), args.data.in_order()).map_err(Error::from)?;
    let logs = runner.traced(|| Ok(evaluator.evaluate(&data).map_err(Error::from)?))?;
    match args.data.format {
        Format::Text => ui::out(&format!("{} rows  {}", logs.rows, told(&logs, "")))?,
        Format::Json => {
            let mut all = serde_json::Map::new();
            all.insert("rows".to_owned(), json!(logs.rows));
            all.insert("loss".to_owned(), json!(logs.loss));
            all.extend(logs.metrics.iter().map(|(name, x)| (name.clone(), json!(x))));
            ui::out(&serde_json::Value::from(all).to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Predicts.
pub(crate) fn predict(args: &PredictArgs) -> anyhow::Result<ExitCode> {
    let limit = args.model.max_memory();
    let runner = args.target.runner(args.data.threads)?;
    let model = args.model.load()?;
    let source = open(&args.data.data, limit)?;
    let place = place(&args.replicate, &runner, limit)?;
    let predictor = Predictor::new(&model, &place, runner.backend());
    let predictor = predictor.map_err(Error::from)?;
    let data = predictor.loader(source, Vec::new(), args.data.in_order()).map_err(Error::from)?;
    let outputs = runner.traced(|| Ok(predictor.predict(&data).map_err(Error::from)?))?;
    npz::write(&args.outputs, &outputs).map_err(Error::from)?;
    Ok(ExitCode::SUCCESS)
}
