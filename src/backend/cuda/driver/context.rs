//! The CUDA driver: its errors, the contexts of devices, and what they say of themselves.
//!
//! [`start`] opens the driver; a function that is called before fails with
//! `CUDA_ERROR_NOT_INITIALIZED`.

#![allow(unsafe_code, reason = "the driver is called through C functions")]

use std::ffi::{CStr, c_int};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::captures;
use super::codes;
use super::deferred_free::DeferredFree;
use super::error::{ProbeError, Version};
use super::sys;
use crate::backend::DriverError;
use crate::backend::host::lock;
use crate::codegen::Arch;
use crate::types::invariant::{int, invariant};

impl DriverError {
    fn new(call: &'static str, code: sys::Code) -> Self {
        let (mut name, mut text) = (ptr::null(), ptr::null());
        // SAFETY: it stores a pointer to a static, terminated string, or leaves what is there.
        unsafe { sys::cuGetErrorName(code, &raw mut name) };
        // SAFETY: as above.
        unsafe { sys::cuGetErrorString(code, &raw mut text) };
        let name = owned(name).unwrap_or_else(|| "unknown".to_owned());
        let mut text = owned(text).unwrap_or_else(|| "the driver gives no description".to_owned());
        if let Some(advice) = codes::advice(code) {
            text = format!("{text}; {advice}");
        }
        Self { call, code, name, text }
    }
}

/// The text at a pointer that the driver gave: null, or a static, terminated string.
fn owned(text: *const std::ffi::c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: it is not null, so it points to such a string.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// The default time for which a device may make no progress.
pub(crate) const WATCHDOG: Duration = Duration::from_mins(1);

/// The code of work that is not done.
pub(crate) const NOT_READY: u32 = sys::CUresult::CUDA_ERROR_NOT_READY as u32;

/// The return code of a call, as a result.
pub(crate) fn check(call: &'static str, code: sys::Code) -> Result<(), DriverError> {
    if code == sys::SUCCESS { Ok(()) } else { Err(DriverError::new(call, code)) }
}

/// Starts the driver; the version of CUDA that it is of.
pub(crate) fn start() -> Result<Version, ProbeError> {
    let version = sys::open()?;
    // SAFETY: the function takes a number.
    match unsafe { sys::cuInit(0) } {
        NO_DEVICE => Ok(version),
        code => match check("cuInit", code) {
            Ok(()) => Ok(version),
            Err(error) => Err(ProbeError::DriverFailed(error.to_string())),
        },
    }
}

/// The code of a driver that runs where there is no device.
const NO_DEVICE: u32 = sys::CUresult::CUDA_ERROR_NO_DEVICE as u32;

/// The number of devices of the driver, which is started.
pub(crate) fn count() -> Result<u32, DriverError> {
    let mut count = 0;
    // SAFETY: it stores a number where `count` is.
    let counted = unsafe { sys::cuDeviceGetCount(&raw mut count) };
    // Without a device the driver stays as it was before it was started.
    if counted == NO_DEVICE || counted == sys::NOT_OPEN {
        return Ok(0);
    }
    check("cuDeviceGetCount", counted)?;
    // A driver that counts below zero has no device.
    Ok(u32::try_from(count).unwrap_or(0))
}

/// The devices of the driver, which is started.
pub(crate) fn gpus() -> Result<Vec<Gpu>, DriverError> {
    (0..count()?).map(Gpu::new).collect()
}

/// A device, whose context need not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gpu {
    raw: sys::CUdevice,
    ordinal: u32,
}

impl Gpu {
    /// The device with this number. The driver must have been started.
    pub(crate) fn new(ordinal: u32) -> Result<Self, DriverError> {
        let mut raw = 0;
        // A number that is too large is no device's, and the driver says so.
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: it stores a device where `raw` is.
        check("cuDeviceGet", unsafe { sys::cuDeviceGet(&raw mut raw, number) })?;
        Ok(Self { raw, ordinal })
    }

    /// The device's number.
    pub(crate) fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// An attribute of the device; 0 if the driver reports a negative number.
    pub(crate) fn attribute(self, attribute: sys::CUdevice_attribute) -> Result<u32, DriverError> {
        let mut value = 0;
        // SAFETY: it stores a number; the device is valid.
        let result = unsafe { sys::cuDeviceGetAttribute(&raw mut value, attribute, self.raw) };
        // All attributes are counts, sizes and flags: a negative one is no answer.
        check("cuDeviceGetAttribute", result).map(|()| u32::try_from(value).unwrap_or(0))
    }

