//! Loads, stores, atomics and copies of the threads of a block.

use super::block::Grid;
use super::fault::{Fault, code};
use super::kernel::{
    Address, AsyncCopy, Atomic, LOCAL_WINDOW, MatrixLoad, PARAM_WINDOW, Reg, SHARED_WINDOW,
    Transfer,
};
use super::memory::Access;
use super::rows::{LANES, Rows};
use super::shadow::{Act, Clash, PAGE, Who};
use super::warp::{Pending, Warp, lanes};
use crate::ptx::Space;

/// The addresses of all lanes.
#[inline]
fn addresses(rows: &Rows, address: Address) -> [u64; LANES] {
    let offset = address.offset;
    match address.base {
        None => [offset; LANES],
        Some(Reg { row, wide: true }) => rows.wide(row).map(|v| v.wrapping_add(offset)),
        Some(Reg { row, wide: false }) => {
            #[expect(clippy::cast_possible_truncation, reason = "addresses of 32 bits wrap")]
            let low = offset as u32;
            rows.narrow(row).map(|v| u64::from(v.wrapping_add(low)))
        }
    }
}

/// The value of one lane of a register.
#[inline]
pub(super) fn lane_of(rows: &Rows, reg: Reg, lane: usize) -> u64 {
    if reg.wide { rows.wide(reg.row)[lane] } else { u64::from(rows.narrow(reg.row)[lane]) }
}

/// Sets one lane of a register.
#[inline]
pub(super) fn set_lane(rows: &mut Rows, reg: Reg, lane: usize, value: u64) {
    if reg.wide {
        rows.wide_mut(reg.row)[lane] = value;
    } else {
        #[expect(clippy::cast_possible_truncation, reason = "a register of 32 bits")]
        let value = value as u32;
        rows.narrow_mut(reg.row)[lane] = value;
    }
}

/// The number in up to 8 little-endian bytes.
#[inline]
pub(super) fn number(bytes: &[u8]) -> u64 {
    match *bytes {
        [a, b, c, d] => u64::from(u32::from_le_bytes([a, b, c, d])),
        [a, b] => u64::from(u16::from_le_bytes([a, b])),
        [a] => u64::from(a),
        _ => {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(all)
        }
    }
}

/// Writes the low bytes of a number.
#[inline]
pub(super) fn set_number(bytes: &mut [u8], value: u64) {
    let all = value.to_le_bytes();
    match bytes.len() {
        4 => bytes.copy_from_slice(&all[..4]),
        2 => bytes.copy_from_slice(&all[..2]),
        len => bytes.copy_from_slice(&all[..len]),
    }
}

/// Where an access goes: a state space that is not generic, and the offset there.
#[inline]
fn place(space: Space, address: u64) -> (Space, u64) {
    if space != Space::Generic {
        return (space, address);
    }
    match address >> 56 {
        1 => (Space::Shared, address - SHARED_WINDOW),
        2 => (Space::Local, address - LOCAL_WINDOW),
        3 => (Space::Param, address - PARAM_WINDOW),
        _ => (Space::Global, address),
    }
}

