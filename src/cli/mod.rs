//! The command line of fanwise. Results go to standard output, talk to standard error; the exit
//! code is 0, 1 where the answer is no, 2 for usage or bad input.

mod args;
mod cache;
mod check;
mod compile;
mod devices;
mod exec;
mod explain;
mod fit;
mod kernels;
mod lists;
mod memory;
mod run;
mod target;
mod ui;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Runs one model on many GPUs without changing what it computes.
///
/// MODEL is an ONNX file, a graph that `fanwise compile --emit graph` or `--emit json` wrote, or
/// `zoo:NAME`.
#[derive(Parser)]
#[command(name = "fanwise", version, max_term_width = 110)]
#[command(after_help = "Examples:
  fanwise run zoo:mini_googlenet --gpus 4 --batch 64
  fanwise compile model.onnx --gpus 0,2 --emit graph
  fanwise check model.onnx --gpus 3 --batch 10")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Compile(compile::CompileArgs),
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Fit(Box<fit::FitArgs>),
    Evaluate(fit::EvaluateArgs),
    Predict(fit::PredictArgs),
    Verify(verify::VerifyArgs),
    Explain(explain::ExplainArgs),
    Summary(lists::SummaryArgs),
    Devices(devices::DevicesArgs),
    Cache(cache::CacheCommand),
    Passes(lists::PassesArgs),
    Zoo(lists::ZooArgs),
}

/// Runs the command line with these arguments, the name of the program first, and gives its exit
/// code. Wrong usage ends the process.
pub fn main<A: Into<OsString> + Clone>(args: impl IntoIterator<Item = A>) -> ExitCode {
    let cli = Cli::parse_from(args);
    let result = match &cli.command {
        Command::Compile(args) => compile::compile(args),
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::check(args),
        Command::Fit(args) => fit::fit(args),
        Command::Evaluate(args) => fit::evaluate(args),
        Command::Predict(args) => fit::predict(args),
        Command::Verify(args) => verify::verify(args),
        Command::Explain(args) => explain::explain(args),
        Command::Summary(args) => lists::summary(args),
        Command::Devices(args) => devices::devices(args),
        Command::Cache(args) => cache::cache(args),
        Command::Passes(args) => lists::passes(args),
        Command::Zoo(args) => lists::zoo(args),
    };
    result.unwrap_or_else(|error| ui::report(&error))
}
