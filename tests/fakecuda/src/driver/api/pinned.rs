//! Pinned host memory, memory pools, what an address is.

use super::super::code;
use super::super::schedule::Goal;
use super::super::state::{Call, Driver};
use super::{Out, exports};
use std::alloc::{Layout, alloc, dealloc};
use std::ffi::c_void;

/// The layout of pinned memory.
fn layout(len: usize) -> Call<Layout> {
    Layout::from_size_align(len, 4096).map_err(|_| code::INVALID_VALUE)
}

impl Driver {
    fn pin(&mut self, len: usize) -> Call<usize> {
        self.current()?;
        if len == 0 {
            return Err(code::INVALID_VALUE);
        }
        let own = self.pinned.values().filter(|p| p.1).map(|p| p.0);
        if own.sum::<usize>().saturating_add(len) > self.config.pinned {
            return Err(code::OUT_OF_MEMORY);
        }
        let layout = layout(len)?;
        // SAFETY: the size is not 0.
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            return Err(code::OUT_OF_MEMORY);
        }
        // SAFETY: the memory has `len` bytes.
        unsafe { memory.write_bytes(0xff, len) };
        let at = memory.expose_provenance();
        self.pinned.insert(at, (len, true));
        Ok(at)
    }

    /// Reports work that may still use host memory that is given back.
    fn check_unused(&mut self, at: usize, len: usize, what: &str) {
        let host = &self.host;
        let done = self.live.iter().filter(|l| host.get(l.at) < l.count);
        let mut hit = done
            .filter(|l| l.host.is_some_and(|(from, size, _)| from < at + len && at < from + size));
        let name = hit.next().map(|l| l.name.clone());
        let queued = self.in_use(at, len).then(|| "a copy that has not begun".to_owned());
        if let Some(name) = name.or(queued) {
            self.report(&format!("{what} with no synchronisation after {name}, which uses it"));
        }
        for stream in self.streams.values_mut() {
            stream.queue.retain(|i| {
                i.work
                    .host_range()
                    .is_none_or(|(from, size, _)| from >= at + len || at >= from + size)
            });
        }
    }

    /// The pool of a device.
    fn pool_of(&mut self, device: u32) -> u64 {
        if let Some((&id, _)) = self.pools.iter().find(|p| *p.1 == device) {
            return id;
        }
        let id = self.handle();
        self.pools.insert(id, device);
        id
    }
}

