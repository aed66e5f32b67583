//! From a graph to outputs.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Error;
use crate::analysis;
use crate::backend::{Executable, RunError, RunOptions, RunOutput, run_each};
use crate::format::onnx::DataSets;
use crate::format::{Budget, npz};
use crate::ir::Graph;
use crate::model::ModelError;
use crate::types::{Code, Tensor};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::ui;

/// Inputs of a run.
#[derive(Args)]
pub(crate) struct InputArgs {
    /// Read the inputs from a .npz file, one array per input, or from ONNX test data [default:
    /// random numbers]
    ///
    /// A folder is a `test_data_set_K`, whose `input_I.pb` is the tensor of input I of the model,
    /// or has one such folder.
    #[arg(long, value_name = "FILE.npz|DIR", conflicts_with_all = ["batch", "seed"])]
    inputs: Option<PathBuf>,
    /// Seed of the random inputs
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl InputArgs {
    /// True if a file or folder has the inputs.
    pub(crate) fn is_given(&self) -> bool {
        self.inputs.is_some()
    }

    /// The arrays of the file or folder for the inputs of these names; none where there is neither.
    pub(crate) fn read(
        &self,
        names: &[String],
        limit: u64,
    ) -> anyhow::Result<BTreeMap<String, Tensor>> {
        let Some(path) = &self.inputs else { return Ok(BTreeMap::new()) };
        let budget = &mut Budget::new(limit);
        if !path.is_dir() {
            let mut arrays = npz::read(path, budget).map_err(Error::from)?;
            // As in data to train on, `x` stands for the only input.
            if let [name] = names
                && !arrays.contains_key(name)
                && let Some(only) = arrays.remove("x")
            {
                arrays.insert(name.clone(), only);
            }
            return Ok(arrays);
        }
        let set = DataSets::only(path).map_err(Error::from)?;
        let read = DataSets::inputs(&set, names, budget);
        Ok(read.map_err(ModelError::from).map_err(Error::from)?)
    }

    /// The arrays that were `read`, or random inputs of `rows` rows.
    pub(crate) fn tensors(
        &self,
        read: Option<BTreeMap<String, Tensor>>,
        graph: &Graph,
        rows: u32,
        max_memory: u64,
    ) -> anyhow::Result<BTreeMap<String, Tensor>> {
        match read {
            Some(read) => Ok(read),
            None => random_inputs(graph, rows, self.seed, max_memory),
        }
    }

    /// Returns `result`; if an operator failed on random inputs, a note says how to pass real ones.
    pub(crate) fn with_input_note<R>(&self, result: anyhow::Result<R>) -> anyhow::Result<R> {
        let error = result.as_ref().err().and_then(|error| error.downcast_ref::<Error>());
        if self.inputs.is_none() && matches!(error, Some(Error::Run(RunError::Op { .. }))) {
            ui::note(
                "the inputs are random, and integers count from 0; if the model accepts only some \
                 values, pass them with `--inputs FILE.npz`",
            );
        }
        result
    }
}

/// Random inputs for `rows` rows, if they fit in the memory that may be used.
pub(crate) fn random_inputs(
    graph: &Graph,
    rows: u32,
    seed: u64,
    max_memory: u64,
) -> anyhow::Result<BTreeMap<String, Tensor>> {
    let rows = i64::from(rows);
    // Counted before memory is taken; saturating, because the rows are the user's.
    let bytes = graph.inputs().map(|v| graph.ty(v).bytes().eval(rows));
    let bytes = bytes.fold(0, i64::saturating_add);
    let needed = u64::try_from(bytes).unwrap_or(u64::MAX);
    if needed > max_memory {
        let error = RunError::InputMemory { n: rows, needed, limit: max_memory };
        return Err(Error::from(error).into());
    }
    Ok(analysis::random_inputs(graph, rows, seed).map_err(Error::from)?)
}

/// Remarks that devices have no rows of a batch of `rows`.
pub(crate) fn note_empty(graph: &Graph, rows: i64) {
    const SHOWN: usize = 8;
    let Some(split) = graph.split() else { return };
    let empty: Vec<String> = split.without_rows(rows).map(|d| d.to_string()).collect();
    if empty.is_empty() {
        return;
    }
    let more = empty.len().saturating_sub(SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let shown = empty.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    let count = split.replicas();
    let text = format!("{rows} rows on {count} devices: {shown}{more} have none and are skipped");
    ui::note_of(Code::EmptyShards, text);
}

/// Runs `times` times behind a progress bar; the last outputs, and the time of each run, ascending.
pub(crate) fn run(
    executable: &dyn Executable,
    inputs: &BTreeMap<String, Tensor>,
    times: u32,
    max_memory: u64,
) -> anyhow::Result<(RunOutput, Vec<Duration>)> {
    let progress = Arc::new(AtomicU64::new(0));
    let options = RunOptions {
        max_memory: Some(max_memory),
        progress: Some(Arc::clone(&progress)),
        ..RunOptions::default()
    };
    let steps: usize = executable.program().devices.iter().map(|device| device.steps.len()).sum();
    let total = steps as u64 * u64::from(times);
    let state = || (progress.load(Ordering::Relaxed), total);
    watched("running", &state, || repeat(executable, inputs, times, &options))
}

/// Fails unless outputs can be written in the form that a file's name says.
pub(crate) fn check_outputs(path: &Path) -> anyhow::Result<()> {
    let device = path.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir());
    if device || path.extension().is_none_or(|e| e == "npz") {
        return Ok(());
    }
    anyhow::bail!("{}: outputs are written to an .npz file; name one", path.display())
}

/// True while a bar is shown, or may be.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// Works behind a progress bar on a terminal; `progress` says how much is done, of how much. Work
/// that is part of other such work has no bar of its own.
pub(crate) fn watched<R>(
    what: &'static str,
    progress: &(dyn Fn() -> (u64, u64) + Sync),
    work: impl FnOnce() -> R,
) -> R {
    if !io::stderr().is_terminal() || ui::is_quiet() || WATCHED.swap(true, Ordering::AcqRel) {
        return work();
    }
    let finished = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        scope.spawn(|| show(what, progress, &finished));
        let result = work();
        finished.store(true, Ordering::Release);
        result
    });
    WATCHED.store(false, Ordering::Release);
    result
}

