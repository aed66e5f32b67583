//! The files that a command line names: what is written must not be what is read, nor what another
//! option writes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::ArgMatches;

use crate::cli::compile::Emit;

/// Arguments that name what is read.
const READ: &[&str] = &[
    "classes_by",
    "data",
    "folders",
    "inputs",
    "model",
    "normalize_by",
    "params",
    "template",
    "validation",
];

/// Options that name a file which is written; those of `compile --emit` are beside them.
const WRITTEN: &[&str] = &["log", "outputs", "plot", "profile", "save", "timeline", "trace"];

/// Options that name a folder, to which files with names of their own are written.
const FOLDERS: &[&str] = &["cache_dir", "checkpoint", "out", "resume", "tensorboard"];

/// Whether an argument names a file or a folder.
pub(crate) fn names_path(id: &str) -> bool {
    [READ, WRITTEN, FOLDERS].iter().any(|ids| ids.contains(&id))
}

/// A path on the command line.
struct Named {
    /// The argument, as it was given.
    given: String,
    /// What it names, the same by whatever path.
    file: PathBuf,
    /// True for a folder to which files with names of their own are written.
    is_folder: bool,
}

impl Named {
    fn new(given: String, path: &Path, is_folder: bool) -> Self {
        Self { given, file: one_name(path), is_folder }
    }

    /// The weights that lie beside a graph.
    fn beside(&self) -> Option<Self> {
        let is_graph = self.file.extension().is_some_and(|kind| kind == "fan");
        is_graph.then(|| {
            let weights = self.file.with_extension("safetensors");
            Self::new(format!("the weights beside {}", self.given), &weights, false)
        })
    }
}

/// The name of a file that may not be there, the same however its folder is named.
fn one_name(path: &Path) -> PathBuf {
    // The file need not exist, but its folder does: that much of the path can be resolved.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    let named = folder.ok().zip(path.file_name()).map(|(folder, name)| folder.join(name));
    path.canonicalize().ok().or(named).unwrap_or_else(|| path.to_owned())
}

/// Whether writing replaces what was there: not so of a terminal or `/dev/null`.
fn is_replaced(path: &Path) -> bool {
    path != Path::new("-") && path.metadata().map_or(true, |is| is.is_file() || is.is_dir())
}

/// The paths of these arguments.
fn named(matches: &ArgMatches, ids: &[&str]) -> Vec<Named> {
    let of = |id: &&str| {
        // An argument of another command has no values.
        let values = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
        let given = |path: &Path| match *id {
            "model" | "folders" => path.display().to_string(),
            "profile" => format!("`--profile={}`", path.display()),
            _ => format!("`--{} {}`", id.replace('_', "-"), path.display()),
        };
        let paths = values.map(Path::new).filter(|path| is_replaced(path));
        let is_folder = FOLDERS.contains(id);
        paths.map(|path| Named::new(given(path), path, is_folder)).collect::<Vec<_>>()
    };
    ids.iter().flat_map(of).collect()
}

/// The files of `compile --emit`.
fn emitted(matches: &ArgMatches) -> Vec<Named> {
    let emits = matches.try_get_many::<Emit>("emit").ok().flatten().into_iter().flatten();
    let texts = matches.try_get_raw("emit").ok().flatten().into_iter().flatten();
    let of = |(emit, text): (&Emit, &OsStr)| {
        let path = emit.path.as_deref().filter(|path| is_replaced(path))?;
        let given = format!("`--emit {}`", text.display());
        Some(Named::new(given, path, emit.is_folder()))
    };
    emits.zip(texts).filter_map(of).collect()
}

/// Fails where a command would write over what it reads, or two of its results to one file.
pub(crate) fn check(matches: &ArgMatches) -> anyhow::Result<()> {
    let mut read = named(matches, READ);
    read.extend(read.iter().filter_map(Named::beside).collect::<Vec<_>>());
    let mut written = named(matches, WRITTEN);
    written.extend(written.iter().filter_map(Named::beside).collect::<Vec<_>>());
    written.extend(emitted(matches));
    for (at, own) in written.iter().enumerate() {
        if let Some(other) = read.iter().find(|other| other.file == own.file) {
            bail!(
                "{} would write over {}, which the command reads; name another file",
                own.given,
                other.given
            );
        }
        let are_folders = |other: &&Named| own.is_folder && other.is_folder;
        let mut before = written[..at].iter().filter(|other| !are_folders(other));
        if let Some(other) = before.find(|other| other.file == own.file) {
            bail!("{} and {} are one file; give each its own", other.given, own.given);
        }
    }
    for folder in named(matches, &["checkpoint", "tensorboard"]) {
        if let Some(other) = read.iter().find(|other| other.file == folder.file) {
            bail!(
                "{} would write into {}, which the command reads; name another folder",
                folder.given,
                other.given
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::names_path;
    use crate::cli::Cli;

    #[test]
    fn every_option_of_a_path_is_known() {
        let is_of_path = |name: &str| {
            ["FILE", "DIR", "DATA", "MODEL"]
                .iter()
                .any(|of| name.split(['.', '|']).any(|n| n == *of))
        };
        let mut found = 0;
        for command in Cli::command().get_subcommands() {
            for arg in command.get_arguments() {
                let id = arg.get_id().as_str();
                // MODEL of `--template`.
                let names = arg.get_value_names().unwrap_or_default();
                let is_of_path = names.iter().any(|name| is_of_path(name));
                assert_eq!(is_of_path, names_path(id), "{} {id}", command.get_name());
                found += usize::from(is_of_path);
            }
        }
        assert!(found > 40, "{found}");
    }
}
