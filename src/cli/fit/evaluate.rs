//! `fanwise evaluate` and `predict`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::Error;
use crate::ir::Graph;
use crate::pass::Optimizer;
use crate::train::data::{Source, listed_classes};
use crate::train::keras::Compiled;
use crate::train::{Distribution, Evaluator, Predictor, TrainerOptions};
use anyhow::bail;
use clap::Args;
use serde_json::json;

use super::aim;
use super::lines;
use super::objective::ObjectiveArgs;
use super::outputs::{self, Form, Predictions};
use super::progress::summary_line;
use super::rows::{self, Changes, DataArgs};
use crate::cli::args::{Format, ModelArgs};
use crate::cli::exec;
use crate::cli::replicate::ReplicateArgs;
use crate::cli::target::{Runner, TargetArgs};
use crate::cli::ui;

/// Data, where a model runs on them, and the model.
#[derive(Args)]
pub(super) struct BaseArgs {
    #[command(flatten)]
    pub(super) data: DataArgs,
    #[command(flatten)]
    pub(super) replicate: ReplicateArgs,
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) model: ModelArgs,
}

impl BaseArgs {
    /// Works on so many rows behind a progress bar; the work counts its batches.
    fn watched<R>(&self, what: &'static str, rows: usize, work: impl FnOnce(&AtomicU64) -> R) -> R {
        let (done, total) = (AtomicU64::new(0), rows.div_ceil(self.data.rows_of_batch().max(1)));
        let state = || (done.load(Ordering::Relaxed), total as u64);
        exec::watched(what, &state, || work(&done))
    }
}

/// Compute the loss and the metrics of a model on a dataset
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise evaluate trained.fan --data test.npz --loss categorical_crossentropy --metrics accuracy
  fanwise evaluate model.onnx --data test.npz --loss mse --gpus 4 --batch 256 --format json
  fanwise evaluate trained.fan --data test.csv --classes-by train.csv --loss scce --metrics accuracy
  fanwise evaluate trained.fan --data cifar/test_batch.bin --normalize mean --normalize-by cifar \\
    --loss categorical_crossentropy --metrics accuracy")]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    objective: ObjectiveArgs,
    /// Dataset that defines the class indices, usually the training data [default: `--data`]
    ///
    /// Only needed if the labels are names.
    #[arg(long, value_name = "DATA")]
    classes_by: Option<PathBuf>,
    #[command(flatten)]
    base: BaseArgs,
}

impl EvaluateArgs {
    /// The data, whose classes have the numbers that they have in the data that `--classes-by`
    /// names.
    fn open(&self, graph: &Graph, limit: u64) -> anyhow::Result<Arc<dyn Source>> {
        let data = &self.base.data;
        let Some(path) = &self.classes_by else {
            let known = self.base.model.classes()?;
            let source = data.open(graph, &known, limit)?;
            if !known.is_empty() {
                return Ok(source);
            }
            if !source.classes().is_empty() {
                let classes = listed_classes(source.classes());
                ui::note(format_args!(
                    "class indices follow the names in `--data`, {classes}; use `--classes-by \
                     DATA` for those of the training data"
                ));
            }
            return Ok(source);
        };
        // Names are numbered in the data that defines them, and looked up in the others.
        data.open(graph, &defined(path, graph, limit)?, limit)
    }
}

/// The names of the classes in the order of the numbers that data define.
fn defined(path: &Path, graph: &Graph, limit: u64) -> anyhow::Result<Vec<String>> {
    let known = rows::open(path, graph, &[], limit)?;
    if known.classes().is_empty() {
        bail!(
            "`--classes-by {}`: its labels are not names of classes; leave the option out if \
             labels are numbers",
            path.display()
        );
    }
    Ok(known.classes().to_vec())
}

/// Run inference on a dataset and write the outputs
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise predict trained.fan --data test.npz --outputs out.npz
  fanwise predict run/best --data cat.png --outputs cat.json
  fanwise predict trained.fan --data pictures --classes-by train --outputs classes.csv
  fanwise predict model.onnx --data test.npz --outputs out.npz --gpus 4 --batch 256")]
pub(crate) struct PredictArgs {
    /// Write the outputs to this file: .npz, .npy, .csv or .json
    ///
    /// .npz has one array per output, .npy the array of the only one. .csv has a line and .json an
    /// object for each row: the file of an image, the class with the largest number, and all
    /// numbers.
    #[arg(long, value_name = "FILE")]
    outputs: PathBuf,
    /// Dataset that defines the names of the classes, usually the training data [default: that of
    /// a checkpoint]
    #[arg(long, value_name = "DATA")]
    classes_by: Option<PathBuf>,
    #[command(flatten)]
    base: BaseArgs,
}

impl PredictArgs {
    /// The names of the classes of the outputs of a model, where they are known and written.
    fn classes(&self, form: Form, graph: &Graph, limit: u64) -> anyhow::Result<Vec<String>> {
        if !form.has_classes() {
            ui::note_idle(&[("--classes-by", self.classes_by.is_some())], "on arrays");
            return Ok(Vec::new());
        }
        if let Some(path) = &self.classes_by {
            let names = defined(path, graph, limit)?;
            outputs::check_classes(graph, &names, path)?;
            return Ok(names);
        }
        let names = self.base.model.classes()?;
        if let Some(text) = outputs::unlike_classes(graph, &names) {
            ui::note(text);
        }
        Ok(names)
    }
}

