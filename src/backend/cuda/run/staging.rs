//! Staging buffers: inputs are uploaded to the GPUs before the run that takes them.
//!
//! They have memory of their own beside the arenas, from which the run copies them to their places
//! within each device. So they come while another run computes, whatever that does to its arena,
//! and no variable is touched.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::health::{Health, Purpose};
use super::plan::{GpuPlan, Plan, Task};
use crate::backend::cuda::driver::context::{Context, NOT_READY, Reclaim};
use crate::backend::cuda::driver::memory::{Global, Pinned};
use crate::backend::cuda::driver::stream::{Event, Stream};
use crate::backend::host::lock;
use crate::backend::{DriverError, RunError};
use crate::lower::{Program, Space};
use crate::types::invariant::invariant;

/// The number of free sets of staging buffers that are kept: while the inputs of one run are read,
/// those of the next are uploaded.
pub(super) const KEPT_STAGINGS: usize = 2;

/// The staging buffer for the inputs of a run on a GPU.
#[derive(Debug)]
pub(super) struct StagingBuffer {
    context: Arc<Context>,
    stream: Stream,
    /// Recorded on the stream before and behind the copies.
    pub(super) begun: Event,
    pub(super) arrived: Event,
    memory: Option<Global>,
    /// Memory that was too small. It stays as long as the staging buffer: to free it would wait for
    /// all that the device computes.
    outgrown: Vec<Global>,
}

impl StagingBuffer {
    fn new(context: &Arc<Context>) -> Result<Self, DriverError> {
        Ok(Self {
            context: context.clone(),
            stream: Stream::new(context)?,
            begun: Event::new(context, true)?,
            arrived: Event::new(context, true)?,
            memory: None,
            outgrown: Vec::new(),
        })
    }

    /// The address of its memory, which [`Self::reserve`] has allocated.
    pub(super) fn address(&self) -> u64 {
        // A default of 0 would let the device copy from a null pointer.
        invariant(self.memory.as_ref(), "that a staging buffer is reserved before use").address()
    }

    /// Makes its memory large enough: twice as large at least, so that what is outgrown is never
    /// more than what there is.
    fn reserve(&mut self, bytes: usize) -> Result<(), DriverError> {
        // Doubling bounds what `outgrown` holds by the size of the present memory, and the number
        // of allocations by the logarithm of the largest batch. None: before the first plan there
        // is no memory.
        let held = self.memory.as_ref().map_or(0, Global::len);
        if held < bytes {
            let larger = Global::from_free(&self.context, bytes.max(held.saturating_mul(2)))?;
            self.outgrown.extend(self.memory.replace(larger));
        }
        Ok(())
    }

    /// Begins to copy the inputs of a plan.
    fn fill(&self, plan: &GpuPlan, inputs: &BTreeMap<u32, Arc<Pinned>>) -> Result<(), CopyError> {
        let outside = |error| CopyError { step: None, error };
        // `begun` and `arrived` enclose the copies: the run waits for `arrived` only, and a trace
        // takes the time between the two.
        self.stream.record(&self.begun).map_err(outside)?;
        for placed in &plan.tasks {
            let Task::Upload { from, bytes, staging: Some(at), .. } = &placed.task else {
                continue;
            };
            let Space::Input(i) = from.space else { continue };
            let block = invariant(
                inputs.get(&i),
                "that an input with a place in the staging buffer is staged",
            );
            let copied =
                self.stream.upload(block, from.offset, self.address() + *at as u64, *bytes);
            copied.map_err(|error| CopyError { step: Some(placed.step), error })?;
        }
        self.stream.record(&self.arrived).map_err(outside)
    }

    /// Waits until its copies are done, but no longer than the device may make no progress; false
    /// where they may be under way for ever.
    fn is_settled(&self) -> bool {
        let limit = self.context.deferred_free().limit();
        let is_busy = |error: DriverError| error.code == NOT_READY;
        let Err(error) = self.stream.finish(limit) else { return true };
        // An error other than "not ready" does not say whether the copies are done, so the stream
        // is queried again.
        !is_busy(error) && !self.stream.finish(limit).is_err_and(is_busy)
    }
}

