//! Loads and stores that are in order at a glance: the same as the full ones in `access`, which
//! take over for every lane where anything is out of the ordinary.

use super::access::{extend, lane_of, number, set_lane, set_number};
use super::block::Grid;
use super::kernel::Transfer;
use super::rows::{LANES, Rows};
use super::shadow::{Cell, Glance, PAGE};
use super::warp::Warp;
use crate::ptx::Space;

/// Lanes next to each other whose addresses are equal, or one element apart each.
#[derive(Clone, Copy)]
struct Segment {
    first: usize,
    count: usize,
    /// Whether the addresses are equal.
    same: bool,
}

impl Segment {
    /// Its lanes.
    fn lanes(self) -> std::ops::Range<usize> {
        self.first..self.first + self.count
    }

    /// Its lanes as a mask.
    fn mask(self) -> u32 {
        (u32::MAX >> (LANES - self.count)) << self.first
    }
}

/// Bit `i` of the first: lane `i + 1` is `len` behind lane `i`; of the second: at the same address.
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is compiled for the processor of its caller")]
fn steps(addresses: &[u64; LANES], len: u64) -> (u32, u32) {
    let (mut next, mut same) = (0, 0);
    for i in 0..LANES - 1 {
        let step = addresses[i + 1].wrapping_sub(addresses[i]);
        next |= u32::from(step == len) << i;
        same |= u32::from(step == 0) << i;
    }
    (next, same)
}

/// [`steps`] with the processor's wider registers.
#[target_feature(enable = "avx2")]
fn steps_wide(addresses: &[u64; LANES], len: u64) -> (u32, u32) {
    steps(addresses, len)
}

/// The segments of the lanes in `mask`, whose elements have `len` bytes.
fn segments(addresses: &[u64; LANES], len: u64, mask: u32) -> impl Iterator<Item = Segment> {
    let (next, same) = if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature, by the test before.
        unsafe { steps_wide(addresses, len) }
    } else {
        steps(addresses, len)
    };
    let pairs = mask & mask >> 1;
    let (next, same) = (next & pairs, same & pairs);
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let first = rest.trailing_zeros();
        let (row, equal) = ((next >> first).trailing_ones(), (same >> first).trailing_ones());
        let segment = Segment {
            first: first as usize,
            count: row.max(equal) as usize + 1,
            same: equal > row,
        };
        rest &= !segment.mask();
        Some(segment)
    })
}

impl Grid<'_> {
    /// What a glance needs for a warp's access to a state space, if it can be enough. Which runs
    /// are ordered before depends on the memory.
    fn glance(&self, warp: &Warp, transfer: &Transfer) -> Option<Glance> {
        if transfer.strong
            || !matches!(transfer.space, Space::Shared | Space::Global | Space::Const)
        {
            return None;
        }
        let (run, time, floor) = (self.tag.run, self.time, self.floors[warp.index]);
        let first = u32::try_from(warp.index * LANES).ok()?;
        Some(Glance { run, writes: 0, reads: u32::MAX, floor, time, first })
    }

    /// Bytes and cells of a segment, if they are plain to see, and the binary logarithm of the
    /// cells of an element; what is known of the memory goes to `glance`.
    #[inline]
    fn segment(
        &mut self,
        transfer: &Transfer,
        address: u64,
        segment: Segment,
        (glance, hint): (&mut Glance, usize),
    ) -> Option<(&mut [u8], &mut [Cell], u32)> {
        let align = transfer.width * transfer.regs.len();
        let elements = if segment.same { 1 } else { segment.count };
        let len = align * elements;
        if address & (align as u64 - 1) != 0 {
            return None;
        }
        let (bytes, cells) = if transfer.space == Space::Shared {
            let from = usize::try_from(address).ok()?;
            let bytes = self.shared.get_mut(from..from.checked_add(len)?)?;
            let at = from % PAGE;
            (bytes, self.shared_pages.get_mut(from / PAGE)?.whole(at, at + len)?)
        } else {
            let (device, base) = (self.launch.device, self.tag.base);
            let (bytes, cells, older) = self.memory.glance(device, (address, len), hint, base)?;
            (glance.writes, glance.reads) = (older, older);
            (bytes, cells)
        };
        let shift = (cells.len() / elements).checked_ilog2()?;
        Some((bytes, cells, shift))
    }

    /// Loads what it can; the lanes that it did.
    pub(super) fn quick_load(
        &mut self,
        warp: &mut Warp,
        transfer: &Transfer,
        mask: u32,
        addresses: &[u64; LANES],
    ) -> u32 {
        let Some(mut glance) = self.glance(warp, transfer) else { return 0 };
        let hint = self.hints[warp.pc as usize];
        let len = transfer.width * transfer.regs.len();
        let mut done = 0;
        for segment in segments(addresses, len as u64, mask) {
            let (first, last) = (number32(segment.first), number32(segment.lanes().end - 1));
            let at = addresses[segment.first];
            let found = self.segment(transfer, at, segment, (&mut glance, hint));
            let Some((bytes, cells, shift)) = found else { continue };
            let fine = if segment.same {
                // The first lane and the last leave the same record as all of them.
                glance.read_row(cells, first, 31) && glance.read_row(cells, last, 31)
            } else {
                glance.read_row(cells, first, shift)
            };
            if fine {
                give(&mut warp.rows, transfer, segment, bytes);
                done |= segment.mask();
            }
        }
        done
    }

    /// Stores what it can; the lanes that it did.
    pub(super) fn quick_store(
        &mut self,
        warp: &mut Warp,
        transfer: &Transfer,
        mask: u32,
        addresses: &[u64; LANES],
    ) -> u32 {
        let Some(mut glance) = self.glance(warp, transfer) else { return 0 };
        let hint = self.hints[warp.pc as usize];
        let len = transfer.width * transfer.regs.len();
        let mut done = 0;
        for segment in segments(addresses, len as u64, mask).filter(|s| !s.same) {
            let at = addresses[segment.first];
            let found = self.segment(transfer, at, segment, (&mut glance, hint));
            let Some((bytes, cells, shift)) = found else { continue };
            if glance.write_row(cells, number32(segment.first), shift) {
                take(&warp.rows, transfer, segment, bytes);
                done |= segment.mask();
            }
        }
        done
    }
}

