//! Helpers of the unit tests of kernels.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Cpu, Isa};

/// A generator for a test's cases; the same seed gives the same cases.
pub(super) fn rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Numbers in -1..1.
pub(super) fn random(rng: &mut ChaCha8Rng, n: usize) -> Vec<f32> {
    (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Replaces one of the numbers by one that is not finite.
pub(super) fn spoil(rng: &mut ChaCha8Rng, x: &mut [f32]) {
    let at = rng.random_range(0..x.len());
    x[at] = if rng.random_bool(0.7) { f32::INFINITY } else { f32::NAN };
}

/// A copy of `x` that does not begin where a vector would.
pub(super) fn misaligned(x: &[f32]) -> Vec<f32> {
    [&[0.0], x].concat()
}

/// Runs `f` on one thread by the widest instructions of the machine, and by others on 2 and 3
/// threads; fails unless each gives the same bits, and returns them.
pub(super) fn in_pools(f: impl Fn() -> Vec<f32> + Sync) -> Vec<f32> {
    let by = |threads, isa| Cpu::with(threads, isa).unwrap().crew.enter(&f);
    let first = by(1, None);
    for (threads, isa) in [(2, Isa::Portable), (3, Isa::Avx2)] {
        let what = format!("{threads} threads, {}", isa.name());
        let isa = Some(isa).filter(|isa| isa.arch().is_some());
        assert_bits(&first, &by(threads, isa), &what);
    }
    first
}

/// Fails unless both have the same bits, or NaNs at the same places.
pub(super) fn assert_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    let differ = a.iter().zip(b).position(differs);
    assert!(differ.is_none(), "{what}: element {differ:?} of {}", a.len());
}

/// Fails unless `a` is `b` within 1e-5 of the largest magnitude in `b`.
pub(super) fn assert_close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let largest = b.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= 1e-5 * largest, "{what}: element {i} is {a}, not {b}");
    }
}
