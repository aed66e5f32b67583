//! libnvrtc: looked for, opened, its functions looked up. The library that is found is the one
//! whose functions are called, through cudarc where that calls the same one.

#![allow(unsafe_code, reason = "a library is opened and its functions are called")]

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cudarc::nvrtc::sys;
use libloading::Library;

use crate::backend::cuda::driver::probe::{NvrtcSearch, ProbeError, Version};

/// The oldest NVRTC that says for which architectures it compiles, and gives machine code.
const OLDEST: Version = Version { major: 11, minor: 2 };

/// The return code of a function of NVRTC: 0, or the number of an error.
pub(crate) type Code = c_int;

/// The newest NVRTC all of whose codes cudarc knows: another one, as a value of cudarc's enum,
/// would be undefined behaviour.
const NEWEST_OF_CUDARC: Version = Version { major: 13, minor: 2 };

/// The names under which the library path may have NVRTC, the newest first.
const NAMES: &[&str] = if cfg!(windows) {
    &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"]
} else {
    &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"]
};

/// The folders of packages and toolkits that may have the library.
const BELOW: [&str; 8] = [
    "",
    "lib",
    "lib64",
    "nvidia/cu13/lib",
    "nvidia/cuda_nvrtc/lib",
    "targets/x86_64-linux/lib",
    "targets/sbsa-linux/lib",
    "bin",
];

/// The folders that are looked at.
pub(crate) fn below(folder: &Path) -> impl Iterator<Item = PathBuf> + '_ {
    BELOW.iter().map(|below| folder.join(below))
}

/// The functions of a library.
#[derive(Clone, Copy)]
pub(crate) struct Functions {
    supported: unsafe extern "C" fn(*mut c_int) -> Code,
    list_supported: unsafe extern "C" fn(*mut c_int) -> Code,
    pub(crate) create: unsafe extern "C" fn(
        *mut sys::nvrtcProgram,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> Code,
    pub(crate) destroy: unsafe extern "C" fn(*mut sys::nvrtcProgram) -> Code,
    pub(crate) compile:
        unsafe extern "C" fn(sys::nvrtcProgram, c_int, *const *const c_char) -> Code,
    pub(crate) log_size: unsafe extern "C" fn(sys::nvrtcProgram, *mut usize) -> Code,
    pub(crate) log: unsafe extern "C" fn(sys::nvrtcProgram, *mut c_char) -> Code,
    pub(crate) ptx_size: unsafe extern "C" fn(sys::nvrtcProgram, *mut usize) -> Code,
    pub(crate) ptx: unsafe extern "C" fn(sys::nvrtcProgram, *mut c_char) -> Code,
    pub(crate) cubin_size: unsafe extern "C" fn(sys::nvrtcProgram, *mut usize) -> Code,
    pub(crate) cubin: unsafe extern "C" fn(sys::nvrtcProgram, *mut c_char) -> Code,
    error: unsafe extern "C" fn(Code) -> *const c_char,
}

/// Looks a function up.
macro_rules! function {
    ($library:expr, $name:literal) => {{
        // SAFETY: NVRTC's function of this name has the type of the field that it becomes, with the
        // results as a number.
        let symbol = unsafe { $library.get(concat!($name, "\0").as_bytes()) };
        *symbol.map_err(|_| concat!("it has no `", $name, "`").to_owned())?
    }};
}

impl Functions {
    fn of(library: &Library) -> Result<Self, String> {
        Ok(Self {
            supported: function!(library, "nvrtcGetNumSupportedArchs"),
            list_supported: function!(library, "nvrtcGetSupportedArchs"),
            create: function!(library, "nvrtcCreateProgram"),
            destroy: function!(library, "nvrtcDestroyProgram"),
            compile: function!(library, "nvrtcCompileProgram"),
            log_size: function!(library, "nvrtcGetProgramLogSize"),
            log: function!(library, "nvrtcGetProgramLog"),
            ptx_size: function!(library, "nvrtcGetPTXSize"),
            ptx: function!(library, "nvrtcGetPTX"),
            cubin_size: function!(library, "nvrtcGetCUBINSize"),
            cubin: function!(library, "nvrtcGetCUBIN"),
            error: function!(library, "nvrtcGetErrorString"),
        })
    }
}

/// A call of NVRTC that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// The function.
    pub(crate) function: &'static str,
    /// The library's name of the error.
    pub(crate) code: String,
}

