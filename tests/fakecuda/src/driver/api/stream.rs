//! Streams.

use super::super::code;
use super::super::config::{Class, Order};
use super::super::current;
use super::super::queue::{HostCall, Work};
use super::super::schedule::{Goal, background, call, result};
use super::super::state::{Call, CaptureMode, Driver};
use super::{Out, exports};
use std::ffi::c_void;

impl Driver {
    /// Makes a stream of the current context.
    fn create_stream(&mut self, flags: u32) -> Call<u64> {
        let context = self.current()?;
        match flags {
            0 => Ok(self.new_stream(context, true, false)),
            1 => Ok(self.new_stream(context, false, false)),
            _ => Err(code::INVALID_VALUE),
        }
    }

    /// The error of a stream's context.
    fn stream_error(&self, stream: u64) -> Call<()> {
        let context = self.streams.get(&stream).ok_or(code::INVALID_HANDLE)?.context;
        self.context(context).map(|_| ())
    }
}

/// Ends a capture, also when the call fails.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: u64, graph: Out<u64>) -> u32 {
    graph.offer(0);
    let ended = call("cuStreamEndCapture", Class::Other, |d| {
        let stream = d.stream(stream)?;
        graph.give(d.end_capture(stream)?)?;
        Ok(Goal::Nothing)
    });
    if ended.is_err() {
        let abandoned = call("cuStreamEndCapture", Class::Query, |d| {
            d.abandon_capture(stream);
            Ok(Goal::Nothing)
        });
        return result(ended.and(abandoned));
    }
    result(ended)
}

exports! {
    /// Makes a stream.
    fn cuStreamCreate(Other, stream: Out<u64>, flags: u32) |d| {
        stream.give(d.create_stream(flags)?)?;
        Ok(Goal::Nothing)
    }

    /// Makes a stream; priorities have no effect.
    fn cuStreamCreateWithPriority(Other, stream: Out<u64>, flags: u32, _priority: i32) |d| {
        stream.give(d.create_stream(flags)?)?;
        Ok(Goal::Nothing)
    }

    /// Ends a stream when its work is done.
    fn cuStreamDestroy_v2(Release, stream: u64) |d| {
        let known = d.streams.get(&stream).is_some_and(|s| !s.destroyed && !s.internal);
        if !known {
            return Err(d.refuse(code::INVALID_HANDLE, "a stream is destroyed twice"));
        }
        if let Some(of) = d.streams.get_mut(&stream) {
            of.destroyed = true;
        }
        d.retire(stream);
        if d.streams.contains_key(&stream) {
            d.stream_error(stream)?;
        }
        Ok(Goal::Nothing)
    }

    /// Waits for all work of a stream.
    fn cuStreamSynchronize(Sync, stream: u64) |d| {
        let stream = d.stream(stream)?;
        d.not_captured(stream)?;
        d.unsafe_call("cuStreamSynchronize")?;
        Ok(Goal::Stream(stream))
    }

    /// Whether all work of a stream is done. Asking makes it go on.
    fn cuStreamQuery(Sync, stream: u64) |d| {
        let stream = d.stream(stream)?;
        d.not_captured(stream)?;
        d.unsafe_call("cuStreamQuery")?;
        if d.idle(stream) {
            return Ok(Goal::Stream(stream));
        }
        if d.config.order != Order::Eager {
            background();
        }
        Err(code::NOT_READY)
    }

    /// Makes the work to come wait for an event.
    fn cuStreamWaitEvent(Other, stream: u64, event: u64, _flags: u32) |d| {
        let stream = d.stream(stream)?;
        let marker = d.event(event)?.marker;
        let Some(marker) = marker else { return Ok(Goal::Nothing) };
        let capture = d.markers.get(&marker).and_then(|m| m.capture);
        if let Some(capture) = capture {
            d.join_capture(stream, marker, capture)?;
            return Ok(Goal::Nothing);
        }
        if d.streams.get(&stream).is_some_and(|s| s.capture.is_some()) {
            d.break_captures();
            let text = "a captured stream waits for an event that was not captured";
            return Err(d.refuse(code::STREAM_CAPTURE_ISOLATION, text));
        }
        d.enqueue(stream, Work::Wait(marker))?;
        Ok(Goal::Nothing)
    }

    /// Calls a function of the host in the order of a stream.
    fn cuLaunchHostFunc(
        Launch,
        stream: u64,
        function: Option<unsafe extern "C" fn(*mut c_void)>,
        data: Out<c_void>
    ) |d| {
        let stream = d.stream(stream)?;
        let function = function.ok_or(code::INVALID_VALUE)?;
        let call = HostCall { function, data: data.0.expose_provenance() };
        d.enqueue(stream, Work::Host(call))?;
        if d.config.order != Order::Eager {
            background();
        }
        Ok(Goal::Nothing)
    }

    /// Begins to capture a stream.
    fn cuStreamBeginCapture_v2(Other, stream: u64, mode: u32) |d| {
        let stream = d.stream(stream)?;
        d.begin_capture(stream, mode)?;
        Ok(Goal::Nothing)
    }

    /// Changes which captures forbid the calling thread potentially unsafe calls, and gives what
    /// they were before.
    fn cuThreadExchangeStreamCaptureMode(Query, mode: Out<u32>) |_d| {
        let before = current::heed(CaptureMode::of(mode.read()?)?);
        mode.give(before.number())?;
        Ok(Goal::Nothing)
    }

    /// Whether a stream is captured.
    fn cuStreamIsCapturing(Other, stream: u64, status: Out<u32>) |d| {
        let stream = d.stream(stream)?;
        let capture = d.streams.get(&stream).and_then(|s| s.capture);
        let broken = capture.and_then(|c| d.captures.get(&c)).is_some_and(|c| c.broken);
        status.give(match (capture, broken) {
            (None, _) => 0,
            (Some(_), false) => 1,
            (Some(_), true) => 2,
        })?;
        Ok(Goal::Nothing)
    }

    /// The flags of a stream.
    fn cuStreamGetFlags(Other, stream: u64, flags: Out<u32>) |d| {
        let stream = d.stream(stream)?;
        let blocking = d.streams.get(&stream).is_some_and(|s| s.blocking);
        flags.give(u32::from(!blocking))?;
        Ok(Goal::Nothing)
    }
}
