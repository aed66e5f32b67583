//! `fanwise explain`: what the codes of refusals mean.

use std::fmt::Write as _;
use std::process::ExitCode;

use crate::pass;
use crate::types::Code;
use clap::Args;

use crate::cli::ui;

/// Explain why a model is refused: what a code means, with an example and the ways out
#[derive(Args)]
#[command(
    after_help = "Examples:\n  fanwise explain\n  fanwise explain R0104\n  fanwise explain r0105"
)]
pub(crate) struct ExplainArgs {
    /// The code of a refusal, as in `error[R0104]`; without it, all codes are listed
    code: Option<Code>,
}

pub(crate) fn explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    if let Some(code) = args.code {
        ui::out(pass::explain(code))?;
    } else {
        let mut text = String::new();
        for code in Code::ALL {
            writeln!(text, "{code}  {}", pass::headline(code))?;
        }
        ui::out(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}
