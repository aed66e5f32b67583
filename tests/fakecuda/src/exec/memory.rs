//! Memory of all devices: allocations at addresses that are never used twice, their bytes and the
//! record of who touched them.

use super::fault::{Fault, code};
use super::shadow::{Act, Clash, Glance, PAGE, Page, Tag, Who};
use std::collections::{BTreeMap, BTreeSet};

/// Address of the first byte of device 0; each device has a range of 2^40 bytes.
const BASE: u64 = 0x7000_0000_0000;
/// Bits of an address within one device.
const DEVICE_BITS: u32 = 40;
/// Unused bytes between allocations, so that an index too far is no other allocation's.
const GAP: u64 = 4096;
/// Allocations begin at multiples of this, as on the device.
const ALIGN: u64 = 512;
/// The value of bytes that were never written: NaN in every float format.
const POISON: u8 = 0xff;

/// The run of a stream-ordered allocation that has not happened yet.
pub const UNBORN: u32 = u32::MAX;

/// An allocation.
#[derive(Clone, Debug)]
pub struct Alloc {
    /// Its first address.
    pub start: u64,
    /// Its size.
    pub len: usize,
    /// Whose memory it is in.
    pub device: u32,
    /// What it is: who made it.
    pub label: String,
    /// Whether only kernels and module loading may write it.
    pub constant: bool,
    /// Set when it was freed: by what.
    pub freed: Option<String>,
    /// Run of the stream-ordered allocation, 0 for one that was ready at once.
    pub born: u32,
    data: Vec<u8>,
    pages: Vec<Option<Box<Page>>>,
    /// Reads of unordered executions that the cells no longer hold, by page: an arena has many, and
    /// each write asks for its own.
    lost: BTreeMap<usize, Vec<Lost>>,
    /// Runs of the latest accesses, one for each execution.
    pub touched: Vec<u32>,
    /// Accesses of runs below this are ordered before the latest execution that made one.
    older: u32,
}

/// A run's read of bytes of one page.
#[derive(Clone, Copy, Debug)]
struct Lost {
    run: u32,
    from: usize,
    to: usize,
}

/// The memory of all devices.
#[derive(Debug, Default)]
pub struct Memory {
    slots: Vec<Alloc>,
    starts: BTreeMap<u64, usize>,
    /// Slots of allocations that are not freed, in order.
    live: BTreeSet<usize>,
    next: Vec<u64>,
    /// Bytes in use on each device.
    pub used: Vec<usize>,
    /// The most bytes in use on each device so far.
    pub peak: Vec<usize>,
    /// Pairs of devices of which the first may access the second's memory.
    pub peers: Vec<(u32, u32)>,
}

/// One access of one thread or copy to device memory.
#[derive(Clone, Copy, Debug)]
pub struct Access<'a> {
    /// The device that makes it.
    pub device: u32,
    /// The first byte.
    pub address: u64,
    /// The number of bytes.
    pub len: usize,
    /// What it does.
    pub act: Act,
    /// Who makes it.
    pub who: Who<'a>,
    /// In which execution.
    pub tag: &'a Tag,
}

impl Access<'_> {
    /// What is needed to see at a glance that it is in order, and its lane, if it is plain;
    /// accesses of runs below `older` are ordered before.
    fn glance(&self, older: u32) -> Option<(Glance, u32)> {
        if !matches!(self.act, Act::Read | Act::Write) {
            return None;
        }
        let thread = self.who.thread;
        let glance = Glance {
            run: self.tag.run,
            writes: older,
            reads: older,
            floor: self.who.known.iter().copied().min()?,
            time: self.who.time,
            first: thread & !31,
        };
        Some((glance, thread & 31))
    }
}

impl Memory {
    /// Memory of `devices` devices.
    pub fn new(devices: usize) -> Self {
        let next =
            (0..devices as u64).map(|d| BASE + (d << DEVICE_BITS) + ALIGN).collect::<Vec<_>>();
        Self { next, used: vec![0; devices], peak: vec![0; devices], ..Self::default() }
    }

    /// Makes an allocation of unwritten bytes and gives its address.
    pub fn allocate(&mut self, device: u32, len: usize, label: String, born: u32) -> u64 {
        let at = device as usize;
        let start = self.next[at];
        self.next[at] = (start + len as u64 + GAP).next_multiple_of(ALIGN);
        self.reserve(device, len);
        self.starts.insert(start, self.slots.len());
        self.live.insert(self.slots.len());
        self.slots.push(Alloc {
            start,
            len,
            device,
            label,
            constant: false,
            freed: None,
            born,
            data: vec![POISON; len],
            pages: vec![None; len.div_ceil(PAGE)],
            lost: BTreeMap::new(),
            touched: Vec::new(),
            older: 0,
        });
        start
    }

