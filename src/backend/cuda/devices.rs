//! The GPUs that the driver shows.

use super::driver::{self, Gpu};
use super::probe::{ProbeError, Version};
use super::sys;
use crate::backend::DriverError;
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

fn failed(error: &DriverError) -> ProbeError {
    ProbeError::DriverFailed(error.to_string())
}

/// What the driver shows; none where it runs and there is no GPU.
pub fn devices() -> Result<Devices, ProbeError> {
    let driver = driver::start()?;
    let gpus = driver::gpus().map_err(|error| failed(&error))?;
    let devices = gpus.iter().map(|gpu| device(*gpu, &gpus).map_err(|error| failed(&error)));
    Ok(Devices { driver, devices: devices.collect::<Result<_, _>>()? })
}

/// The number of GPUs; none where the driver is missing or does not start.
pub fn count() -> usize {
    driver::start().ok().and_then(|_| driver::gpus().ok()).map_or(0, |gpus| gpus.len())
}

fn device(gpu: Gpu, all: &[Gpu]) -> Result<DeviceInfo, DriverError> {
    let mut peers = Vec::new();
    for other in all.iter().filter(|other| **other != gpu) {
        if gpu.can_reach(*other)? {
            peers.push(other.ordinal() as usize);
        }
    }
    Ok(DeviceInfo {
        ordinal: gpu.ordinal() as usize,
        name: gpu.name()?,
        memory: gpu.memory()?,
        multiprocessors: gpu
            .attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        arch: gpu.arch()?,
        peers,
    })
}
