//! `fanwise evaluate` and `predict`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fanwise::Error;
use fanwise::format::npz;
use fanwise::train::{Evaluator, Predictor, TrainerOptions};
use serde_json::json;

use super::aim::AimArgs;
use super::place;
use super::rows::{self, DataArgs};
use super::tell::told;
use crate::args::{Format, ModelArgs, ReplicateArgs};
use crate::target::TargetArgs;
use crate::ui;

/// A model, where it runs, and data.
#[derive(Args)]
pub(super) struct BaseArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,
    #[command(flatten)]
    pub(super) replicate: ReplicateArgs,
    #[command(flatten)]
    pub(super) target: TargetArgs,
    #[command(flatten)]
    pub(super) data: DataArgs,
}

/// Evaluate a model: its loss and metrics on data
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise evaluate trained.fan --data test.npz --loss categorical_crossentropy --metrics accuracy
  fanwise evaluate model.onnx --data test.npz --loss mse --gpus 4 --batch 256 --format json
  fanwise evaluate trained.fan --data cifar/test_batch.bin --normalize mean --normalize-by cifar \\
    --loss categorical_crossentropy --metrics accuracy")]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    base: BaseArgs,
    #[command(flatten)]
    aim: AimArgs,
}

/// Write what a model gives for all rows of data
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise predict trained.fan --data test.npz --outputs out.npz
  fanwise predict model.onnx --data test.npz --outputs out.npz --gpus 4 --batch 256")]
pub(crate) struct PredictArgs {
    #[command(flatten)]
    base: BaseArgs,
    /// Write an array for each output to this .npz file
    #[arg(long, value_name = "OUT.npz")]
    outputs: PathBuf,
}

/// Evaluates.
pub(crate) fn evaluate(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let BaseArgs { model, replicate, target, data } = &args.base;
    data.check_normal()?;
    let limit = model.max_memory();
    let runner = target.runner(data.threads)?;
    let model = model.load_for_training()?;
    let source = data.open(&model.graph, limit)?;
    let training = args.aim.training(&model.graph, source.columns(), false, "sgd".parse()?)?;
    let mut changes = data.images(&model.graph, &*source, None, limit)?;
    let (graph, losses) = (&model.graph, &training.losses);
    rows::targets(&mut changes, graph, losses, source.columns(), &BTreeMap::new())?;
    let options = TrainerOptions { training, place: place(replicate, &runner, limit)? };
    let evaluator = Evaluator::new(&model, &options, runner.backend()).map_err(Error::from)?;
    let loader = evaluator.loader(source, changes.others, data.in_order()).map_err(Error::from)?;
    let logs = runner.traced(|| Ok(evaluator.evaluate(&loader).map_err(Error::from)?))?;
    match data.format {
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
    let BaseArgs { model, replicate, target, data } = &args.base;
    data.check_normal()?;
    let limit = model.max_memory();
    let runner = target.runner(data.threads)?;
    let model = model.load()?;
    let source = data.open(&model.graph, limit)?;
    let changes = data.images(&model.graph, &*source, None, limit)?;
    let place = place(replicate, &runner, limit)?;
    let predictor = Predictor::new(&model, &place, runner.backend());
    let predictor = predictor.map_err(Error::from)?;
    let loader = predictor.loader(source, changes.others, data.in_order()).map_err(Error::from)?;
    let outputs = runner.traced(|| Ok(predictor.predict(&loader).map_err(Error::from)?))?;
    npz::write(&args.outputs, &outputs).map_err(Error::from)?;
    Ok(ExitCode::SUCCESS)
}