/// The error of an upload to a staging buffer.
struct CopyError {
    /// The step whose copy failed, if one did.
    step: Option<usize>,
    error: DriverError,
}

/// The error of staging inputs on the devices, and the state of their buffers after it.
pub(super) struct StagingError {
    pub(super) error: RunError,
    pub(super) left: Leftover,
}

/// The fate of released staging buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Leftover {
    /// It is kept or freed.
    Settled,
    /// It is leaked, since a device may be at work in it for ever: what that uses must stay.
    Leaked,
}

/// The staging buffers of a run: one for each device, none for the host and for those
/// that take no input.
#[derive(Debug)]
pub(super) struct StagedInputs(Vec<Option<StagingBuffer>>);

impl StagedInputs {
    /// The staging buffer of the device at a position.
    pub(super) fn staging(&self, d: usize) -> Option<&StagingBuffer> {
        self.0.get(d)?.as_ref()
    }

    /// Makes a staging buffer for each device that takes inputs, large enough. An error has the
    /// position of its device.
    fn reserve(
        &mut self,
        plan: &Plan,
        contexts: &[Option<Arc<Context>>],
    ) -> Result<(), (usize, DriverError)> {
        self.0.resize_with(contexts.len(), || None);
        for (d, (context, staging)) in contexts.iter().zip(&mut self.0).enumerate() {
            let bytes = plan.gpus[d].staging;
            let Some(context) = context.as_ref().filter(|_| bytes > 0) else { continue };
            if staging.is_none() {
                *staging = Some(StagingBuffer::new(context).map_err(|error| (d, error))?);
            }
            if let Some(staging) = staging {
                staging.reserve(bytes).map_err(|error| (d, error))?;
            }
        }
        Ok(())
    }

    /// The position of a device whose copies may be under way for ever.
    fn stuck(&self) -> Option<usize> {
        self.0
            .iter()
            .position(|staging| staging.as_ref().is_some_and(|staging| !staging.is_settled()))
    }

    /// True if it has memory on the device of a context.
    fn is_on(&self, context: &Context) -> bool {
        let ordinal = context.ordinal();
        self.0.iter().flatten().any(|staging| staging.context.ordinal() == ordinal)
    }

    /// Frees its memory, but where copies to it may be under way for ever.
    fn end(self) {
        if let Some(d) = self.stuck() {
            self.staging(d)
                .into_iter()
                .for_each(|staging| staging.context.deferred_free().set_late());
            mem::forget(self);
        }
    }
}

/// The staged inputs of a batch, until its run begins or another run reclaims their memory.
pub(super) type Shared = Arc<Mutex<Option<StagedInputs>>>;

/// The staged inputs of an executable that no run has.
#[derive(Debug, Default)]
pub(super) struct StagingPool(Mutex<PoolState>);

/// Held while staged inputs changes hands or is filled, so that whoever wants memory waits for it,
/// and finds it then.
#[derive(Debug, Default)]
struct PoolState {
    free: Vec<StagedInputs>,
    staged: Vec<Weak<Mutex<Option<StagedInputs>>>>,
}

impl StagingPool {
    /// Begins to bring the inputs of a batch to the devices, if they are in pinned memory. Without
    /// staged inputs they come with the run: devices have no memory for them, or take none.
    pub(super) fn stage(
        &self,
        plan: &Plan,
        pinned: Option<&BTreeMap<u32, Arc<Pinned>>>,
        devices: &Devices<'_>,
    ) -> Result<Shared, StagingError> {
        let mut kept = lock(&self.0);
        let staged_inputs = match pinned.filter(|_| plan.gpus.iter().any(|gpu| gpu.staging > 0)) {
            Some(pinned) => kept.filled(plan, pinned, devices)?,
            None => None,
        };
        let staged_inputs: Shared = Arc::new(Mutex::new(staged_inputs));
        kept.staged.retain(|known| known.strong_count() > 0);
        kept.staged.push(Arc::downgrade(&staged_inputs));
        Ok(staged_inputs)
    }

