//! Captures of streams that whoever uses this crate may have begun: calls of fanwise do not heed
//! them.

#![allow(unsafe_code, reason = "the driver is called through C functions")]

use std::cell::Cell;

use super::sys;

/// The call that says which captures a thread heeds.
pub(super) const CALL: &str = "cuThreadExchangeStreamCaptureMode";

/// The mode in which captures of streams forbid a thread nothing.
const RELAXED: u32 = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as u32;

thread_local! {
    /// True for the threads of this crate, which captures forbid nothing from first to last.
    static HEEDS_NONE: Cell<bool> = const { Cell::new(false) };
}

/// Lets captures forbid the calling thread, which is one of this crate, nothing any more.
pub(crate) fn heed_no_captures() {
    // A driver that is not open has no captures; whoever enters a context asks again.
    HEEDS_NONE.set(exchange(RELAXED).is_ok());
}

/// Lets captures forbid the calling thread nothing; the mode before, if it heeded any. An error is
/// the driver's code.
pub(super) fn leave() -> Result<Option<u32>, sys::Code> {
    if HEEDS_NONE.get() { Ok(None) } else { exchange(RELAXED).map(Some) }
}

/// Says by its mode which captures of streams forbid the calling thread calls that may wait; the
/// mode before. An error is the driver's code.
pub(super) fn exchange(mode: u32) -> Result<u32, sys::Code> {
    // A number, not a mode: a newer driver may have another.
    let mut mode = mode;
    // SAFETY: it reads and stores a number of this size.
    let result = unsafe { sys::cuThreadExchangeStreamCaptureMode((&raw mut mode).cast()) };
    if result == sys::CUresult::CUDA_SUCCESS as sys::Code { Ok(mode) } else { Err(result) }
}
