//! `fanwise fit`, `evaluate` and `predict`: a model, data, and what is learned or said of them.

mod aim;
mod evaluate;
mod files;
mod images;
mod rows;
mod settings;
mod tell;

pub(crate) use aim::{AimArgs, OptimizerArgs};
pub(crate) use evaluate::{EvaluateArgs, PredictArgs, evaluate, predict};

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use fanwise::Error;
use fanwise::format::safetensors;
use fanwise::ir::{Graph, Weights};
use fanwise::model::{self, GraphForm, Retrained};
use fanwise::pass::Weighted;
use fanwise::train::data::{self, LoaderOptions, Source};
use fanwise::train::{
    Checkpoint, CsvLog, EarlyStopping, EventLog, Finite, FitOptions, Keep, Keeper, Monitor,
    Observer, Place, Plot, Schedule, Trainer, TrainerOptions, Validation,
};

use crate::args::ReplicateArgs;
use crate::target::Runner;
use crate::ui;
use evaluate::BaseArgs;
use files::{FileArgs, ends};
use images::Augment;
use settings::Settings;
use tell::Report;

/// Train a model on one device or many: each step is that of the whole batch
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise fit zoo:mlp --data train.npz --loss categorical_crossentropy --optimizer adam --epochs \
  20 --batch 64
  fanwise fit model.onnx --data train.npz --validation val.npz --loss \
  sparse_categorical_crossentropy \\
    --metrics accuracy --optimizer adam --gpus 4 --batch 256 --plot curves.svg --log run.csv \\
    --checkpoint run --keep best --early-stopping val_loss --save trained.fan
  fanwise fit model.onnx --resume run
  fanwise fit zoo:mini_googlenet --data cifar --validation cifar/test_batch.bin --normalize mean \\
    --augment shift=0.1,flip --loss categorical_crossentropy --metrics accuracy --drop-last \\
    --optimizer sgd:momentum=0.9 --learning-rate 0.005 --schedule polynomial:epochs=70,power=1 \
    --epochs 70 \\
    --gpus 4 --batch 256 --checkpoint run --plot curves.png
  fanwise fit two.onnx --data train.npz --loss a=mse,b=huber:delta=2 --loss-weight b=0.5 \\
    --metrics a=mae --l2 '0.0001,head*=0.01'")]
pub(crate) struct FitArgs {
    #[command(flatten)]
    base: BaseArgs,
    #[command(flatten)]
    aim: AimArgs,
    #[command(flatten)]
    optimizer: OptimizerArgs,
    #[command(flatten)]
    files: FileArgs,
    /// Data that evaluate every epoch
    #[arg(long, value_name = "DATA", conflicts_with = "validation_split")]
    validation: Option<PathBuf>,
    /// The last part of the data evaluates every epoch instead, before any shuffling
    #[arg(long, value_name = "PART")]
    validation_split: Option<f64>,
    /// What is drawn for images: `shift=0.1` moves them by up to a tenth, `flip` mirrors half of
    /// them (`flip=vertical`), `crop=28,pad=4` takes parts; at edges is what `fill` says: nearest,
    /// reflect, wrap or a number
    #[arg(long, value_name = "shift=S,flip,crop=P,...")]
    augment: Option<Augment>,
    /// The weights of classes in the loss; others have 1
    #[arg(long, value_name = "CLASS=WEIGHT", value_delimiter = ',', value_parser = images::class)]
    class_weight: Vec<(i64, f64)>,
    /// How the learning rate changes: `step:every=10,factor=0.5`, `polynomial:epochs=70,power=1`,
    /// `cosine:epochs=50`, each with `warmup=5` epochs of rise,
    /// `plateau:monitor=val_loss,factor=0.1,patience=10`. With `per=step` batches are counted
    /// instead of epochs, and `epochs` is `steps`: `cosine:steps=9000,warmup=500,per=step`
    #[arg(long, value_name = "SCHEDULE", default_value = "constant")]
    schedule: Schedule,
    /// Epochs in all
    #[arg(long, value_name = "EPOCHS", default_value_t = 1)]
    epochs: u64,
    /// Whether every epoch has an order of its own
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    shuffle: bool,
    /// Leave out a last batch with fewer rows
    #[arg(long)]
    drop_last: bool,
    /// End an epoch after so many batches
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    steps_per_epoch: Option<u64>,
    /// Decides the orders of rows, what is drawn for images, and what dropout drops
    #[arg(long, default_value_t = 0)]
    seed: u32,
    /// `n-invariant` gives the same weights, bit for bit, on 1, 2, 4 and 8 devices
    #[arg(long, value_name = "n-invariant")]
    reproducible: Option<String>,
    /// End when this number has not improved for `--patience` epochs: `val_loss`, `val_accuracy`,
    /// `loss` …
    #[arg(long, value_name = "NUMBER")]
    early_stopping: Option<String>,
    /// Epochs without improvement before the end; by default 5
    #[arg(long, value_name = "EPOCHS")]
    patience: Option<u64>,
    /// The least that is an improvement; by default any is
    #[arg(long, value_name = "NUMBER", value_parser = aim::amount)]
    min_delta: Option<f64>,
}

