//! NVRTC: a unit of CUDA C++ in, machine code or PTX and the compiler's log out.

use std::ffi::CString;
use std::fmt;
use std::path::Path;

use super::library::{self, Failed, Loaded};
use super::program::Program;
use super::resources::{self, Resources};
use crate::backend::cuda::driver::probe::{NvrtcSearch, ProbeError, Version, nvrtc_package};
use crate::codegen::{Arch, CodeFormat, Unit, options};
use crate::types::{Diagnostic, Hint};

/// Why kernels could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// NVRTC cannot be used.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// NVRTC compiles for other architectures.
    #[error("NVRTC {version} does not compile for {arch}; it supports {}", list(known))]
    Arch {
        /// The architecture asked for.
        arch: Arch,
        /// The version of NVRTC.
        version: Version,
        /// The architectures that it lists.
        known: Vec<Arch>,
    },
    /// NVRTC compiles nothing that a device of this architecture runs.
    #[error(
        "NVRTC {version} cannot compile for a GPU of {arch}; it supports {}: install \
         NVRTC of another version",
        list(known)
    )]
    Device {
        /// The architecture of the device.
        arch: Arch,
        /// The version of NVRTC.
        version: Version,
        /// The architectures that it lists.
        known: Vec<Arch>,
    },
    /// NVRTC compiles nothing for a GPU of this architecture that its driver loads.
    #[error(
        "NVRTC {version} compiles PTX for a GPU of {arch}, which its driver (CUDA {driver}) does \
         not load: `pip install {}`, or install a newer driver",
        nvrtc_package(Some(*driver))
    )]
    Newer {
        /// The architecture of the device.
        arch: Arch,
        /// The version of NVRTC.
        version: Version,
        /// The version of CUDA of the driver.
        driver: Version,
    },
    /// The text does not compile.
    #[error("NVRTC does not compile {kernels} for {arch}:\n{log}\n{excerpt}")]
    Compile {
        /// The kernels of the unit.
        kernels: String,
        /// For what they were compiled.
        arch: Arch,
        /// The log of the compiler.
        log: String,
        /// The lines around the first error.
        excerpt: String,
    },
    /// A call of NVRTC failed.
    #[error("{function} failed: {code}")]
    Call {
        /// The function.
        function: &'static str,
        /// Its result.
        code: String,
    },
    /// A worker thread could not be started.
    #[error("no thread to compile kernels could be started: {0}")]
    Thread(String),
}

impl Diagnostic for KernelError {
    fn code(&self) -> &'static str {
        "E0503"
    }

    fn hints(&self) -> Vec<Hint> {
        if let Self::Probe(error) = self { error.hints() } else { Vec::new() }
    }
}

fn list(archs: &[Arch]) -> String {
    archs.iter().map(Arch::to_string).collect::<Vec<_>>().join(", ")
}

/// A compiled unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code, or PTX without the NUL at its end.
    pub image: Vec<u8>,
    /// The log of the compiler.
    pub log: String,
}

impl Compiled {
    /// The resources of each kernel; unknown for PTX.
    pub fn resources(&self) -> Vec<Resources> {
        resources::parse(&self.log)
    }

    /// The bytes of registers that its kernels store and load for want of them; unknown for PTX.
    pub(crate) fn spilled(&self) -> u32 {
        self.resources().iter().map(|kernel| kernel.spill_stores + kernel.spill_loads).sum()
    }
}

/// The compiler, found and ready.
#[derive(Clone)]
pub struct Nvrtc {
    library: Loaded,
    archs: Vec<Arch>,
    identity: String,
}

impl fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, archs) = (self.version(), &self.archs);
        f.debug_struct("Nvrtc")
            .field("version", &version)
            .field("archs", archs)
            .finish_non_exhaustive()
    }
}

/// The input of a compilation.
struct Given {
    text: CString,
    options: Vec<CString>,
}

impl From<Failed> for KernelError {
    fn from(failed: Failed) -> Self {
        Self::Call { function: failed.function, code: failed.code }
    }
}

