//! `fanwise compile`: a model in, the forms of its rewritten graph out.

mod emit;
mod step;

use std::collections::HashSet;
use std::path::Path;
use std::process::ExitCode;

use crate::Error;
use crate::analysis::Refused;
use crate::backend;
use crate::backend::cuda::InFlight;
use crate::backend::{CPU, CUDA};
use crate::codegen::{Arch, CodeFormat};
use crate::format;
use crate::ir::picture;
use crate::ir::{self, Graph, Param, Weights};
use crate::model::{self, GraphForm, Model};
use crate::pass;
use crate::types::{Note, Quoted};
use crate::{analysis, lower};
use anyhow::{Context, bail};
use clap::Args;

use crate::cli::args::{BatchArgs, ModelArgs, show};
use crate::cli::fit::{ObjectiveArgs, OptimizerArgs};
use crate::cli::kernels::{self, Kernels};
use crate::cli::replicate::{AvailableDevices, ReplicateArgs, Replicated};
use crate::cli::target::{CacheArgs, TargetArg};
use crate::cli::trace::PlanForm;
use crate::cli::{exec, ui};

use emit::{Emit, Kind, Shown};
use step::{Parts, Step};

/// Rewrite a model for many devices and write the result
#[derive(Args)]
#[command(after_help = "Kinds:
  graph           rewritten graph as text; every command reads it back
  graph:input     graph before the pass
  graph:repaired  graph after the repairs, before replication
  claims          sharding state of each value: split by rows, partial or replicated
  explain         what was split, replicated, combined and repaired, in words
  json            rewritten graph for programs
  dot             rewritten graph for Graphviz
  svg             picture of the rewritten graph by layer; svg:operators by operator
  html            the same as a page that zooms, searches, unfolds and tells; html:operators
  program         launches, copies and waits of each device
  memory          memory plan of each device for --batch rows; memory=FILE.svg is a picture
  timeline        picture of the order in which devices work; timeline=FILE.html is a page
  cuda            source of the GPU kernels; PATH is a folder
  ptx             PTX of the GPU kernels for --arch; no GPU is needed
  cubin           machine code of the GPU kernels; without PATH, a table of their resources
  summary         model as a table
  onnx            model before any pass as an ONNX file; PATH is required
  KIND:training   graph, json, dot, svg, html, program, memory, timeline, cuda, ptx
                  or cubin of a training step: the model, --loss, gradients and --optimizer,
                  replicated over --gpus

Examples:
  fanwise compile zoo:xception --gpus 8 --emit graph
  fanwise compile model.onnx --gpus 3 --shards balanced --emit graph=out.fan,program
  fanwise compile zoo:mlp --emit graph:training,memory:training --loss mse --optimizer adam --gpus 2
  fanwise compile zoo:mlp --emit onnx=mlp.onnx
  fanwise compile zoo:mlp --gpus 2 --emit dot | dot -Tsvg > mlp.svg
  fanwise compile zoo:xception --gpus 8 --emit svg=xception.svg,html=xception.html
  fanwise compile zoo:xception --gpus 8 --batch 64 --emit memory=arena.svg,timeline=plan.html
  fanwise compile zoo:xception --gpus 4 --target cuda --arch sm_90a --emit cuda=DIR,cubin=DIR")]
pub(crate) struct CompileArgs {
    /// What to write, to standard output or to a file; see Kinds below
    /// [default: explain with `--gpus`, otherwise summary]
    #[arg(long, value_name = "KIND[=PATH]", value_delimiter = ',')]
    emit: Vec<Emit>,
    #[command(flatten)]
    batch: BatchArgs,
    /// Omit the table of source locations from graphs
    #[arg(long)]
    no_loc: bool,
    /// Write equal replicas of `--emit graph` once; every command reads that back, too
    #[arg(long)]
    fold: bool,
    #[command(flatten)]
    replicate: ReplicateArgs,
    /// Target to compile for [default: cuda if kernels are emitted, otherwise cpu]
    #[arg(long, value_enum)]
    target: Option<TargetArg>,
    /// GPU architecture to compile kernels for, such as `sm_90a` [default: that of the first GPU]
    #[arg(long, value_name = "ARCH")]
    arch: Option<Arch>,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    objective: ObjectiveArgs,
    #[command(flatten)]
    optimizer: OptimizerArgs,
    #[command(flatten)]
    model: ModelArgs,
}

