//! What this machine can do at most, measured in a moment: multiply-adds, and bytes of memory.

#![expect(clippy::inline_always, reason = "loops are compiled for the vectors of their caller")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use pulp::{Simd, WithSimd};
use rayon::prelude::*;

use super::Cpu;
use super::isa::arch;
use crate::backend::host::Each;
use crate::backend::host::profile::Peak;

/// How long each is measured.
const TIME: Duration = Duration::from_millis(30);

/// The bytes that all members of a crew copy at most, in each direction: more than most caches
/// have.
const BYTES: usize = 128 << 20;

/// The bytes that a member copies at least.
const LEAST: usize = 1 << 20;

/// Independent chains of multiply-adds: more than a core needs to be busy at all times, and fewer
/// than it has registers.
const CHAINS: usize = 12;

/// The multiply-adds of each chain, for each element of a vector.
const TERMS: usize = 1 << 14;

/// Chains in registers; the result is their sum.
struct Chains;

impl WithSimd for Chains {
    type Output = (f32, usize);

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Self::Output {
        let factor = simd.splat_f32s(black_box(0.999_9));
        let term = simd.splat_f32s(black_box(1e-4));
        let mut sums = [simd.splat_f32s(1.0); CHAINS];
        for _ in 0..TERMS {
            // A loop over indices: where tests are built, iterators are calls.
            let mut chain = 0;
            while chain < CHAINS {
                sums[chain] = simd.mul_add_f32s(sums[chain], factor, term);
                chain += 1;
            }
        }
        let total = sums.into_iter().fold(simd.splat_f32s(0.0), |a, b| simd.add_f32s(a, b));
        (simd.reduce_sum_f32s(total), 2 * TERMS * CHAINS * S::F32_LANES)
    }
}

/// Does some work again and again, and returns how much of it there would be in a second if all
/// were as fast as the fastest: others may take the core meanwhile.
fn rate(mut work: impl FnMut() -> usize) -> f64 {
    let (start, mut best) = (Instant::now(), 0.0f64);
    while start.elapsed() < TIME {
        let begin = Instant::now();
        let done = work() as f64;
        // A clock may see no time pass.
        best = best.max(done / begin.elapsed().as_secs_f64().max(1e-9));
    }
    best
}

/// So many bytes, where there is memory for them.
fn bytes(length: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(length).ok()?;
    bytes.resize(length, 1);
    Some(bytes)
}

impl Cpu {
    /// What all members together do at most, with the instructions of their kernels; 0 bytes where
    /// there is no memory to measure it.
    pub(crate) fn peak(&self) -> Peak {
        let multiply = || rate(|| black_box(arch().dispatch(Chains)).1);
        let length = (BYTES / self.crew.threads()).max(LEAST);
        let copy = || {
            // Without memory nothing is measured.
            let (Some(from), Some(mut to)) = (bytes(length), bytes(length)) else { return 0.0 };
            rate(|| {
                to.copy_from_slice(black_box(&from));
                black_box(&mut to);
                2 * length
            })
        };
        Peak { operations: self.sum(&multiply), bytes: self.sum(&copy) }
    }

    /// The sum of what each thread measures at the same time.
    fn sum(&self, measure: &(dyn Fn() -> f64 + Sync)) -> f64 {
        let mut rates = vec![0.0; self.crew.threads()];
        // A thread that finds its own part done by another comes too late to measure anything: by
        // then the others have measured for much longer than it takes to wake one.
        self.crew.enter(|| rates.par_iter_mut().each(|rate| *rate = measure()));
        rates.into_iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::{Chains, Cpu, arch};

    #[test]
    fn machines_multiply_and_move_bytes() {
        let (sum, count) = arch().dispatch(Chains);
        assert!(sum > 1.0 && sum.is_finite());
        assert!(count.is_multiple_of(24));
        let peak = Cpu::new(1).unwrap().peak();
        assert!(peak.operations > 1e6 && peak.operations < 1e13, "{peak:?}");
        assert!(peak.bytes > 1e6 && peak.bytes < 1e13, "{peak:?}");
    }
}
