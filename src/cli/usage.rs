//! Wrong usage: what is reported where the arguments cannot be parsed.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::{report, ui};

/// Names that other programs give to commands of this one.
const ALSO_KNOWN: &[(&str, &str)] = &[
    ("train", "fit"),
    ("eval", "evaluate"),
    ("infer", "predict"),
    ("inference", "predict"),
    ("export", "compile"),
    ("convert", "compile"),
    ("list", "zoo"),
    ("models", "zoo"),
    ("info", "summary"),
    ("prove", "verify"),
];

/// Reports a usage error, or prints the help or the version that was asked for, and returns the
/// exit code.
pub(crate) fn report(error: &clap::Error, command: &Command, line: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        // There is nobody left to tell if the output is closed.
        drop(error.print());
        return ExitCode::SUCCESS;
    }
    let unknown = unknown_command(error, command);
    if wants_json(line) {
        let text = unknown.unwrap_or_else(|| error.render().to_string());
        // The usage and a pointer to the help follow, which programs have no use for.
        let text = text.split("\n\nUsage:").next().unwrap_or(&text);
        let text = text.split("\n\nFor more information").next().unwrap_or(text);
        let text = text.trim().trim_start_matches("error: ");
        ui::say(&report::object(None, text, &[]).to_string());
    } else if let Some(text) = unknown {
        ui::talk(&format!("error: {text}\n\nFor more information, try '--help'."));
    } else if let Some(text) = no_number(error) {
        ui::talk(&text);
    } else {
        drop(error.print());
    }
    ExitCode::from(report::BAD_INPUT)
}

/// The error for a value that is no whole number, of which Rust says only that a digit is wrong.
fn no_number(error: &clap::Error) -> Option<String> {
    let text = error.render().to_string();
    let is_no_number = text.contains("invalid digit found in string");
    is_no_number.then(|| {
        text.replace("invalid digit found in string", "it is not a whole number; give one")
    })
}

/// The error for a command that does not exist.
fn unknown_command(error: &clap::Error, command: &Command) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let known = ALSO_KNOWN.iter().find(|(other, _)| other.eq_ignore_ascii_case(given));
    let meant = known.map(|(_, own)| (*own).to_owned()).or_else(|| nearest(given, command));
    let meant = meant.map_or(String::new(), |own| format!("; did you mean `{own}`?"));
    Some(format!("unknown command `{given}`{meant}"))
}

/// The command whose name is most like the one that is given, if one is.
fn nearest(given: &str, command: &Command) -> Option<String> {
    const ALIKE: f64 = 0.8;
    let names = command.get_subcommands().map(|own| (own.get_name(), own.get_name()));
    let names = names.chain(ALSO_KNOWN.iter().copied());
    let given = given.to_lowercase();
    let rated = names.map(|(name, own)| (strsim::jaro_winkler(&given, name), own));
    let best = rated.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= ALIKE).then(|| best.1.to_owned())
}

/// Returns true if the arguments contain `--format json`.
pub(crate) fn wants_json(line: &[OsString]) -> bool {
    ui::value(line, "--format").is_some_and(|format| format == "json")
}
