//! `fanwise fit`, `evaluate` and `predict`: training, evaluation and inference on datasets.

mod aim;
mod args;
mod diverged;
mod evaluate;
mod files;
mod images;
mod interrupt;
mod keras;
mod lines;
mod objective;
mod outputs;
mod progress;
mod rows;
mod settings;
#[cfg(unix)]
mod signals;
mod told;

pub(crate) use args::FitArgs;
pub(crate) use evaluate::{EvaluateArgs, PredictArgs, evaluate, predict};
pub(crate) use objective::{ObjectiveArgs, OptimizerArgs};

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use crate::Error;
use crate::format::safetensors;
use crate::ir::{Graph, Model, Weights};
use crate::model::{self, GraphForm, ModelError, Retrained};
use crate::pass::{Training, Weighted};
use crate::train::keras::Compiled;
use crate::train::{
    Checkpoint, FitOptions, History, Keep, ModelCheckpoint, Observer, Trainer, TrainerOptions,
    Validation,
};
use anyhow::{Context, bail};

use crate::cli::args::ModelArgs;
use crate::cli::kept::{MODEL, check_file, check_there, run_of};
use crate::cli::replicate::{AvailableDevices, note_sent};
use crate::cli::ui;
use args::Settings;
use evaluate::{BaseArgs, distribution};
use files::{KERAS, ends};
use interrupt::Preparation;
use keras::KerasFile;
use told::{Header, Summary};

/// Refuses before anything is read what would fail after training. The folder of checkpoints is
/// made.
fn check(args: &FitArgs) -> anyhow::Result<()> {
    let files = &args.files;
    args.base.model.check_untrained()?;
    match args.reproducible.as_deref() {
        Some("n-invariant") if args.base.replicate.divides() => bail!(
            "`--reproducible n-invariant` divides the batch into eight equal shards; it excludes \
             `--shards`"
        ),
        Some("n-invariant") | None => {}
        Some(other) => bail!("`--reproducible {other}`: the only mode is n-invariant"),
    }
    let mut seen = BTreeSet::new();
    if let Some((class, _)) = args.class_weight.iter().find(|(class, _)| !seen.insert(*class)) {
        bail!("`--class-weight`: class {class} is given twice");
    }
    let kept = files.checkpoint.is_some() || files.resume.is_some();
    let of_folder = files.checkpoint_every.is_some() || files.monitor.is_some();
    if !kept && (of_folder || files.keep != Keep::Last) {
        bail!(
            "`--checkpoint-every`, `--keep` and `--monitor` require `--checkpoint` or `--resume`"
        );
    }
    if args.early_stopping.is_none() && (args.patience.is_some() || args.min_delta.is_some()) {
        bail!("`--patience` and `--min-delta` require `--early-stopping`");
    }
    let kept = files.checkpoint.as_ref().filter(|folder| Checkpoint::is_in(folder));
    if let Some(folder) = kept {
        bail!(
            "{} already has a checkpoint; resume it with `--resume`, or remove it",
            folder.display()
        );
    }
    files.check()
}

/// Trains, as the arguments in `line` say to the whole command line `all`.
pub(crate) fn fit(
    args: &FitArgs,
    all: &clap::Command,
    line: &[OsString],
) -> anyhow::Result<ExitCode> {
    let folder = args.files.checkpoint.as_deref().or(args.files.resume.as_deref());
    let preparation = Preparation::new(folder)?;
    let Some(folder) = &args.files.resume else {
        return fit_from(args, None, settings::of_this_run(all, line, None)?, preparation);
    };
    let limit = args.base.model.max_memory();
    let checkpoint = checkpoint(folder, limit)?;
    let line = &settings::without_itself(all, line, folder)?;
    let settings = settings::of_this_run(all, line, Some(&checkpoint.settings))?;
    // What the checkpoint was trained with holds again; an option that contradicts it is an error.
    let args = settings::resumed(all, line, folder, &checkpoint.settings)?;
    check_epochs(&args, folder, &checkpoint)?;
    let (own, now) =
        (checkpoint.settings.get(MODEL).and_then(|of| of.first()), settings.get(MODEL));
    if let Some(own) = own.filter(|own| now.and_then(|now| now.first()).is_none_or(|of| of != *own))
    {
        ui::note(format_args!("the run in {} is of another model, {own}", folder.display()));
    }
    let spec = args.base.model.spec();
    if own.is_some_and(|own| own == spec) {
        check_there(spec, &folder.display().to_string())?;
    }
    if spec.is_empty() {
        let folder = folder.display();
        bail!(
            "the checkpoint in {folder} does not say which model it is of: name it, `fanwise fit \
             MODEL --resume {folder}`"
        );
    }
    fit_from(&args, Some(checkpoint), settings, preparation)
}