/// NVRTC, loaded to the end of the process.
#[derive(Clone, Copy)]
pub(crate) struct Loaded {
    /// Its file, or its name on the library path.
    path: &'static Path,
    version: Version,
    functions: Functions,
    /// True if cudarc's functions are those of this library.
    is_cudarcs: bool,
}

impl Loaded {
    /// Its file, or its name on the library path.
    pub(crate) fn path(self) -> &'static Path {
        self.path
    }

    /// Its version.
    pub(crate) fn version(self) -> Version {
        self.version
    }

    /// Its own functions, where cudarc's are those of another library.
    pub(crate) fn own(&self) -> Option<&Functions> {
        (!self.is_cudarcs).then_some(&self.functions)
    }

    /// The library whose own functions are called.
    #[cfg(test)]
    pub(crate) fn without_cudarc(self) -> Self {
        Self { is_cudarcs: false, ..self }
    }

    /// The size of its file, where that is known.
    pub(crate) fn bytes(self) -> Option<u64> {
        let named = self.path.components().count() == 1;
        let file = if named { mapped(self.path)? } else { self.path.to_owned() };
        Some(file.metadata().ok()?.len())
    }

    /// The return code of a function, as a result.
    pub(crate) fn check(self, function: &'static str, code: Code) -> Result<(), Failed> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: it takes any number and gives null or a static, terminated string.
        let text = unsafe { (self.functions.error)(code) };
        let code = if text.is_null() {
            code.to_string()
        } else {
            // SAFETY: it is not null, so it points to such a string.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(Failed { function, code })
    }

    /// The numbers of the architectures that it compiles for.
    pub(crate) fn archs(self) -> Result<Vec<c_int>, Failed> {
        let mut count: c_int = 0;
        // SAFETY: it stores a number.
        let counted = unsafe { (self.functions.supported)(&raw mut count) };
        self.check("nvrtcGetNumSupportedArchs", counted)?;
        let length = usize::try_from(count).map_err(|_| Failed {
            function: "nvrtcGetNumSupportedArchs",
            code: format!("{count} architectures"),
        })?;
        let mut numbers: Vec<c_int> = vec![0; length];
        // SAFETY: the array has as many elements as the library said that it writes.
        let listed = unsafe { (self.functions.list_supported)(numbers.as_mut_ptr()) };
        self.check("nvrtcGetSupportedArchs", listed)?;
        Ok(numbers)
    }
}

/// NVRTC, if one that can be used is where it is looked for: the first whose code the search's
/// driver loads, and the first at all where there is no such. Each search chooses for itself;
/// libraries of several versions stand side by side.
pub(crate) fn find(search: &NvrtcSearch) -> Result<Loaded, ProbeError> {
    // One after another: what is found must not depend on a race.
    static LOADING: Mutex<()> = Mutex::new(());
    let _loading = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let newest = search.driver.map_or(c_int::MAX, |driver| driver.major);
    let mut candidates = Candidates { newest, newer: None, unusable: Vec::new() };
    if let Some(folder) = &search.folder {
        let found = candidates.in_folder(folder).or(candidates.newer);
        return found.map(with_cudarc).ok_or_else(|| ProbeError::NvrtcFolder {
            folder: folder.clone(),
            reason: candidates.unusable.into_iter().next().unwrap_or("no such file".to_owned()),
        });
    }
    let named = NAMES.iter().find_map(|name| candidates.on_path(name));
    let found =
        named.or_else(|| search.candidates.iter().find_map(|folder| candidates.in_folder(folder)));
    found.or(candidates.newer).map(with_cudarc).ok_or_else(|| ProbeError::Nvrtc {
        driver: search.driver,
        looked: search.candidates.clone(),
        unusable: candidates.unusable,
    })
}

/// The library that was chosen, called through cudarc where that calls this very one.
fn with_cudarc(chosen: Loaded) -> Loaded {
    let is_known = chosen.version <= NEWEST_OF_CUDARC;
    let own = open(chosen.path).ok().and_then(|(_, library)| identity(library));
    Loaded { is_cudarcs: is_known && own.is_some() && own == cudarcs(), ..chosen }
}

/// The identity of the library that cudarc calls: the first of its names that the system opens, for
/// the rest of the process. None where it finds none, since it would panic.
fn cudarcs() -> Option<usize> {
    // SAFETY: opening a library runs its initialisers, as any use of it would.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    // SAFETY: as above.
    identity(unsafe { sys::culib() })
}

