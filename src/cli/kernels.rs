//! The kernels of a program: their text, and what NVRTC makes of it.

use std::fs;
use std::path::Path;

use crate::backend::CPU;
use crate::codegen::{self, Arch, CodeFormat, Unit};
use crate::lower::Kernels as _;
use crate::lower::Program;
use crate::{Error, format};
use anyhow::{Context, bail};

#[cfg(feature = "cuda")]
use crate::cli::exec;
use crate::cli::target::CacheArgs;
use crate::cli::ui;

/// Forms in which kernels are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernels {
    /// The text of each unit.
    Text,
    /// The form of the compiled code.
    Compiled(CodeFormat),
}

/// For what kernels are compiled, and where the result is kept.
pub(crate) struct For<'a> {
    /// The architecture, if one is named.
    pub(crate) arch: Option<Arch>,
    /// The cache of compiled kernels.
    pub(crate) cache: &'a CacheArgs,
    /// Whether PTX and machine code are both written.
    pub(crate) both: bool,
}

/// Writes the kernels of a program to files of a folder, or to standard output.
pub(crate) fn emit(
    program: &Program,
    what: Kernels,
    folder: Option<&Path>,
    options: &For<'_>,
) -> anyhow::Result<()> {
    if program.target == *CPU.target() {
        bail!("programs for the CPU have no GPU kernels; use `--target cuda`");
    }
    let kernels = codegen::kernels(program).map_err(Error::from)?;
    let units = codegen::units(&kernels).map_err(Error::from)?;
    let emitted = match what {
        Kernels::Text => Emitted::text(&units),
        Kernels::Compiled(form) => Emitted::compiled(&units, form, options)?,
    };
    match folder {
        Some(folder) => emitted.write(folder),
        None => ui::out(&emitted.shown),
    }
}

/// The kernels to write.
struct Emitted {
    /// The name and content of each file.
    files: Vec<(String, Vec<u8>)>,
    /// The file extension.
    ending: &'static str,
    /// What stands in the file beside them that lists the kernels.
    index: String,
    /// The text for standard output.
    shown: String,
}

fn file(unit: usize, ending: &str) -> String {
    format!("unit_{unit:03}.{ending}")
}

impl Emitted {
    fn new(ending: &'static str) -> Self {
        Self { files: Vec::new(), ending, index: String::new(), shown: String::new() }
    }

    fn text(units: &[Unit]) -> Self {
        let mut emitted = Self::new("cu");
        for (number, unit) in units.iter().enumerate() {
            let name = file(number, "cu");
            emitted.shown.extend([format!("// {name}\n{}", unit.text)]);
            for entry in &unit.entries {
                emitted.index.extend([format!("{name}  {}\n", entry.name)]);
            }
            emitted.files.push((name, unit.text.clone().into_bytes()));
        }
        emitted
    }

    #[cfg(not(feature = "cuda"))]
    fn compiled(_: &[Unit], form: CodeFormat, options: &For<'_>) -> anyhow::Result<Self> {
        let (_, _, _) = (options.arch, options.cache.folder(), options.both);
        bail!("this build has no feature `cuda`, so it writes no {form}")
    }

