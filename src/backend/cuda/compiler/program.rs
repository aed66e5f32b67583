//! Programs of NVRTC, through cudarc or, where that calls another library, by the functions of the
//! one that was chosen.

#![allow(unsafe_code, reason = "functions of a C library are called")]

use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::result::{self, NvrtcError};
use cudarc::nvrtc::sys;

use super::library::{Code, Failed, Loaded};

const CREATE: &str = "nvrtcCreateProgram";
const COMPILE: &str = "nvrtcCompileProgram";
const LOG: &str = "nvrtcGetProgramLog";
const PTX: &str = "nvrtcGetPTX";
const CUBIN: &str = "nvrtcGetCUBIN";

/// A program of NVRTC, destroyed when it goes out of scope.
pub(crate) struct Program<'a> {
    library: Loaded,
    handle: sys::nvrtcProgram,
    /// The library may refer to it while the program exists.
    _text: &'a CStr,
}

/// The functions for one part of a program's content, and the name of the second.
struct Getter {
    name: &'static str,
    size: unsafe extern "C" fn(sys::nvrtcProgram, *mut usize) -> Code,
    get: unsafe extern "C" fn(sys::nvrtcProgram, *mut c_char) -> Code,
}

impl<'a> Program<'a> {
    /// A program of this text.
    pub(crate) fn new(library: Loaded, text: &'a CStr, name: &CStr) -> Result<Self, Failed> {
        let handle = match library.own() {
            None => known(library, CREATE, result::create_program(text, Some(name)))?,
            Some(functions) => {
                let mut handle = ptr::null_mut();
                let (text, name) = (text.as_ptr(), name.as_ptr());
                let (none, names) = (ptr::null(), ptr::null());
                // SAFETY: it stores a program; the texts are terminated, and there are no headers.
                let created =
                    unsafe { (functions.create)(&raw mut handle, text, name, 0, none, names) };
                library.check(CREATE, created)?;
                handle
            }
        };
        Ok(Self { library, handle, _text: text })
    }

    /// Compiles it with these options.
    pub(crate) fn compile(&self, options: &[&CStr]) -> Result<(), Failed> {
        let Some(functions) = self.library.own() else {
            let options: Vec<&[u8]> = options.iter().map(|option| option.to_bytes()).collect();
            // SAFETY: the program exists; cudarc ends each option with a zero.
            let compiled = unsafe { result::compile_program(self.handle, &options) };
            return known(self.library, COMPILE, compiled);
        };
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let too_many = |_| Failed { function: COMPILE, code: "too many options".to_owned() };
        let count = c_int::try_from(options.len()).map_err(too_many)?;
        // SAFETY: the program exists, and there are as many terminated texts as it is told.
        let compiled = unsafe { (functions.compile)(self.handle, count, options.as_ptr()) };
        self.library.check(COMPILE, compiled)
    }

    /// The log of the compiler.
    pub(crate) fn log(&self) -> Result<String, Failed> {
        let log = match self.library.own() {
            None => {
                // SAFETY: the program exists.
                let log = unsafe { result::get_program_log(self.handle) };
                bytemuck::cast_slice(&known(self.library, LOG, log)?).to_vec()
            }
            Some(f) => self.get(&Getter { name: LOG, size: f.log_size, get: f.log })?,
        };
        Ok(String::from_utf8_lossy(text(&log)).into_owned())
    }

    /// The PTX, without the zero at its end.
    pub(crate) fn ptx(&self) -> Result<Vec<u8>, Failed> {
        let ptx = match self.library.own() {
            None => {
                // SAFETY: the program exists.
                let ptx = unsafe { result::get_ptx(self.handle) };
                bytemuck::cast_slice(&known(self.library, PTX, ptx)?).to_vec()
            }
            Some(f) => self.get(&Getter { name: PTX, size: f.ptx_size, get: f.ptx })?,
        };
        Ok(text(&ptx).to_vec())
    }

    /// The machine code, which cudarc's `result` does not read.
    pub(crate) fn cubin(&self) -> Result<Vec<u8>, Failed> {
        if let Some(f) = self.library.own() {
            return self.get(&Getter { name: CUBIN, size: f.cubin_size, get: f.cubin });
        }
        let mut size = 0;
        // SAFETY: the program exists, and the function stores a number.
        let sized = unsafe { sys::nvrtcGetCUBINSize(self.handle, &raw mut size) };
        known(self.library, CUBIN, sized.result())?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the buffer has as many bytes as the library said that it writes.
        let got = unsafe { sys::nvrtcGetCUBIN(self.handle, cubin.as_mut_ptr().cast()) };
        known(self.library, CUBIN, got.result()).map(|()| cubin)
    }

    fn get(&self, Getter { name, size, get }: &Getter) -> Result<Vec<u8>, Failed> {
        let mut bytes = 0;
        // SAFETY: the program exists, and the function stores a number.
        self.library.check(name, unsafe { size(self.handle, &raw mut bytes) })?;
        let mut content = vec![0u8; bytes];
        // SAFETY: the buffer has as many bytes as the library said that it writes.
        self.library.check(name, unsafe { get(self.handle, content.as_mut_ptr().cast()) })?;
        Ok(content)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        let is_destroyed = match self.library.own() {
            // SAFETY: the program exists, and nothing uses it after this.
            None => unsafe { result::destroy_program(self.handle) }.is_ok(),
            // SAFETY: as above.
            Some(functions) => (unsafe { (functions.destroy)(&raw mut self.handle) }) == 0,
        };
        debug_assert!(is_destroyed, "it fails only for a handle that is not a program");
    }
}

/// A result of cudarc's with the name of the function and what the library calls the error.
fn known<T>(
    library: Loaded,
    function: &'static str,
    result: Result<T, NvrtcError>,
) -> Result<T, Failed> {
    result.or_else(|NvrtcError(code)| {
        library.check(function, code as Code)?;
        Err(Failed { function, code: "no error".to_owned() })
    })
}

/// Text that C has counted with the zero at its end; of zeros alone there is none.
fn text(bytes: &[u8]) -> &[u8] {
    // Zeros alone are an empty text.
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}