/// The identity of an open NVRTC library: the address of one of its functions.
fn identity(library: &Library) -> Option<usize> {
    // SAFETY: only the address is asked for.
    let function = unsafe { library.get::<*const c_void>(b"nvrtcVersion\0") };
    function.ok().map(|address| address.addr())
}

/// The candidates that a search has found.
struct Candidates {
    /// The newest major version that fits.
    newest: c_int,
    /// The first that is newer.
    newer: Option<Loaded>,
    /// Libraries that cannot be used, and why.
    unusable: Vec<String>,
}

impl Candidates {
    /// NVRTC under this name of the library path, if it fits.
    fn on_path(&mut self, name: &str) -> Option<Loaded> {
        // A name that the system does not find is none of interest.
        let library = open(Path::new(name)).ok()?;
        self.fitting(load(library, None), &format!("{name} of the library path"))
    }

    /// The newest NVRTC that fits of a folder, or of where a package or toolkit has it below that.
    fn in_folder(&mut self, folder: &Path) -> Option<Loaded> {
        below(folder).find_map(|folder| {
            libraries(&folder).iter().find_map(|path| {
                let loaded = open(path).and_then(|library| load(library, Some(&folder)));
                self.fitting(loaded, &path.display().to_string())
            })
        })
    }

    /// A library that was met, if it fits.
    fn fitting(&mut self, loaded: Result<Loaded, String>, name: &str) -> Option<Loaded> {
        match loaded {
            Ok(found) if found.version.major <= self.newest => return Some(found),
            Ok(found) => self.newer = self.newer.or(Some(found)),
            Err(reason) => self.unusable.push(format!("{name}: {reason}")),
        }
        None
    }
}

/// The numbers in the name of a library behind its stem: `[13, 0]` of `libnvrtc.so.13.0`.
fn numbers(name: &str) -> Vec<u64> {
    let parts = name.split(|c: char| !c.is_ascii_digit());
    // What has more digits than a number is no version.
    parts.filter(|part| !part.is_empty()).map(|part| part.parse().unwrap_or(0)).collect()
}

/// The files of a folder whose names begin so, the newest first by the numbers in their names.
fn files(folder: &Path, stems: [&str; 2]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let rest = |name: &str| {
        let rest = stems.iter().find_map(|stem| name.strip_prefix(stem))?;
        (!rest.contains("alt")).then(|| numbers(rest))
    };
    let mut found: Vec<_> = names.filter_map(|name| Some((rest(&name)?, name))).collect();
    found.sort();
    found.into_iter().rev().map(|(_, name)| folder.join(name)).collect()
}

/// The compilers of a folder, the newest first.
fn libraries(folder: &Path) -> Vec<PathBuf> {
    files(folder, ["libnvrtc.so", "nvrtc64_"])
}

