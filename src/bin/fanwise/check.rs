//! `fanwise check`: does the rewritten graph compute what the model does?

use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use fanwise::types::Tensor;
use serde_json::json;

use crate::args::{Format, ModelArgs, ReplicateArgs};
use crate::exec;
use crate::ui;

/// Run a model on one device and on many, and compare every bit of every output
#[derive(Args)]
#[command(
    after_help = "The exit code is 0 if all outputs are equal, 1 if one differs, 2 if the model is refused.

Examples:
  fanwise check zoo:siamese --gpus 3 --batch 10
  fanwise check model.onnx --gpus 8 --batch 5 --shards balanced"
)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    replicate: ReplicateArgs,
    /// Rows of random inputs
    #[arg(long, value_name = "ROWS", default_value_t = 10)]
    batch: u32,
    /// Seed of random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Worker threads; by default one for each core
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// How the result is printed
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let limit = args.model.max_memory();
    let model = args.model.load()?;
    if let Some(split) = model.graph.split() {
        bail!(
            "the graph is already replicated over {} devices; check needs the model before the pass",
            split.replicas()
        );
    }
    let graph = args.replicate.apply(&model.graph)?;
    let inputs = exec::random_inputs(&model.graph, args.batch, args.seed, limit)?;
    let run = |graph| -> anyhow::Result<_> {
        let executable = exec::prepare(graph, &model.weights, args.threads)?;
        Ok(exec::run(&*executable, &inputs, 1, limit)?.0)
    };
    let (one, many) = (run(&model.graph)?, run(&graph)?);
    let mut equal = one.outputs.len() == many.outputs.len();
    let mut rows = Vec::new();
    for ((name, a), (other, b)) in one.outputs.iter().zip(&many.outputs) {
        let same = name == other && a == b;
        equal &= same;
        rows.push((name, a.tensor_type().to_string(), same, largest_difference(a, b)));
    }
    match args.format {
        Format::Text => {
            let devices = graph.split().map_or(1, fanwise::types::Split::replicas);
            let verdict = if equal { "equal in every bit" } else { "DIFFERENT" };
            let table: Vec<Vec<String>> = rows
                .iter()
                .map(|(name, ty, same, difference)| {
                    let verdict = if *same {
                        "equal".to_owned()
                    } else {
                        format!("differs by {difference:e}")
                    };
                    vec![name.to_string(), ty.clone(), verdict]
                })
                .collect();
            let table = ui::table(&["output", "type", "result"], &table);
            ui::out(&format!("{table}\n1 device and {devices}, {} rows: {verdict}\n", one.n))?;
        }
        Format::Json => {
            let outputs: Vec<_> = rows
                .iter()
                .map(|(name, ty, same, difference)| {
                    json!({ "name": name, "type": ty, "equal": same, "largest_difference": difference })
                })
                .collect();
            ui::out(&json!({ "equal": equal, "rows": one.n, "outputs": outputs }).to_string())?;
        }
    }
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The largest absolute difference of two tensors; infinite where their types differ, or where one has a NaN and
/// the other has not.
fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    if a.tensor_type() != b.tensor_type() {
        return f64::INFINITY;
    }
    let differences =
        a.to_f64().into_iter().zip(b.to_f64()).map(|(x, y)| match (x.is_nan(), y.is_nan()) {
            (true, true) => 0.0,
            // Infinities of one sign are equal.
            (false, false) if x.to_bits() == y.to_bits() => 0.0,
            (false, false) => (x - y).abs(),
            _ => f64::INFINITY,
        });
    differences.fold(0.0, f64::max)
}
