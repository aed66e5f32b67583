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

/// Does `work` without the interpreter's lock. On the main thread, where Python handles signals, it
/// is done by another thread: a signal whose handler raises, as that of Ctrl-C does, ends the wait;
/// the work goes on, and its result is dropped.
pub(crate) fn detached<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    if !is_main_thread(py)? {
        return py.detach(work).raise(py);
    }
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

/// Whether this is the thread that handles signals.
fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?;
    Ok(threading.call_method0("current_thread")?.is(&main))
}
