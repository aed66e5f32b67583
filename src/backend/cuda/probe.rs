//! Are the driver and the compiler of CUDA here? Asked before anything else of them, since the first call of a function
//! whose library is missing would panic.

#![allow(unsafe_code, reason = "libraries are opened and asked for their version")]

use std::error::Error as _;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use cudarc::{driver, nvrtc};
use libloading::Library;

/// Why a library of CUDA cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The driver is not installed.
    #[error(
        "libcuda, the driver of NVIDIA GPUs, is not on this machine: install the driver \
         (https://www.nvidia.com/drivers; Debian: nvidia-driver; a container is started with `--gpus all`), or run \
         on the CPU with `--target cpu`"
    )]
    Driver,
    /// The driver is too old.
    #[error(
        "libcuda is that of CUDA {0}; {1} or later is needed: install a newer driver of NVIDIA"
    )]
    DriverTooOld(Version, Version),
    /// The driver does not start.
    #[error("libcuda is here, but does not start: {0}")]
    DriverFailed(String),
    /// NVRTC is not installed where it is looked for.
    #[error(
        "libnvrtc, the compiler of CUDA kernels, is not on this machine: `pip install nvidia-cuda-nvrtc==13.0.88` or \
         install the CUDA toolkit, and name its folder where it is not found (`FANWISE_NVRTC`); looked for on the \
         library path and in {}", Folders(.0)
    )]
    Nvrtc(Vec<PathBuf>),
    /// The folder that was named does not have NVRTC.
    #[error("{} has no libnvrtc and libnvrtc-builtins that can be opened: {reason}", folder.display())]
    NvrtcFolder {
        /// The folder.
        folder: PathBuf,
        /// What was found.
        reason: String,
    },
    /// Another NVRTC is found before the one that was named.
    #[error(
        "the libnvrtc in {} is not the one that this process uses: another is loaded, or earlier on the library path",
        .0.display()
    )]
    NvrtcShadowed(PathBuf),
}

/// Folders of an error, the first few of them.
struct Folders<'a>(&'a [PathBuf]);

impl fmt::Display for Folders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 4;
        match self.0 {
            [] => f.write_str("no folder beside it"),
            all => {
                let shown = all.iter().take(SHOWN).map(|p| p.display().to_string());
                f.write_str(&shown.collect::<Vec<_>>().join(", "))?;
                let rest = all.len().saturating_sub(SHOWN);
                if rest > 0 { write!(f, " and {rest} more") } else { Ok(()) }
            }
        }
    }
}

/// A version of a driver or a compiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The major number: 13 of CUDA 13.0.
    pub major: i32,
    /// The minor number.
    pub minor: i32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The oldest driver that has every function that is called.
const OLDEST_DRIVER: Version = Version { major: 12, minor: 2 };

/// The version of CUDA of the driver, if one can be used.
pub fn driver() -> Result<Version, ProbeError> {
    // SAFETY: opening the library runs its initialisers, as any use of it would; no function of it is called.
    if !unsafe { driver::sys::is_culib_present() } {
        return Err(ProbeError::Driver);
    }
    let mut number: c_int = 0;
    // SAFETY: the library is present, every version of it has this function, and the pointer is to an integer.
    let result = unsafe { driver::sys::cuDriverGetVersion(&raw mut number) };
    if let Err(error) = result.result() {
        return Err(ProbeError::DriverFailed(format!("{:?}", error.0)));
    }
    let version = Version { major: number / 1000, minor: number % 1000 / 10 };
    if version < OLDEST_DRIVER {
        return Err(ProbeError::DriverTooOld(version, OLDEST_DRIVER));
    }
    Ok(version)
}

/// Where NVRTC is looked for. The library reads no environment; its caller says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NvrtcSearch {
    /// The folder that must have it; without one, the library path and then `candidates` are tried.
    pub folder: Option<PathBuf>,
    /// Folders that may have it, as that of a Python package or of a toolkit.
    pub candidates: Vec<PathBuf>,
}

