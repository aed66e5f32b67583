//! `fanwise check`: does the rewritten graph compute what the model does?

use std::collections::BTreeMap;
use std::process::ExitCode;

use crate::Error;
use crate::analysis::{Sums, Unexplained};
use crate::backend::RunOutput;
use crate::ir::{Graph, Label, NodeId};
use crate::lower::{self, LowerError};
use crate::model::Model;
use crate::op::Statistics;
use crate::pass::{Action, PassError};
use crate::types::Tensor;
use clap::Args;
use serde_json::json;

use crate::cli::args::{BatchArgs, Format, FormatArgs, ModelArgs, ReplicateArgs};
use crate::cli::exec::{self, InputArgs};
use crate::cli::target::{Runner, TargetArgs};
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

/// The name of an operator of the model that takes the statistics of each replica's own rows, where
/// outputs follow from them.
fn local_statistics(model: &Graph, replicas: &Graph) -> Option<String> {
    let follow = replicas.split().is_some() && replicas.labels().contains(&Label::LocalStatistics);
    let local = |id: &NodeId| {
        let statistics = model.node(*id).op().and_then(|op| op.statistics());
        statistics == Some(Statistics::OfReplica)
    };
    let found = model.ids().find(local).filter(|_| follow)?;
    Some(model.node(found).label().to_owned())
}

pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let runner = args.target.runner()?;
    let limit = args.model.max_memory();
    let given = args.inputs.read(limit)?;
    let model = args.model.load_for(given.as_ref())?;
    if let Some(split) = model.graph.split() {
        let error = PassError::AlreadyReplicated(split.replicas());
        return Err(Error::from(error).into());
    }
    let replicated = args.replicate.apply(&args.model, &model.graph, runner.place())?;
    let graph = &*replicated.graph;
    if let Some(local) = replicated.repairs.iter().find(|r| r.action == Action::LocalStatistics) {
        return Err(Error::from(PassError::LocalStatistics(local.label.clone())).into());
    }
    if let Some(local) = local_statistics(&model.graph, graph) {
        return Err(Error::from(PassError::LocalStatistics(local)).into());
    }
    let inputs = args.inputs.tensors(given, &model.graph, args.batch.batch, limit)?;
    let check = Check { args, runner: &runner, model: &model, inputs };
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

/// The two programs of a comparison: one device and many.
struct Check<'a> {
    args: &'a CheckArgs,
    runner: &'a Runner,
    model: &'a Model,
    inputs: BTreeMap<String, Tensor>,
}

impl Check<'_> {
    fn run(&self, graph: &Graph, inputs: &BTreeMap<String, Tensor>) -> anyhow::Result<RunOutput> {
        let executable = self.runner.prepare(graph, &self.model.weights)?;
        lower::check_batches(executable.program())
            .map_err(LowerError::from)
            .map_err(Error::from)?;
        Ok(exec::run(&*executable, inputs, 1, self.args.model.max_memory())?.0)
    }

    /// The outputs of `single` and of the replicas, side by side.
    fn compare<'o>(
        &self,
        single: &Graph,
        labels: &[Label],
        one: &'o RunOutput,
        many: &RunOutput,
    ) -> anyhow::Result<Vec<Row<'o>>> {
        let outputs = one.outputs.iter().zip(&many.outputs).enumerate();
        let mut rows: Vec<Row<'o>> = outputs
            .map(|(i, ((name, a), (other, b)))| {
                let label = labels.get(i).copied().unwrap_or(Label::RowExact);
                let difference = largest_difference(a, b);
                // Relative to the largest magnitude: where terms cancel, a small sum has the error
                // of large terms.
                let rounding = a.dtype().rounding() * largest(a);
                let near = label == Label::Reassociated && difference <= rounding;
                let (same, verdict) = match (name == other, a == b) {
                    (true, true) => (true, "equal in every bit".to_owned()),
                    (true, false) if near => {
                        (true, format!("equal within rounding, by {difference:.1e}"))
                    }
                    _ => (false, format!("differs by {difference:e}")),
                };
                Row { name, ty: a.tensor_type().to_string(), label, same, difference, verdict }
            })
            .collect();
        // Outputs with another promise have to be equal in every bit.
        let follows = |row: &Row<'_>| {
            !row.same && matches!(row.label, Label::Reassociated | Label::Discontinuous)
        };
        if rows.iter().any(follows) {
            let judged = self.follows_from_sums(single, one.n)?;
            for row in rows.iter_mut().filter(|row| follows(row)) {
                match &judged {
                    Ok(()) => {
                        row.same = true;
                        let by = row.difference;
                        row.verdict = format!("equal but for rounded sums before it, by {by:.1e}");
                    }
                    Err(why) => row.verdict = format!("{}: {why}", row.verdict),
                }
            }
        }
        Ok(rows)
    }

    /// Decides whether rounding of sums explains all differences. Their size cannot decide it,
    /// because a jump may amplify one rounding; running the same sums on one device can.
    fn follows_from_sums(&self, single: &Graph, n: i64) -> anyhow::Result<Result<(), Unexplained>> {
        let (args, place) = (self.args, self.runner.place());
        // On GPUs `single` is a repaired graph itself.
        let model = if place.cuda { &self.model.graph } else { single };
        let repaired = args.replicate.repaired(model)?.into_graph();
        let sums = Sums::find(model, &repaired).map_err(Error::from)?;
        let (shown, cut) = (sums.shown(), sums.cut().map_err(Error::from)?);
        let replicas = args.replicate.again(&args.model, &shown, place.found)?;
        let shown = self.run(&replicas.graph, &self.inputs)?.outputs;
        let mut inputs = self.inputs.clone();
        match sums.inputs(&shown) {
            Ok(given) => inputs.extend(given),
            Err(error) => return Ok(Err(error)),
        }
        let cut = args.replicate.single(&args.model, &cut, place)?;
        let cut = self.run(&cut.graph, &inputs)?.outputs;
        Ok(sums.judge(&shown, &cut, n))
    }
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
                (true, false) => "equal, where floats are summed in another order within rounding",
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

/// Outcome of the comparison of one output.
struct Row<'a> {
    name: &'a str,
    ty: String,
    label: Label,
    same: bool,
    difference: f64,
    verdict: String,
}

/// The largest finite magnitude.
fn largest(tensor: &Tensor) -> f64 {
    tensor.to_f64().into_iter().map(f64::abs).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// The largest absolute difference of two tensors; infinite where their types differ, or where one
/// has a NaN and the other has not.
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
