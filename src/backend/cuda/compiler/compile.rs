//! Units compiled on all cores, or taken from the cache.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use super::cache::Cache;
use super::nvrtc::{Compiled, KernelError, Nvrtc};
use crate::backend::cuda::driver::probe::NvrtcSearch;
use crate::codegen::{self, Arch, CodeFormat, Key, Unit, options};

/// The stack of a thread that compiles: the compiler's own recursion is deep on long expressions.
const STACK: usize = 16 << 20;

/// The compiler with its cache.
#[derive(Clone, Debug)]
pub struct Compiler {
    nvrtc: Nvrtc,
    cache: Option<Cache>,
    threads: usize,
    keeps_ptx: bool,
}

/// A compiled unit and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// The name of what is compiled, for all devices of one architecture.
    pub key: Key,
    /// The form that it was compiled to.
    pub compiled: Compiled,
    /// True if it was on disk.
    pub from_cache: bool,
}

impl Module {
    /// A warning where the unit is of a heavy kernel that spills registers.
    pub(crate) fn warning(&self, unit: &Unit) -> Option<String> {
        let bytes = self.compiled.spilled();
        let names = unit.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>();
        (bytes > 0 && is_heavy(unit)).then(|| {
            format!(
                "the kernel {} is slow: {bytes} bytes of each thread have no registers; fewer \
                 operators behind a product or convolution need less",
                names.join(", ")
            )
        })
    }
}

/// The modules of some units, and what went wrong beside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modules {
    /// One for each unit, in their order.
    pub modules: Vec<Module>,
    /// The first failure to write to the cache, if one did: nothing is lost but time at the next
    /// start.
    pub cache_error: Option<String>,
}

/// The bounds of heavy kernels, as their files have them: their threads, and how many blocks a
/// multiprocessor shall hold. Beside each the same for one block.
const BOUNDS: [[&str; 2]; 2] =
    [["THREADS, resident(THREADS)", "THREADS, 1"], ["(THREADS, 2)", "(THREADS, 1)"]];

/// True for a unit of a heavy kernel, whose registers bound how many blocks a multiprocessor holds.
/// A kernel that shares its unit with others is none: those would be compiled again with it.
pub(super) fn is_heavy(unit: &Unit) -> bool {
    unit.entries.len() == 1 && BOUNDS.iter().any(|[bounds, _]| unit.text.contains(bounds))
}

/// The same kernel, if it is heavy, for one block on a multiprocessor, which leaves it the most
/// registers. It computes the same bits: nothing else of its text depends on them.
pub(super) fn alone(unit: &Unit) -> Option<Unit> {
    let text = || {
        let replaced = |text: String, [bounds, one]: &[&str; 2]| text.replace(bounds, one);
        BOUNDS.iter().fold(unit.text.clone(), replaced)
    };
    is_heavy(unit).then(|| Unit { text: text(), entries: unit.entries.clone() })
}

impl Compiler {
    /// The compiler, if NVRTC is found. It uses this many threads, and at least one.
    pub fn open(
        search: &NvrtcSearch,
        cache: Option<Cache>,
        threads: usize,
    ) -> Result<Self, KernelError> {
        Ok(Self { nvrtc: Nvrtc::open(search)?, cache, threads: threads.max(1), keeps_ptx: false })
    }

    /// The compiler that keeps in its cache, beside machine code that it compiles, the PTX on the
    /// way there: both forms in the time of one.
    #[must_use]
    pub fn keeping_ptx(self) -> Self {
        Self { keeps_ptx: true, ..self }
    }

    /// NVRTC.
    pub fn nvrtc(&self) -> &Nvrtc {
        &self.nvrtc
    }

    /// Compiles units; `progress` counts those that are done.
    pub fn compile(
        &self,
        units: &[Unit],
        arch: Arch,
        form: CodeFormat,
        progress: &AtomicU64,
    ) -> Result<Modules, KernelError> {
        self.nvrtc.check(arch)?;
        let work = Work {
            compiler: self,
            units,
            arch,
            form,
            options: options(arch, form),
            next: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            done: Mutex::new(Vec::new()),
            cache_error: Mutex::new(None),
            progress,
        };
        work.run()
    }
}

