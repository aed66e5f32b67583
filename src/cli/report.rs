//! Error reports, as text or as JSON.

use std::io;
use std::process::ExitCode;

use anyhow::Error;
use serde_json::{Value, json};

use crate::cli::ui;
use crate::format;
use crate::pass::PassError;
use crate::types::{Diagnostic, Hint, Setting};

/// The exit code of usage errors and bad input.
pub(crate) const BAD_INPUT: u8 = 2;

/// An error, taken apart.
#[derive(Default)]
struct Parts {
    code: Option<&'static str>,
    /// The message, as text with its hints.
    text: String,
    /// The message alone.
    message: String,
    hints: Vec<Hint>,
}

impl Parts {
    fn of(error: &Error) -> Self {
        let mut parts = Self::default();
        for cause in error.chain() {
            let found = cause.downcast_ref::<crate::Error>();
            let of_system = cause.downcast_ref::<io::Error>().map(format::said);
            let plain = of_system.unwrap_or_else(|| cause.to_string());
            let said = found.map_or_else(|| plain.clone(), |e| e.worded(&hint));
            add(&mut parts.text, &said);
            // The hints of a refusal stand beside each of its operators.
            let refused = found.is_some_and(|e| !refusal_hints(e).is_empty());
            add(&mut parts.message, if refused { &said } else { &plain });
            // An error of the system names a file that cannot be written or read.
            let io = || cause.is::<io::Error>().then_some("E0100");
            parts.code = parts.code.or_else(|| found.map(Diagnostic::code).or_else(io));
            if let Some(found) = found {
                parts.hints = refusal_hints(found);
                parts.hints.extend(found.hints());
                break;
            }
        }
        parts
    }
}

/// Adds a cause to a message. Some errors repeat their cause.
fn add(text: &mut String, cause: &str) {
    if text.is_empty() {
        cause.clone_into(text);
    } else if !text.contains(cause) {
        text.push_str(": ");
        text.push_str(cause);
    }
}

/// The hints of a model that cannot be split, those of the first operator first.
fn refusal_hints(error: &crate::Error) -> Vec<Hint> {
    use crate::Error::{Model, Pass};
    use crate::model::ModelError;

    if let Pass(PassError::Refused(refused))
    | Model(ModelError::Pass(PassError::Refused(refused))) = error
    {
        return refused.iter().flat_map(crate::pass::SplitRefused::hints).collect();
    }
    Vec::new()
}

/// Reports an error and returns its exit code.
pub(crate) fn report(error: &Error, as_json: bool) -> ExitCode {
    if ui::is_unread(error) {
        return ExitCode::SUCCESS;
    }
    let Parts { code, mut text, message, hints } = Parts::of(error);
    if as_json {
        // A diagnostic of the library begins with its own code.
        let prefix = code.map_or(String::new(), |code| format!("error[{code}]: "));
        let message = message.strip_prefix(&prefix).unwrap_or(&message);
        ui::say(&object(code, message, &hints).to_string());
        return ExitCode::from(BAD_INPUT);
    }
    // Codes of refusals have a page of their own in `explain`.
    if let Some(code) = code.filter(|code| code.starts_with('R')) {
        text = format!("{text}\n   = note: see `fanwise explain {code}`");
    }
    ui::talk(&match code {
        _ if text.starts_with("error[") => text,
        Some(code) => format!("error[{code}]: {text}"),
        None => format!("error: {text}"),
    });
    ExitCode::from(BAD_INPUT)
}

/// The characters of an error in one line.
const LINE: usize = 300;

/// An error in one line, with its code and without its hints.
pub(crate) fn line(error: &Error) -> String {
    let Parts { code, text, .. } = Parts::of(error);
    let lines = text.lines().map(str::trim).take_while(|line| !line.starts_with("= "));
    let said = lines.collect::<Vec<_>>().join(" ");
    let mut line = match code {
        Some(code) if !said.starts_with("error[") => format!("error[{code}]: {said}"),
        _ => said,
    };
    if let Some((cut, _)) = line.char_indices().nth(LINE) {
        line.truncate(cut);
        line.push('…');
    }
    line
}

/// An error as programs read it.
pub(crate) fn object(code: Option<&str>, message: &str, hints: &[Hint]) -> Value {
    let hints: Vec<Value> = hints
        .iter()
        .map(|hint| {
            let advice = hint.worded(written);
            match hint.change() {
                None => json!({ "advice": advice }),
                Some((setting, values)) => json!({
                    "advice": advice,
                    "setting": key(setting),
                    "option": option(setting),
                    "values": values,
                }),
            }
        })
        .collect();
    json!({ "error": { "code": code, "message": message, "hints": hints } })
}

/// A hint with the options of the command line, as a shell takes them.
pub(crate) fn hint(hint: &Hint) -> String {
    hint.worded(written)
}

/// A setting with its values as a shell takes them.
pub(crate) fn written(setting: Setting, values: &[String]) -> String {
    let name = option(setting);
    let given: Vec<String> = values.iter().map(|v| format!("{name} {}", quoted(v))).collect();
    if values.is_empty() { name.to_owned() } else { given.join(" ") }
}

/// A word as a shell takes it.
pub(crate) fn quoted(word: &str) -> String {
    // What no shell gives a meaning; everything else is quoted.
    let plain = |c: char| c.is_alphanumeric() || "-_=.,:/@+%".contains(c);
    if word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The option of the command line for a setting of the library.
pub(crate) fn option(setting: Setting) -> &'static str {
    match setting {
        Setting::BatchAxis => "--batch-axis",
        Setting::Dim => "--dim",
        Setting::Set => "--set",
        Setting::FreeBatch => "--free-batch",
        Setting::Assume => "--assume",
        Setting::Params => "--params",
        Setting::ParamsUnchecked => "--params-unchecked",
        Setting::MaxMemory => "--max-memory",
        Setting::Template => "--template",
        Setting::InputGraph => "--emit graph:input",
        Setting::Devices => "--gpus",
        Setting::Repair => "--repair",
        Setting::BatchNorm => "--batch-norm",
        Setting::LogicalDevices => "--logical",
        Setting::Target => "--target",
    }
}

/// The name of a setting in JSON, which stays as it is.
fn key(setting: Setting) -> &'static str {
    match setting {
        Setting::BatchAxis => "batch_axis",
        Setting::Dim => "dims",
        Setting::Set => "set",
        Setting::FreeBatch => "free_batch",
        Setting::Assume => "assume",
        Setting::Params => "params",
        Setting::ParamsUnchecked => "params_unchecked",
        Setting::MaxMemory => "max_memory",
        Setting::Template => "template",
        Setting::InputGraph => "input_graph",
        Setting::Devices => "devices",
        Setting::Repair => "repair",
        Setting::BatchNorm => "batch_norm",
        Setting::LogicalDevices => "logical",
        Setting::Target => "target",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_an_option_and_a_key() {
        let mut keys = std::collections::BTreeSet::new();
        for setting in Setting::ALL {
            let name = option(setting);
            assert!(name.starts_with("--"), "{setting:?}");
            let given = Hint::set(setting, ["X"], "change it");
            assert_eq!(hint(&given), format!("change it (`{name} X`)"));
            assert_eq!(
                hint(&Hint::turn_on(setting, "turn it on")),
                format!("turn it on (`{name}`)")
            );
            assert!(keys.insert(key(setting)), "{setting:?}: its key is that of another setting");
        }
    }
}
