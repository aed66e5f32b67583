//! The contexts that are current to a thread.

use super::code;
use super::state::{Call, CaptureMode, Driver};
use std::cell::{Cell, RefCell};

thread_local! {
    /// How many contexts were pushed and not popped.
    static PUSHED: Cell<usize> = const { Cell::new(0) };
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// Which captures forbid the thread potentially unsafe calls.
    static HEEDS: Cell<CaptureMode> = const { Cell::new(CaptureMode::Global) };
}

/// Which captures forbid the calling thread potentially unsafe calls: in global mode its own and
/// the global ones of others, in thread-local mode its own, in relaxed mode none.
pub(super) fn heeds() -> CaptureMode {
    HEEDS.get()
}

/// Sets what [`heeds`] gives, and gives what it gave.
pub(super) fn heed(mode: CaptureMode) -> CaptureMode {
    HEEDS.replace(mode)
}

/// The current context, 0 for none.
pub(super) fn get() -> u64 {
    STACK.with_borrow(|s| s.last().copied().unwrap_or(0))
}

/// Puts another context in place of the current one; 0 takes it away.
pub(super) fn set(context: u64) {
    STACK.with_borrow_mut(|s| {
        s.pop();
        if context != 0 {
            s.push(context);
        }
    });
}

/// Makes a context current on top of the others.
pub(super) fn push(context: u64) {
    PUSHED.set(PUSHED.get() + 1);
    STACK.with_borrow_mut(|s| s.push(context));
}

/// True if the thread has pushed a context that it has not popped.
pub(super) fn is_pushed() -> bool {
    PUSHED.get() > 0
}

/// Takes the current context away.
pub(super) fn pop() -> Option<u64> {
    PUSHED.set(PUSHED.get().saturating_sub(1));
    STACK.with_borrow_mut(Vec::pop)
}

impl Driver {
    /// The current context, which must be usable.
    pub(super) fn current(&self) -> Call<u64> {
        let id = get();
        if id == 0 {
            return Err(code::INVALID_CONTEXT);
        }
        self.context(id)?;
        Ok(id)
    }

    /// The stream that a handle names; 0 and 1 are the current context's default stream.
    pub(super) fn stream(&mut self, handle: u64) -> Call<u64> {
        let current = self.current()?;
        if handle <= 1 {
            return Ok(self.context(current)?.default);
        }
        match self.streams.get(&handle) {
            Some(s) if !s.destroyed => {
                let context = s.context;
                self.context(context)?;
                Ok(handle)
            }
            _ => Err(self.refuse(
                code::INVALID_HANDLE,
                &format!("stream {handle:#x} does not exist or is destroyed"),
            )),
        }
    }
}
