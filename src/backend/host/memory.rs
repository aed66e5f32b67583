//! The memory of one virtual device, and disjoint views of it.

use std::ops::Range;

use smallvec::SmallVec;

use crate::ir::IdMap;
use crate::lower::{BufferId, Location, Space};

/// What a step has one of for each of its buffers: it reads and writes few.
pub(crate) type Few<T> = SmallVec<[T; 8]>;

/// A block of host memory that steps read and write.
pub(crate) trait Block {
    /// The bytes in a range; `None` where it ends outside.
    fn read(&self, range: Range<usize>) -> Option<&[u8]>;

    /// The bytes in each of these ranges, which are in order and apart; `None` where they are not,
    /// or end outside.
    fn parts(&mut self, ranges: &[Range<usize>]) -> Option<Few<&mut [u8]>>;

    /// The bytes before a range, in it, and behind it up to `end`; `None` where it ends outside.
    fn around(&mut self, range: Range<usize>, end: usize) -> Option<[&mut [u8]; 3]> {
        let mut parts = self.parts(&[0..range.start, range.clone(), range.end..end])?;
        let (behind, own, before) = (parts.pop()?, parts.pop()?, parts.pop()?);
        Some([before, own, behind])
    }
}

impl Block for &mut [u8] {
    fn read(&self, range: Range<usize>) -> Option<&[u8]> {
        self.get(range)
    }

    fn parts(&mut self, ranges: &[Range<usize>]) -> Option<Few<&mut [u8]>> {
        let (mut rest, mut at) = (&mut **self, 0);
        let mut parts = Few::with_capacity(ranges.len());
        for range in ranges {
            let (_, tail) = rest.split_at_mut_checked(range.start.checked_sub(at)?)?;
            let (part, tail) = tail.split_at_mut_checked(range.len())?;
            parts.push(part);
            (rest, at) = (tail, range.end);
        }
        Some(parts)
    }

    #[inline]
    fn around(&mut self, range: Range<usize>, end: usize) -> Option<[&mut [u8]; 3]> {
        let (rest, _) = self.split_at_mut_checked(end)?;
        let (rest, behind) = rest.split_at_mut_checked(range.end)?;
        let (before, own) = rest.split_at_mut_checked(range.start)?;
        Some([before, own, behind])
    }
}

/// What a device writes to: its arena, on the host the outputs, and for each update of the program
/// the new elements of the parameter, where the device holds it.
#[derive(Debug)]
pub(crate) struct DeviceMemory<B> {
    pub(crate) arena: B,
    pub(crate) outputs: Vec<B>,
    pub(crate) updates: Vec<B>,
}

/// The memory that a step reads and writes. Whoever asks for it has the lists, which are not moved.
#[derive(Debug, Default)]
pub(crate) struct Views<'a> {
    /// What it reads, in the order asked for; `None` where it writes to exactly the same bytes.
    pub(crate) reads: Few<Option<&'a [u8]>>,
    /// The buffers to write, in the requested order.
    pub(crate) writes: Few<&'a mut [u8]>,
}

/// Where the buffers of a device are.
type Locations = IdMap<BufferId, Location>;

/// A range of one space that is either written, by the view with this position, or read.
struct Segment {
    space: Space,
    start: usize,
    end: usize,
    write: Option<usize>,
}

impl<B: Block> DeviceMemory<B> {
    /// The bytes at a location in this memory.
    pub(crate) fn read(&self, at: &Location) -> Option<&[u8]> {
        let block = match at.space {
            Space::Arena => &self.arena,
            Space::Output(i) => self.outputs.get(i as usize)?,
            Space::Update(i) => self.updates.get(i as usize)?,
            Space::Input(_) | Space::Param(_) => return None,
        };
        block.read(at.offset..at.offset.checked_add(at.bytes)?)
    }

    /// The bytes at a location in this memory, to write to.
    pub(crate) fn write(&mut self, at: &Location) -> Option<&mut [u8]> {
        let range = at.offset..at.offset.checked_add(at.bytes)?;
        let block = match at.space {
            Space::Arena => &mut self.arena,
            Space::Output(i) => self.outputs.get_mut(i as usize)?,
            Space::Update(i) => self.updates.get_mut(i as usize)?,
            Space::Input(_) | Space::Param(_) => return None,
        };
        block.parts(&[range])?.pop()
    }