    /// The allocation that begins at `start`.
    pub fn at(&mut self, start: u64) -> Option<&mut Alloc> {
        let slot = *self.starts.get(&start)?;
        Some(&mut self.slots[slot])
    }

    /// Frees the allocation that begins at `start`; its address stays known for diagnoses.
    pub fn free(&mut self, start: u64, by: &str) {
        let Some(slot) = self.starts.get(&start).copied() else { return };
        self.live.remove(&slot);
        let alloc = &mut self.slots[slot];
        if alloc.freed.is_none() {
            alloc.freed = Some(by.to_owned());
            alloc.data = Vec::new();
            alloc.pages = Vec::new();
            alloc.lost = BTreeMap::new();
        }
    }

    /// Counts bytes as taken.
    pub fn reserve(&mut self, device: u32, len: usize) {
        let at = device as usize;
        self.used[at] += len;
        self.peak[at] = self.peak[at].max(self.used[at]);
    }

    /// Counts `len` bytes of a device as no longer in use.
    pub fn release(&mut self, device: u32, len: usize) {
        let used = &mut self.used[device as usize];
        *used = used.saturating_sub(len);
    }

    /// Allocations that are not freed.
    pub fn live(&self) -> impl Iterator<Item = &Alloc> {
        self.live.iter().map(|&slot| &self.slots[slot])
    }

    /// The slot of the allocation that holds `address`, or that lies nearest below it.
    fn slot_below(&self, address: u64) -> Option<usize> {
        self.starts.range(..=address).next_back().map(|(_, &slot)| slot)
    }

    /// The allocation that holds `address`.
    pub fn find(&self, address: u64) -> Option<&Alloc> {
        let alloc = &self.slots[self.slot_below(address)?];
        (address < alloc.start + alloc.len.max(1) as u64).then_some(alloc)
    }

    /// What lies at `address`, in words.
    pub fn describe(&self, address: u64) -> String {
        let below = self.slot_below(address).map(|s| &self.slots[s]);
        let Some(alloc) = below else {
            return "no allocation lies below it".to_owned();
        };
        let (offset, len) = (address - alloc.start, alloc.len as u64);
        let place = if offset < len {
            format!("byte {offset}")
        } else {
            format!("{} bytes behind the end", offset - len)
        };
        let freed = alloc.freed.as_ref().map_or(String::new(), |by| format!(", freed by {by}"));
        format!(
            "{place} of allocation {:#x} of {len} bytes on device {} ({}{freed})",
            alloc.start, alloc.device, alloc.label
        )
    }

    /// The slot that an access falls in, or why it may not be made. `hint` is the slot that the
    /// same instruction used last.
    #[inline]
    fn slot(&self, access: &Access<'_>, hint: usize) -> Result<usize, Fault> {
        if let Some(alloc) = self.slots.get(hint) {
            let offset = access.address.wrapping_sub(alloc.start);
            let fits = offset < alloc.len as u64 && alloc.len as u64 - offset >= access.len as u64;
            if fits && alloc.freed.is_none() && alloc.device == access.device && alloc.born == 0 {
                return Ok(hint);
            }
        }
        self.slot_slow(access)
    }

    #[cold]
    fn slot_slow(&self, access: &Access<'_>) -> Result<usize, Fault> {
        let illegal = |why: &str| {
            let text = format!(
                "{why}: {} of {} bytes at {:#x}, {}",
                verb(access.act),
                access.len,
                access.address,
                self.describe(access.address)
            );
            Err(Fault::plain(code::ILLEGAL_ADDRESS, text))
        };
        let Some(slot) = self.slot_below(access.address) else {
            return illegal("out of bounds");
        };
        let alloc = &self.slots[slot];
        let offset = access.address - alloc.start;
        if offset >= alloc.len as u64 || alloc.len as u64 - offset < access.len as u64 {
            return illegal("out of bounds");
        }
        if alloc.freed.is_some() {
            return illegal("use after free");
        }
        if alloc.device != access.device && !self.peers.contains(&(access.device, alloc.device)) {
            return illegal("memory of another device without peer access");
        }
        if alloc.born == UNBORN {
            return illegal("before its stream-ordered allocation");
        }
        if alloc.born != 0 && access.tag.unordered_with(alloc.born).is_some() {
            return illegal("not ordered after the allocation");
        }
        Ok(slot)
    }

