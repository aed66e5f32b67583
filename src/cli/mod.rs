//! The command line of fanwise. Results go to standard output, everything else to standard error;
//! the exit code is 0, 1 if the answer is no, and 2 for wrong usage or bad input.

mod args;
mod bench;
mod cache;
mod check;
mod compare;
mod compile;
mod devices;
mod exec;
mod explain;
mod fit;
mod generate;
mod groups;
mod kept;
mod kernels;
mod lists;
mod paths;
mod replicate;
mod report;
mod run;
mod settle;
mod target;
mod test;
mod trace;
mod ui;
mod usage;
mod verify;
mod version;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Run one model on many GPUs without changing what it computes
///
/// MODEL is an ONNX or Keras file, a graph written by `fanwise compile --emit graph` or `--emit
/// json`, the folder of a checkpoint that `fanwise fit` wrote, or `zoo:NAME` for a built-in model.
#[derive(Parser)]
#[command(name = "fanwise", max_term_width = 110)]
#[command(after_help = "Examples:
  fanwise run zoo:mini_googlenet --gpus 4 --batch 64
  fanwise compile model.onnx --gpus 0,2 --emit graph
  fanwise check model.onnx --gpus 3 --batch 10

`fanwise explain CODE` says what the code of an error means and what to do.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: ui::GlobalArgs,
}

#[derive(Subcommand)]
enum Command {
    Compile(compile::CompileArgs),
    Run(run::RunArgs),
    Check(check::CheckArgs),
    Test(test::TestArgs),
    Bench(Box<bench::BenchArgs>),
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
    Completions(generate::CompletionsArgs),
    Man(generate::ManArgs),
}

/// The whole command line, with its options in groups.
fn command() -> clap::Command {
    let command = Cli::command().version(version::SHORT).long_version(version::long());
    groups::grouped(command.styles(ui::HELP))
}

/// Runs the command line with these arguments, the name of the program first, and returns its exit
/// code.
pub fn main<A: Into<OsString> + Clone>(args: impl IntoIterator<Item = A>) -> ExitCode {
    let line: Vec<OsString> = args.into_iter().map(Into::into).collect();
    // Usage errors are coloured, too: the choice is known before the options are read.
    ui::set_color(&line);
    let mut command = command();
    let matches = command.try_get_matches_from_mut(&line);
    let parsed = matches.and_then(|matches| Ok((Cli::from_arg_matches(&matches)?, matches)));
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return usage::report(&error, &command, &line),
    };
    cli.global.apply();
    let paths = matches.subcommand().map_or(Ok(()), |(_, of_command)| paths::check(of_command));
    let result = paths.and_then(|()| match &cli.command {
        Command::Compile(args) => compile::compile(args),
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::check(args),
        Command::Test(args) => test::test(args),
        Command::Bench(args) => bench::bench(args),
        Command::Fit(args) => fit::fit(args, &command, &line),
        Command::Evaluate(args) => fit::evaluate(args),
        Command::Predict(args) => fit::predict(args),
        Command::Verify(args) => verify::verify(args),
        Command::Explain(args) => explain::explain(args),
        Command::Summary(args) => lists::summary(args),
        Command::Devices(args) => devices::devices(args),
        Command::Cache(args) => cache::cache(args),
        Command::Passes(args) => lists::passes(args),
        Command::Zoo(args) => lists::zoo(args),
        Command::Completions(args) => generate::completions(args, &mut command),
        Command::Man(args) => generate::man(args, command.clone()),
    });
    result.unwrap_or_else(|error| report::report(&error, usage::wants_json(&line)))
}
