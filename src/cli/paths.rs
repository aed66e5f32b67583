//! The files that a command line names: what is written must not be what is read, nor what another
//! option writes.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use clap::ArgMatches;

use crate::ir::Graph;

/// Arguments that name what is read.
const READ: &[&str] = &[
    "classes_by",
    "data",
    "folders",
    "inputs",
    "model",
    "models",
    "normalize_by",
    "params",
    "python",
    "template",
    "validation",
];

/// Options that name a file which is written; those of `compile --emit` are beside them.
const WRITTEN: &[&str] = &["log", "outputs", "plot", "profile", "save", "timeline", "trace"];

/// Options that name a folder, to which files with names of their own are written.
const FOLDERS: &[&str] = &["cache_dir", "checkpoint", "out", "resume", "tensorboard"];

/// The kinds of `compile --emit` that write a folder, each files of its own.
pub(crate) const KERNELS: [&str; 3] = ["cuda", "cubin", "ptx"];

/// The endings by which other programs, and this one, know what a file is. Others say nothing.
const OF_FORMS: &[&str] = &[
    "csv",
    "cu",
    "cubin",
    "dot",
    "fan",
    "gv",
    "h5",
    "hdf5",
    "htm",
    "html",
    "jpeg",
    "jpg",
    "json",
    "keras",
    "npy",
    "npz",
    "onnx",
    "pb",
    "pdf",
    "png",
    "ptx",
    "safetensors",
    "svg",
];

/// Links behind one another that are followed.
const LINKS: usize = 40;

/// What this process will write, for files of which only the model says that they are read.
static TO_WRITE: Mutex<Vec<Named>> = Mutex::new(Vec::new());

fn to_write() -> MutexGuard<'static, Vec<Named>> {
    TO_WRITE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an argument names a file or a folder.
pub(crate) fn names_path(id: &str) -> bool {
    [READ, WRITTEN, FOLDERS].iter().any(|ids| ids.contains(&id))
}

/// Whether the name of a file ends in one of these, in capitals or not.
pub(crate) fn has_ending(path: &Path, endings: &[&str]) -> bool {
    // A name without an ending, or with one that is no text, ends in none.
    let own = path.extension().and_then(OsStr::to_str);
    own.is_some_and(|own| endings.iter().any(|ending| ending.eq_ignore_ascii_case(own)))
}

/// Whether the name of a file says that it is of another form than those with these endings.
pub(crate) fn is_of_other_form(path: &Path, fitting: &[&str]) -> bool {
    has_ending(path, OF_FORMS) && !has_ending(path, fitting)
}

/// Fails where the name of the file of an option says that it is something else than what is
/// written to it, whose names have this ending.
pub(crate) fn check_form(option: &str, path: &Path, fitting: &str) -> anyhow::Result<()> {
    if is_of_other_form(path, &[fitting]) {
        bail!(
            "`--{option} {}`: such a name is for a file of another form; use .{fitting}",
            path.display()
        );
    }
    Ok(())
}

/// What a path is to a command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    /// One file.
    File,
    /// The weights beside an emitted graph, of a step of training or of a model, if it has some
    /// that are in no other file: several graphs may share them.
    Weights { training: bool },
    /// A folder for files with names of their own.
    Folder,
    /// A folder for kernels of the kind at this position of [`KERNELS`].
    Kernels(usize),
}

impl Role {
    /// Whether what both write at one path is lost.
    fn clashes(self, other: Self) -> bool {
        match (self, other) {
            (Self::Folder, Self::Folder | Self::Kernels(_)) | (Self::Kernels(_), Self::Folder) => {
                false
            }
            (Self::Kernels(own), Self::Kernels(other)) => own == other,
            (Self::Weights { training: own }, Self::Weights { training: other }) => own != other,
            _ => true,
        }
    }
}

/// A path on the command line.
#[derive(Clone)]
struct Named {
    /// The argument, as it was given.
    given: String,
    /// What it names, the same by whatever path.
    file: PathBuf,
    role: Role,
}

impl Named {
    fn new(given: String, path: &Path, role: Role) -> Self {
        Self { given, file: one_name(path), role }
    }

    /// The weights that lie beside a graph.
    fn weights(&self, role: Role) -> Self {
        let given = format!("the weights beside {}", self.given);
        Self::new(given, &self.file.with_extension("safetensors"), role)
    }

    fn ends_in(&self, kind: &str) -> bool {
        self.file.extension().is_some_and(|own| own == kind)
    }