impl CompileArgs {
    /// The target of compilation.
    fn kernels(&self) -> &'static dyn lower::Kernels {
        let kernels = || self.emit.iter().any(|e| matches!(e.kind, Kind::Kernels(_)));
        match self.target {
            Some(TargetArg::Cuda) => &CUDA,
            // Kernels are only CUDA's; asking for them names the target.
            Some(TargetArg::Auto) | None if kernels() => &CUDA,
            // Both are refused before.
            Some(TargetArg::Auto | TargetArg::Cpu | TargetArg::Both) | None => &CPU,
        }
    }

    /// A step of training.
    fn step(&self) -> anyhow::Result<Step> {
        let Self { model, objective, optimizer, replicate, .. } = self;
        Step::of(&Parts { model, objective, optimizer, replicate, place: self.place() })
    }

    /// Says which options have no effect on what is emitted.
    fn note_idle(&self, emits: &[Emit]) {
        let has = |wanted: fn(&Emit) -> bool| emits.iter().any(wanted);
        if !has(|e| e.training) {
            let mut given = self.objective.given();
            given.extend(self.optimizer.given());
            ui::note_idle(&given, "without `--emit KIND:training`");
        }
        let given = [("--learning-rate", self.optimizer.has_rate())];
        ui::note_idle(&given, "here: the learning rate is an input of the step");
        // The text of kernels depends on no architecture and is not cached.
        let compiled = has(|e| matches!(e.kind, Kind::Kernels(Kernels::Compiled(_))));
        let given = [("--cache-dir", self.cache.is_given()), ("--arch", self.arch.is_some())];
        let given = given.map(|(name, given)| (name, given && !compiled));
        ui::note_idle(&given, "without `--emit ptx` or `--emit cubin`");
        let planned = has(|e| matches!(e.kind, Kind::Memory | Kind::Timeline));
        let given = [("--batch", self.batch.is_given() && !planned)];
        ui::note_idle(&given, "without `--emit memory` or `--emit timeline`");
        let locations = has(|e| {
            use Kind::{Graph, GraphInput, GraphRepaired};
            matches!(e.kind, Graph | GraphInput | GraphRepaired) && e.path.is_none()
        });
        let given = [("--no-loc", self.no_loc && !locations)];
        ui::note_idle(&given, "without `--emit graph` to standard output");
        let given = [("--fold", self.fold && !has(|e| e.kind == Kind::Graph))];
        ui::note_idle(&given, "without `--emit graph`");
    }

    /// The GPUs that the graph is replicated over: any number where it is compiled for another
    /// machine.
    fn place(&self) -> AvailableDevices {
        // With an explicit target the graph may be for another machine: no GPU is looked for.
        let found = if self.target.is_some() { 0 } else { backend::gpu_count() };
        AvailableDevices { found, cuda: self.kernels().target() == lower::Kernels::target(&CUDA) }
    }
}

pub(crate) fn compile(args: &CompileArgs) -> anyhow::Result<ExitCode> {
    if args.target == Some(TargetArg::Both) {
        bail!("a program is of one target: use `--target cpu` or `--target cuda`");
    }
    let usual = if args.replicate.is_of_many() { Kind::Explain } else { Kind::Summary };
    let usual = [Emit { kind: usual, training: false, path: None }];
    let emits = if args.emit.is_empty() { &usual[..] } else { &args.emit };
    let model = args.model.load_open()?;
    let template = &model.graph;
    // These show the model as it was given, also one that may not be split.
    let before = |e: &Emit| {
        e.training || matches!(e.kind, Kind::GraphInput | Kind::Summary | Kind::Claims | Kind::Onnx)
    };
    let at_numbers = if emits.iter().all(before) {
        Replicated::of_one(template)
    } else {
        args.replicate.apply(&args.model, template, args.place())?
    };
    let symbolic = match model.open_sizes().next() {
        Some(_) => Symbolic::of(args, emits, &model, &at_numbers),
        None => Symbolic::default(),
    };
    let shown = match &symbolic.split {
        Some(split) => Some(args.replicate.apply_like(
            &args.model,
            &split.graph,
            &at_numbers,
            args.place().cuda,
        )?),
        None => None,
    };
    let trained = emits.iter().any(|emit| emit.training).then(|| args.step()).transpose()?;
    args.note_idle(emits);
    for emit in emits {
        let model = symbolic.of_kind(emit).unwrap_or(&model);
        let replicated = shown.as_ref().filter(|_| emit.shows() == Some(Shown::Split));
        let replicated = replicated.unwrap_or(&at_numbers);
        let step = trained.as_ref().filter(|_| emit.training);
        let (graph, weights) = match step {
            Some(step) => (&step.graph, &step.weights),
            None => (&*replicated.graph, &model.weights),
        };
        write_kind(args, emit, &Made { template: &model.graph, replicated, step, graph, weights })?;
    }
    // The process ends: the system takes its memory back sooner than it is freed piece by piece.
    std::mem::forget((at_numbers, trained, shown));
    std::mem::forget((model, symbolic));
    Ok(ExitCode::SUCCESS)
}

