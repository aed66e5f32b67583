//! The memory of elements.

/// The bytes of a cache line.
const LINE: usize = 64;

/// Memory that begins with a cache line, so that elements of every type are aligned in it. It is
/// zero before it is written to, and the system gives most of a large one page by page: to those
/// who touch the pages first, side by side if they do so on several threads.
pub(super) struct Lines {
    /// With room for a line to begin at.
    memory: Box<[u8]>,
    /// Where it begins.
    start: usize,
    bytes: usize,
}

impl Lines {
    /// Memory for `bytes` bytes, if there is as much.
    pub(super) fn try_new(bytes: usize) -> Option<Self> {
        let memory = bytemuck::allocation::try_zeroed_slice_box(bytes.checked_add(LINE - 1)?).ok();
        Some(Self::inside(memory?, bytes))
    }

    /// Memory for `bytes` bytes.
    pub(super) fn new(bytes: usize) -> Self {
        Self::inside(vec![0; bytes + (LINE - 1)].into(), bytes)
    }

    /// A copy of these bytes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut lines = Self::new(bytes.len());
        lines.bytes_mut().copy_from_slice(bytes);
        lines
    }

    fn inside(memory: Box<[u8]>, bytes: usize) -> Self {
        let address = memory.as_ptr().addr();
        Self { start: address.next_multiple_of(LINE) - address, memory, bytes }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..][..self.bytes]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..self.bytes]
    }
}

/// A line begins elsewhere in other memory.
impl Clone for Lines {
    fn clone(&self) -> Self {
        Self::of(self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::{LINE, Lines};

    #[test]
    fn memory_is_aligned_zero_and_copied_whole() {
        for bytes in [0, 1, 63, 64, 65, 1000, 1 << 20] {
            for mut lines in [Lines::new(bytes), Lines::try_new(bytes).unwrap()] {
                assert_eq!(lines.bytes(), vec![0; bytes]);
                assert!(lines.bytes().as_ptr().addr().is_multiple_of(LINE));
                lines.bytes_mut().fill(7);
                let copy = lines.clone();
                assert!(copy.bytes().as_ptr().addr().is_multiple_of(LINE));
                lines.bytes_mut().fill(8);
                assert_eq!(copy.bytes(), vec![7; bytes]);
            }
        }
        assert!(Lines::try_new(usize::MAX).is_none());
        assert!(Lines::try_new(usize::MAX / 2).is_none());
    }
}