/// The state that the threads share.
struct Work<'a> {
    compiler: &'a Compiler,
    units: &'a [Unit],
    arch: Arch,
    form: CodeFormat,
    options: Vec<String>,
    /// The first unit that nobody has taken.
    next: AtomicUsize,
    /// Set when a unit fails: the others are not begun.
    stopped: AtomicBool,
    done: Mutex<Vec<(usize, Result<Module, KernelError>)>>,
    cache_error: Mutex<Option<String>>,
    progress: &'a AtomicU64,
}

impl Work<'_> {
    fn run(self) -> Result<Modules, KernelError> {
        let threads = self.compiler.threads.min(self.units.len());
        thread::scope(|scope| {
            for number in 0..threads {
                let builder = thread::Builder::new().stack_size(STACK);
                let builder = builder.name(format!("kernels {number}"));
                let started = builder.spawn_scoped(scope, || self.take());
                started.map_err(|error| {
                    self.stopped.store(true, Ordering::Relaxed);
                    KernelError::Thread(error.to_string())
                })?;
            }
            Ok::<(), KernelError>(())
        })?;
        let mut done = self.done.into_inner().unwrap_or_else(PoisonError::into_inner);
        done.sort_by_key(|(index, _)| *index);
        let modules = done.into_iter().map(|(_, module)| module).collect::<Result<_, _>>()?;
        let cache_error = self.cache_error.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Modules { modules, cache_error })
    }

    /// Takes unit after unit until none is left or one has failed.
    fn take(&self) {
        while !self.stopped.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(unit) = self.units.get(index) else { return };
            let module = self.module(unit);
            if module.is_err() {
                self.stopped.store(true, Ordering::Relaxed);
            }
            self.done.lock().unwrap_or_else(PoisonError::into_inner).push((index, module));
            self.progress.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A unit, compiled. A heavy kernel that spills registers, as one with a long chain behind its
    /// product may, is compiled again for one block on a multiprocessor at a time.
    fn module(&self, unit: &Unit) -> Result<Module, KernelError> {
        let module = self.as_given(unit)?;
        let spilled = module.compiled.spilled();
        let Some(alone) = alone(unit).filter(|_| spilled > 0) else { return Ok(module) };
        let other = self.as_given(&alone)?;
        let is_better = other.compiled.spilled() < spilled;
        Ok(if is_better { Module { key: module.key, ..other } } else { module })
    }

    /// A unit, compiled as its text says.
    fn as_given(&self, unit: &Unit) -> Result<Module, KernelError> {
        let key = codegen::key(unit, &self.options, self.compiler.nvrtc.identity());
        let Some(cache) = &self.compiler.cache else {
            let compiled = self.compiler.nvrtc.compile(unit, self.arch, self.form)?;
            return Ok(Module { key, compiled, from_cache: false });
        };
        if let Some(compiled) = cache.get(&key, self.arch, self.form) {
            return Ok(Module { key, compiled, from_cache: true });
        }
        let nvrtc = &self.compiler.nvrtc;
        let compiled = if self.compiler.keeps_ptx && self.form == CodeFormat::Cubin {
            let (compiled, ptx) = nvrtc.compile_both(unit, self.arch)?;
            let key = codegen::key(unit, &options(self.arch, CodeFormat::Ptx), nvrtc.identity());
            self.keep(cache, &key, CodeFormat::Ptx, &ptx);
            compiled
        } else {
            nvrtc.compile(unit, self.arch, self.form)?
        };
        self.keep(cache, &key, self.form, &compiled);
        Ok(Module { key, compiled, from_cache: false })
    }

    /// Writes a unit to the cache.
    fn keep(&self, cache: &Cache, key: &Key, form: CodeFormat, compiled: &Compiled) {
        if let Err(error) = cache.put(key, self.arch, form, compiled) {
            let mut first = self.cache_error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(format!("{}: {error}", cache.folder().display()));
        }
    }
}