    /// The most common views: of one location to write, and others that [`may_be_beside`] it.
    fn beside<'a>(
        &'a mut self,
        at: &Locations,
        reads: &[BufferId],
        write: &Location,
        external: &dyn Fn(&Location) -> Option<&'a [u8]>,
        views: &mut Views<'a>,
    ) -> Option<()> {
        let (start, end) = (write.offset, write.offset.checked_add(write.bytes)?);
        let mut most = end;
        for read in reads.iter().map(|b| &at[*b]).filter(|read| read.space == write.space) {
            most = most.max(read.offset.checked_add(read.bytes)?);
        }
        let (block, arena) = match write.space {
            Space::Arena => (&mut self.arena, None),
            Space::Output(i) => (self.outputs.get_mut(i as usize)?, Some(&self.arena)),
            Space::Update(i) => (self.updates.get_mut(i as usize)?, Some(&self.arena)),
            Space::Input(_) | Space::Param(_) => return None,
        };
        let [before, own, behind] = block.around(start..end, most)?;
        let (behind, before): (&'a [u8], &'a [u8]) = (behind, before);
        for at in reads.iter().map(|b| &at[*b]) {
            let range = at.offset..at.offset.checked_add(at.bytes)?;
            views.reads.push(if range.is_empty() {
                Some(&[])
            } else if matches!(at.space, Space::Input(_) | Space::Param(_)) {
                Some(external(at)?)
            } else if same(at, write) {
                None
            } else if at.space != write.space {
                Some(arena?.read(range)?)
            } else if range.end <= start {
                Some(before.get(range)?)
            } else {
                Some(behind.get(range.start.checked_sub(end)?..range.end - end)?)
            });
        }
        views.writes.push(own);
        Some(())
    }

    /// Adds views of several buffers at once; those of inputs and parameters come from `external`.
    ///
    /// What is written must not overlap anything else asked for, but for reads of exactly the same
    /// bytes.
    /// `None` where that does not hold or a location is outside this memory.
    pub(crate) fn views<'a>(
        &'a mut self,
        at: &Locations,
        reads: &[BufferId],
        writes: &[BufferId],
        external: &dyn Fn(&Location) -> Option<&'a [u8]>,
        views: &mut Views<'a>,
    ) -> Option<()> {
        if let [write] = writes {
            let write = &at[*write];
            if write.bytes > 0 && reads.iter().all(|read| may_be_beside(&at[*read], write)) {
                return self.beside(at, reads, write, external, views);
            }
        }
        let reads: Few<&Location> = reads.iter().map(|b| &at[*b]).collect();
        let writes: Few<&Location> = writes.iter().map(|b| &at[*b]).collect();
        let segments = segments(&reads, &writes)?;
        let mut shared: Few<(Space, usize, &'a [u8])> = Few::new();
        let mut written: Few<Option<&'a mut [u8]>> = writes.iter().map(|_| None).collect();
        // The segments are in the order of the spaces, so each list is gone through once.
        let mut arena = Some(&mut self.arena);
        let (mut outputs, mut updates) =
            (self.outputs.iter_mut().enumerate(), self.updates.iter_mut().enumerate());
        let at = |(i, _): &(usize, &mut B), wanted: u32| *i == wanted as usize;
        for own in segments.chunk_by(|a, b| a.space == b.space) {
            let space = own.first()?.space;
            let block = match space {
                Space::Arena => arena.take()?,
                Space::Output(i) => outputs.find(|output| at(output, i))?.1,
                Space::Update(i) => updates.find(|update| at(update, i))?.1,
                Space::Input(_) | Space::Param(_) => return None,
            };
            let ranges: Few<_> = own.iter().map(|s| s.start..s.end).collect();
            for (segment, part) in own.iter().zip(block.parts(&ranges)?) {
                match segment.write {
                    Some(i) => written[i] = Some(part),
                    None => shared.push((space, segment.start, part)),
                }
            }
        }
        let read = |location: &Location| -> Option<Option<&'a [u8]>> {
            if location.bytes == 0 {
                return Some(Some(&[]));
            }
            if matches!(location.space, Space::Input(_) | Space::Param(_)) {
                return external(location).map(Some);
            }
            if writes.iter().any(|w| same(w, location)) {
                return Some(None);
            }
            found(&shared, location).map(Some)
        };
        for location in reads {
            views.reads.push(read(location)?);
        }
        for (view, location) in written.into_iter().zip(&writes) {
            views.writes.push(if location.bytes == 0 { &mut [] } else { view? });
        }
        Some(())
    }
}