impl Nvrtc {
    /// Finds NVRTC and asks what it can.
    pub fn open(search: &NvrtcSearch) -> Result<Self, KernelError> {
        let library = library::find(search)?;
        let numbers = library.archs()?.into_iter().filter_map(|n| u16::try_from(n).ok());
        let mut archs: Vec<_> = numbers.map(Arch::of_number).collect();
        archs.sort_unstable();
        // The version that it tells is that of all its patches.
        let bytes = library.bytes().map_or_else(String::new, |bytes| format!(", {bytes} bytes"));
        let identity = format!("nvrtc {}{bytes}", library.version());
        Ok(Self { library, archs, identity })
    }

    /// It, called by the functions of its own library.
    #[cfg(test)]
    pub(crate) fn without_cudarc(self) -> Self {
        Self { library: self.library.without_cudarc(), ..self }
    }

    /// True if cudarc's functions are called.
    #[cfg(test)]
    pub(crate) fn is_cudarcs(&self) -> bool {
        self.library.own().is_none()
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.library.version()
    }

    /// What tells it apart from others, its patches among them: the version and the size of the
    /// library's file.
    pub(crate) fn identity(&self) -> &str {
        &self.identity
    }

    /// The library's file, or its name where it is on the library path.
    pub fn path(&self) -> &Path {
        self.library.path()
    }

    /// The architectures it compiles for, ascending.
    pub fn archs(&self) -> &[Arch] {
        &self.archs
    }

    /// Fails unless it compiles for this architecture.
    pub fn check(&self, arch: Arch) -> Result<(), KernelError> {
        let is_base = arch == Arch::of_number(arch.number());
        let is_known = self.archs.iter().any(|known| known.number() == arch.number());
        if is_known && (is_base || self.version() >= OWN_FEATURES) {
            return Ok(());
        }
        Err(KernelError::Arch { arch, version: self.version(), known: self.archs.clone() })
    }

    /// For what the kernels of a device of this architecture are compiled, and to which form: that
    /// architecture itself; where this version does not know it, machine code of the nearest that
    /// the device runs, or PTX of the newest of earlier architectures, which the device's driver
    /// compiles.
    pub(crate) fn for_device(
        &self,
        arch: Arch,
        form: CodeFormat,
    ) -> Result<(Arch, CodeFormat), KernelError> {
        let known = self.archs.clone();
        let nearest = nearest(&known, self.version(), arch, form);
        nearest.ok_or_else(|| KernelError::Device { arch, version: self.version(), known })
    }

    /// As [`Self::for_device`], but only what a driver of this version loads: PTX of a later
    /// version than its own it does not, machine code of its major version it does.
    pub(crate) fn for_driver(
        &self,
        arch: Arch,
        form: CodeFormat,
        driver: Version,
    ) -> Result<(Arch, CodeFormat), KernelError> {
        self.for_device(arch, form)?;
        let version = self.version();
        let loaded = loaded(&self.archs, version, Wanted { arch, form }, driver);
        loaded.ok_or(KernelError::Newer { arch, version, driver })
    }

    /// Compiles a unit.
    pub fn compile(
        &self,
        unit: &Unit,
        arch: Arch,
        form: CodeFormat,
    ) -> Result<Compiled, KernelError> {
        let given = self.given(unit, arch, form)?;
        let (program, log) = self.program(unit, arch, &given)?;
        let image = match form {
            CodeFormat::Ptx => program.ptx()?,
            CodeFormat::Cubin => program.cubin()?,
        };
        Ok(Compiled { image, log })
    }

    /// Compiles a unit to machine code; and the PTX on the way there, which is that of
    /// [`CodeFormat::Ptx`].
    pub(crate) fn compile_both(
        &self,
        unit: &Unit,
        arch: Arch,
    ) -> Result<(Compiled, Compiled), KernelError> {
        let given = self.given(unit, arch, CodeFormat::Cubin)?;
        let (program, log) = self.program(unit, arch, &given)?;
        let ptx = Compiled { image: program.ptx()?, log: String::new() };
        Ok((Compiled { image: program.cubin()?, log }, ptx))
    }

    /// The text and the options that the library is given.
    fn given(&self, unit: &Unit, arch: Arch, form: CodeFormat) -> Result<Given, KernelError> {
        self.check(arch)?;
        let text = CString::new(unit.text.as_str());
        let text = text.map_err(|_| wrong(unit, arch, "the text has a NUL"))?;
        let options = options(arch, form).into_iter().map(CString::new);
        let options = options.collect::<Result<Vec<_>, _>>();
        let options = options.map_err(|_| wrong(unit, arch, "an option has a NUL"))?;
        Ok(Given { text, options })
    }