/// Epochs without improvement before training ends, where none are given.
const PATIENCE: u64 = 5;

fn place(
    replicate: &ReplicateArgs,
    runner: &Runner,
    limit: u64,
    invariant: bool,
) -> anyhow::Result<Place> {
    Ok(Place {
        replicate: replicate.choice(runner.place(), invariant)?,
        batch_norm: replicate.statistics(),
        invariant,
        max_memory: Some(limit),
    })
}

/// Refuses before anything is read what would fail after training. The folder of checkpoints is
/// made.
fn check(args: &FitArgs) -> anyhow::Result<()> {
    let files = &args.files;
    match args.reproducible.as_deref() {
        Some("n-invariant") if args.base.replicate.divides() => bail!(
            "`--reproducible n-invariant` cuts the batch into eight even shards, `--shards` into \
             others"
        ),
        Some("n-invariant") | None => {}
        Some(other) => bail!("`--reproducible {other}`: write n-invariant"),
    }
    let kept = files.checkpoint.is_some() || files.resume.is_some();
    let of_folder = files.checkpoint_every.is_some() || files.monitor.is_some();
    if !kept && (of_folder || files.keep != Keep::Last) {
        bail!(
            "`--checkpoint-every`, `--keep` and `--monitor` need a folder: give `--checkpoint` or \
             `--resume`"
        );
    }
    if args.early_stopping.is_none() && (args.patience.is_some() || args.min_delta.is_some()) {
        bail!("`--patience` and `--min-delta` are of `--early-stopping`: give it, too");
    }
    let kept = files.checkpoint.as_ref().filter(|folder| Checkpoint::is_in(folder));
    if let Some(folder) = kept {
        bail!("{} has a checkpoint; go on from it with `--resume`, or remove it", folder.display());
    }
    files.check()
}

/// Trains.
pub(crate) fn fit(args: &FitArgs) -> anyhow::Result<ExitCode> {
    let Some(folder) = &args.files.resume else {
        return fit_from(args, None, settings::of_this_run(None)?);
    };
    let limit = args.base.model.max_memory();
    let checkpoint = Checkpoint::read(folder, limit).map_err(Error::from)?;
    let checkpoint =
        checkpoint.with_context(|| format!("{} has no checkpoint", folder.display()))?;
    let settings = settings::of_this_run(Some(&checkpoint.settings))?;
    let args = settings::resumed(folder, &checkpoint.settings)?;
    fit_from(&args, Some(checkpoint), settings)
}

/// The data to train on, and those that validate.
type Sources = (Arc<dyn Source>, Option<Arc<dyn Source>>);

impl FitArgs {
    fn sources(&self, graph: &Graph, classes: &[String], limit: u64) -> anyhow::Result<Sources> {
        let source = self.base.data.open(graph, classes, limit)?;
        if let Some(part) = self.validation_split.filter(|part| *part != 0.0) {
            let (first, last) = data::split(&source, part).map_err(Error::from)?;
            return Ok((Arc::new(first), Some(Arc::new(last))));
        }
        let known = source.classes();
        let validation = self.validation.as_ref().map(|path| rows::open(path, graph, known, limit));
        Ok((source, validation.transpose()?))
    }

