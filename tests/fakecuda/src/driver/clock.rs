//! Vector clocks: which work of every stream is ordered before a point.

/// For each stream, the number of its work items that are ordered before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u64>);

impl Clock {
    /// How many items of stream `at` are ordered before.
    pub(super) fn get(&self, at: usize) -> u64 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// Says that `count` items of stream `at` are ordered before.
    pub(super) fn set(&mut self, at: usize, count: u64) {
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] = count;
    }

    /// What either of the two orders before.
    pub(super) fn join(&mut self, other: &Self) {
        for (at, &count) in other.0.iter().enumerate() {
            if count > self.get(at) {
                self.set(at, count);
            }
        }
    }
}