fn repeat(
    executable: &dyn Executable,
    inputs: &BTreeMap<String, Tensor>,
    times: u32,
    options: &RunOptions,
) -> anyhow::Result<(RunOutput, Vec<Duration>)> {
    let (mut durations, mut last) = (Vec::new(), None);
    let mut begin = Instant::now();
    let mut done = |output| {
        durations.push(begin.elapsed());
        // The time of a run reaches from the outputs before to its own: what is prefetched
        // meanwhile is not counted twice.
        (begin, last) = (Instant::now(), Some(output));
    };
    if executable.program().target.keeps_params {
        let batches = (0..times).map(|_| Ok(((), inputs.clone())));
        run_each(executable, options, batches, |(), output| {
            done(output);
            Ok::<_, RunError>(())
        })
        .map_err(Error::from)?;
    } else {
        // Devices that keep nothing of their own read the host's memory: they get nothing ahead,
        // and another thread would only be in the way.
        for _ in 0..times {
            done(executable.run(inputs, options).map_err(Error::from)?);
        }
    }
    let output = last.ok_or_else(|| anyhow::anyhow!("the number of runs is 0"))?;
    durations.sort_unstable();
    Ok((output, durations))
}

/// Shows a bar on standard error once the work has taken a second.
fn show(what: &'static str, progress: &dyn Fn() -> (u64, u64), finished: &AtomicBool) {
    const PATIENCE: Duration = Duration::from_secs(1);
    const TICK: Duration = Duration::from_millis(50);
    let (start, bar) = (Instant::now(), ProgressBar::hidden());
    let template = "{msg} {bar:40} {percent}%  {elapsed} elapsed, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(what);
    while !finished.load(Ordering::Acquire) {
        thread::sleep(TICK);
        // Short work shows no bar, which would only flicker.
        if bar.is_hidden() && start.elapsed() > PATIENCE {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
        }
        let (done, total) = progress();
        bar.set_length(total);
        bar.set_position(done);
    }
    bar.finish_and_clear();
}
