//! Files of the fuzz corpus, and what becomes of them when they are damaged.

use std::fs;
use std::path::PathBuf;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// The committed files of a fuzz target.
///
/// # Panics
///
/// Without any.
pub fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = crate::root("tests/fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).expect("the corpus").map(|e| e.expect("an entry").path());
    let mut paths: Vec<PathBuf> = entries.collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}", folder.display());
    paths.iter().map(|p| fs::read(p).expect("a seed")).collect()
}

/// Flips bits, cuts, repeats, removes, exchanges or sets to extremes a part of `data`.
pub fn damage(data: &mut Vec<u8>, rng: &mut ChaCha8Rng) {
    for _ in 0..rng.random_range(1..4) {
        if data.is_empty() {
            return;
        }
        let (a, b) = (rng.random_range(0..data.len()), rng.random_range(0..data.len()));
        let (from, to) = (a.min(b), a.max(b).min(a.min(b) + 64));
        match rng.random_range(0..7) {
            0 | 1 => data[a] ^= 1 << rng.random_range(0..8),
            2 => data.truncate(a),
            3 => data.splice(a..a, data[from..to].to_vec()).for_each(drop),
            4 => data.drain(from..to).for_each(drop),
            5 => data.swap(a, b),
            _ => data[from..to].fill(if rng.random() { 0xff } else { 0 }),
        }
    }
}
