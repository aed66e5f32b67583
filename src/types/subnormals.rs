//! Subnormal numbers are kept, whatever the process of the caller made of its threads.
//!
//! Threads may inherit the mode of the thread that starts them: a process that takes subnormal
//! numbers for zeros, as some libraries make it, would change results. What is computed while the
//! mode is kept stands in functions of its own: a compiler may move what it sees across.
//!
//! The only place where the mode of floating-point numbers is read and set. The registers of other
//! processors than these are left as they are.
#![allow(unsafe_code, reason = "no function reads the register; each block says why it may")]

use std::marker::PhantomData;

/// Subnormal results become 0, subnormal operands are 0, another rounding than to the nearest.
#[cfg(target_arch = "x86_64")]
const OTHER: u64 = (1 << 15) | (1 << 6) | (3 << 13);
/// Subnormal operands and results are 0, another rounding than to the nearest.
#[cfg(target_arch = "aarch64")]
const OTHER: u64 = (1 << 24) | (3 << 22) | (1 << 19) | 1;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const OTHER: u64 = 0;

/// The mode of this thread.
#[cfg(target_arch = "x86_64")]
fn mode() -> u64 {
    let mut mode = 0u32;
    // SAFETY: the instruction writes the 32 bits that the address is of, and nothing else.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mode, options(nostack, preserves_flags));
    }
    mode.into()
}

/// Sets the mode of this thread to what [`mode`] gave, or to that with other bits of [`OTHER`].
#[cfg(target_arch = "x86_64")]
fn set_mode(mode: u64) {
    let [a, b, c, d, ..] = mode.to_le_bytes();
    let mode = u32::from_le_bytes([a, b, c, d]);
    // SAFETY: the instruction reads the 32 bits that the address is of. No reserved bit is set,
    // since the register had these bits but for those of `OTHER`, which are of the mode.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mode, options(nostack, preserves_flags));
    }
}

/// The mode of this thread.
#[cfg(target_arch = "aarch64")]
fn mode() -> u64 {
    let mode;
    // SAFETY: the instruction reads a register that every program may read.
    unsafe {
        std::arch::asm!("mrs {}, fpcr", out(reg) mode, options(nostack, nomem, preserves_flags));
    }
    mode
}

/// Sets the mode of this thread to what [`mode`] gave, or to that with other bits of [`OTHER`].
#[cfg(target_arch = "aarch64")]
fn set_mode(mode: u64) {
    // SAFETY: the register is one that every program may write; it had these bits but for those of
    // `OTHER`, which are of the mode.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) mode, options(nostack, preserves_flags));
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn mode() -> u64 {
    0
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set_mode(_: u64) {}

/// While this lives, its thread keeps subnormal numbers and rounds to the nearest; afterwards it
/// does what it did before.
#[must_use = "what is dropped keeps nothing"]
pub(crate) struct Kept {
    before: u64,
    /// A mode is one of a thread.
    stays: PhantomData<*const ()>,
}

/// This thread keeps subnormal numbers until what is returned is dropped.
pub(crate) fn kept() -> Kept {
    let before = mode();
    keep();
    Kept { before, stays: PhantomData }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.before & OTHER != 0 {
            set_mode((mode() & !OTHER) | (self.before & OTHER));
        }
    }
}

/// This thread keeps subnormal numbers from here on.
pub(crate) fn keep() {
    let before = mode();
    if before & OTHER != 0 {
        set_mode(before & !OTHER);
    }
}

/// What `f` gives on a thread that takes subnormal numbers for zeros, and so do those that it
/// starts.
///
/// # Panics
/// As `f` does.
#[cfg(test)]
pub(crate) fn flushed<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    const FLUSH: u64 =
        OTHER & if cfg!(target_arch = "x86_64") { (1 << 15) | (1 << 6) } else { 1 << 24 };
    let flush = || {
        set_mode(mode() | FLUSH);
        f()
    };
    std::thread::scope(|scope| scope.spawn(flush).join().unwrap())
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::{flushed, keep, kept};

    /// Half of the smallest normal number, by a product that is computed here and now.
    fn half() -> u32 {
        (black_box(f32::MIN_POSITIVE) * black_box(0.5)).to_bits()
    }

    const HALF: u32 = 1 << 22;

    #[test]
    fn subnormal_numbers_are_kept_as_long_as_it_is_said() {
        assert_eq!(half(), HALF);
        drop(kept());
        assert_eq!(half(), HALF);
        let seen = flushed(|| {
            let before = half();
            let inside = {
                let _kept = kept();
                [half(), std::thread::scope(|scope| scope.spawn(half).join().unwrap())]
            };
            let after = half();
            keep();
            (before, inside, after, half())
        });
        let flushes = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        let gone = if flushes { 0 } else { HALF };
        assert_eq!(seen, (gone, [HALF, HALF], gone, HALF));
    }
}