/// The checkpoint that a run goes on from.
fn checkpoint(folder: &Path, limit: u64) -> anyhow::Result<Checkpoint> {
    let shown = folder.display();
    check_file(&shown.to_string())?;
    if folder.is_file() {
        bail!("`--resume {shown}`: this is a file; name the folder that `fit --checkpoint` wrote");
    }
    let checkpoint = Checkpoint::read(folder, limit).map_err(Error::from)?;
    let checkpoint = checkpoint.with_context(|| {
        let way = match Checkpoint::beside(folder) {
            Some((at, how_far)) => format!("{} has one, {how_far}", at.display()),
            None => "name the folder that `fit --checkpoint` wrote".to_owned(),
        };
        format!("{shown} has no checkpoint; {way}")
    })?;
    if let Some(run) = run_of(folder, limit) {
        let run = run.display();
        bail!(
            "{shown} is a part of the run in {run}: `fanwise fit --resume {run}` goes on with it; \
             copy {shown} to another place to go on from there"
        );
    }
    Ok(checkpoint)
}

/// Fails where a run that goes on has more epochs than are asked for, and tells what it has not:
/// epochs to train, and checkpoints of those before.
fn check_epochs(args: &FitArgs, folder: &Path, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let (asked, had) = (args.epochs, checkpoint.history.epochs.len() as u64);
    let shown = folder.display();
    // An epoch that has begun cannot be left out.
    let is_begun = checkpoint.at.step > 0;
    let with_begun = had + u64::from(is_begun);
    if asked < with_begun {
        let begun =
            if is_begun { format!(": epoch {with_begun} has begun") } else { String::new() };
        bail!(
            "`--epochs {asked}` is less than the {} that the run in {shown} has{begun}; give a \
             number above {had} to go on",
            told::counted(with_begun)
        );
    }
    if asked == had {
        ui::note(format_args!(
            "the run in {shown} has all its epochs, {had}; give `--epochs N` with a number above \
             {had} to go on"
        ));
        return Ok(());
    }
    let is_kept = |epoch: u64| Checkpoint::is_in(&folder.join(format!("epoch-{epoch}")));
    let missing = (1..=had).rev().find(|epoch| !is_kept(*epoch));
    if let Some(last) = missing.filter(|_| args.files.keep == Keep::Every) {
        ui::note(format_args!(
            "`--keep every` keeps the checkpoints from epoch {} on: those before were not kept",
            last + 1
        ));
    }
    Ok(())
}

/// Reads the model that is trained, and how its file was compiled.
fn read(model: &ModelArgs, is_resumed: bool) -> anyhow::Result<(Option<Compiled>, Model)> {
    let read = || -> anyhow::Result<_> {
        let file = Compiled::of(model.spec(), model.max_memory()).map_err(Error::from)?;
        Ok((file, model.load_for_training()?))
    };
    if !is_resumed {
        return read();
    }
    // The checkpoint has the weights alone.
    let spec = model.spec();
    read().with_context(|| {
        format!("the run that is resumed is of the model {spec}, which is needed, too")
    })
}

