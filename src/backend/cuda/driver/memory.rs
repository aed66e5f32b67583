//! Memory of devices, and memory of the host that devices copy from and to by themselves.

#![allow(unsafe_code, reason = "the driver gives memory as pointers")]

use std::ops::Range;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex};

use super::context::{Context, check};
use super::sys;
use crate::backend::DriverError;
use crate::backend::host::{Block, Few, lock};
use crate::backend::memory;
use crate::types::Device;
use crate::types::invariant::invariant;

/// Smaller blocks of pinned memory are lost in what a process takes otherwise.
const LARGE: usize = 1 << 20;

/// The call that gives pinned memory.
pub(crate) const PIN: &str = "cuMemHostAlloc";

/// Memory of a device.
#[derive(Debug)]
pub(crate) struct Global {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
}

impl Global {
    /// So many bytes, aligned to 256, with anything in them. What programs keep on the device for
    /// later gives way.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DriverError> {
        loop {
            match Self::from_free(context, bytes) {
                Err(error) if error.is_out_of_memory() => {
                    if !context.reclaim_all() {
                        // Something may have given way for another meanwhile.
                        return Self::from_free(context, bytes);
                    }
                }
                made => return made,
            }
        }
    }

    /// As [`Self::new`], but nothing gives way.
    pub(crate) fn from_free(context: &Arc<Context>, bytes: usize) -> Result<Self, DriverError> {
        let mut address = 0;
        if bytes > 0 {
            let _current = context.enter()?;
            // SAFETY: it stores an address.
            let result = unsafe { sys::cuMemAlloc_v2(&raw mut address, bytes) };
            check("cuMemAlloc", result)?;
        }
        Ok(Self { context: context.clone(), address, bytes })
    }

    /// The first byte's address in the device's memory.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// True if it takes memory of the device of a context.
    pub(crate) fn takes_of(&self, context: &Context) -> bool {
        self.bytes > 0 && self.context.ordinal() == context.ordinal()
    }
}

impl Drop for Global {
    fn drop(&mut self) {
        let (context, address) = (self.context.clone(), self.address);
        if self.bytes > 0 {
            self.context.deferred_free().free(move || {
                // An error here is one of work done before, and was reported when that was waited
                // for.
                if let Ok(_current) = context.enter() {
                    // SAFETY: the memory was taken in this context and is freed once. Work that
                    // uses it is done: the driver waits for it.
                    let _: sys::Code = unsafe { sys::cuMemFree_v2(address) };
                }
            });
        }
    }
}

