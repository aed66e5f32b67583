//! Inputs that come to the GPUs before the run that takes them.
//!
//! They have memory of their own beside the arenas, from which the run copies them to their places within each device. So
//! they come while another run computes, whatever that does to its arena, and no variable is touched.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use super::backend::finish;
use super::driver::{Context, NOT_READY};
use super::executor::{Batch, CudaExecutable};
use super::job::Job;
use super::memory::{Global, Pinned};
use super::plan::{GpuPlan, Plan, Task};
use super::slot::Ended;
use super::stream::{Event, Stream};
use crate::backend::cpu::lock;
use crate::backend::{DriverError, RunError, RunOutput, Staged};
use crate::lower::Space;
use crate::types::Tensor;

/// Intakes that are kept for later: while one is run another one is filled.
const KEPT_INTAKES: usize = 2;

/// Where the inputs of a run come to a GPU.
#[derive(Debug)]
pub(super) struct Inlet {
    context: Arc<Context>,
    stream: Stream,
    /// Recorded on the stream before and behind the copies.
    pub(super) begun: Event,
    pub(super) arrived: Event,
    memory: Option<Global>,
    /// Memory that was too small. It stays while the inlet does: to free it would wait for all that the device computes.
    outgrown: Vec<Global>,
}

impl Inlet {
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

    /// The address of its memory.
    pub(super) fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, Global::address)
    }

    /// Makes its memory large enough: twice as large at least, so that what is outgrown is never more than what there is.
    fn reserve(&mut self, bytes: usize) -> Result<(), DriverError> {
        let held = self.memory.as_ref().map_or(0, Global::len);
        if held < bytes {
            let larger = Global::new(&self.context, bytes.max(held.saturating_mul(2)))?;
            self.outgrown.extend(self.memory.replace(larger));
        }
        Ok(())
    }

    /// Begins to copy the inputs of a plan. With an error the step that it is at, if at one.
    fn fill(
        &self,
        plan: &GpuPlan,
        inputs: &BTreeMap<u32, Arc<Pinned>>,
    ) -> Result<(), (Option<usize>, DriverError)> {
        self.stream.record(&self.begun).map_err(|error| (None, error))?;
        for placed in &plan.tasks {
            let Task::Upload { from, bytes, inlet: Some(at), .. } = &placed.task else { continue };
            let Space::Input(i) = from.space else { continue };
            let Some(block) = inputs.get(&i) else { continue };
            let copied =
                self.stream.upload(block, from.offset, self.address() + *at as u64, *bytes);
            copied.map_err(|error| (Some(placed.step), error))?;
        }
        self.stream.record(&self.arrived).map_err(|error| (None, error))
    }

    /// Waits until its copies are done, but no longer than `limit`; false where they may be under way for ever.
    fn is_settled(&self, limit: Duration) -> bool {
        let is_busy = |error: DriverError| error.code == NOT_READY;
        let Err(error) = finish(&self.stream, limit) else { return true };
        // A question that fails is asked again.
        !is_busy(error) && !finish(&self.stream, limit).is_err_and(is_busy)
    }
}

/// Where the inputs of a run come to all devices: one for each, none for the host and for those that take no input.
#[derive(Debug)]
pub(super) struct Intake(Vec<Option<Inlet>>);

impl Intake {
    /// The inlet of the device at a position.
    pub(super) fn inlet(&self, d: usize) -> Option<&Inlet> {
        self.0.get(d)?.as_ref()
    }

    /// Makes an inlet for each device that takes inputs, large enough. With an error the device's position.
    fn reserve(
        &mut self,
        plan: &Plan,
        contexts: &[Option<Arc<Context>>],
    ) -> Result<(), (usize, DriverError)> {
        self.0.resize_with(contexts.len(), || None);
        for (d, (context, inlet)) in contexts.iter().zip(&mut self.0).enumerate() {
            let bytes = plan.gpus[d].inlet;
            let Some(context) = context.as_ref().filter(|_| bytes > 0) else { continue };
            if inlet.is_none() {
                *inlet = Some(Inlet::new(context).map_err(|error| (d, error))?);
            }
            if let Some(inlet) = inlet {
                inlet.reserve(bytes).map_err(|error| (d, error))?;
            }
        }
        Ok(())
    }
}

/// The intake of a staged batch, until its run begins, or a run takes its memory.
type Shared = Arc<Mutex<Option<Intake>>>;

/// The intakes of an executable that no run has.
#[derive(Debug, Default)]
pub(super) struct Intakes {
    free: Mutex<Vec<Intake>>,
    staged: Mutex<Vec<Weak<Mutex<Option<Intake>>>>>,
}

/// A batch whose inputs are on their way to GPUs.
pub(super) struct CudaStaged<'a> {
    executable: &'a CudaExecutable,
    batch: Batch,
    intake: Shared,
}