/// The builtins of this version in a folder: the compiler opens them by their bare name, so they
/// must be there before.
fn builtins(folder: &Path, version: Version) -> Option<PathBuf> {
    let Version { major, minor } = version;
    let linux = format!("libnvrtc-builtins.so.{major}.{minor}");
    let windows = format!("nvrtc-builtins64_{major}{minor}");
    // The number that the name asks for may go on, but not as another number.
    let fits = |path: &PathBuf| {
        // A name that is not Unicode is not the library's.
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let rest = name.strip_prefix(&linux).or(name.strip_prefix(&windows));
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    files(folder, ["libnvrtc-builtins.so", "nvrtc-builtins64_"]).into_iter().find(fits)
}

/// A library that is open, and its path or its name on the library path.
type Open = (&'static Path, &'static Library);

/// Opens a library by its path, or by its name on the library path. It is never closed, and opened
/// once.
fn open(path: &Path) -> Result<Open, String> {
    static OPEN: Mutex<Vec<Open>> = Mutex::new(Vec::new());
    let mut all = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(open) = all.iter().find(|(known, _)| *known == path) {
        return Ok(*open);
    }
    // SAFETY: the file is a library of CUDA by its name and the caller's word; its initialisers
    // run, as any use of it would have them do.
    let opened = unsafe { Library::new(path) };
    // What the system says is the error's source.
    let said =
        |error: libloading::Error| error.source().map_or(error.to_string(), ToString::to_string);
    let library: &'static Library = Box::leak(Box::new(opened.map_err(said)?));
    let open = (&*Box::leak(path.to_path_buf().into_boxed_path()), library);
    all.push(open);
    Ok(open)
}

/// The file that the system took for a library of this name, as the process has it in its memory. A
/// system that does not tell has none.
fn mapped(name: &Path) -> Option<PathBuf> {
    let (name, maps) = (name.to_str()?, std::fs::read_to_string("/proc/self/maps").ok()?);
    let paths = maps.lines().filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    let is_it = |path: &&Path| {
        path.file_name().and_then(|own| own.to_str()).is_some_and(|own| own.starts_with(name))
    };
    { paths }.find(is_it).map(Path::to_owned)
}

/// NVRTC of a library, which was in this folder or on the library path, with its builtins.
fn load((path, library): Open, folder: Option<&Path>) -> Result<Loaded, String> {
    let version = version(library)?;
    if version < OLDEST {
        return Err(format!("NVRTC {version} is too old, {OLDEST} or later is needed"));
    }
    let functions = Functions::of(library)?;
    let lacks = || format!("libnvrtc-builtins of NVRTC {version} is not beside it");
    if let Some(folder) = folder {
        open(&builtins(folder, version).ok_or_else(lacks)?)?;
    } else {
        let Version { major, minor } = version;
        let name = if cfg!(windows) {
            format!("nvrtc-builtins64_{major}{minor}.dll")
        } else {
            format!("libnvrtc-builtins.so.{major}.{minor}")
        };
        open(Path::new(&name)).map_err(|_| lacks())?;
    }
    Ok(Loaded { path, version, functions, is_cudarcs: false })
}

/// The version that a library says it is.
fn version(library: &Library) -> Result<Version, String> {
    type VersionFn = unsafe extern "C" fn(*mut c_int, *mut c_int) -> Code;
    let ask: VersionFn = function!(library, "nvrtcVersion");
    let mut version = Version { major: 0, minor: 0 };
    // SAFETY: it stores two numbers.
    match unsafe { ask(&raw mut version.major, &raw mut version.minor) } {
        0 => Ok(version),
        code => Err(format!("nvrtcVersion gives {code}")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Loaded, Version, builtins, find, libraries, mapped, numbers};
    use crate::backend::cuda::{NvrtcSearch, ProbeError};

    fn in_folder(folder: &Path) -> String {
        let folder = Some(folder.to_owned());
        let found = find(&NvrtcSearch { folder, ..NvrtcSearch::default() });
        found.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_folder_without_the_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let said = in_folder(folder.path());
        assert!(said.contains("has no libnvrtc") && said.ends_with("no such file"), "{said}");
        for file in ["libnvrtc-builtins.so.13.0", "libnvrtc.so.13"] {
            fs::write(folder.path().join(file), "no library").unwrap();
        }
        let said = in_folder(folder.path());
        assert!(said.contains("libnvrtc.so.13: "), "{said}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_file_of_a_library_on_the_path_is_found() {
        let file = mapped(Path::new("libgcc_s.so.1")).unwrap();
        assert!(file.is_absolute() && file.metadata().unwrap().len() > 0, "{}", file.display());
        assert_eq!(mapped(Path::new("libnothing.so.1")), None);
    }

    /// A library of the process itself under NVRTC's name: it opens, and is another one.
    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_of_the_name_is_told() {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let other = maps.split_whitespace().find(|word| word.contains("libgcc_s")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::copy(other, folder.path().join("libnvrtc.so.99")).unwrap();
        let said = in_folder(folder.path());
        assert!(said.contains("libnvrtc.so.99: it has no `nvrtcVersion`"), "{said}");
        let candidates = vec![PathBuf::from("/no/such/folder"), folder.path().to_owned()];
        let driver = Some(Version { major: 12, minor: 4 });
        let search = NvrtcSearch { folder: None, candidates: candidates.clone(), driver };
        if let Err(ProbeError::Nvrtc { driver: of, unusable, looked }) = find(&search) {
            assert_eq!(of, driver);
            assert!(unusable.iter().any(|u| u.contains("has no `nvrtcVersion`")), "{unusable:?}");
            assert_eq!(looked, candidates);
        }
    }

    /// A library with NVRTC's functions in a folder, which says that it is of this version, and its
    /// builtins.
    #[cfg(target_os = "linux")]
    fn write_library(folder: &Path, major: i32, minor: i32) {
        const NAMES: [&str; 11] = [
            "nvrtcGetNumSupportedArchs",
            "nvrtcGetSupportedArchs",
            "nvrtcCreateProgram",
            "nvrtcDestroyProgram",
            "nvrtcCompileProgram",
            "nvrtcGetProgramLogSize",
            "nvrtcGetProgramLog",
            "nvrtcGetPTXSize",
            "nvrtcGetPTX",
            "nvrtcGetCUBINSize",
            "nvrtcGetCUBIN",
        ];
        fs::create_dir_all(folder).unwrap();
        let version = format!(
            "int nvrtcVersion(int *a, int *b) {{ *a = {major}; *b = {minor}; return 0; }}\n\
             const char *nvrtcGetErrorString(int code) {{ return \"none\"; }}\n"
        );
        let others = NAMES.iter().map(|name| format!("int {name}(void) {{ return 0; }}\n"));
        let source = folder.join("nvrtc.c");
        fs::write(&source, version + &others.collect::<String>()).unwrap();
        let library = folder.join(format!("libnvrtc.so.{major}"));
        let mut compiler = std::process::Command::new("cc");
        let ended = compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
        assert!(ended.expect("the linker of Rust is here").success());
        fs::copy(library, folder.join(format!("libnvrtc-builtins.so.{major}.{minor}"))).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_newest_that_the_driver_loads_comes_first() {
        let root = tempfile::tempdir().unwrap();
        let (both, new) = (root.path().join("both"), root.path().join("new"));
        write_library(&both.join("nvidia/cu13/lib"), 13, 0);
        write_library(&both.join("nvidia/cuda_nvrtc/lib"), 12, 9);
        write_library(&both.join("nvidia/cuda_nvrtc/lib"), 11, 8);
        write_library(&new, 14, 1);
        write_library(&new, 13, 2);
        let of = |folder: &Path, driver: Option<i32>| {
            let driver = driver.map(|major| Version { major, minor: 4 });
            let folder = Some(folder.to_owned());
            let found = find(&NvrtcSearch { folder, driver, candidates: Vec::new() });
            let version = found.map(Loaded::version).unwrap();
            (version.major, version.minor)
        };
        // In one process, one after the other; cudarc, which opens one for good, takes none of
        // these.
        let folder = Some(both.clone());
        let found = find(&NvrtcSearch { folder, ..NvrtcSearch::default() });
        assert!(found.unwrap().own().is_some());
        assert_eq!(of(&both, None), (13, 0));
        assert_eq!(of(&both, Some(12)), (12, 9));
        assert_eq!(of(&both, Some(14)), (13, 0));
        assert_eq!(of(&both, None), (13, 0));
        // What is too new is better than nothing.
        assert_eq!(of(&new, Some(12)), (14, 1));
        assert_eq!(of(&new, Some(13)), (13, 2));
        // Folders that may have it, and the library path before them.
        let driver = Some(Version { major: 12, minor: 4 });
        let search = NvrtcSearch { folder: None, candidates: vec![new, both], driver };
        assert!(find(&search).unwrap().version().major <= 12);
    }

    #[test]
    fn the_newest_of_a_folder_comes_first_with_its_builtins() {
        let folder = tempfile::tempdir().unwrap();
        assert!(libraries(folder.path()).is_empty());
        let files = [
            "libnvrtc-builtins.so.9.2",
            "libnvrtc-builtins.so.12.90",
            "libnvrtc-builtins.so.12.9.86",
            "libnvrtc-builtins.so.13.0",
            "libnvrtc-builtins.alt.so.13.0",
            "libnvrtc.so.9.2",
            "libnvrtc.so.12",
            "libnvrtc.so.13",
            "libnvrtc.alt.so.13",
        ];
        for file in files {
            fs::write(folder.path().join(file), "").unwrap();
        }
        let names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.9.2"];
        assert_eq!(libraries(folder.path()), names.map(|name| folder.path().join(name)));
        let of = |major, minor| builtins(folder.path(), Version { major, minor });
        assert_eq!(of(13, 0), Some(folder.path().join("libnvrtc-builtins.so.13.0")));
        assert_eq!(of(12, 9), Some(folder.path().join("libnvrtc-builtins.so.12.9.86")));
        assert_eq!(of(13, 1), None);
        assert_eq!(numbers(".13.99999999999999999999.1"), [13, 0, 1]);
    }
}
