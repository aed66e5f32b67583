//! Work without the interpreter's lock, which Ctrl-C may leave behind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use fanwise::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::Raise as _;

/// How often signals are looked for.
const TURN: Duration = Duration::from_millis(50);

type Job = Box<dyn FnOnce() + Send>;

/// The process in which the threads of a backend were started. A fork has none of them, and would
/// wait for them without end.
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        Self(std::process::id())
    }

    /// Fails in any other process.
    pub(crate) fn check(&self) -> PyResult<()> {
        let reason = "this was prepared before the process was forked, and its threads are not in \
                      the fork: prepare it in the process that runs it, or start processes with \
                      `multiprocessing.get_context(\"spawn\")`";
        let same = self.0 == std::process::id();
        if same { Ok(()) } else { Err(PyRuntimeError::new_err(reason)) }
    }
}

/// A thread that takes work in order; the first work starts it, and it ends with the worker and
/// what was started.
///
/// Each work begins after those that were started before, whoever waits for them: a step of
/// training may be started before the one in front of it has ended. If that one fails, what was
/// started before its failure was told is not done.
#[derive(Default)]
pub(crate) struct Worker {
    /// The way to the thread, and the process that has it: a fork has none.
    jobs: Mutex<Option<(u32, Sender<Job>)>>,
    failures: Arc<Failures>,
}

/// The failures of a worker.
#[derive(Default)]
struct Failures {
    /// All of them.
    count: AtomicUsize,
    /// Those that were told to whoever starts work.
    told: AtomicUsize,
    /// The results that somebody may still take.
    pending: AtomicUsize,
}

/// Work that was started. It is done also if nobody waits for its result.
pub(crate) struct Pending<T> {
    /// A result is `None` if the work was left out.
    result: Mutex<Receiver<Option<Result<T, Error>>>>,
    failures: Arc<Failures>,
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.failures.pending.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Worker {
    /// Starts work.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> io::Result<Pending<T>> {
        let (give, take) = channel();
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = Arc::clone(&self.failures);
        if failures.pending.fetch_add(1, Ordering::AcqRel) == 0 {
            // Nobody is left who would be told.
            failures.told.store(failures.count.load(Ordering::Acquire), Ordering::Release);
        }
        let pending = Pending { result: Mutex::new(take), failures: Arc::clone(&failures) };
        let told = failures.told.load(Ordering::Acquire);
        let mut job: Job = Box::new(move || {
            let result = (failures.count.load(Ordering::Acquire) == told).then(work);
            if matches!(result, Some(Err(_))) {
                failures.count.fetch_add(1, Ordering::AcqRel);
            }
            // Nobody takes it after a signal.
            drop(give.send(result));
        });
        let process = std::process::id();
        if let Some((_, known)) = jobs.as_ref().filter(|(owner, _)| *owner == process) {
            // A thread that has panicked takes nothing any more.
            let Err(back) = known.send(job) else { return Ok(pending) };
            job = back.0;
        }
        let (give, todo) = channel::<Job>();
        let work = move || {
            job();
            for job in todo {
                job();
            }
        };
        thread::Builder::new().name("fanwise".to_owned()).spawn(work)?;
        *jobs = Some((process, give));
        Ok(pending)
    }

    /// Starts work and waits for its result.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        self.start(work)?.wait(py)
    }
}

impl<T: Send> Pending<T> {
    /// The result, waited for without the interpreter's lock. A signal whose handler raises, as
    /// that of Ctrl-C does, ends the wait; the work goes on, and its result is dropped.
    pub(crate) fn wait(self, py: Python<'_>) -> PyResult<T> {
        loop {
            let found = py.detach(|| {
                let take = self.result.lock().unwrap_or_else(PoisonError::into_inner);
                take.recv_timeout(TURN)
            });
            match found {
                Ok(Some(result)) => {
                    if result.is_err() {
                        self.failures.told.fetch_add(1, Ordering::AcqRel);
                    }
                    return result.raise(py);
                }
                Ok(None) => {
                    let reason = "not done: what was started before has failed";
                    return Err(PyRuntimeError::new_err(reason));
                }
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err("internal error: the work has panicked"));
                }
            }
        }
    }
}

/// Does work without the interpreter's lock. On the main thread, where Python handles signals,
/// another thread does it, so that a signal can end the wait.
pub(crate) fn detached<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    if is_main_thread(py)? { Worker::default().run(py, work) } else { py.detach(work).raise(py) }
}

/// Whether this is the thread that handles signals.
fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?;
    Ok(threading.call_method0("current_thread")?.is(&main))
}