/// Page-locked memory of the host, ordinary and not write-combined: devices copy from it and to it
/// by themselves.
///
/// Whoever starts copies keeps apart what is read and written at the same time, on the host and by
/// devices; nothing here can see to it.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Arc<Context>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its memory, which is not bound to a thread.
unsafe impl Send for Pinned {}
// SAFETY: the methods that take `&self` read what no one writes at that time, as the type says.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// So many bytes, with anything in them. An error where the control group of this process does
    /// not leave as many: the system ends a process that takes more.
    pub(crate) fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, DriverError> {
        Self::on(Path::new("/"), context, bytes)
    }

    /// As [`Self::new`], on a system with this root folder, whose files tell of control groups.
    fn on(root: &Path, context: &Arc<Context>, bytes: usize) -> Result<Self, DriverError> {
        let mut start = ptr::null_mut();
        if bytes >= LARGE {
            within(bytes, memory::left(root))?;
        }
        if bytes > 0 {
            let _current = context.enter()?;
            // SAFETY: it stores a pointer to as many bytes, which every context may use.
            let result = unsafe {
                sys::cuMemHostAlloc(&raw mut start, bytes, sys::CU_MEMHOSTALLOC_PORTABLE)
            };
            check(PIN, result)?;
        }
        let start = match NonNull::new(start.cast()) {
            Some(start) => start,
            None => {
                invariant((bytes == 0).then(NonNull::dangling), "that pinned memory is somewhere")
            }
        };
        // The driver gives whole pages of the system, so each byte has some value; to write to all
        // would touch pages that nothing reads.
        Ok(Self { context: context.clone(), start, bytes })
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The bytes in a range.
    pub(crate) fn read(&self, range: Range<usize>) -> Option<&[u8]> {
        let start = self.pointer(range.clone())?;
        // SAFETY: the range lies inside the memory, whose bytes are initialised and stay as long as
        // `self`.
        Some(unsafe { slice::from_raw_parts(start.as_ptr(), range.len()) })
    }

    /// Fills a range, which nothing else uses; false where it does not lie inside, or is not as
    /// long as what fills it.
    pub(crate) fn write(&mut self, range: Range<usize>, bytes: &[u8]) -> bool {
        let is_as_long = range.len() == bytes.len();
        let Some(start) = self.pointer(range).filter(|_| is_as_long) else { return false };
        // SAFETY: so many bytes lie inside the memory, and `&mut self` is the only way to it.
        unsafe { start.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        true
    }

    /// The beginning of a range; `None` if it does not lie inside.
    pub(crate) fn pointer(&self, range: Range<usize>) -> Option<NonNull<u8>> {
        if range.start > range.end || range.end > self.bytes {
            return None;
        }
        // SAFETY: the range begins inside the memory or at its end.
        Some(unsafe { self.start.add(range.start) })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let (context, address) = (self.context.clone(), self.start.as_ptr().expose_provenance());
        if self.bytes > 0 {
            self.context.deferred_free().free(move || {
                if let Ok(_current) = context.enter() {
                    let start = ptr::with_exposed_provenance_mut(address);
                    // SAFETY: the memory was taken by `new` and is freed once; a stream that copies
                    // holds a reference.
                    let _: sys::Code = unsafe { sys::cuMemFreeHost(start) };
                }
            });
        }
    }
}

/// A pinned block in the hands of the host: what steps on the host read and write. The only one of
/// its block.
#[derive(Debug)]
pub(crate) struct HostBlock(Arc<Pinned>);

impl HostBlock {
    /// The block itself, for copies by devices.
    pub(crate) fn pinned(&self) -> &Arc<Pinned> {
        &self.0
    }

    /// Fills the beginning with these bytes; false where they do not fit.
    pub(crate) fn fill(&mut self, bytes: &[u8]) -> bool {
        let range = 0..bytes.len();
        match self.parts(slice::from_ref(&range)).as_deref_mut() {
            Some([part]) => part.copy_from_slice(bytes),
            _ => return false,
        }
        true
    }
}

impl AsRef<[u8]> for HostBlock {
    fn as_ref(&self) -> &[u8] {
        invariant(self.0.read(0..self.0.len()), "that a block has all its bytes")
    }
}

impl Block for HostBlock {
    fn read(&self, range: Range<usize>) -> Option<&[u8]> {
        self.0.read(range)
    }

    fn parts(&mut self, ranges: &[Range<usize>]) -> Option<Few<&mut [u8]>> {
        let mut at = 0;
        let mut parts = Few::with_capacity(ranges.len());
        for range in ranges {
            if range.start < at {
                return None;
            }
            at = range.end;
            let start = self.0.pointer(range.clone())?;
            // SAFETY: the range lies inside the memory, whose bytes are initialised; the ranges are
            // apart, and
            // `&mut self` is the only way for the host to write to the block.
            parts.push(unsafe { slice::from_raw_parts_mut(start.as_ptr(), range.len()) });
        }
        Some(parts)
    }
}

/// The most blocks that are kept for later.
const KEPT_BLOCKS: usize = 32;

/// The most bytes of blocks that are kept for later: pinned memory is of no use to anybody else.
const KEPT_BYTES: usize = 2 << 30;

/// Pinned blocks to take and give back: taking one from the driver costs milliseconds.
#[derive(Debug)]
pub(crate) struct PinnedPool {
    context: Arc<Context>,
    device: Device,
    /// All blocks, the free ones among them: those that nobody else has. The last taken is the
    /// last.
    blocks: Mutex<Vec<Arc<Pinned>>>,
}

impl PinnedPool {
    /// A pool without blocks, whose memory is taken in the context of a device; every other may use
    /// it.
    pub(crate) fn new(context: Arc<Context>, device: Device) -> Self {
        Self { context, device, blocks: Mutex::default() }
    }

    /// The device in whose context memory is taken.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// A block of at least so many bytes. It is free again when it and its copies are dropped.
    ///
    /// Where a new one has to be made, free ones are given up, those taken longest ago first, until
    /// they are few and small enough, and all of them where the host has no memory left.
    pub(crate) fn take(&self, bytes: usize) -> Result<HostBlock, DriverError> {
        // As a block is made, so that one for few bytes suits the next time. None: so many bytes
        // are more than there are, and the driver says so.
        let bytes = bytes.checked_next_multiple_of(256).unwrap_or(bytes);
        let mut blocks = lock(&self.blocks);
        let of = |b: &Arc<Pinned>| (b.len(), Arc::strong_count(b) == 1);
        let sizes: Vec<_> = blocks.iter().map(of).collect();
        if let Some(at) = suiting(&sizes, bytes) {
            // What the last reader on another thread did comes before what is written now.
            fence(Ordering::Acquire);
            let block = blocks.remove(at);
            blocks.push(block.clone());
            return Ok(HostBlock(block));
        }
        for at in superfluous(&sizes, KEPT_BLOCKS, KEPT_BYTES).into_iter().rev() {
            drop(blocks.remove(at));
        }
        let made = match Pinned::new(&self.context, bytes) {
            Err(error) if error.is_out_of_memory() => {
                blocks.retain(|block| Arc::strong_count(block) > 1);
                Pinned::new(&self.context, bytes)?
            }
            made => made?,
        };
        let block = Arc::new(made);
        blocks.push(block.clone());
        Ok(HostBlock(block))
    }
}

/// The bytes of the host's memory that are free, or can be made so, for this process; 0 where the
/// system does not tell.
pub(crate) fn free_memory() -> u64 {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|info| available(&info));
    // Only messages show it.
    machine.into_iter().chain(memory::left(Path::new("/"))).min().unwrap_or(0)
}

