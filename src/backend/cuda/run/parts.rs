//! The parts of an executable, and the pinned memory of its runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::health::Health;
use super::plan::{Loaded, Params, Plan, Updates};
use super::staging::StagingPool;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::driver::context::Context;
use crate::backend::cuda::driver::memory::{HostBlock, Pinned, PinnedPool, free_memory};
use crate::backend::cuda::driver::stream::{Graph, Stream, is_short_of_graph};
use crate::backend::host::lock;
use crate::backend::host::trace::Trace;
use crate::backend::size::port_bytes;
use crate::backend::{DriverError, RunError, params};
use crate::lower::Program;
use crate::types::{Device, Tensor};

/// The number of runs in flight at the same time: while one computes, the inputs of the next are
/// uploaded. Each takes an arena of its own on every device.
pub(super) const IN_FLIGHT: u32 = 2;

/// The copies that replace the old elements of parameters on a device.
pub(super) struct Commit {
    /// The device's position.
    pub(super) device: usize,
    pub(super) stream: Stream,
    pub(super) copies: Vec<Replacement>,
    /// All of them; `None` where one is no graph, or there is no memory for it.
    graph: Mutex<Option<Graph>>,
}

impl Commit {
    /// The copies of a device, on a stream of their own.
    pub(super) fn new(
        device: usize,
        stream: Stream,
        copies: Vec<Replacement>,
    ) -> Result<Self, DriverError> {
        let mut own = Self { device, stream, copies, graph: Mutex::default() };
        if own.copies.len() > 1 {
            own.graph = match own.stream.capture(|| own.one_by_one()) {
                Ok(graph) => Mutex::new(Some(graph)),
                Err(error) if is_short_of_graph(&error) => Mutex::default(),
                Err(error) => return Err(error),
            };
        }
        Ok(own)
    }

    /// Puts the copies on the stream.
    pub(super) fn put(&self) -> Result<(), DriverError> {
        let Some(graph) = &*lock(&self.graph) else { return self.one_by_one() };
        match self.stream.replay(graph) {
            // Nothing of it has begun.
            Err(error) if is_short_of_graph(&error) => self.one_by_one(),
            done => done,
        }
    }

    fn one_by_one(&self) -> Result<(), DriverError> {
        let mut copies = self.copies.iter();
        copies.try_for_each(|copy| self.stream.copy(copy.new, copy.old, copy.bytes))
    }
}

/// The addresses of new elements and of the old ones that they replace on a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Replacement {
    pub(super) new: u64,
    pub(super) old: u64,
    pub(super) bytes: usize,
}

/// The parameters that the host holds, and those of them from which GPUs copy.
#[derive(Clone)]
pub(super) struct HostParams {
    pub(super) tensors: Arc<Vec<Option<Tensor>>>,
    pub(super) pinned: Arc<BTreeMap<u32, Arc<Pinned>>>,
}

/// Bytes of pinned memory, asked for and planned in all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes {
    pub(super) asked: usize,
    pub(super) planned: u64,
}

/// The parts of an executable.
pub(super) struct Parts {
    pub(super) program: Arc<Program>,
    /// For each device its context; none for the host.
    pub(super) contexts: Arc<Vec<Option<Arc<Context>>>>,
    /// For each step of each device its kernels.
    pub(super) loaded: Vec<Vec<Vec<Option<Loaded>>>>,
    /// The parameters on each device, and their bytes.
    pub(super) params: Vec<Params>,
    pub(super) param_bytes: Vec<u64>,
    /// The memory of each device for new elements of parameters, and what puts them in the place of
    /// the old ones.
    pub(super) updates: Vec<Updates>,
    pub(super) commits: Vec<Commit>,
    pub(super) pool: PinnedPool,
    pub(super) staging_pool: Arc<StagingPool>,
    pub(super) cpu: Cpu,
    pub(super) watchdog: Duration,
    pub(super) trace: Option<Arc<Trace>>,
    pub(super) graphs: bool,
    pub(super) health: Health,
    /// Warnings of the preparation of the program.
    pub(super) warnings: Vec<String>,
}

impl Parts {
    /// Pinned memory for something.
    pub(super) fn take(&self, bytes: Bytes, what: &str) -> Result<HostBlock, RunError> {
        let taken = self.pool.take(bytes.asked);
        taken.map_err(|error| self.not_pinned(bytes, what, error))
    }

    /// The error of a call for pinned memory, other than that there is none.
    pub(super) fn failed_to_pin(&self, what: &str, error: DriverError) -> RunError {
        let device = self.pool.device();
        match self.program.devices.iter().position(|known| known.device == device) {
            Some(d) => self.health.failed(d, what, error),
            // The first GPU there is, which takes no part in the program.
            None => self.health.failed(0, what, error),
        }
    }

    /// The error of pinned memory for something.
    pub(super) fn not_pinned(&self, bytes: Bytes, what: &str, error: DriverError) -> RunError {
        if !error.is_out_of_memory() {
            return self.failed_to_pin(what, error);
        }
        let (device, what) = (self.health.device(0), what.to_owned());
        let (asked, planned, free) = (bytes.asked as u64, bytes.planned, free_memory());
        RunError::PinnedMemory { device, what, asked, planned, free }
    }

    /// The bytes of an update of the program.
    pub(super) fn update_size(&self, i: u32) -> Result<usize, RunError> {
        update_size(&self.program, i)
    }

    /// The bytes of pinned memory that a run takes.
    pub(super) fn pinned_bytes(&self, plan: &Plan) -> Result<u64, RunError> {
        let program = &self.program;
        let staged = plan.staged.iter().filter_map(|i| program.inputs.get(*i as usize));
        let mut bytes = plan.bound.devices[0].planned as u64;
        for port in program.outputs.iter().chain(staged) {
            bytes += port_bytes(port, plan.bound.n)? as u64;
        }
        for (i, _) in params::updates(&program.devices[0]) {
            bytes += self.update_size(i)? as u64;
        }
        Ok(bytes)
    }
}

/// The bytes of an update of a program.
pub(super) fn update_size(program: &Program, i: u32) -> Result<usize, RunError> {
    let port = program.update(i).ok_or_else(|| RunError::Internal {
        device: Device::HOST,
        label: String::new(),
        reason: format!("the program has no update {i}"),
    })?;
    port_bytes(port, 0)
}

#[cfg(test)]
mod tests {
    use super::update_size;
    use crate::backend::CPU;
    use crate::ir::verify;
    use crate::lower::lower;
    use crate::lower::testing::template;

    #[test]
    fn an_update_that_is_missing_is_named() {
        let (graph, _) = template();
        let program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
        let said = update_size(&program, 3).unwrap_err().to_string();
        assert_eq!(said, "internal error on cpu:0 in ``: the program has no update 3");
    }
}