/// The version of NVRTC, if it can be used. The first library that is found serves the process to its end.
pub fn nvrtc(search: &NvrtcSearch) -> Result<Version, ProbeError> {
    // One after another: what is found must not depend on a race.
    static LOADING: Mutex<()> = Mutex::new(());
    let _loading = LOADING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(folder) = &search.folder {
        let library = load_from(folder)
            .map_err(|reason| ProbeError::NvrtcFolder { folder: folder.clone(), reason })?;
        if !nvrtc_present() || !is_used(library) {
            return Err(ProbeError::NvrtcShadowed(folder.clone()));
        }
    } else if !nvrtc_present() {
        search.candidates.iter().find(|folder| load_from(folder).is_ok());
        if !nvrtc_present() {
            return Err(ProbeError::Nvrtc(search.candidates.clone()));
        }
    }
    let (mut major, mut minor): (c_int, c_int) = (0, 0);
    // SAFETY: the library is present, every version of it has this function, and both pointers are to integers.
    let result = unsafe { nvrtc::sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    match result.result() {
        Ok(()) => Ok(Version { major, minor }),
        Err(_) => Err(ProbeError::Nvrtc(search.candidates.clone())),
    }
}

fn nvrtc_present() -> bool {
    // SAFETY: opening the library runs its initialisers, as any use of it would; no function of it is called.
    unsafe { nvrtc::sys::is_culib_present() }
}

/// True if the calls of NVRTC go to this library.
fn is_used(library: &Library) -> bool {
    const NAME: &[u8] = b"nvrtcVersion";
    // SAFETY: the library is present, since the caller checked that.
    let used = unsafe { nvrtc::sys::culib() };
    // SAFETY: only the address of the function is compared; it is not called by this type.
    let used = unsafe { used.get::<*const c_void>(NAME) }.map(|symbol| *symbol);
    // SAFETY: as before.
    let named = unsafe { library.get::<*const c_void>(NAME) }.map(|symbol| *symbol);
    matches!((used, named), (Ok(a), Ok(b)) if a == b)
}

/// Opens NVRTC of a folder, or of where a package or toolkit has it below that, for the rest of the process. The
/// system then takes it for every library of the same name.
fn load_from(folder: &Path) -> Result<&'static Library, String> {
    const BELOW: [&str; 6] =
        ["", "lib", "lib64", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "bin"];
    let mut reason = "no such file".to_owned();
    for below in BELOW {
        let Some([builtins, compiler]) = find(&folder.join(below)) else { continue };
        // The compiler opens its builtins by their bare name, so they must be there before it.
        let opened = open(&builtins).and_then(|builtins| Ok((builtins, open(&compiler)?)));
        match opened {
            Ok((builtins, compiler)) => {
                // Code and data of both are used until the process ends.
                Box::leak(Box::new(builtins));
                return Ok(Box::leak(Box::new(compiler)));
            }
            // What the system says is the error's source.
            Err(error) => {
                reason = error.source().map_or(error.to_string(), ToString::to_string);
            }
        }
    }
    Err(reason)
}

/// The builtins and the compiler in a folder; of several versions the newest by name.
fn find(folder: &Path) -> Option<[PathBuf; 2]> {
    let entries = std::fs::read_dir(folder).ok()?;
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    let newest = |prefixes: [&str; 2]| {
        let fits = |name: &&String| {
            prefixes.iter().any(|prefix| name.starts_with(prefix)) && !name.contains(".alt.")
        };
        names.iter().rfind(fits).map(|name| folder.join(name))
    };
    let builtins = newest(["libnvrtc-builtins.so", "nvrtc-builtins64_"])?;
    Some([builtins, newest(["libnvrtc.so", "nvrtc64_"])?])
}

/// Opens a library with its names visible to those opened later.
fn open(path: &Path) -> Result<Library, libloading::Error> {
    #[cfg(unix)]
    {
        use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_NOW};
        // SAFETY: the file is a library of CUDA by its name and the caller's word; its initialisers run, as any use of
        // it would have them do.
        unsafe { Unix::open(Some(path), RTLD_NOW | RTLD_GLOBAL) }.map(Library::from)
    }
    #[cfg(not(unix))]
    {
        // SAFETY: as above.
        unsafe { Library::new(path) }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::{NvrtcSearch, ProbeError, Version, find, nvrtc};

    #[test]
    fn a_folder_without_the_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let search = NvrtcSearch { folder: Some(folder.path().to_owned()), candidates: Vec::new() };
        let said = nvrtc(&search).unwrap_err().to_string();
        assert!(said.contains("libnvrtc-builtins") && said.ends_with("no such file"), "{said}");
        for file in ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"] {
            std::fs::write(folder.path().join(file), "no library").unwrap();
        }
        let said = nvrtc(&search).unwrap_err().to_string();
        assert!(said.contains("libnvrtc-builtins.so.13.0"), "{said}");
    }

    #[test]
    fn the_newest_of_a_folder_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(find(folder.path()), None);
        let files = [
            "libnvrtc-builtins.so.12.9",
            "libnvrtc-builtins.so.13.0",
            "libnvrtc-builtins.alt.so.13.0",
            "libnvrtc.so.12",
            "libnvrtc.so.13",
            "libnvrtc.alt.so.13",
        ];
        for file in files {
            std::fs::write(folder.path().join(file), "").unwrap();
        }
        let found = ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"];
        assert_eq!(find(folder.path()), Some(found.map(|name| folder.path().join(name))));
    }

    #[test]
    fn messages_name_the_library_and_what_to_do() {
        let folders: Vec<_> = (0..6).map(|i| PathBuf::from(format!("/f{i}"))).collect();
        let said = ProbeError::Nvrtc(folders).to_string();
        assert!(said.contains("libnvrtc") && said.contains("pip install nvidia-cuda-nvrtc"));
        assert!(said.ends_with("in /f0, /f1, /f2, /f3 and 2 more"), "{said}");
        let said = ProbeError::Driver.to_string();
        assert!(said.contains("libcuda") && said.contains("--target cpu"), "{said}");
        let old = Version { major: 11, minor: 8 };
        let said = ProbeError::DriverTooOld(old, super::OLDEST_DRIVER).to_string();
        assert!(said.contains("CUDA 11.8; 12.2 or later"), "{said}");
    }
}
