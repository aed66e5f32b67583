//! `fanwise completions` and `man`: what shells and `man` are given of the command line.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::Error;
use crate::cli::ui;
use crate::format;

/// Print a completion script for a shell
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise completions bash > ~/.local/share/bash-completion/completions/fanwise
  fanwise completions zsh > ~/.zfunc/_fanwise
  fanwise completions fish > ~/.config/fish/completions/fanwise.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the man page, or write one page for each command
#[derive(Args)]
#[command(after_help = "Examples:
  fanwise man | man -l -
  fanwise man --out ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Write a page for each command to this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(crate) fn completions(
    args: &CompletionsArgs,
    command: &mut Command,
) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "fanwise", &mut script);
    ui::out(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs, command: Command) -> anyhow::Result<ExitCode> {
    // `help` has no options of its own and would get an empty page.
    let mut command = command.disable_help_subcommand(true);
    // Full names of the commands below, and with them names of pages, are made here.
    command.build();
    match &args.out {
        None => ui::out(&page(&command)?.1)?,
        Some(folder) => {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot create the folder {}", folder.display()))?;
            write(&command, folder)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and of those below it.
fn write(command: &Command, folder: &Path) -> anyhow::Result<()> {
    let (name, text) = page(command)?;
    format::write_text(&folder.join(name), &text).map_err(Error::from)?;
    command.get_subcommands().try_for_each(|below| write(below, folder))
}

/// The name of a command's page, and its text.
fn page(command: &Command) -> anyhow::Result<(String, String)> {
    let source = format!("fanwise {}", crate::cli::version::SHORT);
    let page = Man::new(command.clone()).source(source).manual("fanwise");
    let mut text = Vec::new();
    page.render(&mut text)?;
    Ok((page.get_filename(), String::from_utf8(text)?))
}