    /// The architecture for which kernels are compiled.
    pub(crate) fn arch(self) -> Result<Arch, DriverError> {
        use sys::CUdevice_attribute as Attribute;
        // A number that is too large is no architecture's, and NVRTC says so.
        let get = |attribute| {
            self.attribute(attribute).map(|value| u16::try_from(value).unwrap_or(u16::MAX))
        };
        Ok(Arch::of_device(
            get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// Its name.
    pub(crate) fn name(self) -> Result<String, DriverError> {
        let mut text = [0u8; 256];
        // One byte stays the zero at the end of the text.
        let length = int(text.len() - 1);
        // SAFETY: it writes at most so many bytes to the array.
        let result = unsafe { sys::cuDeviceGetName(text.as_mut_ptr().cast(), length, self.raw) };
        check("cuDeviceGetName", result)?;
        let text = CStr::from_bytes_until_nul(&text).ok();
        let text = invariant(text, "that the last byte of a name is zero");
        Ok(text.to_string_lossy().into_owned())
    }

    /// True if it is an instance of a GPU that is divided, as its name tells: `NVIDIA H100 80GB
    /// HBM3 MIG 1g.10gb`. A process sees one of a machine's instances.
    pub(crate) fn is_instance(self) -> bool {
        // A GPU that does not tell its name is taken for a whole one.
        self.name().is_ok_and(|name| is_of_instance(&name))
    }

    /// The bytes of its memory.
    pub(crate) fn memory(self) -> Result<u64, DriverError> {
        let mut bytes = 0;
        // SAFETY: it stores a number; the device is valid.
        let result = unsafe { sys::cuDeviceTotalMem_v2(&raw mut bytes, self.raw) };
        check("cuDeviceTotalMem", result).map(|()| bytes as u64)
    }

    /// True if the hardware lets it read and write the memory of another.
    pub(crate) fn can_reach(self, other: Self) -> Result<bool, DriverError> {
        let mut can = 0;
        // SAFETY: it stores a number; both devices are valid.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, self.raw, other.raw) };
        check("cuDeviceCanAccessPeer", result).map(|()| can != 0)
    }
}

/// True for the name of an instance of a divided GPU.
pub(crate) fn is_of_instance(name: &str) -> bool {
    name.split_whitespace().any(|word| word == "MIG")
}

/// How a device reaches the memory of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Not at all.
    None,
    /// Directly, since just now.
    Now,
    /// Directly, because somebody in this process has let it.
    Before,
}

/// Memory of devices that is kept for later, beside what is in use.
pub(crate) trait Reclaim: fmt::Debug + Send + Sync {
    /// Gives up what there is of it on a device; true if there was any.
    fn give_up(&self, on: &Context) -> bool;
}

/// The primary context of a device, retained.
#[derive(Debug)]
pub(crate) struct Context {
    gpu: Gpu,
    raw: sys::CUcontext,
    deferred_free: DeferredFree,
    reclaimable: Mutex<Vec<Weak<dyn Reclaim>>>,
}

// SAFETY: the driver's contexts may be used from any thread; the handle is only passed to it.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The context of a device, which may make no progress for `limit`.
    pub(crate) fn new(gpu: Gpu, limit: Duration) -> Result<Arc<Self>, DriverError> {
        let mut raw = ptr::null_mut();
        // SAFETY: it stores a context where `raw` is; the device is valid.
        let retained = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut raw, gpu.raw) };
        check("cuDevicePrimaryCtxRetain", retained)?;
        let (deferred_free, reclaimable) = (DeferredFree::new(limit), Mutex::default());
        Ok(Arc::new(Self { gpu, raw, deferred_free, reclaimable }))
    }

    /// The context of a device that nobody has opened.
    #[cfg(test)]
    pub(super) fn unopened() -> Arc<Self> {
        let (gpu, raw) = (Gpu { raw: 0, ordinal: 0 }, ptr::null_mut());
        let (deferred_free, reclaimable) = (DeferredFree::new(WATCHDOG), Mutex::default());
        Arc::new(Self { gpu, raw, deferred_free, reclaimable })
    }

    /// The queue for memory that is no longer used.
    pub(crate) fn deferred_free(&self) -> &DeferredFree {
        &self.deferred_free
    }

    /// Says of memory on the device that it can be had back.
    pub(crate) fn keep(&self, memory: &Arc<dyn Reclaim>) {
        let mut reclaimable = lock(&self.reclaimable);
        reclaimable.retain(|known| known.strong_count() > 0);
        reclaimable.push(Arc::downgrade(memory));
    }

    /// Gives up what a program keeps on the device for later, as memory is wanted; true if one
    /// keeps any.
    pub(crate) fn reclaim_all(&self) -> bool {
        let reclaimable: Vec<_> =
            lock(&self.reclaimable).iter().filter_map(Weak::upgrade).collect();
        reclaimable.iter().any(|memory| memory.give_up(self))
    }

    /// The device's number.
    pub(crate) fn ordinal(&self) -> u32 {
        self.gpu.ordinal
    }

    pub(crate) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Makes the context that of the calling thread, until what it gives is dropped: the thread may
    /// have another, of which this crate knows nothing. So long no capture forbids the thread
    /// anything: a capture in global mode, of whoever uses this crate, would fail by memory that is
    /// taken here.
    pub(crate) fn enter(&self) -> Result<Entered, DriverError> {
        let heeded = captures::leave().map_err(|code| DriverError::new(captures::CALL, code))?;
        let mut entered = Entered { heeded, is_pushed: false, _here: PhantomData };
        // SAFETY: the context is retained as long as `self` is.
        check("cuCtxPushCurrent", unsafe { sys::cuCtxPushCurrent_v2(self.raw) })?;
        entered.is_pushed = true;
        Ok(entered)
    }

    /// The free bytes of the device's memory.
    pub(crate) fn free_memory(&self) -> Result<u64, DriverError> {
        let _current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: it stores two numbers.
        let result = unsafe { sys::cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        check("cuMemGetInfo", result)?;
        Ok(free as u64)
    }

    /// Lets this device read and write the memory of another; true if it can. Where it cannot, be
    /// it that the hardware or the driver does not let it or that it reaches as many as it may, the
    /// driver takes copies through the host.
    pub(super) fn reach(&self, other: &Self) -> Result<Reach, DriverError> {
        if !self.gpu.can_reach(other.gpu)? {
            return Ok(Reach::None);
        }
        let _current = self.enter()?;
        // SAFETY: the other context is retained as long as `other` is; the flags must be 0.
        let result = unsafe { sys::cuCtxEnablePeerAccess(other.raw, 0) };
        if UNREACHABLE.iter().any(|code| *code as u32 == result) {
            return Ok(Reach::None);
        }
        if result == sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED as u32 {
            return Ok(Reach::Before);
        }
        check("cuCtxEnablePeerAccess", result).map(|()| Reach::Now)
    }
}

