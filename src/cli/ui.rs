//! What the commands print with: tables, sizes, errors.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use crate::types::{Hint, Setting};
use anyhow::Error;

/// The exit code of usage errors and bad input.
pub(crate) const BAD_INPUT: u8 = 2;

/// True if there was no standard output when the process began: what is written to it then goes
/// nowhere, without an error. A file that is opened in its place can be read, too, which one that
/// somebody chose cannot.
fn is_closed() -> bool {
    let name = Path::new("/proc/self/fd/1");
    let nowhere = name.read_link().is_ok_and(|to| to == Path::new("/dev/null"));
    let info = std::fs::read_to_string("/proc/self/fdinfo/1").unwrap_or_default();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    nowhere && flags.is_some_and(|flags| flags.trim().ends_with('2'))
}

/// Writes a result to standard output.
pub(crate) fn out(text: &str) -> anyhow::Result<()> {
    if is_closed() {
        anyhow::bail!("standard output is closed: nothing was printed");
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()?;
    Ok(())
}

/// So many rows, in words.
pub(crate) fn rows(count: impl fmt::Display) -> String {
    let count = count.to_string();
    let rows = if count == "1" { "row" } else { "rows" };
    format!("{count} {rows}")
}

/// Writes a remark to standard error; one that cannot be shown is dropped.
pub(crate) fn talk(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

/// Reports an error and gives the exit code for it.
pub(crate) fn report(error: &Error) -> ExitCode {
    let broken_pipe = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(broken_pipe) {
        return ExitCode::SUCCESS;
    }
    let mut text = String::new();
    let mut code = None;
    for cause in error.chain() {
        let found = cause.downcast_ref::<crate::Error>();
        let said = found.map_or_else(|| cause.to_string(), |e| e.worded(&hint));
        // Some errors repeat their cause.
        if !text.contains(&said) {
            text = if text.is_empty() { said } else { format!("{text}: {said}") };
        }
        // An error of the system is one of what cannot be printed.
        let io = || cause.is::<io::Error>().then_some("E0100");
        code = code.or_else(|| found.map(crate::Error::code).or_else(io));
        if found.is_some() {
            break;
        }
    }
    if let Some(code) = code.filter(|code| code.starts_with('R')) {
        text = format!("{text}\n   = note: `fanwise explain {code}` tells more");
    }
    // A diagnostic of the library begins with its own code.
    talk(&match code {
        _ if text.starts_with("error[") => text,
        Some(code) => format!("error[{code}]: {text}"),
        None => format!("error: {text}"),
    });
    ExitCode::from(BAD_INPUT)
}

/// A hint with the options of the command line, as a shell takes them.
pub(crate) fn hint(hint: &Hint) -> String {
    hint.worded(|setting, values| {
        let name = option(setting);
        let given: Vec<String> = values.iter().map(|v| format!("{name} {}", quoted(v))).collect();
        if values.is_empty() { name.to_owned() } else { given.join(" ") }
    })
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
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

/// Bytes for people: `1.5 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut value = n as f64;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A table with its columns aligned, the first to the left and the others to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |i: usize| {
        let cells = rows.iter().filter_map(|r| r.get(i)).map(|c| c.chars().count());
        cells.chain([head[i].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).enumerate().map(|(i, (cell, width))| {
            let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
            if i == 0 { format!("{cell}{pad}") } else { format!("{pad}{cell}") }
        });
        let text = cells.collect::<Vec<_>>().join("  ");
        text.trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut head.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Says which of the options, each with whether it is given, have no effect `here`.
pub(crate) fn note_idle(options: &[(&str, bool)], here: &str) {
    let given: Vec<String> =
        options.iter().filter(|(_, given)| *given).map(|(name, _)| format!("`{name}`")).collect();
    let (verb, names) = match given.as_slice() {
        [] => return,
        [one] => ("has", one.clone()),
        [first @ .., last] => ("have", format!("{} and {last}", first.join(", "))),
    };
    talk(&format!("note: {names} {verb} no effect {here}"));
}