    /// What lies beside a model, as most exporters name it.
    fn beside(&self) -> Vec<Self> {
        if self.ends_in("fan") || self.ends_in("json") {
            return vec![self.weights(Role::File)];
        }
        if !self.ends_in("onnx") {
            return Vec::new();
        }
        let named = [".data", "_data"].map(|end| {
            let mut name = self.file.clone().into_os_string();
            name.push(end);
            Self::new(format!("the tensors of {}", self.given), Path::new(&name), Role::File)
        });
        named.into()
    }

    /// Whether this is a file that is read where the folder is.
    fn is_of(&self, folder: &Self) -> bool {
        const KINDS: [&str; 6] = ["bin", "jpeg", "jpg", "npy", "pb", "png"];
        // A path without a name, such as `..`, is of a folder and never of a file that is read.
        let name = self.file.file_name().unwrap_or_default().to_string_lossy();
        let is_state = name == "state.json" || name.starts_with("variables-");
        let is_content = is_state || KINDS.iter().any(|kind| self.ends_in(kind));
        is_content && self.file != folder.file && self.file.starts_with(&folder.file)
    }
}

/// The name of a file that may not be there, the same however its folder is named.
fn one_name(path: &Path) -> PathBuf {
    let beside = |path: &Path| path.parent().unwrap_or(Path::new("")).to_owned();
    let mut path = path.to_owned();
    // A link to a file that is not there yet is followed, as writing to it does.
    for _ in 0..LINKS {
        let Ok(target) = path.read_link() else { break };
        path = beside(&path).join(target);
    }
    // The file need not exist, but its folder does: that much of the path can be resolved.
    let folder = Some(beside(&path)).filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| PathBuf::from(".")).canonicalize();
    let named = folder.ok().zip(path.file_name()).map(|(folder, name)| folder.join(name));
    path.canonicalize().ok().or(named).unwrap_or(path)
}

/// Whether writing replaces what was there: not so of a terminal or `/dev/null`.
fn is_replaced(path: &Path) -> bool {
    path != Path::new("-") && path.metadata().map_or(true, |is| is.is_file() || is.is_dir())
}

/// The paths of these arguments.
fn named(matches: &ArgMatches, ids: &[&str], role: Role) -> Vec<Named> {
    let of = |id: &&str| {
        // An argument of another command has no values.
        let values = matches.try_get_raw(id).ok().flatten().into_iter().flatten();
        let given = |path: &Path| match *id {
            "model" | "folders" => path.display().to_string(),
            "profile" => format!("`--profile={}`", path.display()),
            _ => format!("`--{} {}`", id.replace('_', "-"), path.display()),
        };
        let paths = values.map(Path::new).filter(|path| is_replaced(path));
        paths.map(|path| Named::new(given(path), path, role)).collect::<Vec<_>>()
    };
    ids.iter().flat_map(of).collect()
}

/// The files of `compile --emit`.
fn emitted(matches: &ArgMatches) -> Vec<Named> {
    let texts = matches.try_get_raw("emit").ok().flatten().into_iter().flatten();
    let of = |text: &OsStr| {
        let text = text.to_string_lossy();
        let Some((kind, path)) = text.split_once('=') else { return Vec::new() };
        let path = Path::new(path);
        if !is_replaced(path) {
            return Vec::new();
        }
        let first = kind.split(':').next();
        let kernels = KERNELS.iter().position(|own| Some(*own) == first);
        let role = kernels.map_or(Role::File, Role::Kernels);
        let own = Named::new(format!("`--emit {text}`"), path, role);
        let has_weights = matches!(first, Some("graph" | "json"));
        let weights = has_weights
            .then(|| own.weights(Role::Weights { training: kind.ends_with(":training") }));
        std::iter::once(own).chain(weights).collect()
    };
    texts.flat_map(of).collect()
}

