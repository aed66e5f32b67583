//! Whether all names of a graph are different, in a table that fits in a cache.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

use crate::types::invariant::int;

/// The number of hashes that are compared at a time, on average: their table stays in the nearest
/// cache.
const PART: usize = 1024;

/// The hashes of names.
pub(super) struct NameHashes {
    state: RandomState,
    hashes: Vec<u64>,
}

impl NameHashes {
    /// Room for so many.
    pub(super) fn new(count: usize) -> Self {
        Self { state: RandomState::default(), hashes: Vec::with_capacity(count) }
    }

    pub(super) fn push(&mut self, name: &str) {
        self.hashes.push(self.state.hash_one(name));
    }

    /// True if all hashes differ, and with them all names. Equal hashes mean nothing.
    pub(super) fn are_different(mut self) -> bool {
        // A part of the hashes has the same first bits; equal ones are in one part.
        let bits = (self.hashes.len() / PART).checked_ilog2().map_or(0, |log| log + 1);
        // Of no bits there is one part.
        let part = |hash: u64| int::<usize>(hash.checked_shr(u64::BITS - bits).unwrap_or(0));
        let mut ends = vec![0usize; 1 << bits];
        self.hashes.iter().for_each(|hash| ends[part(*hash)] += 1);
        // There is a part at least.
        let largest = ends.iter().max().copied().unwrap_or(0);
        let mut next = 0;
        for end in &mut ends {
            next += std::mem::replace(end, next);
        }
        let hashes = std::mem::take(&mut self.hashes);
        let mut sorted = vec![0; hashes.len()];
        for hash in hashes {
            let place = &mut ends[part(hash)];
            sorted[*place] = hash;
            *place += 1;
        }
        let mut table = vec![0u64; (2 * largest).next_power_of_two()];
        let mut from = 0;
        ends.iter().all(|end| {
            table.fill(0);
            let part = &sorted[std::mem::replace(&mut from, *end)..*end];
            part.iter().all(|hash| insert(&mut table, *hash))
        })
    }
}

/// Puts a hash into a table with free places, which are 0; false if it is there already.
fn insert(table: &mut [u64], hash: u64) -> bool {
    let hash = hash.max(1);
    let mask = table.len() - 1;
    // The first bits are the same for all hashes of a part.
    let mut at = int::<usize>(hash & int::<u64>(mask));
    while table[at] != 0 {
        if table[at] == hash {
            return false;
        }
        at = (at + 1) & mask;
    }
    table[at] = hash;
    true
}

#[cfg(test)]
mod tests {
    use super::NameHashes;

    fn are_different(count: usize, again: Option<usize>) -> bool {
        let mut names = NameHashes::new(count);
        (0..count).chain(again).for_each(|i| names.push(&format!("name{i}.r7")));
        names.are_different()
    }

    #[test]
    fn a_name_that_is_there_twice_is_found_in_tables_of_all_sizes() {
        for count in [0, 1, 2, 1023, 1024, 1025, 5_000, 70_000] {
            assert!(are_different(count, None), "{count}");
            for again in [0, count / 2, count.saturating_sub(1)].into_iter().filter(|i| *i < count)
            {
                assert!(!are_different(count, Some(again)), "{count}, {again}");
            }
        }
    }
}