    fn batches(&self) -> LoaderOptions {
        LoaderOptions {
            shuffle: self.shuffle,
            seed: self.seed.into(),
            drop_last: self.drop_last,
            steps: self.steps_per_epoch,
            ..self.base.data.batches()
        }
    }

    /// The number by which epochs are compared.
    fn monitor(&self, validated: bool) -> Monitor {
        let given = self.files.monitor.as_ref().or(self.early_stopping.as_ref());
        let usual = if validated { "val_loss" } else { "loss" };
        Monitor::new(given.map_or(usual, String::as_str))
    }

    /// Fails where epochs do not tell a number that decides.
    fn check_numbers(&self, trainer: &Trainer, validated: bool) -> anyhow::Result<()> {
        let mut names = self.early_stopping.iter().chain(&self.files.monitor);
        Ok(names.try_for_each(|name| trainer.check_number(name, validated)).map_err(Error::from)?)
    }

    /// What keeps checkpoints.
    fn keeper(&self, settings: Settings, validated: bool) -> Option<Keeper> {
        let files = &self.files;
        Some(Keeper {
            folder: files.checkpoint.clone().or_else(|| files.resume.clone())?,
            keep: files.keep,
            monitor: self.monitor(validated),
            every: files.checkpoint_every,
            settings,
        })
    }

    /// What watches the training, checkpoints last: until one is there, a run that goes on tells
    /// all again.
    fn observers(&self, keeper: Option<Keeper>) -> Vec<Box<dyn Observer>> {
        let mut all: Vec<Box<dyn Observer>> = vec![Box::new(Finite)];
        all.extend(tell::bar());
        all.push(Box::new(Report { format: self.base.data.format }));
        let files = &self.files;
        if let Some(path) = files.log.clone() {
            all.push(Box::new(CsvLog { path }));
        }
        if let Some(path) = files.plot.clone() {
            all.push(Box::new(Plot { path }));
        }
        if let Some(folder) = &files.tensorboard {
            all.push(Box::new(EventLog::new(folder)));
        }
        if let Some(keeper) = keeper {
            all.push(Box::new(keeper));
        }
        if let Some(name) = &self.early_stopping {
            all.push(Box::new(EarlyStopping {
                monitor: Monitor::new(name),
                patience: self.patience.unwrap_or(PATIENCE),
                // Every improvement counts unless told otherwise.
                least: self.min_delta.unwrap_or(0.0),
            }));
        }
        all
    }
}

