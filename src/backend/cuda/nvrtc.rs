//! NVRTC: a unit of CUDA C++ in, machine code or PTX and the compiler's log out.

#![allow(unsafe_code, reason = "calls of a C library; each block says why it may")]

use std::ffi::{CStr, CString, c_char, c_int};

use cudarc::nvrtc::{result, sys};

use super::probe::{NvrtcSearch, ProbeError, Version, nvrtc};
use super::resources::{self, Resources};
use crate::codegen::{Arch, Form, Unit, options};

/// Why kernels could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// NVRTC cannot be used.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// NVRTC compiles for other architectures.
    #[error("NVRTC {version} does not compile for {arch}; it knows {}", list(known))]
    Arch {
        /// The architecture asked for.
        arch: Arch,
        /// The version of NVRTC.
        version: Version,
        /// The architectures that it lists.
        known: Vec<Arch>,
    },
    /// The text does not compile.
    #[error("NVRTC does not compile {kernels} for {arch}:\n{log}\n{excerpt}")]
    Compile {
        /// The kernels of the unit.
        kernels: String,
        /// For what they were compiled.
        arch: Arch,
        /// What the compiler said.
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

fn list(archs: &[Arch]) -> String {
    archs.iter().map(Arch::to_string).collect::<Vec<_>>().join(", ")
}

/// A compiled unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Machine code, or PTX without the NUL at its end.
    pub image: Vec<u8>,
    /// What the compiler said.
    pub log: String,
}

impl Compiled {
    /// What each kernel takes of a multiprocessor; nothing is known of PTX.
    pub fn resources(&self) -> Vec<Resources> {
        resources::parse(&self.log)
    }
}

/// The compiler, found and ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvrtc {
    version: Version,
    archs: Vec<Arch>,
}

/// Fails with the function's name unless a call succeeded.
fn call(function: &'static str, result: sys::nvrtcResult) -> Result<(), KernelError> {
    result.result().map_err(|error| failed(function, error))
}

fn failed(function: &'static str, error: result::NvrtcError) -> KernelError {
    KernelError::Call { function, code: format!("{:?}", error.0) }
}

impl Nvrtc {
    /// Finds NVRTC and asks what it can.
    pub fn open(search: &NvrtcSearch) -> Result<Self, KernelError> {
        let version = nvrtc(search)?;
        let mut count: c_int = 0;
        // SAFETY: the library is loaded, and the pointer is to an integer.
        let counted = unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
        call("nvrtcGetNumSupportedArchs", counted)?;
        let mut numbers: Vec<c_int> = vec![0; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the array has as many elements as the library said that it writes.
        let listed = unsafe { sys::nvrtcGetSupportedArchs(numbers.as_mut_ptr()) };
        call("nvrtcGetSupportedArchs", listed)?;
        let numbers = numbers.into_iter().filter_map(|n| u16::try_from(n).ok());
        let mut archs: Vec<_> = numbers.map(Arch::of_number).collect();
        archs.sort_unstable();
        Ok(Self { version, archs })
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The architectures it compiles for, ascending.
    pub fn archs(&self) -> &[Arch] {
        &self.archs
    }

    /// Fails unless it compiles for this architecture.
    pub fn check(&self, arch: Arch) -> Result<(), KernelError> {
        if self.archs.iter().any(|known| known.number() == arch.number()) {
            return Ok(());
        }
        Err(KernelError::Arch { arch, version: self.version, known: self.archs.clone() })
    }

    /// For what the kernels of a device of this architecture are compiled: that itself, or where it is newer than all
    /// that this version knows, PTX of the newest of them, which the device's driver compiles.
    pub fn for_device(&self, arch: Arch, form: Form) -> (Arch, Form) {
        match self.archs.last() {
            Some(newest) if newest.number() < arch.number() => (*newest, Form::Ptx),
            _ => (arch, form),
        }
    }

    /// Compiles a unit.
    pub fn compile(&self, unit: &Unit, arch: Arch, form: Form) -> Result<Compiled, KernelError> {
        self.check(arch)?;
        let text = CString::new(unit.text.as_str());
        let text = text.map_err(|_| wrong(unit, arch, "the text has a NUL"))?;
        let program = Program::new(&text)?;
        let options = options(arch, form);
        // SAFETY: the program exists until the end of this function.
        let compiled = unsafe { result::compile_program(program.handle, &options) };
        // SAFETY: as before.
        let log = unsafe { result::get_program_log(program.handle) };
        let log = log.map(|log| String::from_utf8_lossy(&bytes(log)).into_owned());
        match (compiled, log) {
            (Ok(()), log) => {
                let image = program.image(form)?;
                let log = log.map_err(|error| failed("nvrtcGetProgramLog", error))?;
                Ok(Compiled { image, log })
            }
            (Err(_), Ok(log)) if !log.trim().is_empty() => Err(wrong(unit, arch, &log)),
            (Err(error), _) => Err(failed("nvrtcCompileProgram", error)),
        }
    }
}

/// What the compiler said of a unit that it does not compile.
fn wrong(unit: &Unit, arch: Arch, log: &str) -> KernelError {
    let mut kernels = unit.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>();
    let rest = kernels.len().saturating_sub(3);
    kernels.truncate(3);
    let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let kernels = kernels.join(", ") + &rest;
    let excerpt = unit.excerpt(log);
    KernelError::Compile { kernels, arch, log: log.trim_end().to_owned(), excerpt }
}

/// Bytes of text that C has counted with the NUL at its end.
fn bytes(text: Vec<c_char>) -> Vec<u8> {
    let mut bytes: Vec<u8> = text.into_iter().map(c_char::cast_unsigned).collect();
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    bytes
}

/// A program of NVRTC, destroyed when it goes out of scope.
struct Program<'a> {
    handle: sys::nvrtcProgram,
    /// The library may refer to it while the program exists.
    _text: &'a CStr,
}

impl<'a> Program<'a> {
    fn new(text: &'a CStr) -> Result<Self, KernelError> {
        let handle = result::create_program(text, Some(c"unit.cu"));
        let handle = handle.map_err(|error| failed("nvrtcCreateProgram", error))?;
        Ok(Self { handle, _text: text })
    }

    /// What it was compiled to.
    fn image(&self, form: Form) -> Result<Vec<u8>, KernelError> {
        match form {
            Form::Ptx => {
                // SAFETY: the program exists and is compiled.
                let ptx = unsafe { result::get_ptx(self.handle) };
                ptx.map(bytes).map_err(|error| failed("nvrtcGetPTX", error))
            }
            Form::Cubin => {
                let mut size = 0;
                // SAFETY: the program exists and is compiled, and the pointer is to an integer.
                let asked = unsafe { sys::nvrtcGetCUBINSize(self.handle, &raw mut size) };
                call("nvrtcGetCUBINSize", asked)?;
                let mut image = vec![0u8; size];
                // SAFETY: the buffer has as many bytes as the library said that it writes.
                let got = unsafe { sys::nvrtcGetCUBIN(self.handle, image.as_mut_ptr().cast()) };
                call("nvrtcGetCUBIN", got)?;
                Ok(image)
            }
        }
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program exists, and nothing uses it after this.
        let destroyed = unsafe { result::destroy_program(self.handle) };
        debug_assert!(destroyed.is_ok(), "it fails only for a handle that is no program");
    }
}
