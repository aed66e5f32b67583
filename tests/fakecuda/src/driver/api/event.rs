//! Events.

use super::super::code;
use super::super::config::Order;
use super::super::queue::Work;
use super::super::schedule::{Goal, background};
use super::super::state::{Call, Driver, Event};
use super::{Out, exports};

impl Driver {
    /// An event that exists.
    pub(super) fn event(&mut self, handle: u64) -> Call<&Event> {
        if !self.events.contains_key(&handle) {
            let text = format!("event {handle:#x} does not exist or is destroyed");
            return Err(self.refuse(code::INVALID_HANDLE, &text));
        }
        let context = self.events[&handle].context;
        self.context(context)?;
        Ok(&self.events[&handle])
    }

    /// Records an event at the end of a stream.
    fn record(&mut self, event: u64, stream: u64) -> Call<()> {
        let stream = self.stream(stream)?;
        let context = self.event(event)?.context;
        if self.streams.get(&stream).is_some_and(|s| s.context != context) {
            return Err(
                self.refuse(code::INVALID_HANDLE, "an event of another context is recorded")
            );
        }
        let marker = self.new_marker(stream);
        self.enqueue(stream, Work::Record(marker))?;
        if let Some(event) = self.events.get_mut(&event) {
            event.marker = Some(marker);
        }
        Ok(())
    }

    /// The marker of an event that the host asks about.
    fn host_marker(&mut self, event: u64) -> Call<Option<u64>> {
        let marker = self.event(event)?.marker;
        let captured = marker.and_then(|m| self.markers.get(&m)).and_then(|m| m.capture);
        if captured.is_some() {
            self.break_captures();
            return Err(self.refuse(code::CAPTURED_EVENT, "the host asks for a captured event"));
        }
        Ok(marker)
    }

    /// Milliseconds between two recorded events.
    fn elapsed(&mut self, start: u64, end: u64) -> Call<f32> {
        let mut times = Vec::new();
        for event in [start, end] {
            if !self.event(event)?.timing {
                return Err(self.refuse(code::INVALID_HANDLE, "an event without timing is timed"));
            }
            let marker = self.host_marker(event)?.ok_or(code::INVALID_HANDLE)?;
            times.push(self.markers.get(&marker).and_then(|m| m.time).ok_or(code::NOT_READY)?);
        }
        let span = times[1].saturating_duration_since(times[0]);
        let back = times[0].saturating_duration_since(times[1]);
        Ok((span.as_secs_f32() - back.as_secs_f32()) * 1000.0)
    }
}

exports! {
    /// Makes an event.
    fn cuEventCreate(Other, event: Out<u64>, flags: u32) |d| {
        let context = d.current()?;
        if flags & !7 != 0 {
            return Err(code::INVALID_VALUE);
        }
        let id = d.handle();
        event.give(id)?;
        d.events.insert(id, Event {
            context,
            marker: None,
            timing: flags & 2 == 0,
            blocking: flags & 1 != 0,
        });
        Ok(Goal::Nothing)
    }

    /// Ends an event.
    fn cuEventDestroy_v2(Release, event: u64) |d| {
        if d.events.remove(&event).is_none() {
            return Err(d.refuse(code::INVALID_HANDLE, "an event is destroyed twice"));
        }
        Ok(Goal::Nothing)
    }

    /// Records an event.
    fn cuEventRecord(Other, event: u64, stream: u64) |d| {
        d.record(event, stream)?;
        Ok(Goal::Nothing)
    }

    /// Records an event.
    fn cuEventRecordWithFlags(Other, event: u64, stream: u64, flags: u32) |d| {
        if flags != 0 {
            return Err(d.refuse(code::NOT_SUPPORTED, "flags of an event record"));
        }
        d.record(event, stream)?;
        Ok(Goal::Nothing)
    }

    /// Whether an event is reached. Asking makes the work go on.
    fn cuEventQuery(Sync, event: u64) |d| {
        let marker = d.host_marker(event)?;
        d.unsafe_call("cuEventQuery")?;
        let Some(marker) = marker else { return Ok(Goal::Nothing) };
        if d.markers.get(&marker).is_none_or(|m| m.done) {
            return Ok(Goal::Marker(marker));
        }
        if d.config.order != Order::Eager {
            background();
        }
        Err(code::NOT_READY)
    }

    /// Waits for an event.
    fn cuEventSynchronize(Sync, event: u64) |d| {
        let marker = d.host_marker(event)?;
        if !d.event(event)?.blocking {
            d.report("a wait for an event without CU_EVENT_BLOCKING_SYNC, which keeps a core busy");
        }
        d.unsafe_call("cuEventSynchronize")?;
        Ok(marker.map_or(Goal::Nothing, Goal::Marker))
    }

    /// The time between two events.
    fn cuEventElapsedTime_v2(Other, ms: Out<f32>, start: u64, end: u64) |d| {
        ms.give(d.elapsed(start, end)?)?;
        Ok(Goal::Nothing)
    }

    /// The time between two events.
    fn cuEventElapsedTime(Other, ms: Out<f32>, start: u64, end: u64) |d| {
        ms.give(d.elapsed(start, end)?)?;
        Ok(Goal::Nothing)
    }
}
