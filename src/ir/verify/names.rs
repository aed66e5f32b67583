//! Whether all names of a graph are different.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;

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
        self.hashes.sort_unstable();
        self.hashes.array_windows().all(|[a, b]| a != b)
    }
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
    fn a_name_that_is_there_twice_is_found() {
        for count in [0, 1, 2, 1023, 1024, 1025, 5_000, 70_000] {
            assert!(are_different(count, None), "{count}");
            for again in [0, count / 2, count.saturating_sub(1)].into_iter().filter(|i| *i < count)
            {
                assert!(!are_different(count, Some(again)), "{count}, {again}");
            }
        }
    }
}
