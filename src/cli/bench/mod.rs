//! `fanwise bench`: times of models, beside one device and beside other programs.

mod own;
mod peer;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Map, Value, json};

use self::own::{Own, Setting};
use self::peer::{Asked, Library, Peer};
use self::report::{Bench, Case, Contestant, Measured};
use crate::Error;
use crate::cli::args::{Format, FormatArgs, ModelArgs, ModelOptions};
use crate::cli::exec::watched;
use crate::cli::replicate::ReplicateArgs;
use crate::cli::target::TargetArgs;
use crate::cli::ui;
use crate::model::{self, Model};
use crate::pass::{Loss, Optimizer};

/// Measure models: time, memory and speed, beside one device and beside other programs
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise bench zoo:mini_googlenet --batch 1,8,32
  fanwise bench zoo:mlp zoo:resnet50 --gpus 4 --batch 64 --threads 2
  fanwise bench model.onnx --against onnxruntime --threads 2
  fanwise bench model.keras --train categorical_crossentropy --against jax

Everything is run in turn, in several rounds on the same processors, so that what else the machine
does meets all alike. Numbers of a round are medians of its runs, numbers that are told medians of
the rounds.")]
pub(crate) struct BenchArgs {
    /// ONNX or Keras files, graphs written by `compile --emit`, checkpoint folders, or `zoo:NAME`
    #[arg(required = true, value_name = "MODEL")]
    models: Vec<String>,
    /// Rows per batch, of one or more sizes
    #[arg(
        long,
        value_name = "ROWS,...",
        value_delimiter = ',',
        default_values_t = [1, 32],
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    batch: Vec<u32>,
    /// Measure training steps with this loss of every output, in place of inference
    #[arg(long, value_name = "LOSS[:KEY=VALUE]")]
    train: Option<Loss>,
    /// Optimizer of the training steps
    #[arg(
        long,
        value_name = "NAME[:KEY=VALUE]",
        default_value = "sgd",
        requires = "train",
        value_parser = optimizer
    )]
    optimizer: String,
    /// Other programs to measure beside it, on the CPU
    ///
    /// `onnxruntime` runs any model as an ONNX file, and does not train. The others run Keras files
    /// (.keras, .h5) by Keras.
    #[arg(long, value_enum, value_name = "NAME,...", value_delimiter = ',')]
    against: Vec<Library>,
    /// Python that has the other programs
    #[arg(long, value_name = "FILE", default_value = "python3", requires = "against")]
    python: PathBuf,
    /// Rounds, in each of which everything is measured in turn
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=1000)
    )]
    rounds: u32,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    replicate: ReplicateArgs,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    options: ModelOptions,
}

/// An optimizer as it was written, if it is one.
fn optimizer(text: &str) -> anyhow::Result<String> {
    text.parse::<Optimizer>()?;
    Ok(text.to_owned())
}

/// Seconds that a round takes of one contestant, and the fewest and the most runs of it: so many
/// that what the threads of the one before it still do at the beginning is little.
const ROUND: f64 = 0.3;
const RUNS: (f64, f64) = (3.0, 10_000.0);

/// What is measured in turn.
enum Runs<'a> {
    Own(&'a mut Own),
    Peer(Peer),
}

impl Runs<'_> {
    fn run(&mut self, times: u32) -> anyhow::Result<Measured> {
        match self {
            Self::Own(own) => own.run(times),
            Self::Peer(peer) => peer.run(times),
        }
    }
}

pub(crate) fn bench(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if args.target.trace.traced().is_some() {
        bail!(
            "`--trace`, `--timeline` and `--profile` change what is measured: use `fanwise run \
             --repeat COUNT` with them"
        );
    }
    // Before the threads of the backend, which take the processors of the process.
    let cores = pinned(args.target.host_threads()?);
    let runner = args.target.runner()?;
    if runner.place().cuda && !args.against.is_empty() {
        bail!("`--against` measures on the CPU: add `--target cpu`");
    }
    let peak = if runner.place().cuda { None } else { Some(args.target.peak()?) };
    let mut bench = Bench { cores, peak, rounds: args.rounds, cases: Vec::new() };
    let folder = tempfile::tempdir().context("no folder for ONNX files")?;
    for spec in &args.models {
        let of = ModelArgs::named(spec, &args.options);
        let model = if args.train.is_some() { of.load_for_training()? } else { of.load()? };
        let files = Files { spec, model: &model, folder: folder.path() };
        let setting = Setting {
            train: args.train,
            optimizer: &args.optimizer,
            replicate: &args.replicate,
            runner: &runner,
            of: &of,
            model: &model,
            on_many: false,
        };
        measured(&mut bench, args, &setting, &files)?;
    }
    match args.format.format {
        Format::Text => ui::out(&bench.text())?,
        Format::Json => ui::out(&bench.json().to_string())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A model in the files that other programs read.
struct Files<'a> {
    spec: &'a str,
    model: &'a Model,
    folder: &'a Path,
}

impl Files<'_> {
    /// The file that a library reads.
    fn of(&self, library: Library, args: &BenchArgs) -> anyhow::Result<PathBuf> {
        let Self { spec, model, folder } = *self;
        let name = library.name();
        let is = |extensions: &[&str]| {
            let own = Path::new(spec).extension();
            own.is_some_and(|own| extensions.iter().any(|of| own.eq_ignore_ascii_case(of)))
        };
        if library != Library::Onnxruntime {
            if !is(&["keras", "h5"]) {
                bail!("`--against {name}` runs Keras files (.keras, .h5), and {spec} is none");
            }
            return Ok(spec.into());
        }
        if args.train.is_some() {
            bail!("`--against onnxruntime` does not train; leave out `--train`");
        }
        if is(&["onnx"]) && args.options.is_empty() {
            return Ok(spec.into());
        }
        let file = folder.join("model.onnx");
        let written = model::export_onnx(&file, &model.graph, &model.weights);
        written.map_err(Error::from).with_context(|| format!("{spec} as an ONNX file"))?;
        Ok(file)
    }
}

