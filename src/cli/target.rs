//! Targets, the kernel cache and the search for NVRTC.

use std::path::PathBuf;
use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::Error;
use crate::backend::cpu::Isa;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{CompileProgress, KernelError};
use crate::backend::{self, Backend, Cpu, Executable, Peak};
use crate::codegen::CodeFormat;
use crate::ir::{self, Graph, Weights};
use crate::lower;
use anyhow::bail;
use clap::{Args, ValueEnum};

#[cfg(feature = "cuda")]
use crate::cli::exec;
use crate::cli::replicate::AvailableDevices;
use crate::cli::trace::{TraceArgs, Traced};
use crate::cli::ui;

/// Target of a program, for running or for compilation alone.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetArg {
    /// GPUs if there are any, otherwise the CPU
    Auto,
    /// The CPU; `--gpus` are virtual devices on it
    Cpu,
    /// NVIDIA GPUs
    #[value(alias = "gpu")]
    Cuda,
    /// The CPU and NVIDIA GPUs, which `check` compares
    #[value(name = "cpu,cuda")]
    Both,
}

/// Target of a run.
#[derive(Args)]
pub(crate) struct TargetArgs {
    /// Where to run
    #[arg(long, value_enum, default_value = "auto")]
    target: TargetArg,
    /// Worker threads [default: one per core]
    #[arg(long, value_name = "COUNT")]
    threads: Option<usize>,
    /// Vector instructions of the CPU: `portable`, `avx2` or `avx512` [default: the widest]
    ///
    /// They change the speed and no bit. `check --isa all` compares those that the machine has,
    /// `check --target cpu,cuda` the CPU with GPUs.
    #[arg(long, value_name = "NAME", value_parser = instructions)]
    isa: Option<Instructions>,
    /// Number of logical GPUs, distributed over the physical ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    logical: Option<u32>,
    /// What kernels are compiled to: `cubin` or `ptx` [default: cubin]
    ///
    /// `cubin` is machine code; `ptx` is compiled by the driver when it is loaded.
    #[arg(long, value_name = "FORM", value_parser = form)]
    code: Option<CodeFormat>,
    #[command(flatten)]
    pub(crate) trace: TraceArgs,
    /// Abort if a GPU makes no progress for this long; 0 disables [default: 60]
    #[arg(long, value_name = "SECONDS", value_parser = watchdog)]
    watchdog: Option<Duration>,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Instructions that an option names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Instructions {
    One(Isa),
    /// Each in turn, to be compared.
    All,
}

/// A backend that is compared with another: the CPU by certain instructions, or GPUs.
pub(crate) struct Other {
    /// The name of the instructions, or of the target.
    pub(crate) name: &'static str,
    /// `None` where the machine lacks the instructions.
    pub(crate) runner: Option<Runner>,
}

/// Threads for each core that may be asked for.
const THREADS_OF_CORE: usize = 8;

/// Threads that may be asked for on any machine.
const LEAST_BOUND: usize = 256;

impl TargetArgs {
    /// The threads of the host, if a number is given.
    pub(crate) const fn threads(&self) -> Option<usize> {
        self.threads
    }

    /// The backend that runs programs.
    pub(crate) fn runner(&self) -> anyhow::Result<Runner> {
        if self.target == TargetArg::Both {
            bail!(
                "`--target cpu,cuda` compares targets: `fanwise check MODEL --target cpu,cuda`; \
                 choose one to run on"
            )
        }
        match self.isa {
            Some(Instructions::All) => {
                bail!("`--isa all` compares instructions: `fanwise check MODEL --isa all`")
            }
            Some(Instructions::One(isa)) => self.runner_by(Some(isa)),
            None => self.runner_by(None),
        }
    }