impl Context {
    /// Takes back what [`Self::reach`] let this device do.
    pub(super) fn forget(&self, other: &Self) -> Result<(), DriverError> {
        let _current = self.enter()?;
        // SAFETY: the other context is retained as long as `other` is.
        let result = unsafe { sys::cuCtxDisablePeerAccess(other.raw) };
        if result == sys::CUresult::CUDA_ERROR_PEER_ACCESS_NOT_ENABLED as u32 {
            return Ok(());
        }
        check("cuCtxDisablePeerAccess", result)
    }
}

/// A thread's stay in a context.
#[must_use = "dropped, it takes the thread back to the context before"]
pub(crate) struct Entered {
    /// The mode of captures that the thread heeded before, if it heeds any.
    heeded: Option<u32>,
    is_pushed: bool,
    _here: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.is_pushed {
            let mut left = ptr::null_mut();
            // SAFETY: it stores the context that this thread has entered, and no other thread can
            // drop `self`.
            let _: sys::Code = unsafe { sys::cuCtxPopCurrent_v2(&raw mut left) };
        }
        if let Some(mode) = self.heeded {
            // The driver gave this mode before, so it takes it.
            let _: Result<u32, sys::Code> = captures::exchange(mode);
        }
    }
}

/// The codes with which the driver refuses that a device reaches another, and neither is the worse
/// for it.
const UNREACHABLE: [sys::CUresult; 4] = [
    sys::CUresult::CUDA_ERROR_TOO_MANY_PEERS,
    sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
    sys::CUresult::CUDA_ERROR_NOT_SUPPORTED,
    sys::CUresult::CUDA_ERROR_NOT_PERMITTED,
];

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was retained by `new`, and what was made in it holds a reference to
        // `self`, so is gone.
        let _: sys::Code = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.gpu.raw) };
    }
}
