//! The health of a program's devices, and the errors of calls outside of runs.

use std::sync::{Arc, Mutex};

use crate::backend::cuda::driver::context::{Context, NOT_READY};
use crate::backend::cuda::driver::contexts;
use crate::backend::host::lock;
use crate::backend::{DriverError, RunError};
use crate::lower::Program;
use crate::types::Device;

/// The devices of a program, and the error after which they cannot be used.
pub(super) struct Health {
    program: Arc<Program>,
    contexts: Arc<Vec<Option<Arc<Context>>>>,
    dead: Mutex<Option<RunError>>,
}

/// The purpose of a driver call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Purpose<'a> {
    /// The label of the step, or what has none.
    pub(super) label: &'a str,
    /// The operator, or the kind of work.
    pub(super) op: &'static str,
}

impl Health {
    /// Of devices that can all be used.
    pub(super) fn new(program: Arc<Program>, contexts: Arc<Vec<Option<Arc<Context>>>>) -> Self {
        Self { program, contexts, dead: Mutex::default() }
    }

    /// The device at a position.
    pub(super) fn device(&self, d: usize) -> Device {
        self.program.devices[d].device
    }

    /// The error after which no device can be used.
    pub(super) fn dead(&self) -> Option<RunError> {
        lock(&self.dead).clone()
    }

    /// Fails if an earlier run has left a device unusable.
    pub(super) fn check(&self) -> Result<(), RunError> {
        // None: no run has failed in a way that lasts.
        self.dead().map_or(Ok(()), |error| Err(RunError::Dead(Box::new(error))))
    }

    /// True if a device is at work that may never end.
    pub(super) fn hangs(&self) -> bool {
        match &*lock(&self.dead) {
            Some(RunError::Stuck { .. }) => true,
            Some(RunError::Driver { error, .. }) => error.code == NOT_READY,
            _ => false,
        }
    }

    /// Remembers that no device can be used after this error, the first one.
    pub(super) fn die(&self, error: &RunError) {
        // The first error is kept: later ones follow from it, since a lost context fails every
        // call.
        lock(&self.dead).get_or_insert_with(|| error.clone());
    }

    /// The error of a call for memory; a device that can no longer be used is remembered.
    pub(super) fn failed(&self, d: usize, what: &str, error: DriverError) -> RunError {
        self.failed_at(d, Purpose { label: what, op: "memory" }, error)
    }

    /// The error of a call for a step that no run is at, likewise.
    pub(super) fn failed_at(&self, d: usize, at: Purpose<'_>, error: DriverError) -> RunError {
        let sticky = error.is_sticky();
        let device = self.device(d);
        let beside = if sticky { self.colocated(device) } else { Vec::new() };
        let (label, op, error) = (at.label.to_owned(), at.op, Box::new(error));
        let error = RunError::Driver { device, label, op, error, beside };
        if sticky {
            self.die(&error);
        }
        error
    }

    /// The other devices on the GPU of one.
    pub(super) fn colocated(&self, device: Device) -> Vec<Device> {
        contexts::colocated(&self.program, &self.contexts, device)
    }
}
