//! Hashes of the positions in rows, from which draws by row are made.
//!
//! They are functions of a seed, a step, the number of a row and a position in it alone, so that
//! every replica has those of its rows.

/// 2^64 divided by the golden ratio, as an odd number.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finalizer of `SplitMix64` (Steele, Lea and Flood, 2014).
const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The hash of a row, to which positions are added.
pub(in crate::op) const fn row_key(seed: i64, step: i64, row: i64) -> u64 {
    let of_seed = mix(seed.cast_unsigned().wrapping_add(GOLDEN));
    let of_step = mix(of_seed.wrapping_add(step.cast_unsigned()).wrapping_add(GOLDEN));
    mix(of_step.wrapping_add(row.cast_unsigned()).wrapping_add(GOLDEN))
}

/// The hash of a position in the row with this key.
pub(in crate::op) const fn hash(key: u64, position: u64) -> u64 {
    mix(key.wrapping_add(position.wrapping_add(1).wrapping_mul(GOLDEN)))
}
