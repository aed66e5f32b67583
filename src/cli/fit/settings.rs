//! The settings of a run as its checkpoint keeps them: what a run that goes on takes where it is
//! not told, and may not contradict.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf, absolute};

use crate::pass::{Loss, Optimizer};
use crate::train::data::Source;
use crate::train::{Checkpoint, Schedule};
use anyhow::{Context, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::args::{FitArgs, Settings};
use super::objective::Metrics;
use crate::cli::kept::{CLASSES, MODEL, named};
use crate::cli::{paths, ui};

/// Options of one run alone.
const OWN: &[&str] = &[
    "cache_dir",
    "checkpoint",
    "code",
    "color",
    "format",
    "help",
    "logical",
    "max_memory",
    "model",
    "profile",
    "quiet",
    "resume",
    "target",
    "threads",
    "timeline",
    "trace",
    "verbose",
    "watchdog",
];

/// Options that are taken where they are not given, and may be given anew: what follows from the
/// others is the same.
const FREE: &[&str] = &[
    "checkpoint_every",
    "data",
    "early_stopping",
    "epochs",
    "gpus",
    "keep",
    "log",
    "merge",
    "min_delta",
    "monitor",
    "normalize_by",
    "params",
    "patience",
    "plot",
    "recompute",
    "repair",
    "save",
    "shards",
    "tensorboard",
    "validation",
    "weights",
];

/// Options that name what is written.
const WRITTEN: &[&str] = &["log", "plot", "save", "tensorboard"];

/// Options that name data which are read.
const READ: &[&str] = &["data", "validation", "normalize_by"];

/// State besides options: the number of rows of the data, and their types.
const ROWS: &str = "rows of the data";

/// The command `fit` with its options.
fn own(all: &Command) -> anyhow::Result<Command> {
    all.find_subcommand(NAME).cloned().context("there is no command `fit`")
}

/// The name of the command.
const NAME: &str = "fit";

/// The options that a line gives to `fit`.
fn parsed(all: &Command, line: &[OsString]) -> anyhow::Result<ArgMatches> {
    let mut matches = all.clone().try_get_matches_from(line)?;
    let (_, matches) = matches.remove_subcommand().context("the line has no command")?;
    Ok(matches)
}

/// The values of an option as texts.
fn values(matches: &ArgMatches, id: &str) -> Vec<String> {
    // A run may go on from another working folder.
    let place = |text: &OsStr| absolute(text).unwrap_or_else(|_| text.into()).into_os_string();
    let file = id != MODEL && paths::names_path(id);
    let text = |raw: &OsStr| {
        let text = (if file { place(raw) } else { raw.to_owned() }).into_string().ok()?;
        Some(if id == MODEL { named(&text) } else { text })
    };
    matches.get_raw(id).into_iter().flatten().filter_map(text).collect()
}

/// Positional arguments, such as the model, belong to one run alone.
fn is_kept(arg: &Arg) -> bool {
    arg.get_long().is_some() && !OWN.contains(&arg.get_id().as_str())
}

/// The settings that a run is started with.
pub(super) fn of_this_run(
    all: &Command,
    line: &[OsString],
    kept: Option<&Settings>,
) -> anyhow::Result<Settings> {
    let command = own(all)?;
    let matches = parsed(all, &completed(all, line, kept)?)?;
    let found = command.get_arguments().filter(|arg| is_kept(arg) || arg.get_id() == MODEL);
    let found = found.map(|arg| {
        let id = arg.get_id().as_str();
        (id.to_owned(), values(&matches, id))
    });
    Ok(found.filter(|(_, values)| !values.is_empty()).collect())
}

/// The command line with the settings that it does not give.
fn completed(
    all: &Command,
    line: &[OsString],
    kept: Option<&Settings>,
) -> anyhow::Result<Vec<OsString>> {
    let mut line = line.to_vec();
    let Some(kept) = kept else { return Ok(line) };
    let (command, matches) = (own(all)?, parsed(all, &line)?);
    let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    // Of two options that exclude each other the one that is given stands.
    let other = |id: &str| match id {
        "validation" => given("validation_split"),
        "validation_split" => given("validation"),
        _ => false,
    };
    line.extend(kept.get(MODEL).into_iter().flatten().filter(|_| !given(MODEL)).map(Into::into));
    for arg in command.get_arguments().filter(|arg| is_kept(arg)) {
        let (id, name) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        if given(id) || other(id) {
            continue;
        }
        let flag = matches!(arg.get_action(), ArgAction::SetTrue);
        for value in kept.get(id).into_iter().flatten() {
            match (flag, value.as_str()) {
                (true, "true") => line.push(format!("--{name}").into()),
                (true, _) => {}
                (false, value) => line.push(format!("--{name}={value}").into()),
            }
        }
    }
    Ok(line)
}

/// Settings with what the data to train on are.
///
/// # Errors
/// If they are others than those of the run that goes on.
pub(super) fn with_data(
    mut settings: Settings,
    resume: Option<&Checkpoint>,
    source: &dyn Source,
) -> anyhow::Result<Settings> {
    let columns: Vec<String> =
        source.columns().iter().map(|c| format!("{} {}", c.name, c.row_type())).collect();
    let now = vec![format!("{} of {}", ui::rows(source.rows()), columns.join(", "))];
    let before = resume.and_then(|checkpoint| checkpoint.settings.get(ROWS));
    if let Some(before) = before.filter(|before| **before != now) {
        bail!(
            "the data is {}; that of the resumed run is {}; resume with the data of the run, or \
             start a new run without `--resume`",
            now[0],
            before.join("")
        );
    }
    settings.insert(ROWS.to_owned(), now);
    if !source.classes().is_empty() {
        settings.insert(CLASSES.to_owned(), source.classes().to_vec());
    }
    Ok(settings)
}

/// The names of the classes of the run to go on with, in the order of their numbers; none where
/// there are no names.
pub(super) fn classes(resume: Option<&Checkpoint>) -> &[String] {
    let kept = resume.and_then(|checkpoint| checkpoint.settings.get(CLASSES));
    kept.map_or(&[], Vec::as_slice)
}

/// Returns true if two option values are equivalent.
fn alike(a: &str, b: &str) -> bool {
    fn read<T: std::str::FromStr + PartialEq>(a: &str, b: &str) -> bool {
        a.parse::<T>().ok().zip(b.parse::<T>().ok()).is_some_and(|(a, b)| a == b)
    }
    a == b
        || read::<f64>(a, b)
        || read::<Optimizer>(a, b)
        || read::<Schedule>(a, b)
        || read::<Loss>(a, b)
        || read::<Metrics>(a, b)
}

/// Whether a file lies in the working folder or beside the checkpoint, is no link and not hidden:
/// others may not be written because a checkpoint, which may come from somebody else, names them.
fn is_near(file: &Path, checkpoint: &Path) -> bool {
    let Some((folder, name)) = file.parent().zip(file.file_name()) else { return false };
    let Ok(folder) = folder.canonicalize() else { return false };
    let beside = checkpoint.canonicalize().ok().and_then(|own| Some(own.parent()?.to_owned()));
    let here = Path::new(".").canonicalize().ok();
    let hidden = |name: &OsStr| name.as_encoded_bytes().starts_with(b".");
    let within =
        |near: &PathBuf| folder.strip_prefix(near).is_ok_and(|rest| !rest.iter().any(hidden));
    !hidden(name) && !file.is_symlink() && beside.iter().chain(&here).any(within)
}

/// Refuses another kind of validation than that of the run to go on with: the rows to train on
/// would be others.
fn check_validation(folder: &Path, kept: &Settings, matches: &ArgMatches) -> anyhow::Result<()> {
    for (id, other) in [("validation", "validation_split"), ("validation_split", "validation")] {
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        // A share of 0 is no validation, which contradicts nothing.
        let holds = |values: &&Vec<String>| !values.iter().all(|value| alike(value, "0"));
        let Some(before) = kept.get(other).filter(holds).filter(|_| given) else { continue };
        let long = |id: &str| id.replace('_', "-");
        let (now, before, folder) =
            (values(matches, id).join(","), before.join(","), folder.display());
        bail!(
            "`--{} {now}` contradicts the run in {folder}, which has `--{} {before}`: it would \
             train on other rows; leave `--{}` out to resume, or start a new run without \
             `--resume`",
            long(id),
            long(other),
            long(id)
        );
    }
    Ok(())
}

/// Refuses to go on without data that only the checkpoint names.
fn check_data(folder: &Path, kept: &Settings, matches: &ArgMatches) -> anyhow::Result<()> {
    for id in READ {
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        let mut files = kept.get(*id).into_iter().flatten();
        let Some(file) = files.find(|file| !given && !Path::new(file).exists()) else { continue };
        let (name, folder) = (id.replace('_', "-"), folder.display());
        bail!(
            "the run in {folder} has `--{name} {file}`, which is not there any more; put it back, \
             or name it where it is with `--{name} FILE`"
        );
    }
    Ok(())
}

/// The line without a MODEL that is the folder of the run itself: its checkpoint names the model.
pub(super) fn without_itself(
    all: &Command,
    line: &[OsString],
    folder: &Path,
) -> anyhow::Result<Vec<OsString>> {
    let whole = || line.to_vec();
    let matches = parsed(all, line)?;
    let Some(model) = matches.get_raw(MODEL).and_then(|mut of| of.next()) else {
        return Ok(whole());
    };
    let place = |path: &Path| path.canonicalize().ok();
    if place(folder).is_none() || place(Path::new(model)) != place(folder) {
        return Ok(whole());
    }
    // The folder may be named twice; without the MODEL the line is still one of this run.
    let without = |at: usize| [&line[..at], &line[at + 1..]].concat();
    let is_it = |line: &Vec<OsString>| {
        let of = parsed(all, line).ok();
        of.is_some_and(|of| of.get_raw(MODEL).is_none() && of.get_raw("resume").is_some())
    };
    let all = (0..line.len()).filter(|at| line[*at] == *model).map(without);
    Ok(all.into_iter().find(is_it).unwrap_or_else(whole))
}

/// The options of a run that goes on from a checkpoint with these settings.
///
/// # Errors
/// If an option contradicts them, or they name a file to write that lies elsewhere.
pub(super) fn resumed(
    all: &Command,
    line: &[OsString],
    folder: &Path,
    kept: &Settings,
) -> anyhow::Result<FitArgs> {
    let (command, matches) = (own(all)?, parsed(all, line)?);
    for name in WRITTEN {
        let given = matches.value_source(name) == Some(ValueSource::CommandLine);
        let mut files = kept.get(*name).into_iter().flatten();
        if let Some(file) = files.find(|file| !given && !is_near(Path::new(file), folder)) {
            bail!(
                "the run in {} has `--{name} {file}`, which is not a regular file in this folder \
                 or beside the checkpoint; give `--{name}` again to write there",
                folder.display()
            );
        }
    }
    check_validation(folder, kept, &matches)?;
    check_data(folder, kept, &matches)?;
    for arg in command.get_arguments().filter(|arg| is_kept(arg)) {
        let (id, name) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        let given = matches.value_source(id) == Some(ValueSource::CommandLine);
        if !given || FREE.contains(&id) || kept.is_empty() {
            continue;
        }
        let (now, before) = (values(&matches, id), kept.get(id).cloned().unwrap_or_default());
        let one_by_one =
            now.len() == before.len() && now.iter().zip(&before).all(|(a, b)| alike(a, b));
        // What is given several times may as well be given at once, behind commas.
        if one_by_one || alike(&now.join(","), &before.join(",")) {
            continue;
        }
        let before = match before[..] {
            [] => "none".to_owned(),
            _ => format!("`--{name} {}`", before.join(",")),
        };
        let (now, folder) = (now.join(","), folder.display());
        bail!(
            "`--{name} {now}` contradicts the run in {folder}, which has {before}; leave it out to \
             resume, or start a new run without `--resume`"
        );
    }
    let matches = parsed(all, &completed(all, line, Some(kept))?)?;
    paths::check(&matches)?;
    Ok(FitArgs::from_arg_matches(&matches)?)
}