fn fit_from(
    args: &FitArgs,
    resume: Option<Checkpoint>,
    settings: Settings,
    preparation: Preparation,
) -> anyhow::Result<ExitCode> {
    check(args)?;
    let BaseArgs { model, replicate, target, data } = &args.base;
    let limit = model.max_memory();
    let runner = target.runner()?;
    let (file, model) = read(model, resume.is_some())?;
    let (source, validation) =
        args.sources(&model.graph, settings::classes(resume.as_ref()), limit)?;
    let settings = settings::with_data(settings, resume.as_ref(), &*source)?;
    let (training, file) = training(args, &model, file)?;
    data.check_labels(&training, &*source)?;
    let other = validation.as_ref().map_or(&[][..], |other| other.columns());
    let images = data.images(&model.graph, &*source, other, args.augment.as_ref(), limit)?;
    let invariant = args.reproducible.is_some();
    let distribution = distribution(replicate, &runner, limit, invariant, &images)?;
    let options = TrainerOptions { training, distribution };
    let options = options.for_columns(source.columns()).for_columns(other);
    let graph = model.graph.clone();
    let mut trainer = ui::stage("prepare", || Trainer::new(model, &options, runner.backend()))?;
    tell(&trainer, args, &options, runner.place(), &graph, source.classes());
    let changed = trainer.changed().map(str::to_owned).collect();
    let template = Template { spec: args.base.model.spec(), graph, changed, limit, file };
    let begun = template.file.as_ref().map_or(Ok(0), |file| file.begin(&mut trainer))?;
    // Before training, whose result could not be written otherwise.
    args.files.save.as_ref().map_or(Ok(()), |path| template.check(path, &trainer))?;
    args.check_numbers(&trainer, validation.is_some())?;
    let keeper = args.keeper(&settings, validation.is_some());
    keeper.as_ref().filter(|_| resume.is_some()).map_or(Ok(()), note_replaced)?;
    let on = lines::devices(&options.distribution, runner.place());
    let held_back = validation.as_ref().map(|source| source.rows());
    let elements = told::elements(&template.graph, &trainer);
    let header = Header::new(args, &on, elements, source.classes().len(), held_back);
    let (mut observers, interrupted) = args.observers(keeper.clone(), settings, preparation);
    observers.insert(0, Box::new(header));
    observers.extend(template.file.as_ref().and_then(|file| file.rate(begun)));
    // A run that begins has no epoch before.
    let before = resume.as_ref().map_or(0, |resume| resume.history.epochs.len());
    let validation = validation.map(|source| Validation::Data(images.others(source)));
    let fitting = FitOptions {
        observers: observers.iter_mut().map(|o| &mut **o as &mut dyn Observer).collect(),
        ..args.fitting(validation, resume)
    };
    let began = Instant::now();
    runner.traced(|| {
        let history = trainer.fit(images.training(source), fitting);
        if let Some(text) = interrupted.get() {
            return Ok(interrupt::told(text));
        }
        let run =
            Summary { args, history: &history?, before, validated: held_back.is_some(), keeper };
        template.save_best(&mut trainer, &run)?;
        run.tell(began.elapsed(), trainer.momentum());
        Ok(ExitCode::SUCCESS)
    })
}

/// The training that the arguments ask for, and the Keras file that says the rest.
fn training<'a>(
    args: &'a FitArgs,
    model: &Model,
    file: Option<Compiled>,
) -> anyhow::Result<(Training, Option<KerasFile<'a>>)> {
    let (optimizer, decay) = args.optimizer.of_file(file.as_ref())?;
    let decay = decay.filter(|_| args.schedule.is_none());
    let mut training = args.objective.training(&model.graph, optimizer, file.as_ref())?;
    args.optimizer.apply(&mut training, model, args.seed);
    args.objective.restrict(&mut training, file.as_ref())?;
    if !args.class_weight.is_empty() {
        objective::check_weights(&args.class_weight, &model.graph, &training.losses)?;
        training.losses.iter_mut().for_each(|loss| loss.weighted = Weighted::Rows);
    }
    let file = file.map(|file| KerasFile { file, training: training.clone(), args, decay });
    Ok((training, file))
}

