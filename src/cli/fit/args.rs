//! The options of `fanwise fit`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use crate::Error;
use crate::ir::Graph;
use crate::train::data::{self, LoaderOptions, Source};
use crate::train::{
    Checkpoint, CsvLog, EarlyStopping, EventLog, FitOptions, ModelCheckpoint, Monitor, Observer,
    Plot, Schedule, Trainer, Validation,
};
use clap::Args;

use super::diverged::{FiniteLoss, FiniteWeights};
use super::evaluate::BaseArgs;
use super::files::FileArgs;
use super::images::{self, Augment};
use super::interrupt::{Interrupt, Pending, Preparation};
use super::objective::{ObjectiveArgs, OptimizerArgs, amount};
use super::progress::{self, Report};
use super::rows;
use crate::cli::ui;

/// Settings by name.
pub(super) type Settings = BTreeMap<String, Vec<String>>;

/// Train a model on one device or many; every step is that of the whole batch
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise fit zoo:mlp --data train.npz --loss categorical_crossentropy --epochs 20
  fanwise fit model.onnx --data train.npz --validation val.npz --gpus 4 --batch 256 \\
    --loss sparse_categorical_crossentropy --metrics accuracy --optimizer adam \\
    --plot curves.svg --log run.csv --checkpoint run --keep best \\
    --early-stopping val_loss --save trained.fan
  fanwise fit --resume run
  fanwise fit zoo:mini_googlenet --data cifar --validation cifar/test_batch.bin \\
    --normalize mean --augment shift=0.1,flip --drop-last --epochs 70 --batch 256 \\
    --loss categorical_crossentropy --metrics accuracy \\
    --optimizer sgd:momentum=0.9 --learning-rate 0.005 \\
    --schedule polynomial:epochs=70,power=1 --gpus 4 --checkpoint run --plot curves.svg
  fanwise fit two.onnx --data train.npz --loss a=mse,b=huber:delta=2 --loss-weight b=0.5 \\
    --metrics a=mae --l2 '0.0001,head*=0.01'")]
pub(crate) struct FitArgs {
    #[command(flatten)]
    pub(super) objective: ObjectiveArgs,
    #[command(flatten)]
    pub(super) optimizer: OptimizerArgs,
    /// Validation data, evaluated after every epoch
    #[arg(long, value_name = "DATA", conflicts_with = "validation_split")]
    pub(super) validation: Option<PathBuf>,
    /// Use this fraction at the end of `--data` as validation data
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true)]
    pub(super) validation_split: Option<f64>,
    /// Random augmentation of the training images
    ///
    /// `shift=0.1` shifts by up to a tenth of the size, `flip` or `flip=vertical` mirrors half of
    /// the images, and `crop=28,pad=4` crops after padding. `fill` chooses how edges are filled:
    /// `nearest`, `reflect`, `wrap` or a number.
    #[arg(long, value_name = "shift=S,flip,crop=P,...")]
    pub(super) augment: Option<Augment>,
    /// Weights of classes in the loss; the others have weight 1
    #[arg(long, value_name = "CLASS=WEIGHT", value_delimiter = ',', value_parser = images::class)]
    pub(super) class_weight: Vec<(i64, f64)>,
    /// Learning rate schedule [default: that of a Keras file with its optimizer; else constant]
    ///
    /// Schedules are `constant`, `step:every=10,factor=0.5`, `polynomial:epochs=70,power=1`,
    /// `cosine:epochs=50` and `plateau:monitor=val_loss,factor=0.1,patience=10`. `warmup=5` adds
    /// epochs of linear warm-up. With `per=step` a schedule counts batches instead of epochs:
    /// `cosine:steps=9000,warmup=500,per=step`.
    #[arg(long, value_name = "SCHEDULE")]
    pub(super) schedule: Option<Schedule>,
    /// Number of epochs, including those before `--resume`
    #[arg(long, value_name = "EPOCHS", default_value_t = 1)]
    pub(super) epochs: u64,
    /// Shuffle the rows in every epoch
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    pub(super) shuffle: bool,
    /// Drop the last batch if it has fewer rows
    #[arg(long)]
    pub(super) drop_last: bool,
    /// End every epoch after this many batches
    #[arg(long, value_name = "BATCHES", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) steps_per_epoch: Option<u64>,
    /// Seed of shuffling, augmentation and dropout
    #[arg(long, default_value_t = 0)]
    pub(super) seed: u32,
    /// Train bit-identical weights on 1, 2, 4 and 8 devices
    #[arg(long, value_name = "n-invariant")]
    pub(super) reproducible: Option<String>,
    /// Stop if this metric has not improved for `--patience` epochs
    ///
    /// For example `val_loss`, `val_accuracy` or `loss`.
    #[arg(long, value_name = "METRIC")]
    pub(super) early_stopping: Option<String>,
    /// Epochs without improvement before training stops [default: 5]
    #[arg(long, value_name = "EPOCHS")]
    pub(super) patience: Option<u64>,
    /// Smallest change that counts as an improvement [default: 0]
    #[arg(long, value_name = "NUMBER", value_parser = amount, allow_negative_numbers = true)]
    pub(super) min_delta: Option<f64>,
    #[command(flatten)]
    pub(super) files: FileArgs,
    #[command(flatten)]
    pub(super) base: BaseArgs,
}

/// Epochs without improvement before training ends, where none are given.
const PATIENCE: u64 = 5;