/// The graphs of which a kind is written.
struct Made<'a> {
    /// The model as it was given.
    template: &'a Graph,
    /// What became of it on the devices.
    replicated: &'a Replicated<'a>,
    /// The step of training, where one is asked for.
    step: Option<&'a Step>,
    /// The replicas, or a step of training on the devices.
    graph: &'a Graph,
    weights: &'a Weights,
}

/// Writes one kind.
fn write_kind(args: &CompileArgs, emit: &Emit, made: &Made<'_>) -> anyhow::Result<()> {
    let Made { template, replicated, step, graph, weights } = *made;
    match emit.kind {
        Kind::GraphInput => write_graph(args, emit, template, weights),
        Kind::GraphRepaired => write_graph(args, emit, &replicated.template, weights),
        Kind::Claims => {
            let repaired = args.replicate.repaired(template)?.into_graph();
            write(emit, &pass::claims_text(&repaired).map_err(Error::from)?)
        }
        Kind::Explain => {
            let Replicated { template, repairs, graph } = replicated;
            write(emit, &pass::report(template, repairs, graph).map_err(Error::from)?)
        }
        Kind::Graph | Kind::Json => write_graph(args, emit, graph, weights),
        Kind::Summary => {
            write(emit, &analysis::summary(template).map_err(Error::from)?.to_string())
        }
        Kind::Onnx => write_onnx(emit, template, weights),
        Kind::Dot => write(emit, &ir::to_dot(graph)),
        Kind::Svg(level) => write(emit, &picture::to_svg(graph, level)),
        Kind::Html(level) => {
            let claims = match step {
                Some(step) => step.claims()?,
                None => pass::claims_by_name(&replicated.template).map_err(Error::from)?,
            };
            write(emit, &picture::to_html(graph, level, &claims))
        }
        Kind::Program | Kind::Memory | Kind::Timeline | Kind::Kernels(_) => {
            write_program(args, emit, graph)
        }
    }
}

/// The models whose open sizes are symbols, for people to read.
#[derive(Default)]
struct Symbolic {
    /// For what shows the model alone.
    model: Option<Model>,
    /// For what shows its split as well, which is that of the model at the stated numbers.
    split: Option<Model>,
}

impl Symbolic {
    /// Makes those that `emits` show.
    fn of(args: &CompileArgs, emits: &[Emit], model: &Model, replicated: &Replicated<'_>) -> Self {
        let refused = |graph: &Graph| -> Result<Option<String>, String> {
            let repaired = args.replicate.repaired(graph).map_err(|e| e.to_string())?;
            let graph = repaired.graph();
            let map = analysis::survey(graph).map_err(|e| e.to_string())?;
            let shown = |Refused { node, refusal, .. }: &Refused| {
                let label = Quoted(graph.node(*node).label());
                format!("what is split depends on its number at {label}: {}", refusal.reason)
            };
            Ok(map.refused().first().map(shown))
        };
        let readable = |graph: &Graph| found_again(graph, &model.graph);
        let usable = |graph: &Graph| {
            readable(graph)?;
            if let Some(reason) = refused(graph)?
                && refused(&model.graph)?.is_none()
            {
                return Err(reason);
            }
            let applied =
                args.replicate.apply_like(&args.model, graph, replicated, args.place().cuda);
            let applied = applied.map_err(|e| e.to_string())?;
            let made = |replicated: &Replicated<'_>| -> Vec<_> {
                let repairs = replicated.repairs.iter();
                repairs.map(|repair| (repair.code, repair.label.clone())).collect()
            };
            if made(&applied) != made(replicated) {
                return Err("the repairs depend on its number".to_owned());
            }
            Ok(())
        };
        let shows = |shown| emits.iter().any(|emit| emit.shows() == Some(shown));
        let made =
            |shown, usable| if shows(shown) { model.symbolic(usable) } else { (None, vec![]) };
        let (split, mut notes) = made(Shown::Split, &usable);
        let (alone, others) = made(Shown::Model, &readable);
        let others: Vec<Note> = others.into_iter().filter(|note| !notes.contains(note)).collect();
        notes.extend(others);
        let symbolic = Self { model: alone, split };
        if emits.iter().any(|emit| symbolic.of_kind(emit).is_none()) {
            show(&model.stated());
        }
        show(&notes);
        symbolic
    }

    /// The one that a kind is written of.
    fn of_kind(&self, emit: &Emit) -> Option<&Model> {
        match emit.shows()? {
            Shown::Model => self.model.as_ref(),
            Shown::Split => self.split.as_ref(),
        }
    }
}

