//! The GPUs that the driver shows.

use super::context::{self, Gpu, WATCHDOG};
use super::contexts::Contexts;
use super::error::{ProbeError, Version};
use super::peers::{self, Link};
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
    /// The GPUs of which the driver says so, and what goes wrong with direct copies from them.
    pub distrusted: Vec<(usize, &'static str)>,
}

/// The driver and its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// The version of CUDA of the driver.
    pub driver: Version,
    /// The GPUs by their number.
    pub list: Vec<DeviceInfo>,
    /// The GPUs by their number of which a question failed, and how. One of which more than a peer
    /// is unknown is not in `list`.
    pub failed: Vec<(usize, DriverError)>,
}

/// The devices that the driver reports; none if it runs without a GPU.
pub fn devices() -> Result<Devices, ProbeError> {
    let driver = context::start()?;
    let count = context::count().map_err(|error| ProbeError::DriverFailed(error.to_string()))?;
    // Contexts take memory, and time: GPUs without peers get none.
    let contexts = Contexts::default();
    let reach = |gpu: Gpu, other: Gpu| {
        if !gpu.can_reach(other)? {
            return Ok(Link::ThroughHost);
        }
        let open = |gpu| contexts.open(gpu, WATCHDOG);
        peers::connect(&open(gpu)?, &open(other)?).map_err(|failed| failed.error)
    };
    let (list, failed) = examine_all(count, device, reach);
    Ok(Devices { driver, list, failed })
}

/// The number of GPUs; none where the driver is missing or does not start.
pub fn count() -> usize {
    // `devices` says why the driver does not start.
    context::start().ok().and_then(|_| context::count().ok()).map_or(0, |count| count as usize)
}

/// The number of the first GPU that is an instance of one which is divided (MIG); none where the
/// driver is missing or does not start.
#[cfg(feature = "cli")]
pub(crate) fn first_instance() -> Option<u32> {
    context::start().ok()?;
    let gpus = context::gpus().ok()?;
    gpus.iter().find(|gpu| gpu.is_instance()).map(|gpu| gpu.ordinal())
}

/// The first so many GPUs, by what `ask` and `reach` tell of them, and what these fail to tell.
fn examine_all<G: Copy>(
    count: u32,
    ask: impl Fn(u32) -> Result<(G, DeviceInfo), DriverError>,
    reach: impl Fn(G, G) -> Result<Link, DriverError>,
) -> (Vec<DeviceInfo>, Vec<(usize, DriverError)>) {
    let (mut gpus, mut devices, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for ordinal in 0..count {
        match ask(ordinal) {
            Ok((gpu, device)) => {
                gpus.push((device.ordinal, gpu));
                devices.push(device);
            }
            Err(error) => failed.push((ordinal as usize, error)),
        }
    }
    for ((ordinal, gpu), device) in gpus.iter().zip(&mut devices) {
        for (peer, other) in gpus.iter().filter(|(peer, _)| peer != ordinal) {
            match reach(*gpu, *other) {
                Ok(Link::Direct) => device.peers.push(*peer),
                Ok(Link::ThroughHost) => {}
                Ok(Link::Broken(flaw)) => device.distrusted.push((*peer, flaw.words())),
                Err(error) => failed.push((*ordinal, error)),
            }
        }
    }
    failed.dedup();
    (devices, failed)
}

fn device(ordinal: u32) -> Result<(Gpu, DeviceInfo), DriverError> {
    let gpu = Gpu::new(ordinal)?;
    let multiprocessors = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    let device = DeviceInfo {
        ordinal: ordinal as usize,
        name: gpu.name()?,
        memory: gpu.memory()?,
        multiprocessors: gpu.attribute(multiprocessors)?,
        arch: gpu.arch()?,
        peers: Vec::new(),
        distrusted: Vec::new(),
    };
    Ok((gpu, device))
}

#[cfg(test)]
mod tests {
    use super::super::peers::Flaw;
    use super::{DeviceInfo, Link, examine_all};
    use crate::backend::DriverError;
    use crate::codegen::Arch;

    #[test]
    fn a_gpu_that_does_not_answer_takes_no_other_along() {
        let error = |call| DriverError { call, code: 46, name: String::new(), text: String::new() };
        let ask = |ordinal: u32| {
            let device = DeviceInfo {
                ordinal: ordinal as usize,
                name: String::new(),
                memory: 0,
                multiprocessors: 1,
                arch: Arch::of_device(9, 0),
                peers: Vec::new(),
                distrusted: Vec::new(),
            };
            if ordinal == 1 { Err(error("cuDeviceTotalMem")) } else { Ok((ordinal, device)) }
        };
        let reach = |gpu, other| match (gpu, other) {
            (3, 0) => Err(error("cuDeviceCanAccessPeer")),
            (2, 0) => Ok(Link::Broken(Flaw::NoEnd)),
            (_, 2) => Ok(Link::ThroughHost),
            _ => Ok(Link::Direct),
        };
        let (devices, failed) = examine_all(4, ask, reach);
        let peers: Vec<_> = devices.iter().map(|d| (d.ordinal, d.peers.as_slice())).collect();
        assert_eq!(peers, [(0, &[3][..]), (2, &[3]), (3, &[])]);
        assert_eq!(devices[1].distrusted, [(0, "do not end")]);
        assert_eq!(failed, [(1, error("cuDeviceTotalMem")), (3, error("cuDeviceCanAccessPeer"))]);
    }
}