impl Staged for CudaStaged<'_> {
    fn set(&mut self, name: &str, value: &Tensor) -> Result<(), RunError> {
        self.executable.replace(&mut self.batch, name, value)
    }

    fn run(self: Box<Self>) -> Result<RunOutput, RunError> {
        self.executable.execute(&self.batch, || lock(&self.intake).take())
    }
}

impl Drop for CudaStaged<'_> {
    fn drop(&mut self) {
        let intake = lock(&self.intake).take();
        if let Some(intake) = intake {
            self.executable.release(intake);
        }
    }
}

impl CudaExecutable {
    /// Begins to bring the inputs of a batch to the devices. Where these have no memory for it, they come with the run.
    pub(super) fn bring(&self, batch: Batch) -> Result<CudaStaged<'_>, RunError> {
        let intake = self.filled(&batch)?;
        let intake: Shared = Arc::new(Mutex::new(intake));
        let mut staged = lock(&self.parts.intakes.staged);
        staged.retain(|known| known.strong_count() > 0);
        staged.push(Arc::downgrade(&intake));
        Ok(CudaStaged { executable: self, batch, intake })
    }

    /// An intake to which the inputs of a batch come.
    fn filled(&self, batch: &Batch) -> Result<Option<Intake>, RunError> {
        let Batch { plan, pinned: Some(pinned), .. } = batch else { return Ok(None) };
        if plan.gpus.iter().all(|gpu| gpu.inlet == 0) {
            return Ok(None);
        }
        let free = lock(&self.parts.intakes.free).pop();
        let mut intake = free.unwrap_or(Intake(Vec::new()));
        if let Err((d, error)) = intake.reserve(plan, &self.parts.contexts) {
            lock(&self.parts.intakes.free).push(intake);
            if error.is_out_of_memory() {
                return Ok(None);
            }
            return Err(self.failed(d, "the inputs", error));
        }
        for (d, gpu) in plan.gpus.iter().enumerate() {
            let Some(inlet) = intake.inlet(d).filter(|_| gpu.inlet > 0) else { continue };
            if let Err((step, error)) = inlet.fill(gpu, pinned) {
                self.release(intake);
                let label = step.and_then(|at| self.parts.program.devices[d].steps.get(at));
                let label = label.map_or("the inputs", |step| &*step.label);
                return Err(self.failed_at(d, (label, "copy"), error));
            }
        }
        Ok(Some(intake))
    }

    /// Takes the intake of a run back; leaks it where a device is still at work in it.
    pub(super) fn take_back(&self, job: &Job, ended: &Ended) {
        let intake = lock(&job.intake).take();
        match intake.map(Arc::try_unwrap) {
            Some(Ok(intake)) if !ended.is_abandoned => self.release(intake),
            Some(Ok(intake)) => mem::forget(intake),
            // A worker that does not come back has it.
            Some(Err(intake)) => mem::forget(intake),
            None => {}
        }
    }

    /// Takes an intake back, when its batch has run or never will; leaks it where a device may be at work for ever, since
    /// freeing waits for the device.
    pub(super) fn release(&self, intake: Intake) {
        let hangs = match &*lock(&self.dead) {
            Some(RunError::Stuck { .. }) => true,
            Some(RunError::Driver { error, .. }) => error.code == NOT_READY,
            _ => false,
        };
        let limit = self.parts.watchdog;
        let stuck = |(d, inlet): (usize, &Option<Inlet>)| {
            inlet.as_ref().filter(|inlet| !inlet.is_settled(limit)).map(|_| d)
        };
        let stuck = if hangs { None } else { intake.0.iter().enumerate().find_map(stuck) };
        if let Some(d) = stuck {
            let device = self.parts.program.devices[d].device;
            let label = "the inputs".to_owned();
            let error = RunError::Stuck { device, label, op: "copy", limit };
            lock(&self.dead).get_or_insert(error);
        }
        if hangs || stuck.is_some() {
            // Its context stays for the same reason.
            mem::forget((intake, Arc::clone(&self.parts)));
            return;
        }
        let mut free = lock(&self.parts.intakes.free);
        if free.len() < KEPT_INTAKES {
            free.push(intake);
        }
    }

    /// Gives up the intakes that no run has, as their memory is wanted; the inputs of their batches come with the runs then.
    /// True if there were any.
    pub(super) fn give_up_intakes(&self) -> bool {
        let staged: Vec<Shared> =
            lock(&self.parts.intakes.staged).iter().filter_map(Weak::upgrade).collect();
        for intake in staged.iter().filter_map(|shared| lock(shared).take()) {
            self.release(intake);
        }
        !mem::take(&mut *lock(&self.parts.intakes.free)).is_empty()
    }
}
