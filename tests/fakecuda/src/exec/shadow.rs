//! Who touched each byte last: the record that finds unwritten bytes, races inside a block,
//! conflicts between blocks of a launch and accesses that no stream order covers.
//!
//! A cell describes one granule (1, 2 or 4 bytes, the smallest access its page has seen). Its two
//! halves name the last write and the last read: the *run* (one number for every block of every
//! launch and for every copy), the *time* inside of the block (it advances at every
//! synchronisation) and the thread. An earlier access of the same block is ordered before a later
//! one when its time is below what the later warp knows of the earlier thread's warp.

/// Largest thread index of a block.
const THREADS: u64 = 1024;
/// The code of several unordered readers in one warp is this plus the warp.
const MANY_IN_WARP: u64 = THREADS;
/// Several unordered readers in different warps.
const MANY: u64 = THREADS + 32;
/// Readers in several blocks of one launch.
const MANY_BLOCKS: u64 = THREADS + 33;
/// An atomic access.
const ATOMIC: u64 = THREADS + 34;

/// An asynchronous copy that was not waited for yet.
const PENDING: u64 = THREADS + 35;

/// Bits of the thread in a packed access.
const CODE_BITS: u32 = 11;
/// These bits.
const CODE: u64 = (1 << CODE_BITS) - 1;
/// The number of times a block can synchronise.
pub const MAX_TIME: u32 = (1 << 21) - 1;

/// Run and order of the execution that makes accesses.
#[derive(Clone, Debug)]
pub struct Tag {
    /// The run of this block or copy.
    pub run: u32,
    /// The first run of this launch or copy.
    pub base: u32,
    /// Runs of earlier executions that are not ordered before this one, and their names.
    pub unordered: Vec<(u32, u32, String)>,
    /// The first run in `unordered`, or the largest number.
    pub oldest: u32,
}

impl Tag {
    /// The tag of a run, given the executions that are not ordered before it.
    pub fn new(run: u32, unordered: Vec<(u32, u32, String)>) -> Self {
        let oldest = unordered.iter().map(|u| u.0).min().unwrap_or(u32::MAX);
        Self { run, base: run, unordered, oldest }
    }

    /// The run below which all accesses to memory are ordered before this execution, of those that
    /// executions with these first runs made.
    pub fn older(&self, touched: &[u32]) -> u32 {
        let unordered = self.unordered.iter().map(|u| u.0).filter(|first| touched.contains(first));
        unordered.min().map_or(self.base, |first| first.min(self.base))
    }

    /// The unordered execution that `run` belongs to.
    #[inline]
    pub fn unordered_with(&self, run: u32) -> Option<&str> {
        if run < self.oldest {
            return None;
        }
        self.unordered.iter().find(|u| u.0 <= run && run < u.1).map(|u| u.2.as_str())
    }
}

/// The thread that makes an access, and what its warp knows of the others.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// Its index in the block.
    pub thread: u32,
    /// The block's time.
    pub time: u32,
    /// For each warp of the block, the first time that is not ordered before this access.
    pub known: &'a [u32; 32],
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Reads and writes atomically.
    Atomic,
    /// Begins a write that is done when it is waited for.
    Begin,
    /// Ends such a write.
    End,
    /// Reads with `volatile`, `relaxed` or `acquire`: not in conflict with atomics.
    StrongRead,
    /// Writes with `volatile`, `relaxed` or `release`: not in conflict with atomics.
    StrongWrite,
}

/// A conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clash {
    /// The byte was never written.
    Unwritten,
    /// Another thread of the block, or several, and whether they wrote.
    Race(String, bool),
    /// Another block of the launch, by its run, and whether it wrote.
    Blocks(Option<u32>, bool),
    /// An execution that no stream order, event or synchronisation orders, and whether it wrote.
    Unordered(String, bool),
}

/// What is needed to see at a glance that an access is in order. The glance never says so wrongly;
/// where it does not, the full check decides.
#[derive(Clone, Copy, Debug)]
pub struct Glance {
    /// The run.
    pub run: u32,
    /// Writes of runs below this are ordered before.
    pub writes: u32,
    /// Reads of runs below this are ordered before.
    pub reads: u32,
    /// Accesses of this run before this time are ordered before.
    pub floor: u32,
    /// The block's time.
    pub time: u32,
    /// The first thread of the warp.
    pub first: u32,
}

