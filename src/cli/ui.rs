//! Printing of results, notes, stages and tables.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use anstream::ColorChoice;
use anstyle::{AnsiColor, Style};
use clap::builder::Styles;
use clap::{Args, ValueEnum};

pub(crate) use crate::ir::picture::axis::bytes;
use crate::types::Code;

/// Writes a result to standard output.
pub(crate) fn out(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stdout.write_all(b"\n")?;
    }
    stdout.flush()?;
    Ok(())
}

/// True for the error of a pipe that its reader has closed, such as `head`, which has seen enough:
/// that is no failure.
pub(crate) fn is_unread(error: &anyhow::Error) -> bool {
    let is_of_pipe = |cause: &(dyn std::error::Error + 'static)| {
        let of_system = cause.downcast_ref::<io::Error>();
        of_system.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(is_of_pipe)
}

/// So many rows, in words.
pub(crate) fn rows(count: impl fmt::Display) -> String {
    let count = count.to_string();
    let rows = if count == "1" { "row" } else { "rows" };
    format!("{count} {rows}")
}

/// Options of every command.
#[derive(Args)]
pub(crate) struct GlobalArgs {
    /// When to colour diagnostics and help; `auto` respects `NO_COLOR` and `CLICOLOR_FORCE`
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", global = true)]
    color: ColorArg,
    /// Print errors only: no notes, no progress bars
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Report each stage and its duration on standard error
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ColorArg {
    Auto,
    Always,
    Never,
}

/// The colours of help.
pub(crate) const HELP: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Verbosity of standard error, besides errors.
static LEVEL: AtomicU8 = AtomicU8::new(NOTES);
const ERRORS: u8 = 0;
const NOTES: u8 = 1;
const STAGES: u8 = 2;

impl GlobalArgs {
    /// Sets them for this process.
    pub(crate) fn apply(&self) {
        let level = match (self.quiet, self.verbose) {
            (true, _) => ERRORS,
            (false, false) => NOTES,
            (false, true) => STAGES,
        };
        LEVEL.store(level, Ordering::Relaxed);
    }
}

/// Chooses whether this process uses colours, from arguments that may be wrong.
pub(crate) fn set_color(line: &[OsString]) {
    match value(line, "--color") {
        Some("always") => ColorChoice::Always,
        Some("never") => ColorChoice::Never,
        _ => ColorChoice::Auto,
    }
    .write_global();
}

/// True if only errors are reported.
pub(crate) fn is_quiet() -> bool {
    LEVEL.load(Ordering::Relaxed) == ERRORS
}

/// Writes to standard error as it is; what cannot be shown is dropped.
pub(crate) fn say(text: &str) {
    drop(writeln!(io::stderr(), "{text}"));
}

/// Writes a diagnostic to standard error, coloured where colours are wanted; one that cannot be
/// shown is dropped.
pub(crate) fn talk(text: &str) {
    drop(writeln!(anstream::stderr(), "{}", painted(text)));
}

/// Writes a line about the work before or behind it, unless only errors are wanted.
pub(crate) fn head(text: impl fmt::Display) {
    if !is_quiet() {
        talk(&text.to_string());
    }
}

/// Writes a note, unless only errors are wanted.
pub(crate) fn note(text: impl fmt::Display) {
    if !is_quiet() {
        talk(&format!("note: {text}"));
    }
}

/// Writes a note with a code, unless only errors are wanted.
pub(crate) fn note_of(code: Code, text: impl fmt::Display) {
    if !is_quiet() {
        talk(&format!("note[{code}]: {text}; see `fanwise explain {code}`"));
    }
}

/// Does the work of a stage, and reports it with its duration where stages are wanted.
pub(crate) fn stage<R>(name: &str, work: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = work();
    if LEVEL.load(Ordering::Relaxed) == STAGES {
        talk(&format!("stage: {name} {:.1?}", start.elapsed()));
    }
    result
}

/// A diagnostic with the colours of its parts.
fn painted(text: &str) -> String {
    text.lines().map(painted_line).collect::<Vec<_>>().join("\n")
}

fn painted_line(line: &str) -> String {
    let bold = |color: AnsiColor| Style::new().bold().fg_color(Some(color.into()));
    let body = line.trim_start();
    let indent = &line[..line.len() - body.len()];
    // Up to the colon: `error[E0102]`, `= help`.
    let head = |color| {
        let (head, rest) = body.split_at(body.find(':').unwrap_or(body.len()));
        let style = bold(color);
        format!("{indent}{style}{head}{style:#}{rest}")
    };
    if line.starts_with("error") {
        head(AnsiColor::Red)
    } else if line.starts_with("note") || line.starts_with("stage") || body.starts_with("= help") {
        head(AnsiColor::Cyan)
    } else if body.starts_with("= ") {
        head(AnsiColor::Blue)
    } else if let Some(place) = body.strip_prefix("-->") {
        let style = bold(AnsiColor::Blue);
        format!("{indent}{style}-->{style:#}{place}")
    } else if !body.is_empty() && body.chars().all(|c| "^~ ".contains(c)) {
        let style = bold(AnsiColor::Red);
        format!("{indent}{style}{body}{style:#}")
    } else {
        line.to_owned()
    }
}

/// The last value of an option among arguments that may be wrong.
pub(crate) fn value<'a>(line: &'a [OsString], option: &str) -> Option<&'a str> {
    let words: Vec<&str> = line.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let words = words.split(|word| *word == "--").next()?;
    let separate = words.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1]);
    let joined = words.iter().filter_map(|word| word.strip_prefix(option)?.strip_prefix('='));
    separate.chain(joined).next_back()
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
    note(format_args!("{names} {verb} no effect {here}"));
}
