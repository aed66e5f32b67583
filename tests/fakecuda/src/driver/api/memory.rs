//! Device memory, copies and fills.

use super::super::code;
use super::super::config::{Order, Peers, Wrong};
use super::super::execute::checksum;
use super::super::queue::{Source, Work};
use super::super::schedule::{Goal, call, result};
use super::super::state::{Call, Driver};
use super::{Out, exports};
use crate::driver::config::Class;
use crate::exec::memory::UNBORN;
use std::ffi::c_void;
use std::sync::Arc;

impl Driver {
    /// Allocates on the current context's device.
    fn allocate(&mut self, len: usize, born: u32, by: &str) -> Call<u64> {
        let context = self.current()?;
        let device = self.context(context)?.device;
        if len == 0 {
            return Err(code::INVALID_VALUE);
        }
        let used = self.memory.used[device as usize];
        if self.config.memory.saturating_sub(used) < len {
            return Err(code::OUT_OF_MEMORY);
        }
        Ok(self.memory.allocate(device, len, format!("by {by}"), born))
    }

    /// Allocates in the order of a stream.
    fn allocate_in(&mut self, len: usize, stream: u64) -> Call<u64> {
        let stream = self.stream(stream)?;
        let start = self.allocate(len, UNBORN, "cuMemAllocAsync")?;
        self.enqueue(stream, Work::Alloc { start })
            .inspect_err(|_| self.end_allocation(start, "its failed allocation"))?;
        Ok(start)
    }

    /// Whether a device range may be copied; a range that may not is refused at once.
    fn range(&mut self, at: u64, len: usize) -> Call<()> {
        let fits = self
            .memory
            .find(at)
            .is_some_and(|a| a.freed.is_none() && a.len as u64 - (at - a.start) >= len as u64);
        if fits {
            return Ok(());
        }
        let text =
            format!("a copy or fill of {len} bytes at {at:#x}: {}", self.memory.describe(at));
        Err(self.refuse(code::INVALID_VALUE, &text))
    }

    /// Whether a host range is pinned.
    fn is_pinned(&self, at: usize, len: usize) -> bool {
        let below = self.pinned.range(..=at).next_back();
        below.is_some_and(|(&start, &(size, _))| at - start < size && size - (at - start) >= len)
    }

    /// A copy to the device. Pageable memory is read now, pinned memory when the copy runs.
    fn upload(&mut self, stream: u64, to: u64, from: usize, len: usize) -> Call<Goal> {
        let stream = self.stream(stream)?;
        if len == 0 {
            return Ok(Goal::Nothing);
        }
        self.range(to, len)?;
        if from == 0 {
            return Err(code::INVALID_VALUE);
        }
        let captured = self.streams.get(&stream).is_some_and(|s| s.capture.is_some());
        let from = if captured || self.is_pinned(from, len) {
            let open = self.streams.values().any(|s| {
                let mut items = s.queue.iter().map(|i| &i.work);
                items.any(|w| matches!(w, Work::Host(_)) || overlaps(w, from, len, true))
            });
            Source::Host(from, (!open).then(|| checksum(from, len)))
        } else {
            // SAFETY: the caller gave `len` bytes to copy.
            let bytes =
                unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(from), len) };
            Source::Staged(Arc::from(bytes))
        };
        self.hang(stream)?;
        self.enqueue(stream, Work::ToDevice { to, from, len })?;
        Ok(Goal::Nothing)
    }

    /// A copy to the host, which for pageable memory is done when the call returns.
    fn download(&mut self, stream: u64, to: usize, from: u64, len: usize) -> Call<Goal> {
        let stream = self.stream(stream)?;
        if len == 0 {
            return Ok(Goal::Nothing);
        }
        self.range(from, len)?;
        if to == 0 {
            return Err(code::INVALID_VALUE);
        }
        let captured = self.streams.get(&stream).is_some_and(|s| s.capture.is_some());
        let pinned = self.is_pinned(to, len);
        if pinned && !captured && self.config.order != Order::Eager && !self.in_use(to, len) {
            // SAFETY: the caller gave `len` bytes that nobody else uses until the copy is done.
            let target = unsafe {
                std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(to), len)
            };
            target.fill(0xff);
        }
        self.hang(stream)?;
        self.enqueue(stream, Work::ToHost { to, from, len })?;
        Ok(if pinned || captured { Goal::Nothing } else { Goal::Stream(stream) })
    }

    /// Whether work that is not done uses host memory.
    pub(super) fn in_use(&self, at: usize, len: usize) -> bool {
        let is_broken = |context| self.contexts.get(&context).is_some_and(|c| c.error.is_some());
        let streams = self.streams.values().filter(|s| !is_broken(s.context));
        let mut items = streams.flat_map(|s| &s.queue);
        items.any(|i| overlaps(&i.work, at, len, false))
    }

    fn copy_in(&mut self, stream: u64, to: u64, from: u64, len: usize) -> Call<Goal> {
        let stream = self.stream(stream)?;
        if len == 0 {
            return Ok(Goal::Nothing);
        }
        self.range(to, len)?;
        self.range(from, len)?;
        self.hang(stream)?;
        self.enqueue(stream, Work::Copy { to, from, len })?;
        Ok(Goal::Nothing)
    }

    /// A direct copy between devices of which one never ends, or other bytes arrive.
    fn copy_wrongly(&mut self, stream: u64, wrong: Wrong, to: u64, len: usize) -> Call<Goal> {
        match wrong {
            Wrong::Garbage => self.fill_in(stream, to, &[0xa5], len),
            Wrong::Hang => {
                let stream = self.stream(stream)?;
                self.block(stream)?;
                Ok(Goal::Nothing)
            }
        }
    }

    fn fill_in(&mut self, stream: u64, to: u64, pattern: &[u8], count: usize) -> Call<Goal> {
        let stream = self.stream(stream)?;
        if count == 0 {
            return Ok(Goal::Nothing);
        }
        if !to.is_multiple_of(pattern.len() as u64) {
            return Err(self.refuse(code::INVALID_VALUE, "a fill of a misaligned address"));
        }
        self.range(to, pattern.len() * count)?;
        self.enqueue(stream, Work::Fill { to, pattern: pattern.to_vec(), count })?;
        Ok(Goal::Nothing)
    }

    /// An allocation that is freed at once: nothing the host does not know to be done may use it.
    fn free_now(&mut self, start: u64) -> Call<()> {
        let Some(alloc) = self.memory.at(start).filter(|a| a.freed.is_none()) else {
            let text = format!("a free of {start:#x}: {}", self.memory.describe(start));
            return Err(self.refuse(code::INVALID_VALUE, &text));
        };
        let touched = alloc.touched.clone();
        let host = &self.host;
        let mut live = self.live.iter().filter(|l| host.get(l.at) < l.count);
        let late = live.find(|l| touched.iter().any(|&t| l.first <= t && t < l.end));
        let text = late
            .map(|l| format!("cuMemFree of {start:#x} with no synchronisation after {}", l.name));
        if let Some(text) = text {
            self.report(&text);
        }
        self.end_allocation(start, "cuMemFree");
        Ok(())
    }
}