/// Evaluates.
pub(crate) fn evaluate(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let BaseArgs { model, replicate, target, data } = &args.base;
    data.check_normal()?;
    let limit = model.max_memory();
    let runner = target.runner()?;
    let file = Compiled::of(&model.file()?, limit).map_err(Error::from)?;
    let model = model.load_for_training()?;
    let source = args.open(&model.graph, limit)?;
    let aim = aim::of_run(&args.objective, args.base.model.spec())?;
    let objective = aim.as_ref().map_or(&args.objective, |aim| &aim.objective);
    // Nothing is updated: the optimizer is there because an objective is declared with one.
    let mut training = objective.training(&model.graph, Optimizer::default(), file.as_ref())?;
    if let Some(aim) = &aim {
        // Penalties are of the parameters that the run trained; nothing is drawn with the seed.
        aim.optimizer.apply(&mut training, &model, 0);
    }
    objective.restrict(&mut training, file.as_ref())?;
    data.check_labels(&training, &*source)?;
    // No augmentation: the numbers are those of the data as they are.
    let images = data.images(&model.graph, &*source, &[], None, limit)?;
    let distribution = distribution(replicate, &runner, limit, false, &images)?;
    let on = lines::devices(&distribution, runner.place());
    let options = TrainerOptions { training, distribution }.for_columns(source.columns());
    let prepare = || Evaluator::new(&model, &options, runner.backend());
    let evaluator = ui::stage("prepare", prepare)?;
    let (count, classes) = (source.rows(), source.classes().len());
    let rows = images.others(source);
    let doing = format!("evaluating {}", args.base.model.spec());
    let files: Vec<String> = target.trace.files().collect();
    lines::begin(&doing, &args.base.data, &on, count, classes, &files);
    if let Some(aim) = aim.filter(|aim| !aim.options.is_empty()) {
        ui::head(format_args!("  as in its run: {}", aim.options));
    }
    let began = Instant::now();
    let work =
        |done: &AtomicU64| Ok(evaluator.evaluate(rows, data.batches(target.threads()), done)?);
    let logs = runner.traced(|| args.base.watched("evaluating", count, work))?;
    lines::end("evaluated", logs.rows, began.elapsed(), &files);
    match data.format.format {
        Format::Text => ui::out(&format!("{}  {}", ui::rows(logs.rows), summary_line(&logs, "")))?,
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
    let BaseArgs { model, replicate, target, data } = &args.base;
    data.check_normal()?;
    // Before the run, whose outputs would be lost.
    let form = Form::of(&args.outputs)?;
    let limit = model.max_memory();
    let runner = target.runner()?;
    let model = model.load_open()?;
    form.check(&model.graph)?;
    let source = data.open(&model.graph, &[], limit)?;
    let model = rows::sized(&model, source.columns())?;
    let classes = args.classes(form, &model.graph, limit)?;
    let images = data.images(&model.graph, &*source, &[], None, limit)?;
    let distribution = distribution(replicate, &runner, limit, false, &images)?;
    let on = lines::devices(&distribution, runner.place());
    let prepare = || Predictor::new(&model, &distribution, runner.backend());
    let predictor = ui::stage("prepare", prepare)?;
    let of_rows = Arc::clone(&source);
    let (count, rows) = (source.rows(), images.others(source));
    let doing = format!("predicting with {}", args.base.model.spec());
    let own = std::iter::once(args.outputs.display().to_string());
    let files: Vec<String> = own.chain(target.trace.files()).collect();
    // Labels are of no use to it.
    lines::begin(&doing, &args.base.data, &on, count, 0, &files);
    let began = Instant::now();
    let work =
        |done: &AtomicU64| Ok(predictor.predict(rows, data.batches(target.threads()), done)?);
    let outputs = runner.traced(|| args.base.watched("predicting", count, work))?;
    let (graph, classes) = (&model.graph, &classes[..]);
    let written = Predictions { graph, outputs: &outputs, classes, files: of_rows };
    written.write(&args.outputs, form)?;
    lines::end("predicted", count as u64, began.elapsed(), &files);
    let types = outputs.iter().map(|(name, t)| (name, t.tensor_type().to_string()));
    match data.format.format {
        Format::Text => {
            let types = types.map(|(name, ty)| format!("{name} : {ty}\n"));
            ui::out(&types.collect::<String>())?;
        }
        Format::Json => {
            let types = types.map(|(name, ty)| json!({ "name": name, "type": ty }));
            ui::out(&json!({ "outputs": types.collect::<Vec<_>>() }).to_string())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Devices of training or evaluation.
pub(super) fn distribution(
    replicate: &ReplicateArgs,
    runner: &Runner,
    limit: u64,
    invariant: bool,
    images: &Changes,
) -> anyhow::Result<Distribution> {
    Ok(Distribution {
        replicate: replicate.choice(runner.place(), invariant)?,
        batch_norm: replicate.statistics(),
        invariant,
        max_memory: Some(limit),
        bytes: images.bytes.clone(),
    })
}
