//! Wrong usage: what is reported where the arguments cannot be parsed.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::Command;
use clap::builder::StyledStr;
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
    let given = parsed_again(error, command, line);
    let error = given.as_ref().unwrap_or(error);
    let advised = advised(error, command);
    let error = advised.as_ref().unwrap_or(error);
    let unknown = unknown_command(error, command);
    if wants_json(line) {
        let text = unknown.or_else(|| no_number(error));
        let text = text.unwrap_or_else(|| error.render().to_string());
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

/// The argument that an error does not know.
fn unknown_argument(error: &clap::Error) -> Option<&str> {
    match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(given)) if error.kind() == ErrorKind::UnknownArgument => {
            Some(given)
        }
        _ => None,
    }
}

/// The error where a negative number is taken for the value that it was meant to be, and not for an
/// option.
fn parsed_again(error: &clap::Error, command: &Command, line: &[OsString]) -> Option<clap::Error> {
    let is_number = |word: &str| word.starts_with('-') && word.parse::<f64>().is_ok();
    let given = unknown_argument(error)?;
    let is_given = |word: &OsString| {
        let word = word.to_string_lossy();
        // Clap names a number by its first digit, as if it were a short option.
        is_number(&word) && word.starts_with(given)
    };
    let at = line.windows(2).position(|pair| is_named(&pair[0]) && is_given(&pair[1]))?;
    let [option, number] = [0, 1].map(|i| line[at + i].to_string_lossy().into_owned());
    let joined = format!("{option}={number}");
    let whole = [&line[..at], &[joined.clone().into()], &line[at + 2..]].concat();
    if let Err(next) = command.clone().try_get_matches_from(&whole) {
        return Some(parsed_again(&next, command, &whole).unwrap_or(next));
    }
    let text = format!("`{option} {number}`: write a negative value as `{joined}`");
    Some(command.clone().error(ErrorKind::InvalidValue, text))
}

/// Whether a word is an option by its long name, without a value.
fn is_named(word: &OsStr) -> bool {
    let word = word.to_string_lossy();
    word.starts_with("--") && !word.contains('=')
}

/// The error for an unknown option without the tip to write it as a value, which no option is.
fn advised(error: &clap::Error, command: &Command) -> Option<clap::Error> {
    unknown_argument(error)?;
    let mut told = clap::Error::new(error.kind()).with_cmd(command);
    for (kind, value) in error.context() {
        let ContextValue::StyledStrs(tips) = value else {
            told.insert(kind, value.clone());
            continue;
        };
        let is_kept = |tip: &&StyledStr| !tip.to_string().contains(" as a value, use ");
        let tips: Vec<StyledStr> = tips.iter().filter(is_kept).cloned().collect();
        // A list of none leaves its empty line.
        if !tips.is_empty() {
            told.insert(kind, ContextValue::StyledStrs(tips));
        }
    }
    Some(told)
}

/// The error for a value that is no whole number, of which Rust says only that a digit is wrong.
fn no_number(error: &clap::Error) -> Option<String> {
    const WRONG: &str = "invalid digit found in string";
    let text = error.render().to_string();
    let is_negative = text.starts_with("error: invalid value '-");
    let why = if is_negative {
        "it is not a whole number of at least 0; give one"
    } else {
        "it is not a whole number; give one"
    };
    text.contains(WRONG).then(|| text.replace(WRONG, why))
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
