//! The time that a device was waited for.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The time from the last look to the next counts as no more than this, nor than a quarter of the
/// limit.
const MOST: Duration = Duration::from_millis(100);

/// The time that was waited, by a thread that looks again and again. While the process stands still
/// (it was stopped by a signal, or its whole machine was) nobody waits: the device may long be
/// done, and no thread had a chance to see it.
#[derive(Debug)]
pub(crate) struct Waited {
    looked: Instant,
    time: Duration,
    /// What counts at most from one look to the next.
    most: Duration,
}

impl Waited {
    /// Begins to wait, for no longer than `limit`.
    pub(crate) fn begin(limit: Duration) -> Self {
        let most = MOST.min(part(limit));
        Self { looked: Instant::now(), time: Duration::ZERO, most }
    }

    /// The time from the beginning to now.
    pub(crate) fn look(&mut self) -> Duration {
        self.look_at(Instant::now())
    }

    fn look_at(&mut self, now: Instant) -> Duration {
        self.time += now.saturating_duration_since(self.looked).min(self.most);
        self.looked = now;
        self.time
    }
}

/// A quarter of a limit, so that one look alone never reaches it; more than nothing.
fn part(limit: Duration) -> Duration {
    (limit / 4).max(Duration::from_nanos(1))
}

/// What a channel brings, unless that takes longer than `limit`.
pub(crate) fn receive<T>(from: &Receiver<T>, limit: Duration) -> Result<T, RecvTimeoutError> {
    let mut waited = Waited::begin(limit);
    loop {
        match from.recv_timeout(MOST.min(part(limit))) {
            Err(RecvTimeoutError::Timeout) if waited.look() < limit => {}
            ended => return ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;
    use std::time::Duration;

    use super::{MOST, Waited, receive};

    #[test]
    fn a_process_that_stands_still_does_not_wait() {
        let mut waited = Waited::begin(Duration::from_mins(1));
        let begin = waited.looked;
        let mut look = |millis| waited.look_at(begin + Duration::from_millis(millis));
        assert_eq!(look(20), Duration::from_millis(20));
        assert_eq!(look(50), Duration::from_millis(50));
        let after_an_hour = look(3_600_000);
        assert_eq!(after_an_hour, Duration::from_millis(50) + MOST);
        assert_eq!(look(3_600_030), after_an_hour + Duration::from_millis(30));
    }

    #[test]
    fn one_look_never_reaches_the_limit() {
        for limit in [Duration::from_nanos(8), Duration::from_millis(40), Duration::MAX] {
            let mut waited = Waited::begin(limit);
            let begin = waited.looked;
            let looks = (1..=4u32).map(|hours| waited.look_at(begin + hours * MOST * 36_000));
            let looks: Vec<Duration> = looks.collect();
            assert!(looks[..3].iter().all(|time| *time < limit), "{limit:?}: {looks:?}");
            assert_eq!(looks[3] >= limit, limit < 4 * MOST, "{limit:?}: {looks:?}");
        }
    }

    #[test]
    fn a_channel_is_waited_for_no_longer_than_allowed() {
        let limit = Duration::from_millis(20);
        let (sender, receiver) = channel();
        assert_eq!(receive::<u32>(&receiver, limit), Err(RecvTimeoutError::Timeout));
        assert_eq!(receive::<u32>(&receiver, Duration::ZERO), Err(RecvTimeoutError::Timeout));
        let late = thread::spawn(move || {
            thread::sleep(limit);
            sender.send(7).unwrap();
        });
        assert_eq!(receive(&receiver, Duration::MAX), Ok(7));
        late.join().unwrap();
        assert_eq!(receive(&receiver, limit), Err(RecvTimeoutError::Disconnected));
    }
}
