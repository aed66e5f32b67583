//! The CUDA driver: its errors, the contexts of devices, and what they say of themselves.
//!
//! Every function here and in the sibling wrappers calls a symbol of the driver that [`missing_symbol`] has found;
//! [`Context::new`] makes sure of it.

#![allow(unsafe_code, reason = "the driver is called through C functions")]

use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::{Arc, OnceLock};

use cudarc::driver::sys;

use super::probe::{self, ProbeError};
use crate::backend::{CompileError, DriverError};
use crate::codegen::Arch;

impl DriverError {
    /// True where the device, or the host for pinned memory, has no memory left.
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.code == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32
    }

    /// True for an error after which the context gives the same error to every call: nothing can be computed any
    /// more in this process on this device.
    pub(super) fn is_sticky(&self) -> bool {
        use sys::CUresult as Code;
        [
            Code::CUDA_ERROR_DEVICE_UNAVAILABLE,
            Code::CUDA_ERROR_ECC_UNCORRECTABLE,
            Code::CUDA_ERROR_NVLINK_UNCORRECTABLE,
            Code::CUDA_ERROR_ILLEGAL_ADDRESS,
            Code::CUDA_ERROR_LAUNCH_TIMEOUT,
            Code::CUDA_ERROR_CONTEXT_IS_DESTROYED,
            Code::CUDA_ERROR_ASSERT,
            Code::CUDA_ERROR_HARDWARE_STACK_ERROR,
            Code::CUDA_ERROR_ILLEGAL_INSTRUCTION,
            Code::CUDA_ERROR_MISALIGNED_ADDRESS,
            Code::CUDA_ERROR_INVALID_ADDRESS_SPACE,
            Code::CUDA_ERROR_INVALID_PC,
            Code::CUDA_ERROR_LAUNCH_FAILED,
            Code::CUDA_ERROR_DEVICE_NOT_LICENSED,
            Code::CUDA_ERROR_SYSTEM_NOT_READY,
            Code::CUDA_ERROR_UNKNOWN,
        ]
        .iter()
        .any(|code| *code as u32 == self.code)
    }

    fn new(call: &'static str, code: sys::CUresult) -> Self {
        let (mut name, mut text) = (ptr::null(), ptr::null());
        // SAFETY: it stores a pointer to a static, terminated string, or leaves what is there.
        unsafe { sys::cuGetErrorName(code, &raw mut name) };
        // SAFETY: as above.
        unsafe { sys::cuGetErrorString(code, &raw mut text) };
        Self { call, code: code as u32, name: owned(name), text: owned(text) }
    }
}

/// The text at a pointer that the driver gave: null, or a static, terminated string.
fn owned(text: *const std::ffi::c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: it is not null, so it points to such a string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The code of work that is not done.
pub(super) const NOT_READY: u32 = sys::CUresult::CUDA_ERROR_NOT_READY as u32;

/// What a call returned, as a result.
pub(super) fn check(call: &'static str, code: sys::CUresult) -> Result<(), DriverError> {
    if code == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(DriverError::new(call, code)) }
}

/// The symbols of the driver that this backend calls; both forms of the elapsed time will do.
const SYMBOLS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamQuery",
    "cuStreamWaitEvent",
];

/// The first symbol that the driver lacks, if it lacks one. The driver must be there.
fn missing_symbol() -> Option<&'static str> {
    static MISSING: OnceLock<Option<&'static str>> = OnceLock::new();
    *MISSING.get_or_init(|| {
        // SAFETY: the library was found before by the same search; it is only loaded.
        let library = unsafe { sys::culib() };
        SYMBOLS.iter().copied().find(|name| {
            // SAFETY: the symbol is looked up, not called; its type does not matter.
            unsafe { library.get::<unsafe extern "C" fn()>(name.as_bytes()) }.is_err()
        })
    })
}

/// Starts the driver.
fn start() -> Result<(), CompileError> {
    probe::driver()?;
    if let Some(symbol) = missing_symbol() {
        return Err(ProbeError::DriverFailed(format!("it has no `{symbol}`")).into());
    }
    // SAFETY: the function takes a number.
    let result = check("cuInit", unsafe { sys::cuInit(0) });
    result.map_err(|error| ProbeError::DriverFailed(error.to_string()).into())
}

/// The primary context of a device, retained.
#[derive(Debug)]
pub(super) struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
    ordinal: u32,
}

// SAFETY: the driver's contexts may be used from any thread; the handle is only passed to it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of the device with this number. The driver must have been started.
    pub(super) fn new(ordinal: u32) -> Result<Arc<Self>, DriverError> {
        let mut device = 0;
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: it stores a device where `device` is.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut device, number) })?;
        let mut raw = ptr::null_mut();
        // SAFETY: it stores a context where `raw` is; the device is valid.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, device) };
        check("cuDevicePrimaryCtxRetain", retained)?;
        Ok(Arc::new(Self { device, raw, ordinal }))
    }

    /// The number of devices; the driver is started.
    pub(super) fn count() -> Result<u32, CompileError> {
        start()?;
        let mut count = 0;
        // SAFETY: it stores a number where `count` is.
        let result = check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&raw mut count) });
        result.map_err(|error| ProbeError::DriverFailed(error.to_string()))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The device's number.
    pub(super) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    pub(super) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Makes the context that of the calling thread.
    pub(super) fn enter(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained as long as `self` is.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })
    }

    /// The free bytes of the device's memory.
    pub(super) fn free_memory(&self) -> Result<u64, DriverError> {
        self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: it stores two numbers.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check("cuMemGetInfo", result)?;
        Ok(free as u64)
    }

    /// The architecture for which kernels are compiled.
    pub(super) fn arch(&self) -> Result<Arch, DriverError> {
        use sys::CUdevice_attribute as Attribute;
        let get = |attribute| {
            let mut value = 0;
            // SAFETY: it stores a number; the device is valid.
            let result =
                unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, self.device) };
            check("cuDeviceGetAttribute", result).map(|()| u16::try_from(value).unwrap_or(0))
        };
        Ok(Arch::of_device(
            get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// Lets this device read and write the memory of another where the hardware can; true if it can.
    pub(super) fn reach(&self, other: &Self) -> Result<bool, DriverError> {
        let mut can = 0;
        // SAFETY: it stores a number; both devices are valid.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.device, other.device) };
        check("cuDeviceCanAccessPeer", result)?;
        if can == 0 {
            return Ok(false);
        }
        self.enter()?;
        // SAFETY: the other context is retained as long as `other` is; the flags must be 0.
        let result = unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) };
        if result == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
            return Ok(true);
        }
        check("cuCtxEnablePeerAccess", result).map(|()| true)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained by `new`, and what was made in it holds a reference to `self`, so is gone.
        let _: sys::CUresult = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}
