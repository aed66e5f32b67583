//! How many runs may be in flight.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::executor::Parts;
use super::slot::Slot;
use crate::backend::cuda::driver::context::{Context, Spare};
use crate::backend::host::lock;

/// The runs that may be in flight at the same time: while one computes, the inputs of the next are copied.
pub(super) const IN_FLIGHT: u32 = 2;

/// The runs after which another one in flight is tried again where memory did not suffice for it.
const RUNS_UNTIL_TRIED: u32 = 64;

/// The slots of an executable.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) free: Vec<Slot>,
    /// The slots that there are, free or not.
    pub(super) made: usize,
    /// How often a slot was given up for want of something.
    pub(super) given_up: u64,
    /// Where memory did not suffice for another run in flight, what is known of it.
    tight: Option<Tight>,
    /// What the graphs of the slots launch, which has to be there until they end.
    _kernels: Option<Arc<Parts>>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("free", &self.free)
            .field("made", &self.made)
            .finish_non_exhaustive()
    }
}

/// A run for which no memory was left beside others.
#[derive(Clone, Copy, Debug)]
struct Tight {
    /// The bytes that its plan takes on all devices.
    bytes: u64,
    /// The runs that may be in flight, where one of them takes as much.
    most: usize,
    /// The runs that have to end before it is tried again, since the memory may have been another's.
    runs: u32,
}

impl Slots {
    /// For an executable of these parts.
    pub(super) fn new(parts: Arc<Parts>) -> Self {
        Self { _kernels: Some(parts), ..Self::default() }
    }

    /// True if another run, whose plan takes so many bytes on all devices, has to wait.
    pub(super) fn are_taken(&self, bytes: u64) -> bool {
        let tight = self.tight.filter(|tight| bytes >= tight.bytes);
        self.free.is_empty() && self.made >= tight.map_or(IN_FLIGHT as usize, |tight| tight.most)
    }

    /// Takes note that no memory was left for a run of so many bytes beside those that there are.
    pub(super) fn tighten(&mut self, bytes: u64) {
        let bytes = self.tight.map_or(bytes, |tight| tight.bytes.min(bytes));
        let most = self.made.clamp(1, IN_FLIGHT as usize);
        self.tight = Some(Tight { bytes, most, runs: RUNS_UNTIL_TRIED });
    }

    /// Takes note that a run has ended.
    pub(super) fn ended(&mut self) {
        self.tight = self.tight.and_then(|tight| {
            Some(Tight { runs: tight.runs.checked_sub(1).filter(|runs| *runs > 0)?, ..tight })
        });
    }
}

impl Spare for Mutex<Slots> {
    /// The arenas of the runs that are not in flight: the next ones make theirs anew.
    fn give_up(&self, on: &Context) -> bool {
        let mut slots = lock(self);
        let given: Vec<_> = slots.free.iter_mut().flat_map(|slot| slot.give_up(on)).collect();
        let had = !given.is_empty();
        // Whoever wants memory waits for the slots, and finds it then.
        drop(given);
        drop(slots);
        had
    }
}

#[cfg(test)]
mod tests {
    use super::{IN_FLIGHT, RUNS_UNTIL_TRIED, Slots};

    #[test]
    fn memory_that_was_short_is_tried_again() {
        let mut slots = Slots { made: 1, ..Slots::default() };
        assert!(!slots.are_taken(1 << 40), "one may run beside it");
        slots.tighten(1000);
        assert!(slots.are_taken(1000) && slots.are_taken(1001) && !slots.are_taken(999));
        for _ in 1..RUNS_UNTIL_TRIED {
            slots.ended();
            assert!(slots.are_taken(1000));
        }
        slots.ended();
        assert!(!slots.are_taken(1000));
        slots.made = IN_FLIGHT as usize;
        assert!(slots.are_taken(0));
    }
}