    /// The backend that runs programs, and those that are to be compared with it: one for each of
    /// the instructions, and GPUs.
    pub(crate) fn runners(&self) -> anyhow::Result<(Runner, Vec<Other>)> {
        let isa = match self.isa {
            Some(Instructions::One(isa)) => Some(isa),
            Some(Instructions::All) | None => None,
        };
        let (runner, mut others) = (self.runner_by(isa)?, Vec::new());
        let threads = self.host_threads()?;
        if self.isa == Some(Instructions::All) {
            if runner.place().cuda {
                bail!("`--isa all` compares instructions of the CPU: add `--target cpu`");
            }
            for isa in Isa::ALL {
                let is_here = Isa::available().any(|available| available == isa);
                let cpu = is_here.then(|| Cpu::with(threads, Some(isa))).transpose();
                let runner = cpu.map_err(Error::from)?.map(|cpu| Runner::of_cpu(cpu, None));
                others.push(Other { name: isa.name(), runner });
            }
        }
        if self.target == TargetArg::Both {
            others.push(Other { name: "cuda", runner: Some(self.cuda(threads, None)?) });
        }
        Ok((runner, others))
    }

    /// The threads of the host.
    pub(crate) fn host_threads(&self) -> anyhow::Result<usize> {
        // One core is enough where the system does not tell.
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let (threads, most) =
            (self.threads.unwrap_or(cores), (THREADS_OF_CORE * cores).max(LEAST_BOUND));
        if threads == 0 {
            bail!("`--threads 0`: use 1 or more, or leave it out to use one per core");
        }
        if threads > most {
            bail!("`--threads {threads}` is more than {most}, the limit for {cores} cores");
        }
        Ok(threads)
    }

    /// What these threads of the CPU do at most in a second, measured now.
    pub(crate) fn peak(&self) -> anyhow::Result<Peak> {
        let isa = match self.isa {
            Some(Instructions::One(isa)) => Some(isa),
            Some(Instructions::All) | None => None,
        };
        Ok(Cpu::with(self.host_threads()?, isa).map_err(Error::from)?.peak())
    }

    /// The backend whose kernels on the CPU use these instructions.
    fn runner_by(&self, isa: Option<Isa>) -> anyhow::Result<Runner> {
        let threads = self.host_threads()?;
        self.trace.check()?;
        let asked = self.logical.is_some();
        match self.target {
            TargetArg::Cpu if asked => {
                bail!("`--logical` requires a GPU, and `--target cpu` excludes GPUs")
            }
            TargetArg::Auto if asked && backend::gpu_count() == 0 => {
                bail!(
                    "`--logical` requires a GPU, and none was found; `fanwise devices` shows what \
                     is missing"
                )
            }
            TargetArg::Cpu | TargetArg::Both => self.cpu(threads, isa),
            TargetArg::Cuda => self.cuda(threads, self.trace.traced()),
            TargetArg::Auto if asked => self.cuda(threads, self.trace.traced()),
            TargetArg::Auto if backend::gpu_count() == 0 => self.cpu(threads, isa),
            TargetArg::Auto => self.cuda(threads, self.trace.traced()).or_else(|error| {
                ui::note(format_args!(
                    "falling back to the CPU; the GPUs cannot be used: {error:#}"
                ));
                self.cpu(threads, isa)
            }),
        }
    }