/// Fails if a graph with symbols has a parameter that was computed from others and that the graph
/// at the stated numbers has not: what is printed could not be read back.
fn found_again(graph: &Graph, at_numbers: &Graph) -> Result<(), String> {
    let folded = |param: &&Param| param.source.is_folded();
    let found = |param: &Param| (param.source.key.clone(), param.hash.0);
    let known: HashSet<_> = at_numbers.params().iter().filter(folded).map(found).collect();
    match graph.params().iter().filter(folded).find(|param| !known.contains(&found(param))) {
        None => Ok(()),
        Some(param) => {
            let name = Quoted(&param.name);
            Err(format!("what is computed before the run depends on its number at {name}"))
        }
    }
}

/// Writes a graph to standard output, or with its weights to a file.
fn write_graph(
    args: &CompileArgs,
    emit: &Emit,
    graph: &Graph,
    weights: &Weights,
) -> anyhow::Result<()> {
    let text = if args.fold { GraphForm::Folded } else { GraphForm::Text };
    let form = if emit.kind == Kind::Json { GraphForm::Json } else { text };
    if let Some(path) = &emit.path {
        return Ok(model::save(path, graph, weights, form).map_err(Error::from)?);
    }
    let text = || ir::Printer { locations: !args.no_loc }.print(graph);
    match form {
        GraphForm::Json => ui::out(&ir::to_json(graph)),
        GraphForm::Text => ui::out(&text()),
        GraphForm::Folded => ui::out(&ir::folded(&text())),
    }
}

/// Writes the model, before any pass, as an ONNX file.
fn write_onnx(emit: &Emit, template: &Graph, weights: &Weights) -> anyhow::Result<()> {
    let path = emit.path.as_ref().context("`--emit onnx` requires a file: `--emit onnx=FILE`")?;
    Ok(model::export_onnx(path, template, weights).map_err(Error::from)?)
}

/// Lowers the graph and writes the program, its memory plan, its timeline or its kernels.
fn write_program(args: &CompileArgs, emit: &Emit, graph: &Graph) -> anyhow::Result<()> {
    let verified = ir::verify(graph).map_err(Error::from)?;
    let lower = || lower::lower(&verified, args.kernels());
    let program = ui::stage("lower", lower).map_err(Error::from)?;
    if let Kind::Kernels(what) = emit.kind {
        let is_wanted = |form| {
            let kind = Kind::Kernels(Kernels::Compiled(form));
            args.emit.iter().any(|e| e.kind == kind && e.training == emit.training)
        };
        // Both forms come from one compilation.
        let both = is_wanted(CodeFormat::Ptx) && is_wanted(CodeFormat::Cubin);
        let options = kernels::For { arch: args.arch, cache: &args.cache, both };
        return kernels::emit(&program, what, emit.path.as_deref(), &options);
    }
    if emit.kind == Kind::Program {
        return write(emit, &program.to_string());
    }
    let rows = i64::from(args.batch.batch);
    exec::note_empty(graph, rows);
    let bound = program.bind(rows).map_err(Error::from)?;
    let chart = || {
        if emit.kind == Kind::Timeline {
            lower::picture::timeline::plan(&program, &bound)
        } else {
            lower::picture::memory(&program, &bound)
        }
    };
    let text = match emit.form()? {
        PlanForm::Svg => chart().to_svg(),
        PlanForm::Html => chart().to_html(),
        PlanForm::Table => {
            let mut text = bound.report(&program).to_string();
            if args.place().cuda {
                text += &InFlight { program: &program, bound: &bound }.to_string();
            }
            text
        }
    };
    write(emit, &text)
}

/// Writes a text where it is wanted.
fn write(emit: &Emit, text: &str) -> anyhow::Result<()> {
    match &emit.path {
        None => ui::out(text),
        Some(path) => write_file(path, text),
    }
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut text = text.to_owned();
    // Files end as what is printed does: with a newline.
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(format::write_text(path, &text).map_err(Error::from)?)
}

#[cfg(test)]
mod picture_tests;
