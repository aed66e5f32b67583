//! `fanwise test`: do models give what their test data expects?

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;
use crate::analysis;
use crate::backend::{RunError, RunOutput};
use crate::format::Budget;
use crate::format::onnx::{DataSets, Kind};
use crate::ir::Graph;
use crate::model::{LoadOptions, ModelError};
use crate::op::Traits;
use crate::types::Quoted;
use anyhow::bail;
use clap::Args;
use serde_json::json;

use crate::cli::args::{Format, FormatArgs, MemoryArgs, ModelArgs};
use crate::cli::compare::{self, Comparison};
use crate::cli::exec;
use crate::cli::replicate::ReplicateArgs;
use crate::cli::report;
use crate::cli::settle::{self, Settled};
use crate::cli::target::{Runner, TargetArgs};
use crate::cli::ui;

/// Run models on ONNX test data and compare the outputs with the expected ones
///
/// DIR is a folder with a model (`model.onnx`, or the only `.onnx` file) and its data sets, one of
/// these data sets, or a folder of such folders. A data set is a folder `test_data_set_K` with the
/// tensors `input_I.pb` and `output_I.pb`, by the position of the model's inputs and outputs.
///
/// With `--gpus` each model runs on one device and on these. The outputs must also be those of one
/// device, in every bit or as `fanwise check` promises.
#[derive(Args)]
#[command(
    after_help = "A case passes if every output is the expected one; a NaN is equal to a NaN. \
        Integers and truth values
are equal. Floats differ by at most the tolerance times the largest expected magnitude of the \
output. An
output that is drawn at random has the expected type.

A model that fanwise cannot run, or not on these devices, is refused, and so is a data set that \
cannot be
read. An input whose elements an operator needs before the run becomes a constant; the case says \
so.

The exit code is 0 if all cases pass, 1 if one fails, 2 if none fails and one is refused.

Examples:
  fanwise test resnet50
  fanwise test models --gpus 3
  fanwise test models --gpus 2 --repair comm --format json
  fanwise test resnet50/test_data_set_0 --target cuda --tolerance 1e-3"
)]
pub(crate) struct TestArgs {
    /// Folders of models and their data sets
    #[arg(value_name = "DIR", required = true)]
    folders: Vec<PathBuf>,
    /// Difference of floats that is allowed, relative to the largest expected magnitude of the
    /// output [default: 1e-7 for f64, 1e-5 for f32, 2e-3 for f16, 1e-2 for bf16]
    #[arg(long, value_name = "NUMBER", value_parser = tolerance)]
    tolerance: Option<f64>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    replicate: ReplicateArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    memory: MemoryArgs,
}

fn tolerance(text: &str) -> anyhow::Result<f64> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 0.0 => Ok(number),
        _ => bail!("expected a number of at least 0, such as 1e-3"),
    }
}

pub(crate) fn test(args: &TestArgs) -> anyhow::Result<ExitCode> {
    let runner = args.target.runner()?;
    let mut cases = Vec::new();
    for folder in &args.folders {
        let before = cases.len();
        find(folder, &mut cases)?;
        if cases.len() == before {
            let path = folder.display();
            bail!(
                "`{path}` has no ONNX model with a data set `test_data_set_0` beside it; name a \
                 folder with a `model.onnx` and such folders, each with the tensors `input_0.pb` \
                 and `output_0.pb`"
            );
        }
    }
    args.replicate.note(runner.place())?;
    let (tester, done) = (Tester { args, runner: &runner }, AtomicU64::new(0));
    let state = || (done.load(Ordering::Relaxed), cases.len() as u64);
    let ran = runner.traced(|| {
        Ok(exec::watched("testing", &state, || {
            let run = |case| {
                let verdict = tester.verdict(case);
                done.fetch_add(1, Ordering::Relaxed);
                verdict
            };
            cases.iter().map(run).collect::<Vec<Verdict>>()
        }))
    })?;
    let count = Count::of(&ran);
    ui::out(&match args.format.format {
        Format::Text => text(&cases, &ran, &count),
        Format::Json => json(&cases, &ran, &count).to_string(),
    })?;
    Ok(count.exit_code())
}

/// A model and one of its data sets.
struct Case {
    /// What the case is named by.
    folder: PathBuf,
    /// The model and the data set, or why there is none.
    files: Result<(PathBuf, PathBuf), &'static str>,
}

/// The depth to which folders are looked into.
const DEPTH: usize = 16;

/// Adds the cases of `folder`.
fn find(folder: &Path, cases: &mut Vec<Case>) -> anyhow::Result<()> {
    let sets = DataSets::of(folder).map_err(Error::from)?;
    if let [set] = sets.all()
        && set == folder
    {
        let beside = folder.parent().unwrap_or(Path::new(""));
        let beside = if beside.as_os_str().is_empty() { Path::new(".") } else { beside };
        let Entries { models, .. } = Entries::of(beside)?;
        cases.push(Case { folder: set.clone(), files: pair(&models, set) });
        return Ok(());
    }
    walk(folder, DEPTH, cases)
}