    /// The CPU, with a remark on options that are of GPUs alone.
    fn cpu(&self, threads: usize, isa: Option<Isa>) -> anyhow::Result<Runner> {
        let given = [
            ("--code", self.code.is_some()),
            ("--watchdog", self.watchdog.is_some()),
            ("--cache-dir", self.cache.is_given()),
        ];
        if self.target != TargetArg::Both {
            ui::note_idle(&given, "on the CPU");
        }
        let available: Vec<&str> = Isa::available().map(Isa::name).collect();
        if let Some(name) = isa.map(Isa::name).filter(|name| !available.contains(name)) {
            bail!("`--isa {name}`: this machine lacks it; it has {}", available.join(", "));
        }
        let cpu = Cpu::with(threads, isa).map_err(Error::from)?;
        let traced = self.trace.traced().map(|traced| traced.beside(|| cpu.peak()));
        let trace = traced.as_ref().map(Traced::trace);
        Ok(Runner::of_cpu(cpu.traced(trace), traced))
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda(&self, _: usize, _: Option<Traced>) -> anyhow::Result<Runner> {
        // What only CUDA uses.
        drop((self.cache.folder(), self.code, self.watchdog));
        bail!("this build has no feature `cuda`")
    }

    #[cfg(feature = "cuda")]
    fn cuda(&self, threads: usize, traced: Option<Traced>) -> anyhow::Result<Runner> {
        use crate::backend::cuda::{Cuda, CudaOptions, devices};

        let found = devices().map_err(KernelError::from).map_err(Error::from)?;
        crate::cli::devices::require(&found)?;
        let mut options = CudaOptions::new(compiler(&self.cache)?, threads);
        options.logical = self.logical;
        options.form = self.code.unwrap_or(options.form);
        options.watchdog = self.watchdog.unwrap_or(options.watchdog);
        options.trace = traced.as_ref().map(Traced::trace);
        let progress = Arc::clone(&options.progress);
        let backend = Cuda::new(options).map_err(Error::from)?;
        let place = AvailableDevices { found: backend.count(), cuda: true };
        let one = matches!(self.isa, Some(Instructions::One(_)));
        ui::note_idle(&[("--isa", one && self.target != TargetArg::Both)], "on GPUs");
        Ok(Runner { backend: Box::new(backend), place, compiling: Some(progress), traced })
    }
}

/// Reads the name of instructions.
fn instructions(text: &str) -> anyhow::Result<Instructions> {
    if text == "all" {
        return Ok(Instructions::All);
    }
    match Isa::ALL.into_iter().find(|isa| isa.name() == text) {
        Some(isa) => Ok(Instructions::One(isa)),
        None => bail!("expected portable, avx2 or avx512"),
    }
}

/// Reads a form of code.
fn form(text: &str) -> anyhow::Result<CodeFormat> {
    let forms = [CodeFormat::Cubin, CodeFormat::Ptx];
    match forms.into_iter().find(|form| form.name() == text) {
        Some(form) => Ok(form),
        None => bail!("expected cubin or ptx"),
    }
}

/// Reads how long a device may make no progress; 0 is for ever.
fn watchdog(text: &str) -> anyhow::Result<Duration> {
    let seconds = text.parse().ok().filter(|s: &f64| *s >= 0.0);
    let limit = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    match limit {
        Some(Duration::ZERO) => Ok(Duration::MAX),
        Some(limit) => Ok(limit),
        None => bail!("expected a number of seconds, or 0 to disable"),
    }
}

/// The backend that runs programs.
pub(crate) struct Runner {
    backend: Box<dyn Backend>,
    place: AvailableDevices,
    #[cfg(feature = "cuda")]
    compiling: Option<Arc<CompileProgress>>,
    traced: Option<Traced>,
}

impl Runner {
    /// Of a CPU, which records into the trace.
    fn of_cpu(cpu: Cpu, traced: Option<Traced>) -> Self {
        Self {
            backend: Box::new(cpu),
            place: AvailableDevices { found: 0, cuda: false },
            #[cfg(feature = "cuda")]
            compiling: None,
            traced,
        }
    }

    /// The backend.
    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// The devices of its programs.
    pub(crate) fn place(&self) -> AvailableDevices {
        self.place
    }

    /// The graph, lowered and ready to run.
    pub(crate) fn prepare(
        &self,
        graph: &Graph,
        weights: &Weights,
    ) -> anyhow::Result<Box<dyn Executable>> {
        let verified = ir::verify(graph).map_err(Error::from)?;
        let lower = || lower::lower(&verified, self.backend.kernels());
        let program = ui::stage("lower", lower).map_err(Error::from)?;
        let ready = || ui::stage("compile", || self.backend.compile(program, weights));
        #[cfg(feature = "cuda")]
        if let Some(progress) = &self.compiling {
            let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
            let state = || (load(&progress.done), load(&progress.total));
            let ready = exec::watched("compiling kernels", &state, ready).map_err(Error::from)?;
            for warning in ready.warnings() {
                ui::note(warning);
            }
            return Ok(ready);
        }
        Ok(ready().map_err(Error::from)?)
    }

    /// Returns the result of `runs`, and then writes the trace of all of them even if one failed:
    /// the trace of a failed run is the one that is needed most. What `runs` wrote stays where the
    /// trace cannot be written.
    pub(crate) fn traced<R>(&self, runs: impl FnOnce() -> anyhow::Result<R>) -> anyhow::Result<R> {
        let result = runs();
        if let Some(traced) = &self.traced {
            let written = traced.write();
            // Of two errors that of the run counts.
            return result.and_then(|result| Ok(written.map(|()| result)?));
        }
        result
    }
}

/// The cache of compiled kernels.
#[derive(Args)]
pub(crate) struct CacheArgs {
    /// Cache for compiled kernels [default: `$XDG_CACHE_HOME/fanwise`]
    #[arg(long, value_name = "DIR", global = true)]
    cache_dir: Option<PathBuf>,
}

impl CacheArgs {
    /// Returns true if a folder is given.
    pub(crate) const fn is_given(&self) -> bool {
        self.cache_dir.is_some()
    }

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
    use std::cmp::Reverse;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::{env, fs, thread};

