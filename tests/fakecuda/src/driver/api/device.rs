//! Devices and their properties.

use super::super::code;
use super::super::config::Peers;
use super::super::schedule::Goal;
use super::super::state::{Call, Driver};
use super::{Out, exports};
use std::ffi::c_char;

/// Threads of a block, at most.
pub(super) const MAX_THREADS: i32 = 1024;
/// Dynamic shared memory of a block without asking for more.
pub(super) const SHARED: usize = 48 << 10;
/// Shared memory of a block when asked for.
pub(super) const SHARED_OPT_IN: usize = 163 << 10;

impl Driver {
    /// The number of a device handle.
    pub(super) fn device(&self, handle: i32) -> Call<u32> {
        if !self.initialised {
            return Err(code::NOT_INITIALIZED);
        }
        u32::try_from(handle)
            .ok()
            .filter(|&d| (d as usize) < self.config.devices)
            .ok_or(code::INVALID_DEVICE)
    }
}

/// Properties of a fake device, by the number of `CUdevice_attribute`.
fn attribute(number: u32, device: u32) -> Option<i32> {
    let optin = i32::try_from(SHARED_OPT_IN).ok()?;
    Some(match number {
        1..=3 => MAX_THREADS,
        4 => 64,
        5 | 11 => i32::MAX,
        6 | 7 => 65535,
        8 => i32::try_from(SHARED).ok()?,
        10 | 106 => 32,
        9 | 12 | 82 => 65536,
        13 => 1_410_000,
        14 => 512,
        16 => 4,
        31 | 32 | 41 | 78 | 79 | 80 | 90 | 95 | 99 | 115 | 91 => i32::from(number != 32),
        33 => i32::try_from(device).ok()? + 1,
        36 => 1_215_000,
        37 => 5120,
        38 => 4 << 20,
        39 => 2048,
        40 => 3,
        75 => 8,
        76 => 0,
        81 => optin + 1024,
        97 => optin,
        111 => 1024,
        15
        | 17..=20
        | 34
        | 35
        | 50
        | 51
        | 83..=89
        | 92..=94
        | 96
        | 98
        | 100..=105
        | 107..=110
        | 112..=114
        | 116..=119 => match number {
            15 | 19 => 1,
            51 => 32,
            87 => 2,
            _ => 0,
        },
        _ => return None,
    })
}

exports! {
    /// Makes the driver ready.
    fn cuInit(Other, flags: u32) |d| {
        if flags != 0 {
            return Err(code::INVALID_VALUE);
        }
        if d.config.devices == 0 {
            return Err(code::NO_DEVICE);
        }
        d.initialised = true;
        Ok(Goal::Nothing)
    }

    /// The CUDA version that the driver supports.
    fn cuDriverGetVersion(Query, version: Out<i32>) |d| {
        version.give(i32::try_from(d.config.version).map_err(|_| code::UNKNOWN)?)?;
        Ok(Goal::Nothing)
    }

    /// The number of devices.
    fn cuDeviceGetCount(Other, count: Out<i32>) |d| {
        if !d.initialised {
            return Err(code::NOT_INITIALIZED);
        }
        count.give(i32::try_from(d.config.devices).map_err(|_| code::UNKNOWN)?)?;
        Ok(Goal::Nothing)
    }

    /// The handle of a device.
    fn cuDeviceGet(Other, device: Out<i32>, ordinal: i32) |d| {
        d.device(ordinal)?;
        device.give(ordinal)?;
        Ok(Goal::Nothing)
    }

    /// The name of a device.
    fn cuDeviceGetName(Other, name: Out<c_char>, len: i32, device: i32) |d| {
        d.device(device)?;
        let len = usize::try_from(len).map_err(|_| code::INVALID_VALUE)?;
        let text = format!("{}\0", d.config.name);
        if name.0.is_null() || len == 0 {
            return Err(code::INVALID_VALUE);
        }
        for (i, &byte) in text.as_bytes().iter().take(len).enumerate() {
            let byte = if i + 1 == len { 0 } else { byte };
            // SAFETY: the caller's buffer has `len` bytes and `i` is below that.
            let at = unsafe { name.0.add(i) };
            Out(at).give(byte.cast_signed())?;
        }
        Ok(Goal::Nothing)
    }

    /// A number that no other device has.
    fn cuDeviceGetUuid_v2(Other, uuid: Out<[u8; 16]>, device: i32) |d| {
        let number = d.device(device)?;
        let mut bytes = *b"fanwise fake dev";
        bytes[15] = number.to_le_bytes()[0];
        uuid.give(bytes)?;
        Ok(Goal::Nothing)
    }

    /// As `cuDeviceGetUuid_v2`.
    fn cuDeviceGetUuid(Other, uuid: Out<[u8; 16]>, device: i32) |d| {
        let number = d.device(device)?;
        let mut bytes = *b"fanwise fake dev";
        bytes[15] = number.to_le_bytes()[0];
        uuid.give(bytes)?;
        Ok(Goal::Nothing)
    }

    /// The memory of a device.
    fn cuDeviceTotalMem_v2(Other, bytes: Out<usize>, device: i32) |d| {
        d.device(device)?;
        bytes.give(d.config.memory)?;
        Ok(Goal::Nothing)
    }

    /// A property of a device.
    fn cuDeviceGetAttribute(Other, value: Out<i32>, number: u32, device: i32) |d| {
        let device = d.device(device)?;
        let Some(found) = attribute(number, device) else {
            let text = format!("device attribute {number} is unknown");
            return Err(d.refuse(code::INVALID_VALUE, &text));
        };
        value.give(found)?;
        Ok(Goal::Nothing)
    }

    /// Whether a device can access another's memory: every two can, or none.
    fn cuDeviceCanAccessPeer(Other, can: Out<i32>, device: i32, peer: i32) |d| {
        let (device, peer) = (d.device(device)?, d.device(peer)?);
        can.give(i32::from(d.config.peers != Peers::None && device != peer))?;
        Ok(Goal::Nothing)
    }

    /// A property of a pair of devices.
    fn cuDeviceGetP2PAttribute(Other, value: Out<i32>, number: u32, device: i32, peer: i32) |d| {
        let (device, peer) = (d.device(device)?, d.device(peer)?);
        if device == peer {
            return Err(code::INVALID_DEVICE);
        }
        value.give(match number {
            2 | 3 => i32::from(d.config.peers != Peers::None),
            1 | 4 => 0,
            _ => return Err(code::INVALID_VALUE),
        })?;
        Ok(Goal::Nothing)
    }

    /// The address on the bus, as text.
    fn cuDeviceGetPCIBusId(Other, text: Out<[u8; 13]>, len: i32, device: i32) |d| {
        let device = d.device(device)?;
        if len < 13 {
            return Err(code::INVALID_VALUE);
        }
        let name = format!("0000:{:02x}:00.0\0", device + 1);
        text.give(name.as_bytes().try_into().map_err(|_| code::UNKNOWN)?)?;
        Ok(Goal::Nothing)
    }
}

/// The name of a result code.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: u32, text: Out<*const c_char>) -> u32 {
    constant(code::name(error), text)
}

/// A result code in words.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(error: u32, text: Out<*const c_char>) -> u32 {
    constant(code::text(error), text)
}

fn constant(found: Option<&'static std::ffi::CStr>, text: Out<*const c_char>) -> u32 {
    let pointer = found.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
    match text.give(pointer) {
        Ok(()) if found.is_some() => 0,
        _ => code::INVALID_VALUE,
    }
}
