//! Where kernels and what compiles them are found.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Where a program runs, or what it is made for.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetArg {
    /// GPUs where they can be used, the CPU elsewhere
    Auto,
    /// The CPU; the GPUs that are asked for are virtual devices on it
    Cpu,
    /// GPUs of NVIDIA
    Cuda,
}

/// Where compiled kernels are kept.
#[derive(Args)]
pub(crate) struct CacheArgs {
    /// Keep compiled kernels in this folder; by default in `fanwise` of the user's cache folder
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

impl CacheArgs {
    /// The folder; none where the user has no home.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        self.cache_dir.clone().or_else(default_folder)
    }
}

/// `fanwise` of the user's cache folder.
fn default_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Some(caches?.join("fanwise"))
}

#[cfg(feature = "cuda")]
pub(crate) use cuda::{cache, compiler, search};

#[cfg(feature = "cuda")]
mod cuda {
    use std::path::{Path, PathBuf};
    use std::{env, fs, thread};

    use fanwise::Error;
    use fanwise::backend::cuda::cache::{Cache, DEFAULT_LIMIT};
    use fanwise::backend::cuda::{Compiler, NvrtcSearch};

    use super::CacheArgs;

    /// The cache of compiled kernels.
    pub(crate) fn cache(args: &CacheArgs) -> Option<Cache> {
        Some(Cache::new(args.folder()?, DEFAULT_LIMIT))
    }

    /// The compiler of kernels, on all cores.
    pub(crate) fn compiler(args: &CacheArgs) -> anyhow::Result<Compiler> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Ok(Compiler::open(&search(), cache(args), threads).map_err(Error::from)?)
    }

    /// Where NVRTC may be: where `FANWISE_NVRTC` says, or on the library path, in a toolkit, or in a package of Python.
    pub(crate) fn search() -> NvrtcSearch {
        let folder = env::var_os("FANWISE_NVRTC").filter(|f| !f.is_empty()).map(PathBuf::from);
        if folder.is_some() {
            return NvrtcSearch { folder, candidates: Vec::new() };
        }
        let variable = |name| env::var_os(name).map(PathBuf::from);
        let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable);
        let mut candidates: Vec<PathBuf> = toolkits.collect();
        candidates.extend(below(Path::new("/usr/local"), "cuda"));
        candidates.push("/opt/cuda".into());
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
        let mut roots: Vec<PathBuf> = environments.collect();
        candidates.extend(roots.iter().cloned());
        roots.extend(variable("HOME").map(|home| home.join(".local")));
        roots.extend([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);
        for python in roots.iter().flat_map(|root| below(&root.join("lib"), "python3")) {
            candidates.push(python.join("site-packages"));
            candidates.push(python.join("dist-packages"));
        }
        candidates.retain(|folder| folder.is_dir());
        NvrtcSearch { folder: None, candidates }
    }

    /// The folders in `folder` whose names begin so, the last by name first.
    fn below(folder: &Path, start: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let begins = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.starts_with(start))
        };
        let mut found: Vec<_> = entries.map(|entry| entry.path()).filter(begins).collect();
        found.sort();
        found.reverse();
        found
    }
}