/// The data to train on, and those that validate.
type Sources = (Arc<dyn Source>, Option<Arc<dyn Source>>);

impl FitArgs {
    pub(super) fn sources(
        &self,
        graph: &Graph,
        classes: &[String],
        limit: u64,
    ) -> anyhow::Result<Sources> {
        let source = self.base.data.open(graph, classes, limit)?;
        if let Some(part) = self.validation_split.filter(|part| *part != 0.0) {
            let (first, last) = data::split(&source, part).map_err(Error::from)?;
            return Ok((Arc::new(first), Some(Arc::new(last))));
        }
        let known = source.classes();
        let validation = self.validation.as_ref().map(|path| rows::open(path, graph, known, limit));
        Ok((source, validation.transpose()?))
    }

    pub(super) fn batches(&self) -> LoaderOptions {
        LoaderOptions {
            shuffle: self.shuffle,
            seed: self.seed.into(),
            drop_last: self.drop_last,
            steps: self.steps_per_epoch,
            ..self.base.data.batches(self.base.target.threads())
        }
    }

    /// The epochs without improvement after which training ends.
    pub(super) fn patience(&self) -> u64 {
        // That is what the help says.
        self.patience.unwrap_or(PATIENCE)
    }

    /// The options of the loop, without observers.
    pub(super) fn fitting<'a>(
        &self,
        validation: Option<Validation>,
        resume: Option<Checkpoint>,
    ) -> FitOptions<'a> {
        FitOptions {
            batches: self.batches(),
            epochs: self.epochs,
            validation: validation.unwrap_or_default(), // none: nothing validates
            class_weights: self.class_weight.iter().copied().collect(),
            schedule: self.schedule.clone().unwrap_or_default(), // none: the rate stays
            resume,
            observers: Vec::new(),
        }
    }

    /// The number by which epochs are compared.
    pub(super) fn monitor(&self, validated: bool) -> Monitor {
        let given = self.files.monitor.as_ref().or(self.early_stopping.as_ref());
        let usual = if validated { "val_loss" } else { "loss" };
        Monitor::new(given.map_or(usual, String::as_str))
    }

    /// Fails where epochs do not tell a number that decides.
    pub(super) fn check_numbers(&self, trainer: &Trainer, validated: bool) -> anyhow::Result<()> {
        let mut names = self.early_stopping.iter().chain(&self.files.monitor);
        Ok(names.try_for_each(|name| trainer.check_number(name, validated)).map_err(Error::from)?)
    }

    /// The callback that writes checkpoints.
    pub(super) fn keeper(&self, settings: &Settings, validated: bool) -> Option<ModelCheckpoint> {
        let files = &self.files;
        Some(ModelCheckpoint {
            folder: files.checkpoint.clone().or_else(|| files.resume.clone())?,
            keep: files.keep,
            monitor: self.monitor(validated),
            every: files.checkpoint_every,
            settings: settings.clone(),
        })
    }

    /// The callback that ends the run when it is interrupted.
    fn interrupt(
        &self,
        keeper: Option<&ModelCheckpoint>,
        settings: Settings,
        preparation: Preparation,
    ) -> Interrupt {
        let own = || ModelCheckpoint { settings, ..ModelCheckpoint::new("") };
        let FileArgs { save, log, plot, .. } = &self.files;
        let files = Pending {
            last: save.iter().cloned().collect(),
            of_epochs: [log, plot].into_iter().flatten().cloned().collect(),
        };
        // Without a folder of checkpoints the interruption has one of its own.
        let kept = keeper.is_some();
        Interrupt::new(keeper.cloned().unwrap_or_else(own), kept, files, preparation)
    }

    /// The callbacks of a run, and what there is to say if it is interrupted. Checkpoints come
    /// last: a run that is resumed repeats the callbacks of epochs without a checkpoint, so that
    /// none is lost.
    pub(super) fn observers(
        &self,
        keeper: Option<ModelCheckpoint>,
        settings: Settings,
        preparation: Preparation,
    ) -> (Vec<Box<dyn Observer>>, Arc<OnceLock<String>>) {
        let interrupt = self.interrupt(keeper.as_ref(), settings, preparation);
        let ended = interrupt.ended();
        let mut all: Vec<Box<dyn Observer>> = vec![Box::new(FiniteLoss { keeper: keeper.clone() })];
        all.extend(progress::bar().filter(|_| !ui::is_quiet()));
        all.push(Box::new(Report::new(self.base.data.format.format)));
        let files = &self.files;
        if let Some(path) = files.log.clone() {
            all.push(Box::new(CsvLog { path }));
        }
        if let Some(path) = files.plot.clone() {
            let of = format!("{} on {}", self.base.model.spec(), self.base.data.name());
            all.push(Box::new(Plot { path, of }));
        }
        if let Some(folder) = &files.tensorboard {
            all.push(Box::new(EventLog::new(folder)));
        }
        if let Some(keeper) = keeper {
            all.push(Box::new(FiniteWeights(keeper)));
        }
        if let Some(name) = &self.early_stopping {
            all.push(Box::new(EarlyStopping {
                monitor: Monitor::new(name),
                patience: self.patience(),
                // Every improvement counts unless told otherwise.
                least: self.min_delta.unwrap_or(0.0),
            }));
        }
        all.push(Box::new(interrupt));
        (all, ended)
    }
}
