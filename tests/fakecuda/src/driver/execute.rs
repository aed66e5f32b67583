//! Execution of the work in streams.

use super::code;
use super::queue::{HostCall, Item, Source, Work};
use super::state::{Driver, Live};
use crate::exec::block;
use crate::exec::fault::Fault;
use crate::exec::memory::Access;
use crate::exec::shadow::{Act, Tag, Who};

/// What a copy knows of other threads of its block: it has none.
static ALONE: [u32; 32] = [0; 32];

/// The access of a copy.
fn access(tag: &Tag, device: u32, address: u64, len: usize, act: Act) -> Access<'_> {
    Access { device, address, len, act, who: Who { thread: 0, time: 1, known: &ALONE }, tag }
}

/// The host memory of a copy.
///
/// # Safety
/// The caller of the driver promised that the memory is valid until the copy is done.
unsafe fn host_bytes<'a>(at: usize, len: usize) -> &'a [u8] {
    // SAFETY: by this function's contract.
    unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(at), len) }
}

/// A checksum that finds changes of a buffer.
pub(super) fn checksum(at: usize, len: usize) -> u64 {
    // SAFETY: the buffer was given to a copy that is not done.
    let bytes = unsafe { host_bytes(at, len) };
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
    }
    sum
}

impl Driver {
    /// Runs the first item of a stream. A host function is given back, to be called without the
    /// driver's lock.
    pub(super) fn run_one(&mut self, stream: u64) -> Option<HostCall> {
        let of = self.streams.get_mut(&stream)?;
        let Item { work, host } = of.queue.pop_front()?;
        of.clock.join(&host);
        of.done += 1;
        let (at, count, context) = (of.at, of.done, of.context);
        of.clock.set(at, count);
        if let Work::Record(marker) = work {
            let clock = of.clock.clone();
            if let Some(marker) = self.markers.get_mut(&marker) {
                marker.done = true;
                marker.clock = clock;
                marker.time = Some(std::time::Instant::now());
            }
            return None;
        }
        if let Work::Wait(marker) = work {
            if let Some(marker) = self.markers.get(&marker) {
                of.clock.join(&marker.clock);
            }
            return None;
        }
        let state = self.contexts.get(&context);
        let broken = state.is_none_or(|c| c.error.is_some());
        if broken {
            // A free still ends the allocation, so that what is left over is told from leaks.
            if let Work::Free { start } = work {
                self.end_allocation(start, "a free after an error");
            }
            return match work {
                Work::Host(call) => Some(call),
                _ => None,
            };
        }
        if let Work::Host(call) = work {
            return Some(call);
        }
        if let Err(fault) = self.perform(stream, &work, count) {
            let text = format!("{}: {}", work.name(), fault.text);
            self.report(&text);
            self.fail(context, fault.code);
        }
        None
    }

    /// Runs work that touches memory.
    fn perform(&mut self, stream: u64, work: &Work, count: u64) -> Result<(), Fault> {
        if self.is_unloaded(work) {
            return Err(Fault::plain(
                code::INVALID_HANDLE,
                "its module is unloaded before it runs",
            ));
        }
        let of = &self.streams[&stream];
        let clock = &of.clock;
        let unordered = self
            .live
            .iter()
            .filter(|l| clock.get(l.at) < l.count)
            .map(|l| (l.first, l.end, l.name.clone()))
            .collect();
        let runs = match work {
            Work::Launch { launch, .. } => launch.blocks(),
            _ => 1,
        };
        let first = self.next_run;
        let end = u64::from(first) + runs;
        let Ok(end) = u32::try_from(end) else {
            return Err(Fault::plain(code::UNKNOWN, "too many blocks for one process"));
        };
        self.next_run = end;
        let (at, context) = (of.at, of.context);
        let name = format!("{} (stream {at})", work.name());
        self.live.push_back(Live { first, end, at, count, name, host: work.host_range() });
        let tag = Tag::new(first, unordered);
        let device = self.contexts.get(&context).map_or(0, |c| c.device);
        match work {
            Work::Launch { kernel, launch, .. } => {
                self.stats.launches += 1;
                self.stats.steps += block::run(kernel, launch, &mut self.memory, tag)?;
                Ok(())
            }
            Work::ToDevice { to, from, len } => self.upload_now(&tag, *to, from, *len),
            Work::ToHost { to, from, len } => self.download_now(&tag, *to, *from, *len),
            Work::Copy { to, from, len } => self.copy(&tag, *to, *from, *len),
            Work::Fill { to, pattern, count } => {
                let mut hint = usize::MAX;
                let owner = self.owner(*to, device);
                let access = access(&tag, owner, *to, pattern.len() * count, Act::Write);
                let bytes = self.memory.touch(&access, &mut hint)?;
                bytes.chunks_exact_mut(pattern.len()).for_each(|c| c.copy_from_slice(pattern));
                Ok(())
            }
            Work::Alloc { start } => {
                if let Some(alloc) = self.memory.at(*start) {
                    alloc.born = first;
                }
                Ok(())
            }
            Work::Free { start } => self.free_in_order(&tag, *start),
            Work::Record(_) | Work::Wait(_) | Work::Host(_) => Ok(()),
        }
    }

