//! Loads and stores that are in order at a glance: the same as the full ones in `access`, which
//! take over for every lane where anything is out of the ordinary.

use super::access::{extend, lane_of, number, set_lane, set_number};
use super::block::Grid;
use super::kernel::Transfer;
use super::rows::LANES;
use super::shadow::{Cell, Glance, PAGE};
use super::warp::{Warp, lanes};
use crate::ptx::Space;

/// How the addresses of a warp lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// One element after the other, of all lanes.
    Row,
    /// The same element for all lanes.
    One,
    /// Anything else.
    Any,
}

impl Pattern {
    #[inline]
    fn of(addresses: &[u64; LANES], len: u64, mask: u32) -> Self {
        let stride = addresses[1].wrapping_sub(addresses[0]);
        if mask != u32::MAX || (stride != 0 && stride != len) {
            return Self::Any;
        }
        let mut same = true;
        for (i, &address) in (0u64..).zip(addresses) {
            same &= address.wrapping_sub(addresses[0]) == i * stride;
        }
        match (same, stride) {
            (false, _) => Self::Any,
            (true, 0) => Self::One,
            (true, _) => Self::Row,
        }
    }
}

impl Grid<'_> {
    /// What a glance needs for a warp's access to a state space, if it can be enough.
    fn glance(&self, warp: &Warp, transfer: &Transfer) -> Option<Glance> {
        let floor = self.known[warp.index].iter().copied().min().unwrap_or(0);
        let older = self.tag.base.min(self.tag.oldest);
        let (writes, reads) = match transfer.space {
            Space::Shared => (0, u32::MAX),
            Space::Global | Space::Const => (older, older),
            Space::Generic | Space::Local | Space::Param => return None,
        };
        if transfer.strong {
            return None;
        }
        let first = u32::try_from(warp.index * LANES).ok()?;
        Some(Glance { run: self.tag.run, writes, reads, floor, time: self.time, first })
    }

    /// Bytes and cells of an access that is plain to see.
    #[inline]
    fn span(
        &mut self,
        space: Space,
        address: u64,
        (len, align): (usize, usize),
        hint: usize,
    ) -> Option<(&mut [u8], &mut [Cell])> {
        if address & (align as u64 - 1) != 0 {
            return None;
        }
        if space == Space::Shared {
            let from = usize::try_from(address).ok()?;
            let bytes = self.shared.get_mut(from..from.checked_add(len)?)?;
            let page = self.shared_pages.get_mut(from / PAGE)?;
            let at = from % PAGE;
            return Some((bytes, page.whole(at, at + len)?));
        }
        self.memory.glance(self.launch.device, (address, len), hint, self.tag.base)
    }

    /// Loads what it can; the lanes that it did.
    pub(super) fn quick_load(
        &mut self,
        warp: &mut Warp,
        transfer: &Transfer,
        mask: u32,
        addresses: &[u64; LANES],
    ) -> u32 {
        match transfer.regs.len() {
            1 => self.quick_load_of::<1>(warp, transfer, mask, addresses),
            2 => self.quick_load_of::<2>(warp, transfer, mask, addresses),
            4 => self.quick_load_of::<4>(warp, transfer, mask, addresses),
            _ => 0,
        }
    }

    /// Loads vectors of `N` elements.
    fn quick_load_of<const N: usize>(
        &mut self,
        warp: &mut Warp,
        transfer: &Transfer,
        mask: u32,
        addresses: &[u64; LANES],
    ) -> u32 {
        let Some(glance) = self.glance(warp, transfer) else { return 0 };
        let (width, hint) = (transfer.width, self.hints[warp.pc as usize]);
        let len = width * N;
        let mut done = 0;
        let mut values = [[0; LANES]; N];
        let pattern = Pattern::of(addresses, len as u64, mask);
        if pattern == Pattern::Row {
            done = self.load_row(transfer, &glance, (addresses[0], hint), &mut values);
        } else if pattern == Pattern::One {
            let found = self.span(transfer.space, addresses[0], (len, len), hint);
            if let Some((bytes, cells)) = found {
                // The first lane and the last leave the same record as all of them.
                let ends = [glance.lane(0), glance.lane(31)];
                let fine = |c: &mut Cell| ends.iter().all(|&m| c.glance_read(&glance, m));
                if cells.iter_mut().all(fine) {
                    done = u32::MAX;
                    for (k, value) in values.iter_mut().enumerate() {
                        *value = [number(&bytes[k * width..(k + 1) * width]); LANES];
                    }
                }
            }
        }
        let mut run = 0;
        for lane in lanes(mask & !done) {
            let at = lane as usize;
            let again = at > 0 && done >> (at - 1) & 1 != 0 && addresses[at] == addresses[at - 1];
            run = if again { run + 1 } else { 0 };
            if run > 1 {
                // The record says already that several lanes of this warp read the element.
                for value in &mut values {
                    value[at] = value[at - 1];
                }
                done |= 1 << lane;
                continue;
            }
            let found = self.span(transfer.space, addresses[at], (len, len), hint);
            let Some((bytes, cells)) = found else { continue };
            let mine = glance.lane(lane);
            if !cells.iter_mut().all(|c| c.glance_read(&glance, mine)) {
                continue;
            }
            done |= 1 << lane;
            for (k, value) in values.iter_mut().enumerate() {
                value[at] = number(&bytes[k * width..(k + 1) * width]);
            }
        }
        give(warp, transfer, &values, done);
        done
    }

    /// Loads of all lanes from one row of elements.
    #[inline]
    fn load_row<const N: usize>(
        &mut self,
        transfer: &Transfer,
        glance: &Glance,
        (address, hint): (u64, usize),
        values: &mut [[u64; LANES]; N],
    ) -> u32 {
        let width = transfer.width;
        let len = width * N;
        let found = self.span(transfer.space, address, (len * LANES, len), hint);
        let Some((bytes, cells)) = found else { return 0 };
        if cells.len() < LANES {
            return 0;
        }
        let shift = (cells.len() / LANES).trailing_zeros();
        let mut first = glance.lane(0);
        for (at, cell) in cells.iter_mut().enumerate() {
            if at != 0 && at & ((1 << shift) - 1) == 0 {
                first += 1;
            }
            if !cell.glance_read(glance, first) {
                return 0;
            }
        }
        if width == 4 && N == 1 {
            for (value, part) in values[0].iter_mut().zip(bytes.chunks_exact(4)) {
                *value = number(part);
            }
            return u32::MAX;
        }
        for lane in 0..LANES {
            for (k, value) in values.iter_mut().enumerate() {
                let at = lane * len + k * width;
                value[lane] = number(&bytes[at..at + width]);
            }
        }
        u32::MAX
    }

    /// Stores what it can; the lanes that it did.
    pub(super) fn quick_store(
        &mut self,
        warp: &mut Warp,
        transfer: &Transfer,
        mask: u32,
        addresses: &[u64; LANES],
    ) -> u32 {
        let Some(glance) = self.glance(warp, transfer) else { return 0 };
        let (width, hint) = (transfer.width, self.hints[warp.pc as usize]);
        let len = width * transfer.regs.len();
        let mut done = 0;
        for lane in lanes(mask) {
            let at = lane as usize;
            let found = self.span(transfer.space, addresses[at], (len, len), hint);
            let Some((bytes, cells)) = found else { continue };
            let mine = glance.lane(lane);
            if !cells.iter_mut().all(|c| c.glance_write(&glance, mine)) {
                continue;
            }
            done |= 1 << lane;
            for (k, &reg) in transfer.regs.iter().enumerate() {
                set_number(&mut bytes[k * width..(k + 1) * width], lane_of(&warp.rows, reg, at));
            }
        }
        done
    }
}

/// Writes loaded elements to the registers of the lanes in `done`.
fn give<const N: usize>(
    warp: &mut Warp,
    transfer: &Transfer,
    values: &[[u64; LANES]; N],
    done: u32,
) {
    for (value, &reg) in values.iter().zip(&transfer.regs) {
        if transfer.signed || done != u32::MAX {
            for lane in lanes(done) {
                let at = lane as usize;
                set_lane(&mut warp.rows, reg, at, extend(value[at], transfer));
            }
        } else if reg.wide {
            *warp.rows.wide_mut(reg.row) = *value;
        } else {
            #[expect(clippy::cast_possible_truncation, reason = "a register of 32 bits")]
            let narrow = value.map(|v| v as u32);
            *warp.rows.narrow_mut(reg.row) = narrow;
        }
    }
}