fn fit_from(
    args: &FitArgs,
    resume: Option<Checkpoint>,
    settings: Settings,
) -> anyhow::Result<ExitCode> {
    check(args)?;
    let BaseArgs { model, replicate, target, data } = &args.base;
    let limit = model.max_memory();
    let runner = target.runner(data.threads)?;
    let model = model.load_for_training()?;
    let classes = settings::classes(resume.as_ref());
    let (source, validation) = args.sources(&model.graph, classes, limit)?;
    let settings = settings::with_data(settings, resume.as_ref(), &*source)?;
    let mut training = args.aim.training(&model.graph, args.optimizer.optimizer()?)?;
    args.optimizer.apply(&mut training, args.seed);
    if !args.class_weight.is_empty() {
        training.losses.iter_mut().for_each(|loss| loss.weighted = Weighted::Rows);
    }
    let images = data.images(&model.graph, &*source, args.augment.as_ref(), limit)?;
    let place = place(replicate, &runner, limit, args.reproducible.is_some())?;
    let other = validation.as_ref().map_or(&[][..], |other| other.columns());
    let options = TrainerOptions { training, place };
    let options = options.for_columns(source.columns()).for_columns(other);
    let graph = model.graph.clone();
    let mut trainer = Trainer::new(model, &options, runner.backend())?;
    // Models of the zoo are as they are meant.
    if !args.base.model.spec().starts_with("zoo:") {
        trainer.notes().iter().for_each(|note| ui::talk(&format!("note: {note}")));
    }
    note_untrained(&trainer);
    let changed = trainer.changed().map(str::to_owned).collect();
    let template = Template { spec: args.base.model.spec(), graph, changed, limit };
    args.files.save.as_ref().map_or(Ok(()), |path| template.check(path, &trainer))?;
    args.check_numbers(&trainer, validation.is_some())?;
    let keeper = args.keeper(settings, validation.is_some());
    let best = keeper.as_ref().filter(|k| k.keep == Keep::Best).map(Keeper::best);
    keeper.as_ref().filter(|_| resume.is_some()).map_or(Ok(()), note_replaced)?;
    let mut observers = args.observers(keeper);
    let observers = observers.iter_mut().map(|o| &mut **o as &mut dyn Observer).collect();
    let fitting = FitOptions {
        batches: args.batches(),
        epochs: args.epochs,
        validation: validation
            .map_or(Validation::None, |source| Validation::Data(images.others(source))),
        class_weights: args.class_weight.iter().copied().collect(),
        schedule: args.schedule.clone(),
        resume,
        observers,
    };
    runner.traced(|| Ok(trainer.fit(images.training(source), fitting)?))?;
    if let Some(path) = &args.files.save {
        trainer.check()?;
        best.map_or(Ok(()), |folder| take_best(&mut trainer, &folder, limit))?;
        template.save(path, &trainer)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells that the best epoch is found anew, because it was so by another number.
fn note_replaced(keeper: &Keeper) -> anyhow::Result<()> {
    if let Some(before) = keeper.replaces().map_err(Error::from)? {
        ui::talk(&format!(
            "note: the best epoch so far was found by `{}`; by `{}` it is the last one, until one \
             is better",
            before.to_string().escape_debug(),
            keeper.monitor
        ));
    }
    Ok(())
}

/// The trainer gets the weights of the best epoch.
fn take_best(trainer: &mut Trainer, folder: &Path, limit: u64) -> anyhow::Result<()> {
    let best = Checkpoint::read(folder, limit).map_err(Error::from)?;
    let best = best.with_context(|| format!("{} has no checkpoint", folder.display()))?;
    trainer.restore(&best.variables)?;
    Ok(trainer.average()?)
}

/// Tells which parameters stay as they are, but for running statistics, which move.
fn note_untrained(trainer: &Trainer) {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, why) in trainer.untrained() {
        reasons.entry(why).or_default().push(name);
    }
    for (why, names) in reasons.into_iter().filter(|(why, _)| !why.contains("running statistic")) {
        const SHOWN: usize = 4;
        let shown = names.iter().take(SHOWN).map(|n| format!("`{n}`")).collect::<Vec<_>>();
        let more = names.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let way = if why == "it is frozen" || why.contains("depend") {
            ""
        } else {
            "; `--train` trains it"
        };
        ui::talk(&format!("note: not trained: {}{more}: {why}{way}", shown.join(", ")));
    }
}

/// A model as it was before training, to be written after it.
struct Template<'a> {
    spec: &'a str,
    graph: Graph,
    /// The parameters that training changes.
    changed: BTreeSet<String>,
    limit: u64,
}

impl Template<'_> {
    /// The model after training.
    fn trained<'t>(&'t self, weights: &'t Weights) -> Retrained<'t> {
        let Self { spec, graph, changed, limit } = self;
        Retrained { spec, graph, weights, changed, max_memory: *limit }
    }

    /// Fails if the trained model cannot be written to a file.
    fn check(&self, path: &Path, trainer: &Trainer) -> anyhow::Result<()> {
        if ends(path, &["onnx"]) {
            self.trained(&trainer.weights()?).check_onnx().map_err(Error::from)?;
        }
        Ok(())
    }

    fn save(&self, path: &Path, trainer: &Trainer) -> anyhow::Result<()> {
        let weights = trainer.weights()?;
        if ends(path, &["safetensors"]) {
            safetensors::write(path, &weights).map_err(Error::from)?;
        } else if ends(path, &["onnx"]) {
            self.trained(&weights).save_onnx(path).map_err(Error::from)?;
        } else {
            let trained = model::with_weights(&self.graph, &weights);
            model::save(path, &trained, &weights, GraphForm::Text).map_err(Error::from)?;
        }
        Ok(())
    }
}