    /// The device of the allocation at an address.
    fn owner(&self, address: u64, device: u32) -> u32 {
        self.memory.find(address).map_or(device, |a| a.device)
    }

    fn upload_now(&mut self, tag: &Tag, to: u64, from: &Source, len: usize) -> Result<(), Fault> {
        let mut hint = usize::MAX;
        let owner = self.owner(to, 0);
        self.stats.to_device += len as u64;
        let source: &[u8] = match from {
            Source::Staged(bytes) => bytes,
            Source::Host(at, sum) => {
                if sum.is_some_and(|sum| sum != checksum(*at, len)) {
                    let text = "the host changed the source before the copy was done";
                    return Err(Fault::plain(code::LAUNCH_FAILED, text));
                }
                // SAFETY: the host keeps the source until the copy is done.
                unsafe { host_bytes(*at, len) }
            }
        };
        let bytes = self.memory.touch(&access(tag, owner, to, len, Act::Write), &mut hint)?;
        bytes.copy_from_slice(source);
        Ok(())
    }

    fn download_now(&mut self, tag: &Tag, to: usize, from: u64, len: usize) -> Result<(), Fault> {
        let mut hint = usize::MAX;
        let owner = self.owner(from, 0);
        self.stats.to_host += len as u64;
        let bytes = self.memory.touch(&access(tag, owner, from, len, Act::Read), &mut hint)?;
        // SAFETY: the host keeps the destination, and leaves it alone, until the copy is done.
        let target: &mut [u8] = unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(to), len)
        };
        target.copy_from_slice(bytes);
        Ok(())
    }

    /// A copy between device addresses. Bytes that were never written stay so; where they can be
    /// read, the rest is checked.
    fn copy(&mut self, tag: &Tag, to: u64, from: u64, len: usize) -> Result<(), Fault> {
        let mut hint = usize::MAX;
        self.stats.on_device += len as u64;
        let unwritten = self.memory.unwritten(from, len);
        let mut data = Vec::with_capacity(len);
        let source = self.owner(from, 0);
        if unwritten.is_empty() {
            data.extend_from_slice(
                self.memory.touch(&access(tag, source, from, len, Act::Read), &mut hint)?,
            );
        } else {
            let mut at = 0;
            for hole in unwritten.iter().copied().chain([len]) {
                if hole > at {
                    let part = access(tag, source, from + at as u64, hole - at, Act::Read);
                    self.memory.touch(&part, &mut hint)?;
                }
                at = hole + 1;
            }
            data.extend_from_slice(self.memory.bytes(from, len));
        }
        let owner = self.owner(to, 0);
        let mut hint = usize::MAX;
        self.memory
            .touch(&access(tag, owner, to, len, Act::Write), &mut hint)?
            .copy_from_slice(&data);
        if !unwritten.is_empty() {
            self.memory.forget(to, &unwritten);
        }
        Ok(())
    }

    /// A stream-ordered free: nothing that is not ordered before it may have touched the memory.
    fn free_in_order(&mut self, tag: &Tag, start: u64) -> Result<(), Fault> {
        let touched = self.memory.at(start).map(|a| a.touched.clone()).unwrap_or_default();
        let late = touched.iter().find_map(|&run| tag.unordered_with(run).map(str::to_owned));
        self.end_allocation(start, "cuMemFreeAsync");
        match late {
            Some(name) => {
                let text = format!("memory is freed, not ordered after {name}, which uses it");
                Err(Fault::plain(code::LAUNCH_FAILED, text))
            }
            None => Ok(()),
        }
    }

    /// Marks an allocation as freed and gives its bytes back.
    pub(super) fn end_allocation(&mut self, start: u64, by: &str) {
        let Some((device, len)) =
            self.memory.at(start).filter(|a| a.freed.is_none()).map(|a| (a.device, a.len))
        else {
            return;
        };
        self.memory.free(start, by);
        self.memory.release(device, len);
    }
}
