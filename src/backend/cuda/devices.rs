//! The GPUs that the driver shows.

#![allow(unsafe_code, reason = "calls of the driver; each block says why it may")]

use std::ffi::c_int;

use cudarc::driver::{result, sys};

use super::probe::{self, ProbeError, Version};
use crate::codegen::Arch;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, as in `gpu:0`.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    /// Bytes of its memory.
    pub memory: u64,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// The architecture for which its kernels are compiled.
    pub arch: Arch,
    /// The GPUs whose memory it can read and write.
    pub peers: Vec<usize>,
}

/// The driver and its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The version of CUDA of the driver.
    pub driver: Version,
    /// The GPUs by their number.
    pub devices: Vec<DeviceInfo>,
}

fn failed(error: result::DriverError) -> ProbeError {
    ProbeError::DriverFailed(format!("{:?}", error.0))
}

/// What the driver shows; none where it runs and there is no GPU.
pub fn devices() -> Result<Devices, ProbeError> {
    let driver = probe::driver()?;
    match result::init() {
        Err(error) if error.0 == sys::cudaError_enum::CUDA_ERROR_NO_DEVICE => {
            return Ok(Devices { driver, devices: Vec::new() });
        }
        initialised => initialised.map_err(failed)?,
    }
    let count = result::device::get_count().map_err(failed)?;
    let handles = (0..count).map(result::device::get).collect::<Result<Vec<_>, _>>();
    let handles = handles.map_err(failed)?;
    let devices = (0..handles.len()).map(|ordinal| device(&handles, ordinal).map_err(failed));
    Ok(Devices { driver, devices: devices.collect::<Result<_, _>>()? })
}

/// The number of GPUs; none where the driver is missing or does not start.
pub fn count() -> usize {
    let counted = probe::driver().ok().filter(|_| result::init().is_ok());
    counted.and_then(|_| usize::try_from(result::device::get_count().ok()?).ok()).unwrap_or(0)
}

fn device(handles: &[sys::CUdevice], ordinal: usize) -> Result<DeviceInfo, result::DriverError> {
    use sys::CUdevice_attribute_enum as Attribute;
    let handle = handles[ordinal];
    let attribute = |attribute| {
        // SAFETY: the handle is one that the driver gave.
        unsafe { result::device::get_attribute(handle, attribute) }
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    let multiprocessors = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    // SAFETY: the handle is one that the driver gave.
    let memory = unsafe { result::device::total_mem(handle) }?;
    let mut peers = Vec::new();
    for (other, &peer) in handles.iter().enumerate().filter(|(other, _)| *other != ordinal) {
        let mut can: c_int = 0;
        // SAFETY: both handles are ones that the driver gave, and the pointer is to an integer.
        unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, handle, peer) }.result()?;
        if can != 0 {
            peers.push(other);
        }
    }
    Ok(DeviceInfo {
        ordinal,
        name: result::device::get_name(handle)?,
        memory: memory as u64,
        multiprocessors: u32::try_from(multiprocessors).unwrap_or(0),
        arch: Arch::of_device(u16::try_from(major).unwrap_or(0), u16::try_from(minor).unwrap_or(0)),
        peers,
    })
}