/// The bytes at a location among parts of memory, each with its space and where it begins, in
/// order.
fn found<'a>(parts: &[(Space, usize, &'a [u8])], at: &Location) -> Option<&'a [u8]> {
    let upto = parts.partition_point(|(space, start, _)| (*space, *start) <= (at.space, at.offset));
    let (space, start, bytes) = parts.get(upto.checked_sub(1)?)?;
    let from = at.offset.checked_sub(*start)?;
    let bytes = bytes.get(from..from.checked_add(at.bytes)?)?;
    (*space == at.space).then_some(bytes)
}

/// Whether what is read is outside of this memory, in the arena, or in the space that is written.
fn may_be_beside(read: &Location, write: &Location) -> bool {
    match read.space {
        Space::Arena | Space::Input(_) | Space::Param(_) => true,
        Space::Output(_) | Space::Update(_) => read.space == write.space,
    }
}

fn same(a: &Location, b: &Location) -> bool {
    (a.space, a.offset, a.bytes) == (b.space, b.offset, b.bytes)
}

/// The ranges to divide memory into, in order: each written location, and the unions of those that
/// are only read.
/// `None` if a written one overlaps another range.
fn segments(reads: &[&Location], writes: &[&Location]) -> Option<Few<Segment>> {
    let own = |l: &Location| {
        l.bytes > 0 && matches!(l.space, Space::Arena | Space::Output(_) | Space::Update(_))
    };
    let end = |l: &Location| l.offset.checked_add(l.bytes);
    let mut read: Few<(Space, usize, usize)> = Few::new();
    for location in reads.iter().filter(|r| own(r) && !writes.iter().any(|w| same(w, r))) {
        read.push((location.space, location.offset, end(location)?));
    }
    read.sort_unstable();
    let mut all: Few<Segment> = Few::new();
    for (space, start, end) in read {
        match all.last_mut().filter(|last| last.space == space && start < last.end) {
            Some(last) => last.end = last.end.max(end),
            None => all.push(Segment { space, start, end, write: None }),
        }
    }
    for (i, location) in writes.iter().enumerate().filter(|(_, w)| w.bytes > 0) {
        let (space, start, end) = (location.space, location.offset, end(location)?);
        all.push(Segment { space, start, end, write: Some(i) });
    }
    all.sort_unstable_by_key(|s| (s.space, s.start));
    let apart = all.windows(2).all(|w| w[0].space != w[1].space || w[0].end <= w[1].start);
    apart.then_some(all)
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::{BufferId, DeviceMemory, IdMap, Location, Space, Views};

    fn at(space: Space, offset: usize, bytes: usize) -> Location {
        Location { space, offset, bytes, dims: [bytes].as_slice().into() }
    }

    /// An arena with its addresses, an output and an update.
    fn with_memory(f: impl FnOnce(DeviceMemory<&mut [u8]>)) {
        let mut arena: Vec<u8> = (0..64).collect();
        let (mut output, mut update) = ([0; 16], [0; 8]);
        let (outputs, updates) = (vec![&mut output[..]], vec![&mut update[..]]);
        f(DeviceMemory { arena: &mut arena, outputs, updates });
    }

    /// The views of these, if the ranges are disjoint.
    fn asked<'a>(
        memory: &'a mut DeviceMemory<&mut [u8]>,
        reads: &[Location],
        writes: &[Location],
        input: Option<&'a [u8]>,
    ) -> Option<Views<'a>> {
        let at = IdMap::from([reads, writes].concat());
        let ids: Vec<BufferId> = (0..).map(BufferId).take(reads.len() + writes.len()).collect();
        let (reads, writes) = ids.split_at(reads.len());
        let mut views = Views::default();
        memory.views(&at, reads, writes, &|_| input, &mut views)?;
        Some(views)
    }

    #[test]
    fn views_are_the_ranges_asked_for() {
        with_memory(views);
    }

    fn views(mut memory: DeviceMemory<&mut [u8]>) {
        let input = [9u8; 4];
        let reads = [
            at(Space::Arena, 4, 8),
            at(Space::Arena, 8, 8),
            at(Space::Input(0), 0, 4),
            at(Space::Arena, 32, 8),
            at(Space::Arena, 4, 8),
            at(Space::Arena, 20, 0),
        ];
        let writes = [
            at(Space::Arena, 32, 8),
            at(Space::Output(0), 4, 4),
            at(Space::Arena, 16, 4),
            at(Space::Update(0), 1, 2),
        ];
        let Views { reads, writes } = asked(&mut memory, &reads, &writes, Some(&input)).unwrap();
        assert_eq!(reads[0].unwrap(), [4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(reads[1].unwrap(), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(reads[2].unwrap(), [9; 4]);
        assert!(reads[3].is_none());
        assert_eq!(reads[4], reads[0]);
        assert!(reads[5].unwrap().is_empty());
        drop(reads);
        for write in writes {
            write.fill(7);
        }
        assert_eq!(memory.arena[14..22], [14, 15, 7, 7, 7, 7, 20, 21]);
        assert_eq!(memory.arena[31..41], [31, 7, 7, 7, 7, 7, 7, 7, 7, 40]);
        assert_eq!(memory.outputs[0][3..9], [0, 7, 7, 7, 7, 0]);
        assert_eq!(memory.updates[0][..4], [0, 7, 7, 0]);
    }

    #[test]
    fn one_view_is_beside_what_is_read() {
        with_memory(one_view);
    }

    fn one_view(mut memory: DeviceMemory<&mut [u8]>) {
        let input = [9u8; 4];
        let reads = [
            at(Space::Arena, 4, 8),
            at(Space::Arena, 32, 8),
            at(Space::Arena, 40, 4),
            at(Space::Input(0), 0, 4),
            at(Space::Arena, 36, 0),
        ];
        let write = at(Space::Arena, 32, 8);
        let Views { reads: read, writes } =
            asked(&mut memory, &reads, &[write], Some(&input)).unwrap();
        assert_eq!(read[0].unwrap(), [4, 5, 6, 7, 8, 9, 10, 11]);
        assert!(read[1].is_none());
        assert_eq!(read[2].unwrap(), [40, 41, 42, 43]);
        assert_eq!(read[3].unwrap(), [9; 4]);
        assert!(read[4].unwrap().is_empty());
        drop(read);
        writes.into_iter().for_each(|write| write.fill(7));
        assert_eq!(memory.arena[31..41], [31, 7, 7, 7, 7, 7, 7, 7, 7, 40]);
        let reads = [at(Space::Arena, 60, 4), at(Space::Output(0), 0, 4)];
        let write = at(Space::Output(0), 4, 4);
        let Views { reads: read, writes } =
            asked(&mut memory, &reads, &[write], Some(&input)).unwrap();
        assert_eq!(read[0].unwrap(), [60, 61, 62, 63]);
        assert_eq!(read[1].unwrap(), [0; 4]);
        drop(read);
        writes.into_iter().for_each(|write| write.fill(5));
        assert_eq!(memory.outputs[0][3..9], [0, 5, 5, 5, 5, 0]);
    }

    #[test]
    fn overlap_with_what_is_written_is_refused() {
        with_memory(overlap);
    }

    fn overlap(mut memory: DeviceMemory<&mut [u8]>) {
        let mut refused = |reads: &[Location], writes: &[Location]| {
            asked(&mut memory, reads, writes, None).is_none()
        };
        let (a, b) = (at(Space::Arena, 0, 8), at(Space::Arena, 4, 8));
        assert!(refused(slice::from_ref(&a), slice::from_ref(&b)));
        assert!(refused(&[], &[a, b]));
        assert!(refused(&[at(Space::Arena, 60, 8)], &[]));
        assert!(refused(&[], &[at(Space::Output(1), 0, 1)]));
        assert!(refused(&[at(Space::Input(0), 0, 1)], &[]));
    }
}
