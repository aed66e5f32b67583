//! Wrong usage: what is reported where the arguments cannot be parsed.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::{report, ui};
use crate::types::closest;

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

/// Options that people look for, the option that a command must have, and what there is in their
/// place.
const INSTEAD: &[(&[&str], &str, &str)] = &[
    (&["--output", "--out", "-o"], "--outputs", "use `--outputs FILE`"),
    (&["--output", "--out", "-o"], "--save", "use `--save FILE` for the trained model"),
    (
        &["--output", "--out", "-o"],
        "--emit",
        "use `--emit KIND=PATH`, such as `--emit svg=graph.svg`",
    ),
    (&["--input", "--inputs", "-i"], "--data", "use `--data PATH`"),
    (&["--data", "--input", "-i"], "--inputs", "use `--inputs FILE`"),
    (&["--label", "--labels"], "--data", "name the labels `y` in the data"),
    (&["--lr", "--rate"], "--learning-rate", "use `--learning-rate RATE`"),
    (
        &["--weight-decay", "--decay"],
        "--optimizer",
        "use a setting of the optimizer, such as `--optimizer adamw:weight_decay=0.01`",
    ),
    (
        &["--momentum"],
        "--optimizer",
        "use a setting of the optimizer, such as `--optimizer sgd:momentum=0.9`",
    ),
    (
        &["--clipnorm", "--clip-norm"],
        "--optimizer",
        "use a setting of the optimizer, such as `--optimizer adam:clipnorm=1`",
    ),
    (
        &["--from-logits"],
        "--loss",
        "use a setting of the loss, such as \
            `--loss sparse_categorical_crossentropy:from_logits=true`",
    ),
    (&["--dropout"], "--epochs", "the dropout layers of the model decide; no option changes them"),
    (&["--batch-size", "-b"], "--batch", "use `--batch ROWS`"),
    (
        &["--device", "--devices", "--cuda"],
        "--gpus",
        "use `--gpus COUNT` for GPUs, or `--target cpu` for the CPU",
    ),
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
    let advised = advised(error, command, line);
    let error = advised.as_ref().unwrap_or(error);
    let unknown = unknown_command(error, command, line);
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

/// The command of a line.
fn of_line<'c>(command: &'c Command, line: &[OsString]) -> Option<&'c Command> {
    line.iter().skip(1).find_map(|word| command.find_subcommand(word))
}

/// The error for an unknown argument with what there is in its place. Left out are the tip of an
/// option that shares a few letters alone, and that to write it as a value, which no option is.
fn advised(error: &clap::Error, command: &Command, line: &[OsString]) -> Option<clap::Error> {
    let given = unknown_argument(error)?;
    let own = of_line(command, line);
    let advice = own.and_then(|own| instead(given, own, line));
    let tip = error.get(ContextKind::SuggestedArg).map(ToString::to_string);
    let misleads = tip.is_some_and(|tip| advice.is_some() || like(given, [&*tip]).is_none());
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
    if misleads {
        told.remove(ContextKind::SuggestedArg);
        // The usage shows the option of the tip as well.
        if let Some(own) = own {
            let usage = own.clone().render_usage();
            told.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
        }
    }
    if let Some(advice) = advice {
        told.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![advice.into()]));
    }
    Some(told)
}

/// What a command has in place of an argument that it does not know.
fn instead(given: &str, own: &Command, line: &[OsString]) -> Option<String> {
    let has = |option: &str| {
        own.get_arguments().any(|arg| arg.get_long().is_some_and(|long| option[2..] == *long))
    };
    if given.starts_with('-') {
        let mut known = INSTEAD.iter();
        let found = known.find(|(others, option, _)| others.contains(&given) && has(option));
        return found.map(|(_, _, advice)| (*advice).to_owned());
    }
    let at = line.iter().rposition(|word| word == given)?;
    let before = |back: usize| line.get(at.checked_sub(back)?)?.to_str();
    let file = report::quoted(given);
    if let (Some("--emit"), Some(kind)) = (before(2), before(1))
        && !kind.contains('=')
    {
        return Some(format!("write `--emit {kind}={file}`"));
    }
    let path = Path::new(given);
    if path.extension().is_none() && !path.exists() {
        return None;
    }
    if has("--data") && ui::value(line, "--data").is_some() {
        return Some("`--data` takes one path: name the folder of the images, or one file".into());
    }
    let option = ["--data", "--inputs"].into_iter().find(|option| has(option))?;
    Some(format!("name the file with `{option} {file}`"))
}

