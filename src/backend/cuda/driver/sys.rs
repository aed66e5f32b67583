//! The functions of the CUDA driver that this backend calls, looked up once.
//!
//! The types are cudarc's. The calls are not: its functions panic where the library or one of them
//! is missing, and give results as an enum, in which a number that a newer driver returns would be
//! undefined behaviour. Here a result is the [`Code`] itself, and [`open`] fails where something is
//! missing. `docs/decisions/0014-cudarc.md` counts these functions.

#![allow(unsafe_code, reason = "a library is opened and its functions are called")]
#![allow(
    clippy::too_many_arguments,
    reason = "functions have the arguments that the driver gives them"
)]
#![allow(non_snake_case, reason = "functions have the names that the driver gives them")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

pub(crate) use cudarc::driver::sys::{
    CU_MEMHOSTALLOC_PORTABLE, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent,
    CUevent_flags, CUfunction, CUfunction_attribute, CUgraph, CUgraphExec, CUmodule, CUresult,
    CUstream, CUstream_flags, CUstreamCaptureMode,
};
use libloading::Library;

use super::error::{ProbeError, Version};

/// What a function of the driver returns: 0, or the number of an error, which may be one that
/// nobody knew of when this was written.
pub(crate) type Code = c_uint;

/// The code of success.
pub(crate) const SUCCESS: Code = CUresult::CUDA_SUCCESS as Code;

/// The code that every function gives while the driver is not open.
pub(crate) const NOT_OPEN: Code = CUresult::CUDA_ERROR_NOT_INITIALIZED as Code;

/// The code that the library of a toolkit gives which stands in for the driver when programs are
/// linked.
const STUB: Code = CUresult::CUDA_ERROR_STUB_LIBRARY as Code;

/// The names under which systems have the driver, the first that is found first.
const NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// The driver, once it is open.
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// The functions of a library as fields of `$table`, and each as a function of this module that
/// calls it.
macro_rules! functions {
    ($table:ident; $($name:ident($($arg:ident: $ty:ty),*);)*) => {
        /// The functions of the driver.
        struct $table {
            $($name: unsafe extern "C" fn($($ty),*) -> Code,)*
        }

        impl $table {
            /// Looks all functions up; the name of the first that is missing.
            fn of(library: &Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the driver's function of this name has this type, with the
                        // results as a number.
                        let symbol = unsafe { library.get(stringify!($name).as_bytes()) };
                        *symbol.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }

        $(
            /// The driver's function of this name.
            ///
            /// # Safety
            /// The arguments must be what the driver asks of them.
            pub(crate) unsafe fn $name($($arg: $ty),*) -> Code {
                match DRIVER.get() {
                    // SAFETY: the arguments are the caller's affair; the library stays loaded.
                    Some(driver) => unsafe { (driver.functions.$name)($($arg),*) },
                    None => NOT_OPEN,
                }
            }
        )*

        #[cfg(test)]
        mod tests {
            use super::*;

            /// A code is a value of cudarc's enum there.
            type Code = CUresult;

            #[test]
            fn cudarc_declares_the_same_arguments() {
                $(
                    let _: unsafe fn($($ty),*) -> CUresult = cudarc::driver::sys::$name;
                )*
                let _: unsafe fn(*mut f32, CUevent, CUevent) -> CUresult =
                    cudarc::driver::sys::cuEventElapsedTime_v2;
                let _: unsafe fn(*mut c_int) -> CUresult = cudarc::driver::sys::cuDriverGetVersion;
            }
        }
    };
}

functions! { Functions;
    cuCtxDisablePeerAccess(peer: CUcontext);
    cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
    cuCtxPopCurrent_v2(context: *mut CUcontext);
    cuCtxPushCurrent_v2(context: CUcontext);
    cuDeviceCanAccessPeer(can: *mut c_int, device: CUdevice, peer: CUdevice);
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    cuDeviceGetCount(count: *mut c_int);
    cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    cuEventCreate(event: *mut CUevent, flags: c_uint);
    cuEventDestroy_v2(event: CUevent);
    cuEventQuery(event: CUevent);
    cuEventRecord(event: CUevent, stream: CUstream);
    cuEventSynchronize(event: CUevent);
    cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    cuGetErrorName(code: Code, text: *mut *const c_char);
    cuGetErrorString(code: Code, text: *mut *const c_char);
    cuGraphDestroy(graph: CUgraph);
    cuGraphExecDestroy(graph: CUgraphExec);
    cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: u64);
    cuGraphLaunch(graph: CUgraphExec, stream: CUstream);
    cuGraphUpload(graph: CUgraphExec, stream: CUstream);
    cuInit(flags: c_uint);
    cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint,
        block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream,
        parameters: *mut *mut c_void, extra: *mut *mut c_void
    );
    cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    cuMemFreeHost(start: *mut c_void);
    cuMemFree_v2(address: CUdeviceptr);
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    cuMemHostAlloc(start: *mut *mut c_void, bytes: usize, flags: c_uint);
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    cuMemcpyPeerAsync(
        to: CUdeviceptr, to_context: CUcontext, from: CUdeviceptr, from_context: CUcontext,
        bytes: usize, stream: CUstream
    );
    cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    cuModuleUnload(module: CUmodule);
    cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    cuStreamDestroy_v2(stream: CUstream);
    cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    cuStreamQuery(stream: CUstream);
    cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
}