impl Glance {
    /// The packed access of a lane.
    #[inline]
    pub fn lane(&self, lane: u32) -> u64 {
        pack(self.run, self.time, u64::from(self.first + lane))
    }

    /// Whether an earlier access is one of this run.
    #[inline]
    fn own(&self, earlier: u64) -> bool {
        earlier.wrapping_sub(u64::from(self.run) << 32) >> 32 == 0
    }

    /// Whether an earlier access of this run is ordered before the access `mine`.
    #[inline]
    #[expect(clippy::needless_bitwise_bool, reason = "no branches")]
    fn before(&self, earlier: u64, mine: u64) -> bool {
        let since = earlier.wrapping_sub(u64::from(self.run) << 32);
        let (code, floor) = (earlier & CODE, u64::from(self.floor) << CODE_BITS);
        // Threads only: the other codes are for the full check.
        ((since < floor) & (code <= MANY)) | (code == mine & CODE)
    }

    /// Records reads of elements that follow each other, each of `1 << shift` cells, by the lanes
    /// from `lane` on, if all are in order at a glance; else records nothing.
    #[inline]
    pub fn read_row(&self, cells: &mut [Cell], lane: u32, shift: u32) -> bool {
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature, by the test before.
            unsafe { read_row_wide(self, cells, lane, shift) }
        } else {
            read_row(self, cells, lane, shift)
        }
    }

    /// The same for writes.
    #[inline]
    pub fn write_row(&self, cells: &mut [Cell], lane: u32, shift: u32) -> bool {
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature, by the test before.
            unsafe { write_row_wide(self, cells, lane, shift) }
        } else {
            write_row(self, cells, lane, shift)
        }
    }
}

/// [`Glance::read_row`] with the processor's wider registers.
#[target_feature(enable = "avx2")]
fn read_row_wide(glance: &Glance, cells: &mut [Cell], lane: u32, shift: u32) -> bool {
    read_row(glance, cells, lane, shift)
}

/// [`Glance::write_row`] with the processor's wider registers.
#[target_feature(enable = "avx2")]
fn write_row_wide(glance: &Glance, cells: &mut [Cell], lane: u32, shift: u32) -> bool {
    write_row(glance, cells, lane, shift)
}

/// Without branches, so that several cells are checked at a time.
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is compiled for the processor of its caller")]
#[expect(clippy::needless_bitwise_bool, reason = "no branches")]
fn read_row(glance: &Glance, cells: &mut [Cell], lane: u32, shift: u32) -> bool {
    let (first, warp) = (glance.lane(lane), u64::from(glance.first >> 5));
    let (writes, reads) = (u64::from(glance.writes) << 32, u64::from(glance.reads) << 32);
    let mut fine = true;
    for (mine, cell) in cells.iter().enumerate().map(|(i, c)| (first + (i as u64 >> shift), c)) {
        let wrote = glance.own(cell.write) & glance.before(cell.write, mine);
        let older = (cell.write != 0) & (cell.write < writes);
        let own = glance.own(cell.read);
        let free = (own & (cell.read & CODE <= MANY)) | (!own & (cell.read < reads));
        fine &= (wrote | older) & free;
    }
    if !fine {
        return false;
    }
    let within = pack(glance.run, glance.time, MANY_IN_WARP + warp);
    let many = pack(glance.run, glance.time, MANY);
    for (i, cell) in cells.iter_mut().enumerate() {
        let mine = first + (i as u64 >> shift);
        let code = cell.read & CODE;
        let of = if code < THREADS { code >> 5 } else { code - MANY_IN_WARP };
        let joint = if of == warp { within } else { many };
        let apart = glance.own(cell.read) & !glance.before(cell.read, mine);
        cell.read = if apart { joint } else { mine };
    }
    true
}