    /// The program of a text, compiled, and what the compiler said.
    fn program<'a>(
        &self,
        unit: &Unit,
        arch: Arch,
        given: &'a Given,
    ) -> Result<(Program<'a>, String), KernelError> {
        let program = Program::new(self.library, &given.text, c"unit.cu")?;
        let options: Vec<_> = given.options.iter().map(CString::as_c_str).collect();
        let compiled = program.compile(&options);
        match (compiled, program.log()) {
            (Ok(()), log) => Ok((program, log?)),
            (Err(_), Ok(log)) if !log.trim().is_empty() => Err(wrong(unit, arch, &log)),
            (Err(failed), _) => Err(failed.into()),
        }
    }
}

/// The first NVRTC that compiles for `sm_90a`; before it, the architecture's own features cannot be
/// had.
const OWN_FEATURES: Version = Version { major: 12, minor: 0 };

/// The architectures of Tegra: their machine code runs on no other device, and that of others not
/// on them.
const TEGRA: [u16; 6] = [53, 62, 72, 87, 101, 110];

/// What a device of architecture `arch` runs, among what a compiler of this version knows: see
/// [`Nvrtc::for_device`].
fn nearest(
    known: &[Arch],
    version: Version,
    arch: Arch,
    form: CodeFormat,
) -> Option<(Arch, CodeFormat)> {
    let number = arch.number();
    if known.iter().any(|known| known.number() == number) {
        let own = version >= OWN_FEATURES;
        return Some((if own { arch } else { Arch::of_number(number) }, form));
    }
    let earlier = || known.iter().copied().filter(|known| known.number() < number);
    // Machine code runs on later minor versions of its major one.
    let runs = |known: &Arch| {
        known.number() / 10 == number / 10
            && !TEGRA.contains(&number)
            && !TEGRA.contains(&known.number())
    };
    let cubin = || earlier().filter(runs).max().map(|near| (near, CodeFormat::Cubin));
    let ptx = || earlier().max().map(|near| (near, CodeFormat::Ptx));
    if form == CodeFormat::Cubin { cubin().or_else(ptx) } else { ptx() }
}

/// True if a driver loads what a compiler of this version gives in a form. Machine code of a later
/// major version is tried: that it is not loaded is told then.
fn is_loaded(version: Version, driver: Version, form: CodeFormat) -> bool {
    match form {
        CodeFormat::Ptx => version <= driver,
        CodeFormat::Cubin => true,
    }
}

/// For what kernels are compiled, and to which form.
#[derive(Clone, Copy)]
struct Wanted {
    arch: Arch,
    form: CodeFormat,
}

/// As [`nearest`], but only what a driver of this version loads: machine code instead of PTX of a
/// later version than its own. None where that is of a later major version, too.
fn loaded(
    known: &[Arch],
    version: Version,
    wanted: Wanted,
    driver: Version,
) -> Option<(Arch, CodeFormat)> {
    let Wanted { arch, form } = wanted;
    let found = nearest(known, version, arch, form)?;
    if is_loaded(version, driver, found.1) {
        return Some(found);
    }
    let (arch, form) = nearest(known, version, arch, CodeFormat::Cubin)?;
    let is_loaded = form == CodeFormat::Cubin && version.major <= driver.major;
    is_loaded.then_some((arch, form))
}

/// The compiler's log of a unit that it rejects.
fn wrong(unit: &Unit, arch: Arch, log: &str) -> KernelError {
    let mut kernels = unit.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>();
    let rest = kernels.len().saturating_sub(3);
    kernels.truncate(3);
    let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let kernels = kernels.join(", ") + &rest;
    let excerpt = unit.excerpt(log);
    KernelError::Compile { kernels, arch, log: log.trim_end().to_owned(), excerpt }
}

#[cfg(test)]
mod tests {
    use super::{CodeFormat, Version, Wanted, is_loaded, loaded, nearest};
    use crate::codegen::Arch;