fn walk(folder: &Path, depth: usize, cases: &mut Vec<Case>) -> anyhow::Result<()> {
    if depth == 0 {
        bail!("`{}` lies more than {DEPTH} folders deep", folder.display());
    }
    let sets = DataSets::of(folder).map_err(Error::from)?;
    let Entries { models, folders } = Entries::of(folder)?;
    if !models.is_empty() && sets.all().is_empty() {
        let files = Err("the folder has no data set `test_data_set_0`");
        cases.push(Case { folder: folder.to_owned(), files });
    }
    for set in sets.all() {
        cases.push(Case { folder: set.clone(), files: pair(&models, set) });
    }
    for below in folders.iter().filter(|below| !sets.all().contains(below)) {
        walk(below, depth - 1, cases)?;
    }
    Ok(())
}

/// A data set with its model: the file `model.onnx`, or the only one.
fn pair(models: &[PathBuf], set: &Path) -> Result<(PathBuf, PathBuf), &'static str> {
    let named = models.iter().find(|path| path.file_name().is_some_and(|n| n == "model.onnx"));
    let model = match (named, models) {
        (Some(model), _) | (None, [model]) => model,
        (None, []) => return Err("there is no `.onnx` file beside the data set"),
        (None, _) => return Err("there are several `.onnx` files and no `model.onnx`"),
    };
    Ok((model.clone(), set.to_owned()))
}

/// The models and folders in a folder, by name. Links to folders are not followed: they may lead
/// back.
struct Entries {
    models: Vec<PathBuf>,
    folders: Vec<PathBuf>,
}

impl Entries {
    fn of(folder: &Path) -> anyhow::Result<Self> {
        let read = |error| Error::from(crate::format::FileError::read(folder, error));
        let (mut models, mut folders) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(folder).map_err(read)? {
            let entry = entry.map_err(read)?;
            let path = entry.path();
            if entry.file_type().map_err(read)?.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "onnx") {
                models.push(path);
            }
        }
        models.sort_unstable();
        folders.sort_unstable();
        Ok(Self { models, folders })
    }
}

/// What became of a case.
struct Verdict {
    outcome: Outcome,
    /// What the case passes or fails with: how the model was run.
    notes: Vec<String>,
}

enum Outcome {
    Passed,
    /// Computed, and what differs.
    Failed(String),
    /// Not computed, and why.
    Refused(String),
}

impl Outcome {
    /// The word for it, and the reason.
    fn said(&self) -> (&'static str, Option<&str>) {
        match self {
            Self::Passed => ("passed", None),
            Self::Failed(reason) => ("failed", Some(reason)),
            Self::Refused(reason) => ("refused", Some(reason)),
        }
    }
}

/// What the cases are tested with.
struct Tester<'a> {
    args: &'a TestArgs,
    runner: &'a Runner,
}

