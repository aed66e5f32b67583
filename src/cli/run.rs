//! `fanwise run`: a model and inputs in, outputs out.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use crate::Error;
use crate::backend::RunOutput;
use crate::format::npz;
use clap::Args;
use serde_json::json;

use crate::cli::args::{BatchArgs, Format, FormatArgs, ModelArgs};
use crate::cli::exec::{self, InputArgs};
use crate::cli::replicate::ReplicateArgs;
use crate::cli::target::TargetArgs;
use crate::cli::ui;

/// Run a model and report rows, memory and time per device
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise run zoo:mini_googlenet --gpus 4 --batch 64
  fanwise run model.onnx --gpus 2 --inputs in.npz --outputs out.npz
  fanwise run model.onnx --gpus 2 --inputs test_data_set_0
  fanwise run zoo:xception --gpus 4 --target cuda --logical 4 --trace trace.json
  fanwise run out.fan --batch 8 --seed 3 --repeat 20 --format json")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    batch: BatchArgs,
    #[command(flatten)]
    inputs: InputArgs,
    /// Write the outputs to a .npz file, one array per output
    #[arg(long, value_name = "FILE.npz")]
    outputs: Option<PathBuf>,
    /// Repeat the run and report the median time
    ///
    /// The next inputs are prefetched while one run computes.
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    repeat: u32,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    replicate: ReplicateArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    // Before the run, whose outputs would be lost.
    args.outputs.as_deref().map(exec::check_outputs).transpose()?;
    let limit = args.model.max_memory();
    let runner = args.target.runner()?;
    let (model, given) = args.model.load_with(&args.inputs, args.replicate.is_of_many())?;
    let replicated = args.replicate.apply(&args.model, &model.graph, runner.place())?;
    let graph = &*replicated.graph;
    let inputs = args.inputs.tensors(given, graph, args.batch.batch, limit)?;
    let executable = runner.prepare(graph, &model.weights)?;
    let ran = runner.traced(|| exec::run(&*executable, &inputs, args.repeat, limit));
    let (run, times) = args.inputs.with_input_note(ran)?;
    exec::note_empty(graph, run.n);
    if let Some(path) = &args.outputs {
        let named = run.outputs.iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
        npz::write(path, &named).map_err(Error::from)?;
    }
    match args.format.format {
        Format::Text => ui::out(&text(&run, &times))?,
        Format::Json => ui::out(&json(&run, &times).to_string())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn median(sorted: &[Duration]) -> Duration {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn text(run: &RunOutput, times: &[Duration]) -> String {
    let rows: Vec<Vec<String>> = run
        .devices
        .iter()
        .map(|d| {
            vec![
                d.device.to_string(),
                d.rows.map_or("-".to_owned(), |r| r.to_string()),
                ui::bytes(d.planned),
                ui::bytes(d.used),
                ui::bytes(d.params),
                format!("{:.3?}", d.time),
            ]
        })
        .collect();
    let text = ui::table(&["device", "rows", "planned", "used", "weights", "busy"], &rows);
    let runs =
        if times.len() == 1 { String::new() } else { format!(" (median of {})", times.len()) };
    let outputs = run.outputs.iter().map(|(name, tensor)| format!("{name} : {tensor:?}\n"));
    text + &format!("\n{} in {:.3?}{runs}\n", ui::rows(run.n), median(times))
        + &outputs.collect::<String>()
}

fn json(run: &RunOutput, times: &[Duration]) -> serde_json::Value {
    let devices: Vec<_> = run
        .devices
        .iter()
        .map(|d| {
            json!({
                "device": d.device.to_string(),
                "rows": d.rows,
                "planned_bytes": d.planned,
                "used_bytes": d.used,
                "weight_bytes": d.params,
                "busy_seconds": d.time.as_secs_f64(),
            })
        })
        .collect();
    let outputs: Vec<_> = run
        .outputs
        .iter()
        .map(|(name, t)| json!({ "name": name, "type": t.tensor_type().to_string() }))
        .collect();
    json!({
        "rows": run.n,
        "seconds": median(times).as_secs_f64(),
        "runs": times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>(),
        "devices": devices,
        "outputs": outputs,
    })
}