    #[test]
    fn ptx_of_a_later_version_is_not_loaded() {
        let of = |version: [i32; 2], driver: [i32; 2], form| {
            let [version, driver] =
                [version, driver].map(|[major, minor]| Version { major, minor });
            is_loaded(version, driver, form)
        };
        for (version, driver, is_ptx) in [
            ([13, 0], [13, 0], true),
            ([12, 9], [13, 0], true),
            ([13, 2], [13, 0], false),
            ([13, 0], [12, 9], false),
        ] {
            assert_eq!(of(version, driver, CodeFormat::Ptx), is_ptx, "{version:?} {driver:?}");
            assert!(of(version, driver, CodeFormat::Cubin));
        }
    }

    #[test]
    fn machine_code_is_taken_where_ptx_is_of_a_later_minor_version() {
        let [h100, newer] = [(9, 0), (12, 0)].map(|(major, minor)| Arch::of_device(major, minor));
        let known: Vec<Arch> = [80, 90].map(Arch::of_number).to_vec();
        let given = |arch, version: [i32; 2], driver: [i32; 2], form| {
            let [version, driver] =
                [version, driver].map(|[major, minor]| Version { major, minor });
            let given = loaded(&known, version, Wanted { arch, form }, driver);
            given.map(|(arch, form)| format!("{arch} {form}"))
        };
        let ptx = |arch, version, driver| given(arch, version, driver, CodeFormat::Ptx);
        let told = |text: &str| Some(text.to_owned());
        assert_eq!(ptx(h100, [13, 0], [13, 0]), told("sm_90a ptx"));
        assert_eq!(ptx(h100, [12, 9], [13, 0]), told("sm_90a ptx"));
        // The backend notes that the form is another than that which was asked for.
        assert_eq!(ptx(h100, [13, 2], [13, 0]), told("sm_90a cubin"));
        assert_eq!(ptx(h100, [12, 9], [12, 8]), told("sm_90a cubin"));
        assert_eq!(ptx(h100, [13, 0], [12, 9]), None, "nor machine code of a later major version");
        // A device that has PTX alone.
        let cubin = |version, driver| given(newer, version, driver, CodeFormat::Cubin);
        assert_eq!(cubin([13, 0], [13, 1]), told("sm_90 ptx"));
        assert_eq!(cubin([13, 2], [13, 1]), None);
        let cubin = |version, driver| given(h100, version, driver, CodeFormat::Cubin);
        assert_eq!(cubin([13, 2], [13, 0]), told("sm_90a cubin"));
    }

    #[test]
    fn a_device_is_given_what_it_runs() {
        let archs =
            |numbers: &[u16]| numbers.iter().map(|n| Arch::of_number(*n)).collect::<Vec<_>>();
        let (new, old) = (archs(&[75, 80, 86, 87, 89, 90, 100]), archs(&[52, 80, 86, 87, 90]));
        let of = |known: &[Arch], version, (major, minor), form| {
            let version = Version { major: version, minor: 0 };
            let found = nearest(known, version, Arch::of_device(major, minor), form);
            found.map(|(arch, form)| format!("{arch} {form}"))
        };
        let cubin = |known, version, device| {
            of(known, version, device, CodeFormat::Cubin).unwrap_or_default()
        };
        assert_eq!(cubin(&new, 13, (9, 0)), "sm_90a cubin");
        assert_eq!(cubin(&new, 13, (8, 6)), "sm_86 cubin");
        // Later minor versions of a major one that is known, and later major ones.
        assert_eq!(cubin(&new, 13, (10, 3)), "sm_100 cubin");
        assert_eq!(cubin(&new, 13, (12, 0)), "sm_100 ptx");
        assert_eq!(cubin(&old, 11, (8, 9)), "sm_86 cubin");
        assert_eq!(cubin(&old, 11, (9, 0)), "sm_90 cubin");
        assert_eq!(cubin(&old, 11, (7, 5)), "sm_52 ptx");
        // The machine code of Tegra and of other devices do not mix.
        let (with, without) = (archs(&[80, 87]), archs(&[80, 86]));
        assert_eq!(cubin(&with, 11, (8, 9)), "sm_80 cubin");
        assert_eq!(cubin(&without, 12, (8, 7)), "sm_86 ptx");
        assert_eq!(of(&new, 13, (10, 3), CodeFormat::Ptx), Some("sm_100 ptx".to_owned()));
        assert_eq!(of(&new, 13, (7, 0), CodeFormat::Cubin), None);
        assert_eq!(of(&[], 13, (9, 0), CodeFormat::Cubin), None);
    }
}