exports! {
    /// Allocates pinned host memory.
    fn cuMemHostAlloc(Alloc, memory: Out<u64>, len: usize, _flags: u32) |d| {
        d.unsafe_call("cuMemHostAlloc")?;
        memory.give(d.pin(len)? as u64)?;
        Ok(Goal::Nothing)
    }

    /// Allocates pinned host memory.
    fn cuMemAllocHost_v2(Alloc, memory: Out<u64>, len: usize) |d| {
        d.unsafe_call("cuMemAllocHost")?;
        memory.give(d.pin(len)? as u64)?;
        Ok(Goal::Nothing)
    }

    /// Frees pinned host memory.
    fn cuMemFreeHost(Release, memory: Out<c_void>) |d| {
        d.unsafe_call("cuMemFreeHost")?;
        let at = memory.0.expose_provenance();
        let Some((len, _)) = d.pinned.get(&at).copied().filter(|p| p.1) else {
            return Err(d.refuse(code::INVALID_VALUE, "host memory that is not pinned is freed"));
        };
        d.check_unused(at, len, "pinned memory is freed");
        d.pinned.remove(&at);
        // SAFETY: the memory was allocated with this layout and is freed once.
        unsafe { dealloc(memory.0.cast(), layout(len)?) };
        d.current()?;
        Ok(Goal::Nothing)
    }

    /// Pins host memory of the caller.
    fn cuMemHostRegister_v2(Alloc, memory: Out<c_void>, len: usize, _flags: u32) |d| {
        d.unsafe_call("cuMemHostRegister")?;
        d.current()?;
        let at = memory.0.expose_provenance();
        if at == 0 || len == 0 {
            return Err(code::INVALID_VALUE);
        }
        if d.pinned.iter().any(|(&from, &(size, _))| from < at + len && at < from + size) {
            return Err(code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        d.pinned.insert(at, (len, false));
        Ok(Goal::Nothing)
    }

    /// Ends the pinning of host memory of the caller.
    fn cuMemHostUnregister(Release, memory: Out<c_void>) |d| {
        d.unsafe_call("cuMemHostUnregister")?;
        let at = memory.0.expose_provenance();
        let Some((len, _)) = d.pinned.get(&at).copied().filter(|p| !p.1) else {
            return Err(code::HOST_MEMORY_NOT_REGISTERED);
        };
        d.check_unused(at, len, "host memory is no longer pinned");
        d.pinned.remove(&at);
        d.current()?;
        Ok(Goal::Nothing)
    }

    /// Kernels cannot reach host memory here.
    fn cuMemHostGetDevicePointer_v2(
        Other, address: Out<u64>, _memory: Out<c_void>, _flags: u32
    ) |d| {
        address.offer(0);
        Err(d.refuse(code::NOT_SUPPORTED, "host memory in kernels"))
    }

    /// Memory that moves between host and device is not supported.
    fn cuMemAllocManaged(Alloc, address: Out<u64>, _len: usize, _flags: u32) |d| {
        address.offer(0);
        Err(d.refuse(code::NOT_SUPPORTED, "managed memory"))
    }

    /// The pool that a device's allocations come from.
    fn cuDeviceGetDefaultMemPool(Other, pool: Out<u64>, device: i32) |d| {
        let device = d.device(device)?;
        let id = d.pool_of(device);
        pool.give(id)?;
        Ok(Goal::Nothing)
    }

    /// The pool that a device's allocations come from.
    fn cuDeviceGetMemPool(Other, pool: Out<u64>, device: i32) |d| {
        let device = d.device(device)?;
        let id = d.pool_of(device);
        pool.give(id)?;
        Ok(Goal::Nothing)
    }

    /// Pools of a device are all alike.
    fn cuDeviceSetMemPool(Other, device: i32, pool: u64) |d| {
        let device = d.device(device)?;
        if d.pools.get(&pool) != Some(&device) {
            return Err(code::INVALID_VALUE);
        }
        Ok(Goal::Nothing)
    }

    /// Settings of pools have no effect.
    fn cuMemPoolSetAttribute(Other, pool: u64, _attribute: u32, _value: Out<c_void>) |d| {
        if !d.pools.contains_key(&pool) {
            return Err(code::INVALID_VALUE);
        }
        Ok(Goal::Nothing)
    }

    /// Reserved and used bytes of a pool; settings are all 0.
    fn cuMemPoolGetAttribute(Other, pool: u64, attribute: u32, value: Out<u64>) |d| {
        let device = *d.pools.get(&pool).ok_or(code::INVALID_VALUE)? as usize;
        value.give(match attribute {
            5 | 7 => d.memory.used[device] as u64,
            6 | 8 => d.memory.peak[device] as u64,
            4 => 0,
            1..=3 => {
                let flag = Out(value.0.cast::<u32>());
                flag.give(1)?;
                return Ok(Goal::Nothing);
            }
            _ => return Err(code::INVALID_VALUE),
        })?;
        Ok(Goal::Nothing)
    }

    /// Pools hold nothing back.
    fn cuMemPoolTrimTo(Other, pool: u64, _keep: usize) |d| {
        if !d.pools.contains_key(&pool) {
            return Err(code::INVALID_VALUE);
        }
        Ok(Goal::Nothing)
    }

    /// What is known of an address: context (1), kind of memory (2), device (9).
    fn cuPointerGetAttribute(Other, value: Out<u64>, attribute: u32, address: u64) |d| {
        let found = d.memory.find(address).filter(|a| a.freed.is_none()).map(|a| a.device);
        let at = usize::try_from(address).map_err(|_| code::INVALID_VALUE)?;
        let pinned = d.pinned.iter().any(|(&from, &(size, _))| from <= at && at < from + size);
        let word = Out(value.0.cast::<u32>());
        match (attribute, found) {
            (1, Some(device)) => value.give(d.primary[device as usize].unwrap_or(0))?,
            (2, Some(_)) => word.give(2)?,
            (2, None) if pinned => word.give(1)?,
            (9, Some(device)) => word.give(device)?,
            _ => return Err(code::INVALID_VALUE),
        }
        Ok(Goal::Nothing)
    }
}
