//! `fanwise explain`: what the codes of errors and refusals mean.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::str::FromStr;

use crate::pass;
use crate::types::Code;
use anyhow::bail;
use clap::Args;

use crate::cli::ui;

/// Explain the code of an error: what it means, its usual causes, and what to do
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise explain
  fanwise explain R0104
  fanwise explain e0102")]
pub(crate) struct ExplainArgs {
    /// Code of an error, such as E0102 or R0104 [default: list all codes]
    code: Option<AnyCode>,
}

/// The explanations of `E` codes, each below a line `# CODE: headline`. The table of errors in the
/// documentation is generated from these lines.
const ERRORS: &str = include_str!("errors.md");

/// A code that can be explained.
#[derive(Clone, Copy)]
enum AnyCode {
    /// Why a model cannot be split.
    Refusal(Code),
    /// The explanation of an error.
    Error(&'static str),
}

impl FromStr for AnyCode {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        if let Ok(code) = text.parse() {
            return Ok(Self::Refusal(code));
        }
        let named = |error: &&str| error.get(..5).is_some_and(|c| c.eq_ignore_ascii_case(text));
        match errors().find(named) {
            Some(error) => Ok(Self::Error(error)),
            None => bail!("there is no such code; `fanwise explain` lists them all"),
        }
    }
}

/// The explanations, each from its code on.
fn errors() -> impl Iterator<Item = &'static str> {
    // Only headings begin with `# `.
    ERRORS.split("\n# ").map(|text| text.trim_start_matches("# ").trim_end())
}

pub(crate) fn explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    match args.code {
        Some(AnyCode::Refusal(code)) => ui::out(pass::explain(code))?,
        Some(AnyCode::Error(text)) => ui::out(&format!("# {text}"))?,
        None => {
            let mut text = String::new();
            for code in Code::ALL {
                writeln!(text, "{code}  {}", pass::headline(code))?;
            }
            for error in errors() {
                let head = error.lines().next().and_then(|line| line.split_once(": "));
                if let Some((code, headline)) = head {
                    writeln!(text, "{code}  {headline}")?;
                }
            }
            ui::out(&text)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