impl Grid<'_> {
    /// Checks and records one thread's access to global or shared memory and gives the bytes.
    #[inline]
    fn access(
        &mut self,
        warp: &Warp,
        lane: u32,
        place: (Space, u64),
        len: usize,
        act: Act,
    ) -> Result<&mut [u8], Fault> {
        let (space, address) = place;
        let in_lane = |fault: Fault| Fault { lane: Some(lane), ..fault };
        #[expect(clippy::cast_possible_truncation, reason = "at most 32 warps")]
        let thread = (warp.index * LANES) as u32 + lane;
        match space {
            Space::Global | Space::Const | Space::Generic => {
                let who = Who { thread, time: self.time, known: &self.known[warp.index] };
                let (device, tag) = (self.launch.device, &self.tag);
                let access = Access { device, address, len, act, who, tag };
                let hint = &mut self.hints[warp.pc as usize];
                self.memory.touch(&access, hint).map_err(in_lane)
            }
            Space::Shared => self.shared_access(warp, thread, address, len, act).map_err(in_lane),
            Space::Local | Space::Param => Err(in_lane(Fault::plain(
                code::ILLEGAL_ADDRESS,
                "local memory or a parameter is not accessed like this",
            ))),
        }
    }

    #[inline]
    fn shared_access(
        &mut self,
        warp: &Warp,
        thread: u32,
        address: u64,
        len: usize,
        act: Act,
    ) -> Result<&mut [u8], Fault> {
        let size = self.shared.len();
        let from = usize::try_from(address).unwrap_or(usize::MAX);
        if from >= size || size - from < len {
            let text =
                format!("out of bounds: {len} bytes at {from} of {size} bytes of shared memory");
            return Err(Fault::plain(code::ILLEGAL_ADDRESS, text));
        }
        let page = from / PAGE;
        let who = Who { thread, time: self.time, known: &self.known[warp.index] };
        let base = page * PAGE;
        let cells = self.shared_pages[page].cells(from - base, from + len - base, size - base);
        for cell in cells {
            if let Err(clash) = cell.access(act, &who, &self.tag, true) {
                return Err(shared_clash(&clash, act, from, len));
            }
        }
        Ok(&mut self.shared[from..from + len])
    }

    /// Local memory; the lane's bytes, which must have been written before they are read.
    fn local_access<'w>(
        &self,
        warp: &'w mut Warp,
        lane: u32,
        address: u64,
        len: usize,
        act: Act,
    ) -> Result<&'w mut [u8], Fault> {
        let size = self.kernel.local;
        let from = usize::try_from(address).unwrap_or(usize::MAX);
        if from >= size || size - from < len {
            let text =
                format!("out of bounds: {len} bytes at {from} of {size} bytes of local memory");
            return Err(Fault::plain(code::ILLEGAL_ADDRESS, text));
        }
        let from = lane as usize * size + from;
        let written = &mut warp.local_written[from..from + len];
        if act == Act::Read && written.contains(&false) {
            let text = "a read of local memory that was never written";
            return Err(Fault::plain(code::LAUNCH_FAILED, text));
        }
        if act != Act::Read {
            written.fill(true);
        }
        Ok(&mut warp.local[from..from + len])
    }

    /// A load.
    pub(super) fn load(
        &mut self,
        warp: &mut Warp,
        transfer: &Transfer,
        mask: u32,
    ) -> Result<(), Fault> {
        let addresses = addresses(&warp.rows, transfer.address);
        let (width, count) = (transfer.width, transfer.regs.len());
        let act = if transfer.strong { Act::StrongRead } else { Act::Read };
        let mask = mask & !self.quick_load(warp, transfer, mask, &addresses);
        for lane in lanes(mask) {
            let at = lane as usize;
            let mut values = [0; 8];
            aligned(addresses[at], width * count, lane)?;
            let (space, address) = place(transfer.space, addresses[at]);
            let bytes = match space {
                Space::Param => self.param(lane, address, width * count)?,
                Space::Local => self.local_access(warp, lane, address, width * count, Act::Read)?,
                _ => self.access(warp, lane, (space, address), width * count, act)?,
            };
            for (k, value) in values.iter_mut().enumerate().take(count) {
                *value = number(&bytes[k * width..(k + 1) * width]);
            }
            for (&value, &reg) in values.iter().zip(&transfer.regs) {
                set_lane(&mut warp.rows, reg, at, extend(value, transfer));
            }
        }
        Ok(())
    }

    /// Bytes of the parameter buffer.
    fn param(&self, lane: u32, address: u64, len: usize) -> Result<&[u8], Fault> {
        let params = &self.launch.params;
        let from = usize::try_from(address).unwrap_or(usize::MAX);
        params.get(from..from.saturating_add(len)).ok_or_else(|| {
            let text = format!("out of bounds: {len} bytes at {from} of the parameters");
            Fault::lane(code::ILLEGAL_ADDRESS, lane, text)
        })
    }

    /// A store.
    pub(super) fn store(
        &mut self,
        warp: &mut Warp,
        transfer: &Transfer,
        mask: u32,
    ) -> Result<(), Fault> {
        let addresses = addresses(&warp.rows, transfer.address);
        let (width, count) = (transfer.width, transfer.regs.len());
        let act = if transfer.strong { Act::StrongWrite } else { Act::Write };
        let mask = mask & !self.quick_store(warp, transfer, mask, &addresses);
        for lane in lanes(mask) {
            let at = lane as usize;
            aligned(addresses[at], width * count, lane)?;
            let mut values = [0u64; 8];
            for (value, &reg) in values.iter_mut().zip(&transfer.regs) {
                *value = lane_of(&warp.rows, reg, at);
            }
            let place = place(transfer.space, addresses[at]);
            let bytes = match place.0 {
                Space::Local => {
                    self.local_access(warp, lane, place.1, width * count, Act::Write)?
                }
                _ => self.access(warp, lane, place, width * count, act)?,
            };
            for (k, &value) in values.iter().enumerate().take(count) {
                set_number(&mut bytes[k * width..(k + 1) * width], value);
            }
        }
        Ok(())
    }

    /// An atomic operation, lane after lane.
    pub(super) fn atomic(
        &mut self,
        warp: &mut Warp,
        atomic: &Atomic,
        mask: u32,
    ) -> Result<(), Fault> {
        let addresses = addresses(&warp.rows, atomic.address);
        for lane in lanes(mask) {
            let at = lane as usize;
            aligned(addresses[at], atomic.width, lane)?;
            let value = lane_of(&warp.rows, atomic.value, at);
            let other = atomic.other.map_or(0, |reg| lane_of(&warp.rows, reg, at));
            let place = place(atomic.space, addresses[at]);
            let bytes = self.access(warp, lane, place, atomic.width, Act::Atomic)?;
            let old = number(bytes);
            let new = (atomic.update)(old, value, other);
            bytes.copy_from_slice(&new.to_le_bytes()[..atomic.width]);
            if let Some(reg) = atomic.result {
                set_lane(&mut warp.rows, reg, at, old);
            }
        }
        Ok(())
    }

    /// Begins copies to shared memory: the source is read now, the destination must be free now
    /// and is written when the copy is waited for.
    pub(super) fn async_copy(
        &mut self,
        warp: &mut Warp,
        copy: &AsyncCopy,
        mask: u32,
    ) -> Result<(), Fault> {
        let to = addresses(&warp.rows, copy.to);
        let from = addresses(&warp.rows, copy.from);
        for lane in lanes(mask) {
            let at = lane as usize;
            aligned(to[at], copy.len, lane)?;
            aligned(from[at], copy.len, lane)?;
            let wanted = copy.source_len.map_or(copy.len as u64, |r| lane_of(&warp.rows, r, at));
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX).min(copy.len);
            let mut bytes = vec![0; copy.len];
            if wanted > 0 {
                let place = place(Space::Global, from[at]);
                let source = self.access(warp, lane, place, wanted, Act::Read)?;
                bytes[..wanted].copy_from_slice(source);
            }
            let (_, target) = place(Space::Generic, to[at]);
            self.access(warp, lane, (Space::Shared, target), copy.len, Act::Begin)?;
            if let Some(group) = warp.copies.last_mut() {
                group.push(Pending { lane, to: target, bytes });
            }
        }
        Ok(())
    }

    /// Completes all but the latest `left` groups of copies.
    pub(super) fn async_wait(&mut self, warp: &mut Warp, left: usize) -> Result<(), Fault> {
        // The last entry is the open group, which only `cp.async.wait_all` closes.
        let closed = warp.copies.len() - 1;
        let done = if left == usize::MAX { closed + 1 } else { closed.saturating_sub(left) };
        let groups: Vec<_> = warp.copies.drain(..done).collect();
        if warp.copies.is_empty() {
            warp.copies.push(Vec::new());
        }
        for copy in groups.into_iter().flatten() {
            let place = (Space::Shared, copy.to);
            let len = copy.bytes.len();
            self.access(warp, copy.lane, place, len, Act::End)?.copy_from_slice(&copy.bytes);
        }
        Ok(())
    }

    /// `ldmatrix`: lane `8 m + r` gives the address of row `r` of matrix `m`; lane `l` gets
    /// elements `2 (l % 4)` and the next of row `l / 4`.
    pub(super) fn matrix_load(
        &mut self,
        warp: &mut Warp,
        load: &MatrixLoad,
        mask: u32,
    ) -> Result<(), Fault> {
        if mask != u32::MAX {
            return Err(Fault::plain(code::LAUNCH_FAILED, "ldmatrix in a divergent warp"));
        }
        let addresses = addresses(&warp.rows, load.address);
        for (m, &reg) in load.regs.iter().enumerate() {
            let mut matrix = [[0u16; 8]; 8];
            for (r, row) in matrix.iter_mut().enumerate() {
                let lane = m * 8 + r;
                #[expect(clippy::cast_possible_truncation, reason = "below 32")]
                let of = lane as u32;
                aligned(addresses[lane], 16, of)?;
                let place = place(load.space, addresses[lane]);
                let bytes = self.access(warp, of, place, 16, Act::Read)?;
                for (element, pair) in row.iter_mut().zip(bytes.chunks_exact(2)) {
                    *element = u16::from_le_bytes([pair[0], pair[1]]);
                }
            }
            for lane in 0..LANES {
                let (r, c) = (lane / 4, lane % 4 * 2);
                let pair = if load.transposed {
                    [matrix[c][r], matrix[c + 1][r]]
                } else {
                    [matrix[r][c], matrix[r][c + 1]]
                };
                let value = u64::from(pair[0]) | u64::from(pair[1]) << 16;
                set_lane(&mut warp.rows, reg, lane, value);
            }
        }
        Ok(())
    }
}

