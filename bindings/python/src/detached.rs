//! Work without the interpreter's lock, which Ctrl-C may leave behind.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use fanwise::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::Raise as _;

/// How often signals are looked for.
const TURN: Duration = Duration::from_millis(50);

/// Does `work` on another thread, without the interpreter's lock. A signal whose handler raises, as
/// that of Ctrl-C does, ends the wait; the work goes on, and its result is dropped.
pub(crate) fn detached<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let (give, take) = channel();
    let started = thread::Builder::new().name("fanwise".to_owned()).spawn(move || {
        // Nobody takes it after a signal.
        drop(give.send(work()));
    });
    started?;
    let take = std::sync::Mutex::new(take);
    loop {
        let found = py.detach(|| {
            let take = take.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            take.recv_timeout(TURN)
        });
        match found {
            Ok(result) => return result.raise(py),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("internal error: the work has panicked"));
            }
        }
    }
}
