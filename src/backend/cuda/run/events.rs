//! Events between control threads.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::backend::host::lock;

/// The events of one run, and whether a device has failed.
pub(super) struct Events {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    recorded: Vec<bool>,
    stopped: bool,
}

/// The end of a device's work because another one has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped;

impl Events {
    pub(super) fn new(count: u32) -> Self {
        let state = State { recorded: vec![false; count as usize], stopped: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Makes every step that was done before visible to those that wait for the event.
    pub(super) fn record(&self, event: u32) {
        if let Some(recorded) = lock(&self.state).recorded.get_mut(event as usize) {
            *recorded = true;
        }
        self.changed.notify_all();
    }

    /// Returns when the event is recorded.
    pub(super) fn wait(&self, event: u32) -> Result<(), Stopped> {
        let waiting =
            |s: &mut State| !s.stopped && s.recorded.get(event as usize).is_some_and(|r| !r);
        let state = self.changed.wait_while(lock(&self.state), waiting);
        if state.unwrap_or_else(PoisonError::into_inner).stopped { Err(Stopped) } else { Ok(()) }
    }

    /// Fails if a device has failed.
    pub(super) fn check(&self) -> Result<(), Stopped> {
        if lock(&self.state).stopped { Err(Stopped) } else { Ok(()) }
    }

    /// Ends all devices' work.
    pub(super) fn stop(&self) {
        lock(&self.state).stopped = true;
        self.changed.notify_all();
    }
}