    /// Checks and records an access and gives its bytes. `hint` carries the slot from one access
    /// of an instruction to the next.
    #[inline]
    pub fn touch(&mut self, access: &Access<'_>, hint: &mut usize) -> Result<&mut [u8], Fault> {
        let slot = self.slot(access, *hint)?;
        *hint = slot;
        let alloc = &mut self.slots[slot];
        #[expect(clippy::cast_possible_truncation, reason = "an offset into an allocation")]
        let from = (access.address - alloc.start) as usize;
        let to = from + access.len;
        if let Err(clash) = alloc.record(from, to, access) {
            return Err(self.clash(&clash, access));
        }
        Ok(&mut self.slots[slot].data[from..to])
    }

    /// The bytes and cells of an access that lies in the allocation the hint names, if that is
    /// plain to see, and the run below which all accesses are ordered before this one.
    #[inline]
    pub fn glance(
        &mut self,
        device: u32,
        (address, len): (u64, usize),
        hint: usize,
        base: u32,
    ) -> Option<(&mut [u8], &mut [super::shadow::Cell], u32)> {
        let alloc = self.slots.get_mut(hint)?;
        let offset = usize::try_from(address.checked_sub(alloc.start)?).ok()?;
        if alloc.device != device || alloc.born != 0 {
            return None;
        }
        if alloc.touched.last() != Some(&base) {
            return None;
        }
        let bytes = alloc.data.get_mut(offset..offset + len)?;
        if !alloc.lost.is_empty() && alloc.lost.contains_key(&(offset / PAGE)) {
            return None;
        }
        let page = alloc.pages.get_mut(offset / PAGE)?.as_mut()?;
        let from = offset % PAGE;
        Some((bytes, page.whole(from, from + len)?, alloc.older))
    }

    /// A conflict in words.
    #[cold]
    fn clash(&self, clash: &Clash, access: &Access<'_>) -> Fault {
        let wrote = |w: &bool| if *w { "wrote" } else { "read" };
        let what = match clash {
            Clash::Unwritten => "bytes that were never written".to_owned(),
            Clash::Race(by, w) => {
                format!("a race: {by} {} it with no synchronisation in between", wrote(w))
            }
            Clash::Blocks(Some(run), w) => format!(
                "a conflict between blocks: block {} of the same launch {} it",
                run - access.tag.base,
                wrote(w)
            ),
            Clash::Blocks(None, w) => {
                format!("a conflict between blocks: others of the same launch {} it", wrote(w))
            }
            Clash::Unordered(by, w) => format!("not ordered after {by}, which {} it", wrote(w)),
        };
        let text = format!(
            "{what}: {} of {} bytes at {:#x}, {}",
            verb(access.act),
            access.len,
            access.address,
            self.describe(access.address)
        );
        Fault::plain(code::LAUNCH_FAILED, text)
    }

    /// Forgets runs below `run`, which everything to come is ordered after.
    pub fn prune(&mut self, run: u32) {
        self.live.iter().for_each(|&slot| self.slots[slot].prune(run));
    }