/// Whether work uses host memory in a range; with `writes` only work that writes there counts.
fn overlaps(work: &Work, at: usize, len: usize, writes: bool) -> bool {
    work.host_range().is_some_and(|(from, size, wrote)| {
        from < at + len && at < from + size && (wrote || !writes)
    })
}

/// `cuMemFree`, which waits for the device before the memory ends.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    if address == 0 {
        return 0;
    }
    let allowed = call("cuMemFree_v2", Class::Query, |d| {
        d.unsafe_call("cuMemFree")?;
        Ok(Goal::Nothing)
    });
    if allowed.is_err() {
        return result(allowed);
    }
    let drained =
        call("cuMemFree_v2", Class::Query, |_| Ok(Goal::Drain(super::super::current::get())));
    let freed = call("cuMemFree_v2", Class::Release, |d| {
        d.free_now(address)?;
        d.current()?;
        Ok(Goal::Nothing)
    });
    result(drained.and(freed))
}

/// The default stream.
const DEFAULT: u64 = 0;

exports! {
    /// Allocates.
    fn cuMemAlloc_v2(Alloc, address: Out<u64>, len: usize) |d| {
        d.unsafe_call("cuMemAlloc")?;
        address.give(d.allocate(len, 0, "cuMemAlloc")?)?;
        Ok(Goal::Nothing)
    }

    /// Allocates in the order of a stream.
    fn cuMemAllocAsync(Alloc, address: Out<u64>, len: usize, stream: u64) |d| {
        address.give(d.allocate_in(len, stream)?)?;
        Ok(Goal::Nothing)
    }

    /// Allocates from a pool in the order of a stream.
    fn cuMemAllocFromPoolAsync(Alloc, address: Out<u64>, len: usize, pool: u64, stream: u64) |d| {
        if !d.pools.contains_key(&pool) {
            return Err(d.refuse(code::INVALID_VALUE, "a memory pool that does not exist is used"));
        }
        address.give(d.allocate_in(len, stream)?)?;
        Ok(Goal::Nothing)
    }

    /// Frees in the order of a stream.
    fn cuMemFreeAsync(Release, address: u64, stream: u64) |d| {
        let known = d.memory.at(address).is_some_and(|a| a.freed.is_none());
        if !known {
            let text = format!("a free of {address:#x}: {}", d.memory.describe(address));
            return Err(d.refuse(code::INVALID_VALUE, &text));
        }
        match d.stream(stream) {
            Ok(stream) => {
                d.enqueue(stream, Work::Free { start: address })?;
                Ok(Goal::Nothing)
            }
            Err(code) => {
                d.end_allocation(address, "cuMemFreeAsync after an error");
                Err(code)
            }
        }
    }

    /// Free and total memory of the current context's device.
    fn cuMemGetInfo_v2(Other, free: Out<usize>, total: Out<usize>) |d| {
        let context = d.current()?;
        let device = d.context(context)?.device as usize;
        free.offer(d.config.memory.saturating_sub(d.memory.used[device]));
        total.offer(d.config.memory);
        Ok(Goal::Nothing)
    }

    /// The allocation that an address is in.
    fn cuMemGetAddressRange_v2(Other, start: Out<u64>, len: Out<usize>, address: u64) |d| {
        let found = d.memory.find(address).filter(|a| a.freed.is_none());
        let found = found.map(|a| (a.start, a.len)).ok_or(code::INVALID_VALUE)?;
        start.offer(found.0);
        len.offer(found.1);
        Ok(Goal::Nothing)
    }

    /// Copies to the device.
    fn cuMemcpyHtoD_v2(Copy, to: u64, from: Out<c_void>, len: usize) |d| {
        d.unsafe_call("cuMemcpyHtoD")?;
        d.upload(DEFAULT, to, from.0.expose_provenance(), len)?;
        Ok(Goal::Stream(d.stream(DEFAULT)?))
    }

    /// Copies to the device in the order of a stream.
    fn cuMemcpyHtoDAsync_v2(Copy, to: u64, from: Out<c_void>, len: usize, stream: u64) |d| {
        d.upload(stream, to, from.0.expose_provenance(), len)
    }

    /// Copies to the host.
    fn cuMemcpyDtoH_v2(Copy, to: Out<c_void>, from: u64, len: usize) |d| {
        d.unsafe_call("cuMemcpyDtoH")?;
        d.download(DEFAULT, to.0.expose_provenance(), from, len)?;
        Ok(Goal::Stream(d.stream(DEFAULT)?))
    }

    /// Copies to the host in the order of a stream.
    fn cuMemcpyDtoHAsync_v2(Copy, to: Out<c_void>, from: u64, len: usize, stream: u64) |d| {
        d.download(stream, to.0.expose_provenance(), from, len)
    }

    /// Copies between device addresses.
    fn cuMemcpyDtoD_v2(Copy, to: u64, from: u64, len: usize) |d| {
        d.unsafe_call("cuMemcpyDtoD")?;
        d.copy_in(DEFAULT, to, from, len)
    }

    /// Copies between device addresses in the order of a stream.
    fn cuMemcpyDtoDAsync_v2(Copy, to: u64, from: u64, len: usize, stream: u64) |d| {
        d.copy_in(stream, to, from, len)
    }

    /// Copies between devices.
    fn cuMemcpyPeer(Copy, to: u64, to_context: u64, from: u64, from_context: u64, len: usize) |d| {
        d.unsafe_call("cuMemcpyPeer")?;
        d.context(to_context)?;
        d.context(from_context)?;
        d.copy_in(DEFAULT, to, from, len)
    }

    /// Copies between devices in the order of a stream.
    fn cuMemcpyPeerAsync(
        Copy,
        to: u64,
        to_context: u64,
        from: u64,
        from_context: u64,
        len: usize,
        stream: u64
    ) |d| {
        for (address, context) in [(to, to_context), (from, from_context)] {
            let device = d.context(context)?.device;
            if d.memory.find(address).is_some_and(|a| a.device != device) {
                let text = "a peer copy with an address of another device than its context's";
                return Err(d.refuse(code::INVALID_VALUE, text));
            }
        }
        let pair = (d.context(to_context)?.device, d.context(from_context)?.device);
        match d.config.peers {
            Peers::Broken(wrong, own, other)
                if pair == (own, other) && d.memory.peers.contains(&pair) =>
            {
                d.copy_wrongly(stream, wrong, to, len)
            }
            _ => d.copy_in(stream, to, from, len),
        }
    }

    /// Fills with bytes.
    fn cuMemsetD8_v2(Copy, to: u64, value: u8, count: usize) |d| {
        d.unsafe_call("cuMemsetD8")?;
        d.fill_in(DEFAULT, to, &[value], count)
    }

    /// Fills with bytes in the order of a stream.
    fn cuMemsetD8Async(Copy, to: u64, value: u8, count: usize, stream: u64) |d| {
        d.fill_in(stream, to, &[value], count)
    }

    /// Fills with words of 16 bits in the order of a stream.
    fn cuMemsetD16Async(Copy, to: u64, value: u16, count: usize, stream: u64) |d| {
        d.fill_in(stream, to, &value.to_le_bytes(), count)
    }

    /// Fills with words of 32 bits.
    fn cuMemsetD32_v2(Copy, to: u64, value: u32, count: usize) |d| {
        d.unsafe_call("cuMemsetD32")?;
        d.fill_in(DEFAULT, to, &value.to_le_bytes(), count)
    }

    /// Fills with words of 32 bits in the order of a stream.
    fn cuMemsetD32Async(Copy, to: u64, value: u32, count: usize, stream: u64) |d| {
        d.fill_in(stream, to, &value.to_le_bytes(), count)
    }
}