/// Fails where so many bytes of pinned memory are more than control groups leave.
fn within(bytes: usize, left: Option<u64>) -> Result<(), DriverError> {
    match left.filter(|left| (bytes as u64) > *left) {
        None => Ok(()),
        Some(left) => Err(DriverError {
            call: PIN,
            code: sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as u32,
            name: "CUDA_ERROR_OUT_OF_MEMORY".to_owned(),
            text: format!("the control group of this process leaves {left} bytes"),
        }),
    }
}

/// The memory that is available, as Linux tells it.
fn available(info: &str) -> Option<u64> {
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The free block that suits best for so many bytes, among blocks of these sizes: one that does not
/// waste as much again.
fn suiting(blocks: &[(usize, bool)], bytes: usize) -> Option<usize> {
    let suits = |(size, free): (usize, bool)| free && size >= bytes && size / 2 <= bytes;
    let found = blocks.iter().enumerate().filter(|(_, block)| suits(**block));
    found.min_by_key(|(_, (size, _))| *size).map(|(at, _)| at)
}

/// The free blocks to give up, ascending, so that those that stay are few and small enough
/// together.
fn superfluous(blocks: &[(usize, bool)], most_blocks: usize, most_bytes: usize) -> Vec<usize> {
    let free = || blocks.iter().enumerate().filter(|(_, (_, free))| *free);
    let mut count = free().count();
    let mut total = free().fold(0usize, |total, (_, (size, _))| total.saturating_add(*size));
    let mut given = Vec::new();
    for (at, (size, _)) in free() {
        if count <= most_blocks && total <= most_bytes {
            break;
        }
        count -= 1;
        total = total.saturating_sub(*size);
        given.push(at);
    }
    given
}

#[cfg(test)]
mod tests {
    use super::{LARGE, PIN, Pinned, available, suiting, superfluous, within};
    use crate::backend::cuda::driver::context::Context;

    #[test]
    fn what_a_control_group_does_not_leave_is_not_asked_for() {
        assert_eq!(within(1 << 30, None), Ok(()));
        assert_eq!(within(1 << 30, Some(1 << 30)), Ok(()));
        let error = within(1 << 30, Some(4096)).unwrap_err();
        assert!(error.is_out_of_memory() && error.call == PIN);
        assert!(error.to_string().contains("control group of this process leaves 4096"));
    }

    /// The driver is not started here, so it gives no memory: what reaches it has another error.
    #[test]
    fn pinned_memory_stays_within_the_control_group() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("sys/fs/cgroup/group");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::create_dir_all(root.path().join("proc/self")).unwrap();
        std::fs::write(root.path().join("proc/self/cgroup"), "0::/group\n").unwrap();
        std::fs::write(group.join("memory.max"), format!("{}\n", 4 * LARGE)).unwrap();
        std::fs::write(group.join("memory.current"), format!("{}\n", 2 * LARGE)).unwrap();
        let context = Context::unopened();
        let pinned = |bytes| Pinned::on(root.path(), &context, bytes).unwrap_err();
        let refused = pinned(2 * LARGE + 1);
        assert!(refused.is_out_of_memory() && refused.call == PIN);
        let told = format!("the control group of this process leaves {} bytes", 2 * LARGE);
        assert!(refused.to_string().contains(&told), "{refused}");
        for bytes in [2 * LARGE, LARGE - 1] {
            assert!(!pinned(bytes).to_string().contains("control group"), "{bytes}");
        }
        // It was never retained, so nothing may release it.
        std::mem::forget(context);
    }

    #[test]
    fn memory_that_is_available() {
        let info = "MemTotal:       16 kB\nMemAvailable:    3 kB\n";
        assert_eq!(available(info), Some(3072));
        assert_eq!(available("MemTotal: 16 kB\nMemAvailable: many kB\n"), None);
    }

    #[test]
    fn the_smallest_block_that_suits_is_taken() {
        let blocks = [(100, true), (64, true), (64, false), (40, true)];
        assert_eq!(suiting(&blocks, 60), Some(1));
        assert_eq!(suiting(&blocks, 70), Some(0));
        assert_eq!(suiting(&blocks, 10), None, "that would waste too much");
        assert_eq!(suiting(&blocks, 101), None);
    }

    #[test]
    fn free_blocks_are_few_and_small_enough() {
        let blocks = [(100, true), (50, false), (30, true), (20, true)];
        assert!(superfluous(&blocks, 3, 150).is_empty());
        assert_eq!(superfluous(&blocks, 3, 149), [0]);
        assert_eq!(superfluous(&blocks, 2, 150), [0]);
        assert_eq!(superfluous(&blocks, 1, 150), [0, 2]);
        assert_eq!(superfluous(&blocks, 3, 0), [0, 2, 3], "what is in use stays");
        assert!(superfluous(&[], 3, 0).is_empty());
        // What is held, as outputs are that somebody keeps, takes no place of what is kept for
        // later.
        let held = [(1 << 30, false)].repeat(40);
        assert!(superfluous(&[held, vec![(300, true)]].concat(), 32, 2 << 30).is_empty());
    }
}