/// Measures a model, in batches of each size.
fn measured(
    bench: &mut Bench,
    args: &BenchArgs,
    setting: &Setting<'_>,
    files: &Files<'_>,
) -> anyhow::Result<()> {
    let many = args.replicate.is_of_many().then_some(true);
    let all = [false].into_iter().chain(many);
    let all = all.map(|on_many| Own::new(&Setting { on_many, ..*setting }));
    let mut own = all.collect::<anyhow::Result<Vec<Own>>>()?;
    // `--gpus 1` may be the model on one device.
    own.dedup_by_key(|own| own.name());
    for rows in &args.batch {
        let (mut runs, mut contestants): (Vec<Runs<'_>>, Vec<Contestant>) = (vec![], vec![]);
        for own in &mut own {
            let operations = own.set_rows(setting.model, *rows)?;
            contestants.push(Contestant::new(own.name(), Some(operations)));
            runs.push(Runs::Own(own));
        }
        for library in &args.against {
            let peer = Peer::start(&Asked {
                library: *library,
                python: &args.python,
                file: &files.of(*library, args)?,
                rows: *rows,
                threads: args.target.host_threads()?,
                train: args.trained()?,
            })?;
            let name = format!("{} {}", library.name(), peer.version);
            contestants.push(Contestant::new(name, None));
            runs.push(Runs::Peer(peer));
        }
        in_turn(args.rounds, &mut runs, &mut contestants)?;
        bench.cases.push(Case { model: files.spec.to_owned(), rows: *rows, contestants });
    }
    Ok(())
}

/// Runs everything in turn, so many rounds.
fn in_turn(
    rounds: u32,
    runs: &mut [Runs<'_>],
    contestants: &mut [Contestant],
) -> anyhow::Result<()> {
    let (done, total) = (AtomicU64::new(0), u64::from(rounds) * runs.len() as u64);
    let state = || (done.load(Ordering::Relaxed), total);
    watched("measuring", &state, || {
        let mut times = Vec::new();
        for own in &mut *runs {
            // The first runs take memory and build plans.
            own.run(2)?;
            let once = report::median(&own.run(1)?.seconds);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "RUNS")]
            times.push((ROUND / once.max(1e-9)).clamp(RUNS.0, RUNS.1) as u32);
        }
        for _ in 0..rounds {
            for ((own, times), contestant) in runs.iter_mut().zip(&times).zip(&mut *contestants) {
                contestant.add(&own.run(*times)?);
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    })
}

impl BenchArgs {
    /// What Keras is told of the training.
    fn trained(&self) -> anyhow::Result<Option<Value>> {
        let Some(loss) = self.train else { return Ok(None) };
        if loss.name().parse() != Ok(loss) {
            bail!("`--against` measures losses as Keras has them: leave out the settings");
        }
        let (name, settings) = self.optimizer.split_once(':').unwrap_or((&self.optimizer, ""));
        let pairs = settings.split(',').filter_map(|setting| setting.split_once('='));
        let settings: Map<String, Value> = pairs
            // A setting is a number, a truth or a word.
            .map(|(key, text)| (key.to_owned(), serde_json::from_str(text).unwrap_or(text.into())))
            .collect();
        Ok(Some(json!({ "loss": loss.name(), "optimizer": [name, settings] })))
    }
}

/// Keeps the process, with all that it starts, on so many of its processors; their numbers. None
/// where there are fewer, or the system has no such thing.
#[cfg(target_os = "linux")]
fn pinned(threads: usize) -> Vec<usize> {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    let Ok(own) = sched_getaffinity(None) else { return Vec::new() };
    let all = (0..CpuSet::MAX_CPU).filter(|core| own.is_set(*core));
    let cores: Vec<usize> = all.take(threads).collect();
    let mut kept = CpuSet::new();
    for core in &cores {
        kept.set(*core);
    }
    let is_kept = cores.len() == threads && sched_setaffinity(None, &kept).is_ok();
    if is_kept { cores } else { Vec::new() }
}

#[cfg(not(target_os = "linux"))]
fn pinned(_: usize) -> Vec<usize> {
    Vec::new()
}