impl Tester<'_> {
    fn verdict(&self, case: &Case) -> Verdict {
        let (model, set) = match &case.files {
            Ok(files) => files,
            Err(reason) => {
                let outcome = Outcome::Refused((*reason).to_owned());
                return Verdict { outcome, notes: Vec::new() };
            }
        };
        let mut notes = Vec::new();
        let outcome = self.run(model, set, &mut notes).unwrap_or_else(|error| {
            let line = report::line(&error);
            match error.downcast_ref::<Error>() {
                Some(Error::Run(RunError::Op { .. })) => Outcome::Failed(line),
                _ => Outcome::Refused(line),
            }
        });
        Verdict { outcome, notes }
    }

    /// Runs the model on the inputs of a data set, and compares.
    fn run(&self, path: &Path, set: &Path, notes: &mut Vec<String>) -> anyhow::Result<Outcome> {
        let TestArgs { replicate, memory, .. } = self.args;
        let Settled { model, inputs, constants } = self.load(path, set)?;
        let constants =
            constants.iter().map(|name| format!("input {} is a constant", Quoted(name)));
        notes.extend(constants);
        let (args, place) = (&ModelArgs::of(path, *memory), self.runner.place());
        let single = replicate.single(args, &model.graph, place)?;
        let both = Comparison { args, replicate, runner: self.runner, model: &model, inputs };
        let one = both.run(&single.graph, &both.inputs)?;
        if !replicate.is_of_many() {
            return self.expected(set, &model.graph, &one, notes);
        }
        let replicated = replicate.again(args, &model.graph, place)?;
        compare::check_statistics(&model.graph, &replicated)?;
        let many = both.run(&replicated.graph, &both.inputs)?;
        let labels = replicated.graph.labels();
        let rows = both.compare(&single.graph, &labels, &one, &many)?;
        if let Some(row) = rows.iter().find(|row| !row.same) {
            let (name, verdict) = (Quoted(row.name), &row.verdict);
            let reason = format!("output {name} of one device and of several: {verdict}");
            return Ok(Outcome::Failed(reason));
        }
        self.expected(set, &model.graph, &many, notes)
    }

    /// Compares outputs with the expected ones of a data set.
    fn expected(
        &self,
        set: &Path,
        graph: &Graph,
        found: &RunOutput,
        notes: &mut Vec<String>,
    ) -> anyhow::Result<Outcome> {
        let names: Vec<String> = found.outputs.iter().map(|(name, _)| name.to_string()).collect();
        let budget = &mut Budget::new(self.args.memory.limit());
        let expected = DataSets::read(set, Kind::Output, &names, budget);
        let expected = expected.map_err(ModelError::from).map_err(Error::from)?;
        let drawn = drawn(graph)?;
        for (i, ((name, found), expected)) in found.outputs.iter().zip(&expected).enumerate() {
            let name = Quoted(name);
            // No two implementations draw the same numbers.
            if drawn[i] && found.tensor_type() == expected.tensor_type() {
                notes.push(format!("output {name} is drawn at random, and has the type alone"));
                continue;
            }
            if let Err(difference) = analysis::agree(found, expected, self.args.tolerance) {
                return Ok(Outcome::Failed(format!("output {name}: {difference}")));
            }
        }
        Ok(Outcome::Passed)
    }

    /// Reads a model for the inputs of a data set.
    fn load(&self, path: &Path, set: &Path) -> anyhow::Result<Settled> {
        let limit = self.args.memory.limit();
        let read = |names: Vec<String>| {
            let read = DataSets::inputs(set, &names, &mut Budget::new(limit));
            Ok(read.map_err(ModelError::from).map_err(Error::from)?)
        };
        let options = LoadOptions { max_memory: limit, ..LoadOptions::default() };
        let is_of_many = self.args.replicate.is_of_many();
        settle::load(&path.display().to_string(), options, is_of_many, &read)
    }
}

/// For each output of a graph, whether it depends on numbers that are drawn in a run.
fn drawn(graph: &Graph) -> anyhow::Result<Vec<bool>> {
    let mut drawn = BTreeSet::new();
    for id in graph.order().map_err(anyhow::Error::from)? {
        let draws = graph.node(id).op().is_some_and(|op| op.is(Traits::UNREPEATABLE));
        if draws || graph.operands(id).iter().any(|value| drawn.contains(&value.node)) {
            drawn.insert(id);
        }
    }
    Ok(graph.outputs().iter().map(|output| drawn.contains(&output.value.node)).collect())
}

/// The number of cases by their outcome.
struct Count {
    passed: usize,
    failed: usize,
    refused: usize,
}

impl Count {
    fn of(verdicts: &[Verdict]) -> Self {
        let mut count = Self { passed: 0, failed: 0, refused: 0 };
        for verdict in verdicts {
            match verdict.outcome {
                Outcome::Passed => count.passed += 1,
                Outcome::Failed(_) => count.failed += 1,
                Outcome::Refused(_) => count.refused += 1,
            }
        }
        count
    }

    fn exit_code(&self) -> ExitCode {
        match (self.failed, self.refused) {
            (0, 0) => ExitCode::SUCCESS,
            (0, _) => ExitCode::from(report::BAD_INPUT),
            _ => ExitCode::from(1),
        }
    }
}

fn text(cases: &[Case], verdicts: &[Verdict], count: &Count) -> String {
    let line = |(case, Verdict { outcome, notes }): (&Case, &Verdict)| {
        let (word, reason) = outcome.said();
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let notes = if notes.is_empty() || matches!(outcome, Outcome::Refused(_)) {
            String::new()
        } else {
            format!(" ({})", notes.join("; "))
        };
        format!("{word:7}  {}{reason}{notes}\n", case.folder.display())
    };
    let text: String = cases.iter().zip(verdicts).map(line).collect();
    let Count { passed, failed, refused } = count;
    text + &format!("passed {passed}, failed {failed}, refused {refused}\n")
}

fn json(cases: &[Case], verdicts: &[Verdict], count: &Count) -> serde_json::Value {
    let case = |(case, Verdict { outcome, notes }): (&Case, &Verdict)| {
        let (result, reason) = outcome.said();
        let model = case.files.as_ref().ok().map(|(model, _)| model.display().to_string());
        json!({ "folder": case.folder.display().to_string(), "model": model, "result": result,
            "reason": reason, "notes": notes })
    };
    let listed: Vec<_> = cases.iter().zip(verdicts).map(case).collect();
    let Count { passed, failed, refused } = count;
    json!({ "passed": passed, "failed": failed, "refused": refused, "cases": listed })
}
