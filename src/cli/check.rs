//! `fanwise check`: does the rewritten graph compute what the model does?

use std::process::ExitCode;

use crate::Error;
use crate::backend::CUDA;
use crate::ir::{Graph, NodeId};
use crate::lower::{self, OwnBits};
use crate::pass::PassError;
use crate::types::invariant::invariant;
use clap::Args;
use serde_json::json;

use crate::cli::args::{BatchArgs, Format, FormatArgs, ModelArgs};
use crate::cli::compare::{self, Beside, Comparison, Row, Unpromised};
use crate::cli::exec::{self, InputArgs};
use crate::cli::replicate::ReplicateArgs;
use crate::cli::target::{Other, TargetArgs};
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
  fanwise check model.onnx --gpus 2 --inputs in.npz
  fanwise check model.onnx --gpus 2 --isa all
  fanwise check model.onnx --gpus 2 --target cpu,cuda"
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
    let (runner, others) = args.target.runners()?;
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
    // Both on the same backend: some kernels of two backends round differently.
    let ran = runner.traced(|| Ok((run(&single.graph)?, run(graph)?)));
    let (one, many) = args.inputs.with_input_note(ran)?;
    exec::note_empty(graph, one.n);
    let rows = check.compare(&single.graph, &graph.labels(), &one, &many)?;
    let by_others = others.iter().map(|Other { name, runner }| {
        let outputs = runner.as_ref().map(|runner| {
            let other = Comparison { runner, ..check.clone() };
            if !runner.place().cuda {
                return compare::Other::all(&other.run(graph, &check.inputs)?, &many, &[]);
            }
            // On GPUs, also where no number of them is given.
            let placed = args.replicate.again(&args.model, &model.graph, runner.place())?;
            let ran = other.run(&placed.graph, &check.inputs)?;
            compare::Other::all(&ran, &many, &with_own_bits(&placed.graph))
        });
        Ok(Beside { name, outputs: outputs.transpose()? })
    });
    let others: Vec<Beside> = by_others.collect::<anyhow::Result<_>>()?;
    let mut all = others.iter().flat_map(|beside| beside.outputs.iter().flatten());
    let equal = one.outputs.len() == many.outputs.len()
        && rows.iter().all(|row| row.same)
        && all.all(compare::Other::is_kept);
    let devices = graph.split().map_or(1, crate::types::Split::replicas);
    let outcome = Outcome { rows, others, equal, devices, n: one.n };
    outcome.print(args.format.format)?;
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// Why outputs may have other bits on a GPU than on a CPU, for each output.
fn with_own_bits(graph: &Graph) -> Vec<Option<Unpromised>> {
    let named = |id: NodeId| {
        let node = graph.node(id);
        let op = invariant(node.op(), "that what has bits of its own, or jumps, is an operator");
        format!("`{}` ({})", node.label(), op.name())
    };
    let why = |own: OwnBits| Unpromised { operator: named(own.first), jump: own.jump.map(named) };
    lower::own_bits(graph, &CUDA).into_iter().map(|own| own.map(why)).collect()
}

/// What the comparison found.
struct Outcome<'a> {
    rows: Vec<Row<'a>>,
    /// What these instructions, or GPUs, gave.
    others: Vec<Beside>,
    equal: bool,
    devices: usize,
    /// The rows of the batch.
    n: i64,
}

impl Outcome<'_> {
    fn print(&self, format: Format) -> anyhow::Result<()> {
        match format {
            Format::Text => {
                let mut others = self.others.iter().flat_map(|b| b.outputs.iter().flatten());
                let exact = self.rows.iter().all(|row| row.difference == 0.0)
                    && others.all(|other| other.difference.is_none());
                let verdict = match (self.equal, exact) {
                    (true, true) => "equal in every bit",
                    (true, false) => {
                        "equal; within rounding where floats are summed in another order"
                    }
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
                let table: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
                let table = ui::table(&["output", "type", "promise", "result"], &table);
                let (devices, rows) = (self.devices, ui::rows(self.n));
                let others = self.others();
                ui::out(&format!("{table}\n{others}1 device and {devices}, {rows}: {verdict}\n"))?;
            }
            Format::Json => {
                let output = |row: &Row<'_>| {
                    json!({ "name": row.name, "type": row.ty, "label": row.label.to_string(),
                        "equal": row.same, "largest_difference": row.difference })
                };
                let outputs: Vec<_> = self.rows.iter().map(output).collect();
                let mut all = json!({ "equal": self.equal, "rows": self.n, "outputs": outputs });
                if !self.others.is_empty() {
                    let same = |other: &compare::Other| other.difference.is_none();
                    let each = self.others.iter().map(|beside| {
                        let same = beside.outputs.as_ref().map(|outputs| outputs.iter().all(same));
                        (beside.name.to_owned(), json!(same))
                    });
                    all["others"] = each.collect();
                    all["apart"] = self.apart();
                }
                ui::out(&all.to_string())?;
            }
        }
        Ok(())
    }

    /// Of each of the others the outputs with other bits, or that may have them.
    fn apart(&self) -> serde_json::Value {
        let told = self.others.iter().map(|beside| {
            let outputs = beside.outputs.iter().flatten();
            let outputs = outputs.filter(|o| o.difference.is_some() || o.unpromised.is_some());
            let outputs = outputs.map(|o| {
                let (difference, why) = (o.difference, o.unpromised.as_ref());
                let behind = why.map(|why| &why.operator);
                let mut told = json!({ "difference": difference, "behind": behind });
                if let Some(jump) = why.and_then(|why| why.jump.as_ref()) {
                    told["jumps_at"] = json!(jump);
                }
                (o.name.clone(), told)
            });
            (beside.name.to_owned(), outputs.collect::<serde_json::Value>())
        });
        told.collect()
    }

    /// A line for each of the others that were compared, and for each output with other bits, or of
    /// which the same bits are not promised.
    fn others(&self) -> String {
        let mut lines = Vec::new();
        for Beside { name, outputs } in &self.others {
            let said = match outputs {
                Some(outputs) if outputs.iter().all(|o| o.difference.is_none()) => "the same bits",
                Some(_) => "other bits",
                None => "not run: this machine lacks it",
            };
            lines.push(format!("{name}: {said}\n"));
            for output in outputs.iter().flatten() {
                let by = output.difference.map(|by| format!("differs by {by:.1e}"));
                let why = output.unpromised.as_ref().map(ToString::to_string);
                let said: Vec<String> = [by, why].into_iter().flatten().collect();
                if !said.is_empty() {
                    lines.push(format!("  {}: {}\n", output.name, said.join("; ")));
                }
            }
        }
        lines.concat()
    }
}