/// A lane as the record has it.
fn number32(lane: usize) -> u32 {
    u32::try_from(lane).unwrap_or(0)
}

/// Writes the elements of a segment to the registers of its lanes.
fn give(rows: &mut Rows, transfer: &Transfer, segment: Segment, bytes: &[u8]) {
    let (width, count) = (transfer.width, transfer.regs.len());
    if width == 4 && matches!(count, 1 | 2 | 4) && transfer.regs.iter().all(|reg| !reg.wide) {
        return match count {
            1 => give_words::<1>(rows, transfer, segment, bytes),
            2 => give_words::<2>(rows, transfer, segment, bytes),
            _ => give_words::<4>(rows, transfer, segment, bytes),
        };
    }
    for (k, &reg) in transfer.regs.iter().enumerate() {
        for lane in segment.lanes() {
            let element = if segment.same { 0 } else { lane - segment.first };
            let at = (element * count + k) * width;
            let value = number(&bytes[at..at + width]);
            set_lane(rows, reg, lane, extend(value, transfer));
        }
    }
}

/// [`give`] of `N` elements of 32 bits in registers of their width.
fn give_words<const N: usize>(
    rows: &mut Rows,
    transfer: &Transfer,
    segment: Segment,
    bytes: &[u8],
) {
    let vectors = bytes.as_chunks::<4>().0.as_chunks::<N>().0;
    for (k, reg) in transfer.regs.iter().enumerate().take(N) {
        let row = &mut rows.narrow_mut(reg.row)[segment.lanes()];
        if segment.same {
            row.fill(vectors.first().map_or(0, |v| u32::from_le_bytes(v[k])));
        } else {
            row.iter_mut().zip(vectors).for_each(|(to, v)| *to = u32::from_le_bytes(v[k]));
        }
    }
}

/// Writes the registers of a segment's lanes to memory.
fn take(rows: &Rows, transfer: &Transfer, segment: Segment, bytes: &mut [u8]) {
    let (width, count) = (transfer.width, transfer.regs.len());
    if width == 4 && matches!(count, 1 | 2 | 4) && transfer.regs.iter().all(|reg| !reg.wide) {
        return match count {
            1 => take_words::<1>(rows, transfer, segment, bytes),
            2 => take_words::<2>(rows, transfer, segment, bytes),
            _ => take_words::<4>(rows, transfer, segment, bytes),
        };
    }
    for (k, &reg) in transfer.regs.iter().enumerate() {
        for lane in segment.lanes() {
            let at = ((lane - segment.first) * count + k) * width;
            set_number(&mut bytes[at..at + width], lane_of(rows, reg, lane));
        }
    }
}

/// [`take`] of `N` elements of 32 bits in registers of their width.
fn take_words<const N: usize>(
    rows: &Rows,
    transfer: &Transfer,
    segment: Segment,
    bytes: &mut [u8],
) {
    let vectors = bytes.as_chunks_mut::<4>().0.as_chunks_mut::<N>().0;
    for (k, reg) in transfer.regs.iter().enumerate().take(N) {
        let row = &rows.narrow(reg.row)[segment.lanes()];
        vectors.iter_mut().zip(row).for_each(|(v, value)| v[k] = value.to_le_bytes());
    }
}