/// The one of some names that is most like the given one: spelled nearly as it is, or cut off.
fn like<'n>(given: &str, names: impl IntoIterator<Item = &'n str> + Clone) -> Option<&'n str> {
    // Of fewer letters many names are the beginning.
    const LEAST: usize = 3;
    let plain = |name: &str| name.trim_start_matches('-').to_ascii_lowercase();
    let wanted = plain(given);
    let is_cut = |name: &&str| {
        let name = plain(name);
        let least = name.len().min(wanted.len());
        least >= LEAST && (name.starts_with(&wanted) || wanted.starts_with(&name))
    };
    closest(given, names.clone()).or_else(|| names.into_iter().find(is_cut))
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
fn unknown_command(error: &clap::Error, command: &Command, line: &[OsString]) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    // `help` is asked about the commands of the program.
    let own = of_line(command, line).filter(|own| own.get_name() != "help");
    let (command, others) = own.map_or((command, ALSO_KNOWN), |own| (own, &[]));
    let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
    let pairs = names.iter().map(|name| (*name, *name)).chain(others.iter().copied());
    let meant = like(given, pairs.clone().map(|(name, _)| name));
    let meant = meant.and_then(|meant| pairs.clone().find(|(name, _)| *name == meant));
    Some(match meant {
        Some((_, meant)) => format!("unknown command `{given}`; did you mean `{meant}`?"),
        None => {
            format!("unknown command `{given}`\n\n  tip: the commands are {}", names.join(", "))
        }
    })
}

/// Returns true if the arguments contain `--format json`.
pub(crate) fn wants_json(line: &[OsString]) -> bool {
    ui::value(line, "--format").is_some_and(|format| format == "json")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::{advised, like, unknown_command};

    /// What is said of a line that cannot be parsed.
    fn said(line: &str) -> String {
        let line: Vec<OsString> = format!("fanwise {line}").split(' ').map(Into::into).collect();
        let mut command = crate::cli::command();
        let error = command.try_get_matches_from_mut(&line).unwrap_err();
        let unknown = unknown_command(&error, &command, &line);
        unknown.unwrap_or_else(|| {
            advised(&error, &command, &line).unwrap_or(error).render().to_string()
        })
    }

    #[test]
    fn options_of_other_programs_are_told_what_there_is_in_their_place() {
        for (line, tip) in [
            ("fit m --weight-decay 0.1", "such as `--optimizer adamw:weight_decay=0.01`"),
            ("fit m --weight-decay=0.1", "such as `--optimizer adamw:weight_decay=0.01`"),
            ("fit m --dropout 0.5", "the dropout layers of the model decide"),
            ("fit m --output m.fan", "use `--save FILE`"),
            ("compile m -o a.svg", "use `--emit KIND=PATH`"),
            ("predict m --input x.npy", "use `--data PATH`"),
            ("predict m --data x.npy -o y.npy", "use `--outputs FILE`"),
            ("run m --data x.npz", "use `--inputs FILE`"),
            ("fit m x.npz", "name the file with `--data x.npz`"),
            ("predict m --data 1.png 2.png", "name the folder"),
            ("compile m --emit svg a.svg", "write `--emit svg=a.svg`"),
            ("run m --gpu 2", "a similar argument exists: '--gpus'"),
            ("fit m --val x.npz", "a similar argument exists: '--validation'"),
        ] {
            let told = said(line);
            assert!(told.contains(tip), "{told}");
            assert_eq!(told.matches("tip: ").count(), 1, "{told}");
        }
        // An option that shares some letters alone is no tip, and not in the usage.
        let told = said("fit m --rates 3");
        assert!(!told.contains("tip: ") && told.contains("Usage: fanwise fit ["), "{told}");
    }

    #[test]
    fn commands_that_are_not_there_are_told_which_are() {
        for (line, meant) in
            [("fti m", "fit"), ("help fti", "fit"), ("comp", "compile"), ("cache claer", "clear")]
        {
            let told = said(line);
            assert!(told.ends_with(&format!("; did you mean `{meant}`?")), "{told}");
        }
        let told = said("xyz");
        assert!(told.contains("\n\n  tip: the commands are compile, run, "), "{told}");
        assert!(said("cache xyz").ends_with("the commands are list, clear, help"));
        assert_eq!(like("--metric", ["--gpus", "--metrics"]), Some("--metrics"));
        assert_eq!(like("--dropout", ["--drop-last"]), None);
    }
}