/// Tells that the best epoch is found anew, because it was so by another number.
fn note_replaced(keeper: &ModelCheckpoint) -> anyhow::Result<()> {
    if let Some(before) = keeper.replaces().map_err(Error::from)? {
        ui::note(format_args!(
            "the best epoch so far was chosen by `{}`; by `{}`, the last epoch counts as the best \
             until a better one",
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

/// Tells what should be known of the training of a model on data with these names of classes.
fn tell(
    trainer: &Trainer,
    args: &FitArgs,
    options: &TrainerOptions,
    place: AvailableDevices,
    graph: &Graph,
    classes: &[String],
) {
    let TrainerOptions { training, distribution } = options;
    note_sent(distribution.replicate.as_ref(), place, graph, trainer.changed());
    // Models of the zoo are as they are meant.
    if !args.base.model.spec().starts_with("zoo:") {
        trainer.notes().iter().for_each(ui::note);
    }
    note_untrained(trainer);
    let is_idle = training.mode.momentum.is_some() && trainer.momentum().is_none();
    let here = "without batch normalisation in training mode";
    ui::note_idle(&[("--batch-norm-momentum", is_idle)], here);
    if let Some(text) = outputs::fewer_classes(graph, &training.losses, classes) {
        ui::note(text);
    }
}

/// Tells which parameters stay as they are, but for running statistics, which move.
fn note_untrained(trainer: &Trainer) {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, why) in trainer.untrained() {
        reasons.entry(why).or_default().push(name);
    }
    // Running statistics follow the batches in every training; that they have no gradient is no
    // news.
    for (why, names) in reasons.into_iter().filter(|(why, _)| !why.contains("running statistic")) {
        const SHOWN: usize = 4;
        let shown = names.iter().take(SHOWN).map(|n| format!("`{n}`")).collect::<Vec<_>>();
        let more = names.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let way = if why == "it is frozen" || why.contains("depend") {
            ""
        } else {
            "; use `--train` to train it"
        };
        ui::note(format_args!("not trained: {}{more}: {why}{way}", shown.join(", ")));
    }
}

/// A model as it was before training, to be written after it.
struct Template<'a> {
    spec: &'a str,
    graph: Graph,
    /// The parameters that training changes.
    changed: BTreeSet<String>,
    limit: u64,
    /// The Keras file that it is.
    file: Option<KerasFile<'a>>,
}

impl Template<'_> {
    /// The model after training.
    fn trained<'t>(&'t self, weights: &'t Weights) -> Retrained<'t> {
        let Self { spec, graph, changed, limit, .. } = self;
        Retrained { spec, graph, weights, changed, max_memory: *limit }
    }

    /// Fails if the trained model cannot be written to a file.
    fn check(&self, path: &Path, trainer: &Trainer) -> anyhow::Result<()> {
        if ends(path, &["onnx"]) {
            self.trained(&trainer.weights()?).check_onnx().map_err(Error::from)?;
        } else if ends(path, &KERAS) {
            self.keras()?.check(trainer)?;
        }
        Ok(())
    }

    /// The Keras file that it is.
    fn keras(&self) -> anyhow::Result<&KerasFile<'_>> {
        let none = || ModelError::NotKeras(self.spec.to_owned());
        Ok(self.file.as_ref().ok_or_else(none).map_err(Error::from)?)
    }

    /// Writes the model after a training where that is asked for: that of the best epoch if this is
    /// kept, otherwise that of the last.
    fn save_best(&self, trainer: &mut Trainer, run: &Summary<'_>) -> anyhow::Result<()> {
        let Some(path) = &run.args.files.save else { return Ok(()) };
        trainer.check()?;
        let best = run.keeper.as_ref().filter(|keeper| keeper.keep == Keep::Best);
        let best = best.map(ModelCheckpoint::best);
        best.map_or(Ok(()), |folder| take_best(trainer, &folder, self.limit))?;
        self.save(path, trainer, run.history)
    }

    fn save(&self, path: &Path, trainer: &Trainer, history: &History) -> anyhow::Result<()> {
        let weights = trainer.weights()?;
        if ends(path, &["safetensors"]) {
            safetensors::write(path, &weights).map_err(Error::from)?;
        } else if ends(path, &["onnx"]) {
            self.trained(&weights).save_onnx(path).map_err(Error::from)?;
        } else if ends(path, &KERAS) {
            let bytes = self.keras()?.bytes(trainer, Some(history))?;
            crate::format::write_bytes(path, &bytes).map_err(Error::from)?;
        } else {
            let trained = model::with_weights(&self.graph, &weights);
            model::save(path, &trained, &weights, GraphForm::Text).map_err(Error::from)?;
        }
        Ok(())
    }
}
