//! The events of one run, and the devices that wait for them.

use std::sync::Mutex;

use crate::backend::host::lock;
use crate::types::invariant::invariant;

/// The events of one run, and whether a device has failed.
pub(super) struct Events {
    state: Mutex<State>,
}

struct State {
    events: Vec<Event>,
    stopped: bool,
}

#[derive(Clone, Default)]
struct Event {
    recorded: bool,
    waiting: Vec<usize>,
}

/// The end of a device's work because another one has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped;

impl State {
    fn event(&mut self, event: u32) -> &mut Event {
        invariant(self.events.get_mut(event as usize), "that a program counts its events")
    }
}

impl Events {
    pub(super) fn new(count: u32) -> Self {
        let events = vec![Event::default(); count as usize];
        Self { state: Mutex::new(State { events, stopped: false }) }
    }

    /// Makes every step that was done before visible to those that wait for the event: the devices
    /// to start again.
    pub(super) fn record(&self, event: u32) -> Vec<usize> {
        let mut state = lock(&self.state);
        let event = state.event(event);
        event.recorded = true;
        std::mem::take(&mut event.waiting)
    }

    /// True if the event is recorded; else the device waits for it.
    pub(super) fn is_recorded(&self, event: u32, device: usize) -> Result<bool, Stopped> {
        let mut state = lock(&self.state);
        if state.stopped {
            return Err(Stopped);
        }
        let event = state.event(event);
        if !event.recorded {
            event.waiting.push(device);
        }
        Ok(event.recorded)
    }

    /// Fails if a device has failed.
    pub(super) fn check(&self) -> Result<(), Stopped> {
        if lock(&self.state).stopped { Err(Stopped) } else { Ok(()) }
    }

    /// Ends all devices' work: those that waited are to be started again, to find it ended.
    pub(super) fn stop(&self) -> Vec<usize> {
        let mut state = lock(&self.state);
        state.stopped = true;
        state.events.iter_mut().flat_map(|event| std::mem::take(&mut event.waiting)).collect()
    }
}