/// Fails where a command would write over what it reads, or two of its results to one path.
pub(crate) fn check(matches: &ArgMatches) -> anyhow::Result<()> {
    let mut read = named(matches, READ, Role::File);
    read.extend(read.iter().flat_map(Named::beside).collect::<Vec<_>>());
    let mut written = named(matches, WRITTEN, Role::File);
    let graphs: Vec<Named> = written.iter().filter(|own| own.ends_in("fan")).cloned().collect();
    written.extend(graphs.iter().map(|own| own.weights(Role::File)));
    written.extend(emitted(matches));
    let folders = named(matches, FOLDERS, Role::Folder);
    // Of weights beside emitted graphs only the graph says whether they are written.
    for own in written.iter().filter(|own| !matches!(own.role, Role::Weights { .. })) {
        let replaced = read.iter().find(|other| other.file == own.file);
        let inside = || read.iter().chain(&folders).find(|other| own.is_of(other));
        if let Some(other) = replaced.or_else(inside) {
            return Err(over(own, &other.given));
        }
    }
    written.extend(folders.iter().cloned());
    for (at, own) in written.iter().enumerate() {
        let clashes = |other: &&Named| other.file == own.file && other.role.clashes(own.role);
        if let Some(other) = written[..at].iter().find(clashes) {
            bail!("{} and {} name one path; give each its own", other.given, own.given);
        }
    }
    let data: Vec<&str> = READ.iter().copied().filter(|id| *id != "model").collect();
    let data = named(matches, &data, Role::File);
    for folder in &folders {
        if let Some(other) = data.iter().find(|other| other.file == folder.file) {
            bail!(
                "{} would write into {}, which the command reads; name another folder",
                folder.given,
                other.given
            );
        }
    }
    *to_write() = written;
    Ok(())
}

/// The error of a result over a file that is read.
fn over(own: &Named, read: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{} would write over {read}, which the command reads; name another file",
        own.given
    )
}

/// Fails where the command would write over what it reads.
fn check_read(read: &Named) -> anyhow::Result<()> {
    // What is beside an emitted graph is written only if it is not the model's.
    let replaces = |own: &&Named| own.role == Role::File && own.file == read.file;
    to_write().iter().find(replaces).map_or(Ok(()), |own| Err(over(own, &read.given)))
}

/// Fails where the command would write over the model that the checkpoint in `folder` is of, or the
/// file of its weights.
pub(crate) fn check_kept(model: &str, params: Option<&Path>, folder: &str) -> anyhow::Result<()> {
    let named = |path: &Path, what: &str| {
        let given = format!("{}, the {what} of the checkpoint in {folder}", path.display());
        Named::new(given, path, Role::File)
    };
    let own = named(Path::new(model), "model");
    let weights = params.map(|params| named(params, "weights before training"));
    std::iter::once(&own).chain(&own.beside()).chain(&weights).try_for_each(check_read)
}

/// Fails where the command would write over a file of weights that its model names.
pub(crate) fn check_weights(spec: &str, graph: &Graph) -> anyhow::Result<()> {
    let mut files: Vec<&str> = graph.params().iter().map(|param| &*param.source.file).collect();
    files.sort_unstable();
    files.dedup();
    for file in files.into_iter().filter(|file| !file.is_empty()) {
        let given = format!("`{file}`, the weights of {spec}");
        check_read(&Named::new(given, Path::new(file), Role::File))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::{FOLDERS, Path, READ, WRITTEN, check_form, names_path};
    use crate::cli::Cli;

    #[test]
    fn names_of_other_forms_are_refused() {
        let told = |name: &str| check_form("log", Path::new(name), "csv").err();
        for name in ["log.csv", "log.CSV", "log", "log.txt", "/dev/stdout", ".npz"] {
            assert!(told(name).is_none(), "{name}");
        }
        for name in ["x.npz", "m.ONNX", "run/t.json"] {
            let expected =
                format!("`--log {name}`: such a name is for a file of another form; use .csv");
            assert_eq!(told(name).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn every_option_of_a_path_is_known() {
        let is_of_path = |name: &str| {
            let mut names = name.split(['.', '|']);
            names.any(|name| ["FILE", "DIR", "DATA", "MODEL"].contains(&name))
        };
        let mut found = 0;
        for command in Cli::command().get_subcommands() {
            for arg in command.get_arguments() {
                let id = arg.get_id().as_str();
                let names = arg.get_value_names().unwrap_or_default();
                let is_of_path = names.iter().any(|name| is_of_path(name));
                assert_eq!(is_of_path, names_path(id), "{} {id}", command.get_name());
                if !is_of_path {
                    continue;
                }
                found += 1;
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let verbs = ["Write", "Draw", "Plot", "Print", "Save"];
                let writes = verbs.iter().any(|verb| help.starts_with(verb));
                let is_in = |ids: &[&str]| ids.contains(&id);
                assert!(writes || !is_in(WRITTEN), "{id}: {help}");
                assert!(!writes || is_in(WRITTEN) || is_in(FOLDERS), "{id}: {help}");
                assert!(!is_in(READ) || !is_in(WRITTEN) && !is_in(FOLDERS), "{id}");
            }
        }
        assert!(found > 40, "{found}");
    }
}
