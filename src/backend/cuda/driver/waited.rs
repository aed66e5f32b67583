//! The time that a device was waited for.

use std::time::{Duration, Instant};

/// The time from the last look to the next counts as no more than this.
const MOST: Duration = Duration::from_millis(100);

/// The time that was waited, by a thread that looks again and again. While the process stands still
/// (it was stopped by a signal, or its whole machine was) nobody waits: the device may long be
/// done, and no thread had a chance to see it.
#[derive(Debug)]
pub(crate) struct Waited {
    looked: Instant,
    time: Duration,
}

impl Waited {
    /// Begins to wait.
    pub(crate) fn begin() -> Self {
        Self { looked: Instant::now(), time: Duration::ZERO }
    }

    /// The time from the beginning to now.
    pub(crate) fn look(&mut self) -> Duration {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> Duration {
        self.time += now.saturating_duration_since(self.looked).min(MOST);
        self.looked = now;
        self.time
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{MOST, Waited};

    #[test]
    fn a_process_that_stands_still_does_not_wait() {
        let mut waited = Waited::begin();
        let begin = waited.looked;
        let mut look = |millis| waited.look_at(begin + Duration::from_millis(millis));
        assert_eq!(look(20), Duration::from_millis(20));
        assert_eq!(look(50), Duration::from_millis(50));
        let after_an_hour = look(3_600_000);
        assert_eq!(after_an_hour, Duration::from_millis(50) + MOST);
        assert_eq!(look(3_600_030), after_an_hour + Duration::from_millis(30));
    }
}
