//! Asks for memory before it is needed.
#![allow(unsafe_code, reason = "a hint that reads nothing; the block says why it may")]

/// The elements of a line of a cache.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64 / size_of::<f32>();

/// Asks for elements that will soon be read or written, without waiting for them; nothing where
/// the processor has no such instruction.
#[inline(always)]
#[expect(clippy::inline_always, reason = "a few instructions among those of a loop")]
pub(super) fn prefetch(elements: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    for line in elements.chunks(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

        // SAFETY: the instruction reads nothing that a program can see, and never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = elements;
}