/// As [`read_row`].
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is compiled for the processor of its caller")]
#[expect(clippy::needless_bitwise_bool, reason = "no branches")]
fn write_row(glance: &Glance, cells: &mut [Cell], lane: u32, shift: u32) -> bool {
    let first = glance.lane(lane);
    let reads = u64::from(glance.reads) << 32;
    let writes = u64::from(glance.writes.max(glance.reads)) << 32;
    let mut fine = true;
    for (mine, cell) in cells.iter().enumerate().map(|(i, c)| (first + (i as u64 >> shift), c)) {
        let (wrote, read) = (glance.own(cell.write), glance.own(cell.read));
        let written = glance.before(cell.write, mine);
        let over = (wrote & written) | (!wrote & (cell.write < writes));
        let behind = glance.before(cell.read, mine);
        let free = (read & behind) | (!read & (cell.read < reads));
        fine &= over & free;
    }
    if fine {
        for (i, cell) in cells.iter_mut().enumerate() {
            cell.write = first + (i as u64 >> shift);
        }
    }
    fine
}

/// The last accesses to one granule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cell {
    write: u64,
    read: u64,
}

/// Packs an access.
#[inline]
fn pack(run: u32, time: u32, code: u64) -> u64 {
    u64::from(run) << 32 | u64::from(time) << CODE_BITS | code
}

/// Run, time and code of a packed access.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "the parts are cut out")]
fn unpack(access: u64) -> (u32, u32, u64) {
    let code = access & CODE;
    ((access >> 32) as u32, (access as u32) >> CODE_BITS, code)
}

/// Whether an access of this block is ordered before one by `who`.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a warp's index is below 32")]
fn ordered(time: u32, code: u64, who: &Who<'_>) -> bool {
    if code < THREADS {
        return code == u64::from(who.thread) || time < who.known[(code >> 5) as usize];
    }
    if code < MANY {
        return time < who.known[(code - MANY_IN_WARP) as usize & 31];
    }
    code != PENDING && who.known.iter().all(|&known| time < known)
}

/// The code of an earlier reader and a thread that reads at the same time.
#[inline]
fn joint(earlier: u64, thread: u64) -> u64 {
    let warp = if earlier < THREADS { earlier >> 5 } else { earlier - MANY_IN_WARP };
    if warp == thread >> 5 { MANY_IN_WARP + warp } else { MANY }
}

/// A thread code in words.
fn name(code: u64) -> String {
    match code {
        c if c < THREADS => format!("thread {c}"),
        c if c < MANY => format!("several threads of warp {}", c - MANY_IN_WARP),
        ATOMIC => "an atomic access".to_owned(),
        PENDING => "an asynchronous copy that was not waited for".to_owned(),
        _ => "several threads".to_owned(),
    }
}

impl Cell {
    /// The run that wrote last, or `None`.
    pub fn writer(self) -> Option<u32> {
        (self.write != 0).then_some(unpack(self.write).0)
    }

    /// Whether the granule was never written.
    pub fn unwritten(self) -> bool {
        self.write == 0
    }

    /// Marks the granule as never written.
    pub fn forget(&mut self) {
        self.write = 0;
    }

    /// Checks and records an access. In shared memory (`shared`) only this run counts. The result
    /// also names a reader of another, unordered execution that the record no longer holds.
    #[inline]
    pub fn access(
        &mut self,
        act: Act,
        who: &Who<'_>,
        tag: &Tag,
        shared: bool,
    ) -> Result<Option<u32>, Clash> {
        match act {
            Act::Read | Act::StrongRead => self.read(act, who, tag, shared),
            Act::Write | Act::Begin | Act::End | Act::StrongWrite | Act::Atomic => {
                self.write(act, who, tag, shared)?;
                Ok(None)
            }
        }
    }