/// Whether an address is a multiple of the access's size.
#[inline]
fn aligned(address: u64, len: usize, lane: u32) -> Result<(), Fault> {
    if address & (len as u64 - 1) == 0 {
        return Ok(());
    }
    let text = format!("misaligned: {len} bytes at {address:#x}");
    Err(Fault::lane(code::MISALIGNED_ADDRESS, lane, text))
}

/// A loaded element in a register that may be wider.
#[inline]
pub(super) fn extend(value: u64, transfer: &Transfer) -> u64 {
    if !transfer.signed {
        return value;
    }
    let unused = 64 - 8 * u32::try_from(transfer.width).unwrap_or(8);
    let signed = ((value << unused).cast_signed() >> unused).cast_unsigned();
    if transfer.reg_bits >= 64 { signed } else { signed & ((1 << transfer.reg_bits) - 1) }
}

/// A conflict in shared memory in words.
#[cold]
fn shared_clash(clash: &Clash, act: Act, from: usize, len: usize) -> Fault {
    let verb = match act {
        Act::Read | Act::StrongRead => "read",
        Act::Write | Act::StrongWrite | Act::Begin | Act::End => "write",
        Act::Atomic => "atomic",
    };
    let what = match clash {
        Clash::Unwritten => "bytes that were never written".to_owned(),
        Clash::Race(by, wrote) => format!(
            "a race: {by} {} it with no synchronisation in between",
            if *wrote { "wrote" } else { "read" }
        ),
        Clash::Blocks(..) | Clash::Unordered(..) => "a conflict".to_owned(),
    };
    let text = format!("{what}: {verb} of {len} bytes at {from} of shared memory");
    Fault::plain(code::LAUNCH_FAILED, text)
}