    use crate::Error;
    use crate::backend::cuda::cache::{Cache, DEFAULT_LIMIT};
    use crate::backend::cuda::{Compiler, NvrtcSearch, Version, count, probe};

    use super::CacheArgs;

    /// The cache of compiled kernels.
    pub(crate) fn cache(args: &CacheArgs) -> Option<Cache> {
        Some(Cache::new(args.folder()?, DEFAULT_LIMIT))
    }

    /// The compiler of kernels, on all cores.
    pub(crate) fn compiler(args: &CacheArgs) -> anyhow::Result<Compiler> {
        // One thread is enough where the system does not tell.
        let threads = thread::available_parallelism().map_or(1, usize::from);
        // Where there is a GPU, files are written by the compiler that a run takes.
        let driver = (count() > 0).then(|| probe::driver().ok()).flatten();
        Ok(Compiler::open(&search(driver), cache(args), threads).map_err(Error::from)?)
    }

    /// The search path of NVRTC: the folder in `FANWISE_NVRTC`, or the library path, CUDA toolkits
    /// and Python packages.
    pub(crate) fn search(driver: Option<Version>) -> NvrtcSearch {
        let folder = env::var_os("FANWISE_NVRTC").filter(|f| !f.is_empty()).map(PathBuf::from);
        if folder.is_some() {
            return NvrtcSearch { folder, candidates: Vec::new(), driver };
        }
        let variable = |name| env::var_os(name).map(PathBuf::from);
        let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(variable);
        let mut candidates: Vec<PathBuf> = toolkits.collect();
        candidates.extend(below(Path::new("/usr/local"), "cuda"));
        candidates.push("/opt/cuda".into());
        let environments = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
        let mut roots: Vec<PathBuf> = environments.collect();
        candidates.extend(roots.iter().cloned());
        // The Python that a shell finds, which may be none of the system's.
        let path = variable("PATH").unwrap_or_default();
        let programs = env::split_paths(&path).filter(|folder| folder.ends_with("bin"));
        roots.extend(programs.filter_map(|folder| folder.parent().map(Path::to_owned)));
        let home = variable("HOME");
        let pyenv = variable("PYENV_ROOT").or_else(|| Some(home.as_ref()?.join(".pyenv")));
        roots.extend(pyenv.into_iter().flat_map(|root| below(&root.join("versions"), "")));
        roots.extend(home.map(|home| home.join(".local")));
        roots.extend([PathBuf::from("/usr/local"), PathBuf::from("/usr")]);
        for python in roots.iter().flat_map(|root| below(&root.join("lib"), "python3")) {
            candidates.push(python.join("site-packages"));
            candidates.push(python.join("dist-packages"));
        }
        let mut seen = BTreeSet::new();
        candidates.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
        NvrtcSearch { folder: None, candidates, driver }
    }

    /// The folders in `folder` whose names begin so, the latest version first.
    fn below(folder: &Path, start: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let begins = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.starts_with(start))
        };
        let mut found: Vec<_> = entries.map(|entry| entry.path()).filter(begins).collect();
        found.sort_by_cached_key(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            Reverse(numbers(name))
        });
        found
    }

    /// The numbers in a name, in order.
    fn numbers(name: &str) -> Vec<u64> {
        let parts = name.split(|c: char| !c.is_ascii_digit());
        parts.filter_map(|part| part.parse().ok()).collect()
    }

    #[cfg(test)]
    mod tests {
        use std::fs;

        use super::below;

        #[test]
        fn later_versions_come_first() {
            let folder = tempfile::tempdir().unwrap();
            for name in ["cuda-12.9", "cuda", "cuda-12.10", "other-13"] {
                fs::create_dir(folder.path().join(name)).unwrap();
            }
            let found = below(folder.path(), "cuda");
            let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
            assert_eq!(names, ["cuda-12.10", "cuda-12.9", "cuda"]);
        }
    }
}