    /// Takes staged inputs back when their batch has run.
    pub(super) fn take_back(&self, staged_inputs: StagedInputs, devices: &Devices<'_>) -> Leftover {
        lock(&self.0).release(staged_inputs, devices)
    }

    /// Takes back the staged inputs of a batch that will never run, if there are any.
    pub(super) fn drop_staged(&self, staged: &Shared, devices: &Devices<'_>) -> Leftover {
        if lock(staged).is_none() {
            return Leftover::Settled;
        }
        let mut kept = lock(&self.0);
        let staged_inputs = lock(staged).take();
        let release = |staged_inputs| kept.release(staged_inputs, devices);
        // None: another run has reclaimed the memory meanwhile.
        staged_inputs.map_or(Leftover::Settled, release)
    }
}

/// The devices to which inputs come.
#[derive(Clone, Copy)]
pub(super) struct Devices<'a> {
    pub(super) program: &'a Program,
    pub(super) contexts: &'a [Option<Arc<Context>>],
    pub(super) health: &'a Health,
    /// The time for which a device may make no progress.
    pub(super) watchdog: Duration,
}

impl PoolState {
    /// Uploads the inputs of a batch; none if the devices lack memory for staging buffers.
    fn filled(
        &mut self,
        plan: &Plan,
        pinned: &BTreeMap<u32, Arc<Pinned>>,
        devices: &Devices<'_>,
    ) -> Result<Option<StagedInputs>, StagingError> {
        // Buffers are made for it below.
        let mut staged_inputs = self.free.pop().unwrap_or(StagedInputs(Vec::new()));
        if let Err((d, error)) = staged_inputs.reserve(plan, devices.contexts) {
            self.free.push(staged_inputs);
            if error.is_out_of_memory() {
                return Ok(None);
            }
            let error = devices.health.failed(d, "the inputs", error);
            return Err(StagingError { error, left: Leftover::Settled });
        }
        for (d, gpu) in plan.gpus.iter().enumerate() {
            let Some(staging) = staged_inputs.staging(d).filter(|_| gpu.staging > 0) else {
                continue;
            };
            if let Err(CopyError { step, error }) = staging.fill(gpu, pinned) {
                let left = self.release(staged_inputs, devices);
                let label = step.map(|at| &*devices.program.devices[d].steps[at].label);
                // None: an event failed, which is of no step.
                let at = Purpose { label: label.unwrap_or("the inputs"), op: "copy" };
                return Err(StagingError { error: devices.health.failed_at(d, at, error), left });
            }
        }
        Ok(Some(staged_inputs))
    }

    /// Takes staged inputs back; leaks them if a device may be at work for ever.
    fn release(&mut self, staged_inputs: StagedInputs, devices: &Devices<'_>) -> Leftover {
        let hangs = devices.health.hangs();
        let stuck = if hangs { None } else { staged_inputs.stuck() };
        if let Some(d) = stuck {
            let (device, limit) = (devices.health.device(d), devices.watchdog);
            let label = "the inputs".to_owned();
            devices.health.die(&RunError::Stuck { device, label, op: "copy", limit });
        }
        if hangs || stuck.is_some() {
            mem::forget(staged_inputs);
            return Leftover::Leaked;
        }
        if self.free.len() < KEPT_STAGINGS {
            self.free.push(staged_inputs);
        }
        Leftover::Settled
    }
}

impl Reclaim for StagingPool {
    /// The inputs of batches that are staged come with their runs then.
    fn give_up(&self, on: &Context) -> bool {
        let mut kept = lock(&self.0);
        let staged: Vec<Shared> = kept.staged.iter().filter_map(Weak::upgrade).collect();
        let mut given: Vec<StagedInputs> =
            kept.free.extract_if(.., |staged_inputs| staged_inputs.is_on(on)).collect();
        given.extend(
            staged
                .iter()
                .filter_map(|shared| lock(shared).take_if(|staged_inputs| staged_inputs.is_on(on))),
        );
        let had = !given.is_empty();
        given.into_iter().for_each(StagedInputs::end);
        had
    }
}
