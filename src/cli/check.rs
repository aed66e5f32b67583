//! `fanwise check`: does the rewritten graph compute what the model does?

use std::process::ExitCode;

use crate::Error;
use crate::ir::Graph;
use crate::pass::PassError;
use clap::Args;
use serde_json::json;

use crate::cli::args::{BatchArgs, Format, FormatArgs, ModelArgs};
use crate::cli::compare::{self, Comparison, Row};
use crate::cli::exec::{self, InputArgs};
use crate::cli::replicate::ReplicateArgs;
use crate::cli::target::TargetArgs;
use crate::cli::ui;

/// Run a model on one device and on many, and compare all outputs
///
/// Outputs are bit-identical, or equal within rounding where floats are summed in another order;
/// the table says which is promised for each output.
#[derive(Args)]
#[command(
    after_help = "The exit code is 0 if all outputs are equal, 1 if one differs, 2 if the model is \
        refused. With
`--batch-norm ghost:G` one device uses the same groups. `--batch-norm local` is refused: its \
results
depend on the number of devices.

Examples:
  fanwise check zoo:siamese --gpus 3 --batch 10
  fanwise check zoo:resnet50 --gpus 4 --target cuda --logical 4
  fanwise check model.onnx --gpus 8 --batch 5 --shards balanced
  fanwise check model.onnx --gpus 2 --inputs in.npz"
)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    batch: BatchArgs,
    #[command(flatten)]
    inputs: InputArgs,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    replicate: ReplicateArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    model: ModelArgs,
}

pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let runner = args.target.runner()?;
    let limit = args.model.max_memory();
    let (model, given) = args.model.load_with(&args.inputs, args.replicate.is_of_many())?;
    if let Some(split) = model.graph.split() {
        let error = PassError::AlreadyReplicated(split.replicas());
        return Err(Error::from(error).into());
    }
    let replicated = args.replicate.apply(&args.model, &model.graph, runner.place())?;
    let graph = &*replicated.graph;
    compare::check_statistics(&model.graph, &replicated)?;
    let inputs = args.inputs.tensors(given, &model.graph, args.batch.batch, limit)?;
    let check = Comparison {
        args: &args.model,
        replicate: &args.replicate,
        runner: &runner,
        model: &model,
        inputs,
    };
    let single = args.replicate.single(&args.model, &model.graph, runner.place())?;
    let run = |graph: &Graph| check.run(graph, &check.inputs);
    // Both on the same backend: kernels of two backends round differently.
    let ran = runner.traced(|| Ok((run(&single.graph)?, run(graph)?)));
    let (one, many) = args.inputs.with_input_note(ran)?;
    exec::note_empty(graph, one.n);
    let rows = check.compare(&single.graph, &graph.labels(), &one, &many)?;
    let equal = one.outputs.len() == many.outputs.len() && rows.iter().all(|row| row.same);
    let devices = graph.split().map_or(1, crate::types::Split::replicas);
    print(args.format.format, &rows, equal, devices, one.n)?;
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn print(
    format: Format,
    rows: &[Row<'_>],
    equal: bool,
    devices: usize,
    n: i64,
) -> anyhow::Result<()> {
    match format {
        Format::Text => {
            let exact = rows.iter().all(|row| row.difference == 0.0);
            let verdict = match (equal, exact) {
                (true, true) => "equal in every bit",
                (true, false) => "equal; within rounding where floats are summed in another order",
                (false, _) => "DIFFERENT",
            };
            let cells = |row: &Row<'_>| {
                vec![
                    row.name.to_string(),
                    row.ty.clone(),
                    row.label.to_string(),
                    row.verdict.clone(),
                ]
            };
            let table: Vec<Vec<String>> = rows.iter().map(cells).collect();
            let rows = ui::rows(n);
            let table = ui::table(&["output", "type", "promise", "result"], &table);
            ui::out(&format!("{table}\n1 device and {devices}, {rows}: {verdict}\n"))?;
        }
        Format::Json => {
            let output = |row: &Row<'_>| {
                json!({ "name": row.name, "type": row.ty, "label": row.label.to_string(),
                    "equal": row.same, "largest_difference": row.difference })
            };
            let outputs: Vec<_> = rows.iter().map(output).collect();
            ui::out(&json!({ "equal": equal, "rows": n, "outputs": outputs }).to_string())?;
        }
    }
    Ok(())
}