/// The driver's function for the time between two events.
type Elapsed = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> Code;

/// The driver of this process.
struct Driver {
    /// It stays loaded to the end of the process.
    _library: Library,
    version: Version,
    functions: Functions,
    elapsed: Elapsed,
}

/// Opens the driver, unless it is open; the version of CUDA that it is of.
pub(crate) fn open() -> Result<Version, ProbeError> {
    if let Some(driver) = DRIVER.get() {
        return Ok(driver.version);
    }
    let mut reason = ProbeError::Driver;
    for name in NAMES {
        // SAFETY: opening the library runs its initialisers, as any use of it would.
        let Ok(library) = (unsafe { Library::new(*name) }) else { continue };
        match load(library) {
            Ok(driver) => return Ok(DRIVER.get_or_init(|| driver).version),
            Err(error) => reason = error,
        }
    }
    Err(reason)
}

/// The driver that a library is.
fn load(library: Library) -> Result<Driver, ProbeError> {
    let version = version(&library)?;
    if version < super::error::OLDEST_DRIVER {
        return Err(ProbeError::DriverTooOld(version, super::error::OLDEST_DRIVER));
    }
    let lacks = |name| ProbeError::DriverFailed(format!("it has no `{name}`"));
    let functions = Functions::of(&library).map_err(lacks)?;
    // Drivers before 12.8 lack the newer form.
    let elapsed = ["cuEventElapsedTime_v2", "cuEventElapsedTime"].into_iter().find_map(|name| {
        // SAFETY: the driver's functions of both names have this type, with the results as a
        // number.
        let symbol = unsafe { library.get::<Elapsed>(name.as_bytes()) };
        symbol.ok().map(|symbol| *symbol)
    });
    let elapsed = elapsed.ok_or_else(|| lacks("cuEventElapsedTime"))?;
    Ok(Driver { _library: library, version, functions, elapsed })
}

/// The version of CUDA that a driver says it is of.
fn version(library: &Library) -> Result<Version, ProbeError> {
    type VersionFn = unsafe extern "C" fn(*mut c_int) -> Code;
    // SAFETY: the driver's function of this name has this type, with the results as a number.
    let ask = unsafe { library.get::<VersionFn>(b"cuDriverGetVersion") };
    let ask = ask.map_err(|_| ProbeError::DriverFailed("it has no version".to_owned()))?;
    let mut number = 0;
    // SAFETY: it stores a number.
    match unsafe { ask(&raw mut number) } {
        SUCCESS => Ok(Version { major: number / 1000, minor: number % 1000 / 10 }),
        STUB => Err(ProbeError::DriverFailed("it is a toolkit's stand-in for linking".to_owned())),
        code => Err(ProbeError::DriverFailed(format!("cuDriverGetVersion gives {code}"))),
    }
}

/// The milliseconds between two events, stored where `milliseconds` is.
///
/// # Safety
/// The pointer must be to a number, and the events valid.
pub(crate) unsafe fn elapsed(milliseconds: *mut f32, from: CUevent, to: CUevent) -> Code {
    match DRIVER.get() {
        // SAFETY: the arguments are the caller's affair; the library stays loaded.
        Some(driver) => unsafe { (driver.elapsed)(milliseconds, from, to) },
        None => NOT_OPEN,
    }
}