    /// Writes without checks: initial values of a module's variables.
    pub fn initialise(&mut self, start: u64, bytes: &[u8], run: u32) {
        let Some(slot) = self.starts.get(&start).copied() else { return };
        let alloc = &mut self.slots[slot];
        let known = [0; 32];
        let tag = Tag::new(run, Vec::new());
        let who = Who { thread: 0, time: 1, known: &known };
        let access = Access {
            device: alloc.device,
            address: start,
            len: bytes.len(),
            act: Act::Write,
            who,
            tag: &tag,
        };
        if alloc.record(0, bytes.len(), &access).is_ok() {
            alloc.data[..bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Forgets that bytes at these offsets from `to` were written: a copy carries the absence of
    /// a value along.
    pub fn forget(&mut self, to: u64, offsets: &[usize]) {
        let Some(slot) = self.slot_below(to) else { return };
        let alloc = &mut self.slots[slot];
        #[expect(clippy::cast_possible_truncation, reason = "an offset")]
        let base = (to - alloc.start) as usize;
        for at in offsets.iter().map(|o| base + o) {
            alloc.page_cells(at, at + 1).iter_mut().for_each(super::shadow::Cell::forget);
        }
    }

    /// Offsets of bytes in `from..from + len` that were never written.
    pub fn unwritten(&mut self, from: u64, len: usize) -> Vec<usize> {
        let Some(slot) = self.slot_below(from) else { return Vec::new() };
        let alloc = &mut self.slots[slot];
        #[expect(clippy::cast_possible_truncation, reason = "an offset")]
        let base = (from - alloc.start) as usize;
        let mut out = Vec::new();
        let mut at = 0;
        while at < len {
            let here = base + at;
            let step = (PAGE - here % PAGE).min(len - at);
            let cells = match alloc.pages.get(here / PAGE) {
                Some(Some(_)) => alloc.page_cells(here, here + step),
                _ => &mut [],
            };
            if cells.is_empty() {
                out.extend(at..at + step);
            } else {
                let per = step.div_ceil(cells.len());
                let bad = cells.iter().enumerate().filter(|(_, c)| c.unwritten());
                out.extend(
                    bad.flat_map(|(i, _)| at + i * per..(at + (i + 1) * per).min(at + step)),
                );
            }
            at += step;
        }
        out
    }

    /// The bytes of a range that has been checked.
    pub fn bytes(&mut self, from: u64, len: usize) -> &mut [u8] {
        let Some(slot) = self.slot_below(from) else { return &mut [] };
        let alloc = &mut self.slots[slot];
        #[expect(clippy::cast_possible_truncation, reason = "an offset")]
        let at = (from - alloc.start) as usize;
        alloc.data.get_mut(at..at + len).unwrap_or(&mut [])
    }
}

/// An act in words.
fn verb(act: Act) -> &'static str {
    match act {
        Act::Read | Act::StrongRead => "read",
        Act::Write | Act::StrongWrite | Act::Begin | Act::End => "write",
        Act::Atomic => "atomic",
    }
}

impl Alloc {
    /// The cells of bytes `from..to`, which lie in one page.
    #[inline]
    fn page_cells(&mut self, from: usize, to: usize) -> &mut [super::shadow::Cell] {
        let page = from / PAGE;
        let end = self.len - page * PAGE;
        let cells = self.pages[page].get_or_insert_default();
        cells.cells(from % PAGE, to - page * PAGE, end)
    }

    /// Checks and records an access to bytes `from..to`.
    #[inline]
    fn record(&mut self, from: usize, to: usize, access: &Access<'_>) -> Result<(), Clash> {
        if self.touched.last() != Some(&access.tag.base) {
            self.older = access.tag.older(&self.touched);
            self.touched.push(access.tag.base);
        }
        let mut at = from;
        // Copies are long, and mostly in order.
        let glance = (to - from > 64).then(|| access.glance(self.older)).flatten();
        while at < to {
            let step = (PAGE - at % PAGE).min(to - at);
            let mut lost = None;
            if let Some((glance, lane)) = &glance {
                let cells = self.page_cells(at, at + step);
                let fine = match access.act {
                    Act::Read => glance.read_row(cells, *lane, u32::BITS - 1),
                    _ => glance.write_row(cells, *lane, u32::BITS - 1),
                };
                if fine {
                    at += step;
                    continue;
                }
            }
            for cell in self.page_cells(at, at + step) {
                if let Some(run) = cell.access(access.act, &access.who, access.tag, false)? {
                    lost = Some(run);
                }
            }
            if let Some(run) = lost {
                self.lose(run, at, at + step);
            }
            at += step;
        }
        if !self.lost.is_empty() && !matches!(access.act, Act::Read | Act::StrongRead) {
            self.check_lost(from, to, access)?;
        }
        Ok(())
    }

    /// Remembers that `run` read `from..to`, which lie in one page.
    #[cold]
    fn lose(&mut self, run: u32, from: usize, to: usize) {
        let reads = self.lost.entry(from / PAGE).or_default();
        match reads.last_mut() {
            Some(last) if last.run == run && last.to == from => last.to = to,
            Some(last) if last.run == run && last.from <= from && to <= last.to => {}
            _ => reads.push(Lost { run, from, to }),
        }
    }

    /// Whether a write is in conflict with a read that the cells no longer hold.
    #[cold]
    fn check_lost(&self, from: usize, to: usize, access: &Access<'_>) -> Result<(), Clash> {
        let reads = self.lost.range(from / PAGE..=to / PAGE).flat_map(|(_, reads)| reads);
        for read in reads.filter(|read| read.from < to && from < read.to) {
            if let Some(name) = access.tag.unordered_with(read.run) {
                return Err(Clash::Unordered(name.to_owned(), false));
            }
        }
        Ok(())
    }

    /// Drops what was remembered of runs below `run`, which everything to come is ordered after.
    fn prune(&mut self, run: u32) {
        self.lost.retain(|_, reads| {
            reads.retain(|read| read.run >= run);
            !reads.is_empty()
        });
        self.touched.retain(|&t| t >= run);
        if self.born < run {
            self.born = 0;
        }
    }
}