    #[cfg(feature = "cuda")]
    fn compiled(units: &[Unit], form: CodeFormat, options: &For<'_>) -> anyhow::Result<Self> {
        use std::sync::atomic::{AtomicU64, Ordering};

        let wanted = Wanted::new(options.arch)?;
        let compiler = crate::cli::target::compiler(options.cache)?;
        let arch = wanted.of(form, compiler.nvrtc())?;
        let done = AtomicU64::new(0);
        let total = units.len() as u64;
        let progress = || (done.load(Ordering::Relaxed), total);
        // Machine code comes first, and leaves the PTX for the other form in the cache.
        // Without a named architecture the two forms may be for different ones.
        let both = options.both && options.arch.is_some() && options.cache.folder().is_some();
        let compiler = if both { compiler.keeping_ptx() } else { compiler };
        let compile = |form| compiler.compile(units, arch, form, &done);
        let modules = exec::watched("compiling kernels", &progress, || {
            // Compiled once for both forms, whichever is written first.
            if both && form == CodeFormat::Ptx {
                compile(CodeFormat::Cubin)?;
                done.store(0, Ordering::Relaxed);
            }
            compile(form)
        });
        let modules = modules.map_err(Error::from)?;
        if let Some(error) = &modules.cache_error {
            ui::note(format_args!("cannot cache the compiled kernels: {error}"));
        }
        let mut emitted = Self::new(form.name());
        let mut rows = Vec::new();
        for (number, module) in modules.modules.iter().enumerate() {
            let name = file(number, form.name());
            for entry in &units[number].entries {
                rows.push(row(&name, &entry.name, &module.compiled.resources()));
            }
            if form == CodeFormat::Ptx {
                let text = String::from_utf8_lossy(&module.compiled.image);
                emitted.shown.extend([format!("// {name}\n{text}\n")]);
            }
            emitted.files.push((name, module.compiled.image.clone()));
        }
        // Resources, such as registers, are known of machine code only.
        emitted.index = match form {
            CodeFormat::Cubin => ui::table(&HEAD, &rows),
            CodeFormat::Ptx => {
                rows.iter().fold(String::new(), |text, row| text + &row[1] + "  " + &row[0] + "\n")
            }
        };
        if form == CodeFormat::Cubin {
            emitted.shown.clone_from(&emitted.index);
        }
        Ok(emitted)
    }

    fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let made = fs::create_dir_all(folder);
        made.with_context(|| format!("cannot create the folder {}", folder.display()))?;
        for (name, content) in &self.files {
            format::write_bytes(&folder.join(name), content).map_err(Error::from)?;
        }
        let index = format!("kernels.{}.txt", self.ending);
        Ok(format::write_text(&folder.join(index), &self.index).map_err(Error::from)?)
    }
}

/// The architecture to compile for: the one that is named, or what the first GPU runs.
#[cfg(feature = "cuda")]
struct Wanted {
    arch: Arch,
    is_named: bool,
}

#[cfg(feature = "cuda")]
impl Wanted {
    fn new(named: Option<Arch>) -> anyhow::Result<Self> {
        let first = || Some(crate::backend::cuda::devices().ok()?.list.first()?.arch);
        match named.or_else(first) {
            Some(arch) => Ok(Self { arch, is_named: named.is_some() }),
            None => {
                bail!("no GPU found to compile for; name an architecture, such as `--arch sm_80`")
            }
        }
    }

    /// For what this compiler compiles the form.
    fn of(&self, form: CodeFormat, nvrtc: &crate::backend::cuda::Nvrtc) -> anyhow::Result<Arch> {
        if self.is_named {
            return Ok(self.arch);
        }
        let (arch, runs) = nvrtc.for_device(self.arch, form).map_err(Error::from)?;
        if runs != form {
            let (version, own) = (nvrtc.version(), self.arch);
            bail!(
                "NVRTC {version} compiles no {form} for this GPU ({own}); use `--emit {runs}`, or \
                 name an architecture with `--arch`"
            );
        }
        Ok(arch)
    }
}

/// The columns of the table of compiled kernels.
#[cfg(feature = "cuda")]
const HEAD: [&str; 7] = ["kernel", "file", "registers", "stack", "spilled", "shared", "barriers"];

/// Resources of a multiprocessor that a kernel occupies.
#[cfg(feature = "cuda")]
fn row(file: &str, kernel: &str, all: &[crate::backend::cuda::Resources]) -> Vec<String> {
    let own = all.iter().find(|r| r.name == kernel).cloned().unwrap_or_default();
    let spilled = own.spill_stores + own.spill_loads;
    let numbers = [own.registers, own.stack, spilled, own.shared, own.barriers];
    let numbers = numbers.iter().map(u32::to_string);
    [kernel.to_owned(), file.to_owned()].into_iter().chain(numbers).collect()
}