    /// Whether an earlier write or read (`wrote`) is in conflict with an access by `who`.
    #[inline]
    fn conflict(
        earlier: u64,
        wrote: bool,
        who: &Who<'_>,
        tag: &Tag,
        shared: bool,
    ) -> Result<(), Clash> {
        let (run, time, code) = unpack(earlier);
        if run == tag.run {
            if code == MANY_BLOCKS {
                return Err(Clash::Blocks(None, wrote));
            }
            if !ordered(time, code, who) {
                return Err(Clash::Race(name(code), wrote));
            }
        } else if !shared {
            if run >= tag.base {
                return Err(Clash::Blocks(Some(run), wrote));
            }
            if let Some(name) = tag.unordered_with(run) {
                return Err(Clash::Unordered(name.to_owned(), wrote));
            }
        }
        Ok(())
    }

    /// Whether the last write was an atomic of this launch.
    #[inline]
    fn atomic(self, tag: &Tag) -> bool {
        let (run, _, code) = unpack(self.write);
        code == ATOMIC && run >= tag.base
    }

    #[inline]
    fn read(
        &mut self,
        act: Act,
        who: &Who<'_>,
        tag: &Tag,
        shared: bool,
    ) -> Result<Option<u32>, Clash> {
        if self.write == 0 || (shared && unpack(self.write).0 != tag.run) {
            return Err(Clash::Unwritten);
        }
        if !(act == Act::StrongRead && self.atomic(tag)) {
            Self::conflict(self.write, true, who, tag, shared)?;
        }
        let mut lost = None;
        let mut code = u64::from(who.thread);
        let (run, time, earlier) = unpack(self.read);
        if act == Act::StrongRead {
            return Ok(None);
        }
        if run == tag.run {
            if earlier == MANY_BLOCKS {
                return Ok(None);
            }
            if !ordered(time, earlier, who) {
                code = joint(earlier, code);
            }
        } else if !shared && run != 0 {
            if run >= tag.base {
                code = MANY_BLOCKS;
            } else if tag.unordered_with(run).is_some() {
                lost = Some(run);
            }
        }
        self.read = pack(tag.run, who.time, code);
        Ok(lost)
    }

    #[inline]
    fn write(&mut self, act: Act, who: &Who<'_>, tag: &Tag, shared: bool) -> Result<(), Clash> {
        let strong = matches!(act, Act::StrongWrite | Act::Atomic);
        let ends = act == Act::End && unpack(self.write).2 == PENDING;
        if self.write != 0 && !ends && !(strong && self.atomic(tag)) {
            Self::conflict(self.write, true, who, tag, shared)?;
        }
        if self.read != 0 {
            Self::conflict(self.read, false, who, tag, shared)?;
        }
        let code = match act {
            Act::StrongWrite | Act::Atomic => ATOMIC,
            Act::Begin => PENDING,
            _ => u64::from(who.thread),
        };
        self.write = pack(tag.run, who.time, code);
        Ok(())
    }
}

/// Bytes that one page of cells describes.
pub const PAGE: usize = 4096;

/// The cells of 4096 bytes.
#[derive(Clone, Debug)]
pub struct Page {
    /// Granules have `1 << shift` bytes.
    shift: u32,
    cells: Vec<Cell>,
}

impl Default for Page {
    fn default() -> Self {
        Self { shift: 2, cells: vec![Cell::default(); PAGE / 4] }
    }
}

impl Page {
    /// The cells of bytes `from..to` of the page; `end` is where the described memory ends, which
    /// need not be a multiple of the granule.
    #[inline]
    pub fn cells(&mut self, from: usize, to: usize, end: usize) -> &mut [Cell] {
        loop {
            let low = (1 << self.shift) - 1;
            if from & low == 0 && (to & low == 0 || to == end) {
                break;
            }
            self.refine();
        }
        let last = (to + (1 << self.shift) - 1) >> self.shift;
        &mut self.cells[from >> self.shift..last]
    }

    /// The cells of bytes `from..to`, if these are whole granules.
    #[inline]
    pub fn whole(&mut self, from: usize, to: usize) -> Option<&mut [Cell]> {
        let low = (1 << self.shift) - 1;
        if (from | to) & low != 0 {
            return None;
        }
        self.cells.get_mut(from >> self.shift..to >> self.shift)
    }

    /// Halves the granules.
    #[cold]
    fn refine(&mut self) {
        self.shift -= 1;
        self.cells = self.cells.iter().flat_map(|&c| [c, c]).collect();
    }
}
