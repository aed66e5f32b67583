//! Inputs that come to the GPUs before the run that takes them.
//!
//! They have memory of their own beside the arenas, from which the run copies them to their places within each device. So
//! they come while another run computes, whatever that does to its arena, and no variable is touched.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, Weak};

use super::backend::finish;
use super::executor::{Batch, CudaExecutable};
use super::job::Job;
use super::plan::{GpuPlan, Plan, Task};
use super::slot::Ended;
use crate::backend::cuda::driver::context::{Context, NOT_READY, Spare};
use crate::backend::cuda::driver::memory::{Global, Pinned};
use crate::backend::cuda::driver::stream::{Event, Stream};
use crate::backend::host::lock;
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
            let larger = Global::from_free(&self.context, bytes.max(held.saturating_mul(2)))?;
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

    /// Waits until its copies are done, but no longer than the device may make no progress; false where they may be under
    /// way for ever.
    fn is_settled(&self) -> bool {
        let limit = self.context.frees().limit();
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

    /// The position of a device whose copies may be under way for ever.
    fn stuck(&self) -> Option<usize> {
        self.0.iter().position(|inlet| inlet.as_ref().is_some_and(|inlet| !inlet.is_settled()))
    }

    /// True if it has memory on the device of a context.
    fn is_on(&self, context: &Context) -> bool {
        let ordinal = context.ordinal();
        self.0.iter().flatten().any(|inlet| inlet.context.ordinal() == ordinal)
    }

    /// Frees its memory, but where copies to it may be under way for ever.
    fn end(self) {
        if let Some(d) = self.stuck() {
            self.inlet(d).into_iter().for_each(|inlet| inlet.context.frees().set_late());
            mem::forget(self);
        }
    }
}

/// The intake of a staged batch, until its run begins, or a run takes its memory.
type Shared = Arc<Mutex<Option<Intake>>>;

/// The intakes of an executable that no run has.
#[derive(Debug, Default)]
pub(super) struct Intakes(Mutex<Kept>);

/// Held while an intake changes hands or is filled, so that whoever wants memory waits for it, and finds it then.
#[derive(Debug, Default)]
struct Kept {
    free: Vec<Intake>,
    staged: Vec<Weak<Mutex<Option<Intake>>>>,
}

impl Spare for Intakes {
    /// The inputs of batches that are staged come with their runs then.
    fn give_up(&self, on: &Context) -> bool {
        let mut kept = lock(&self.0);
        let staged: Vec<Shared> = kept.staged.iter().filter_map(Weak::upgrade).collect();
        let mut given: Vec<Intake> = kept.free.extract_if(.., |intake| intake.is_on(on)).collect();
        given.extend(
            staged.iter().filter_map(|shared| lock(shared).take_if(|intake| intake.is_on(on))),
        );
        let had = !given.is_empty();
        given.into_iter().for_each(Intake::end);
        had
    }
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
        if lock(&self.intake).is_none() {
            return;
        }
        let mut kept = lock(&self.executable.parts.intakes.0);
        let intake = lock(&self.intake).take();
        if let Some(intake) = intake {
            self.executable.release(intake, &mut kept);
        }
    }
}

impl CudaExecutable {
    /// Begins to bring the inputs of a batch to the devices. Where these have no memory for it, they come with the run.
    pub(super) fn bring(&self, batch: Batch) -> Result<CudaStaged<'_>, RunError> {
        let mut kept = lock(&self.parts.intakes.0);
        let intake = self.filled(&batch, &mut kept)?;
        let intake: Shared = Arc::new(Mutex::new(intake));
        kept.staged.retain(|known| known.strong_count() > 0);
        kept.staged.push(Arc::downgrade(&intake));
        Ok(CudaStaged { executable: self, batch, intake })
    }

    /// An intake to which the inputs of a batch come.
    fn filled(&self, batch: &Batch, kept: &mut Kept) -> Result<Option<Intake>, RunError> {
        let Batch { plan, pinned: Some(pinned), .. } = batch else { return Ok(None) };
        if plan.gpus.iter().all(|gpu| gpu.inlet == 0) {
            return Ok(None);
        }
        let mut intake = kept.free.pop().unwrap_or(Intake(Vec::new()));
        if let Err((d, error)) = intake.reserve(plan, &self.parts.contexts) {
            kept.free.push(intake);
            if error.is_out_of_memory() {
                return Ok(None);
            }
            return Err(self.failed(d, "the inputs", error));
        }
        for (d, gpu) in plan.gpus.iter().enumerate() {
            let Some(inlet) = intake.inlet(d).filter(|_| gpu.inlet > 0) else { continue };
            if let Err((step, error)) = inlet.fill(gpu, pinned) {
                self.release(intake, kept);
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
            Some(Ok(intake)) if !ended.is_abandoned => {
                self.release(intake, &mut lock(&self.parts.intakes.0));
            }
            Some(Ok(intake)) => mem::forget(intake),
            // A worker that does not come back has it.
            Some(Err(intake)) => mem::forget(intake),
            None => {}
        }
    }

    /// Takes an intake back, when its batch has run or never will; leaks it where a device may be at work for ever.
    fn release(&self, intake: Intake, kept: &mut Kept) {
        let hangs = match &*lock(&self.dead) {
            Some(RunError::Stuck { .. }) => true,
            Some(RunError::Driver { error, .. }) => error.code == NOT_READY,
            _ => false,
        };
        let stuck = if hangs { None } else { intake.stuck() };
        if let Some(d) = stuck {
            let device = self.parts.program.devices[d].device;
            let (label, limit) = ("the inputs".to_owned(), self.parts.watchdog);
            let error = RunError::Stuck { device, label, op: "copy", limit };
            lock(&self.dead).get_or_insert(error);
        }
        if hangs || stuck.is_some() {
            // Its context stays for the same reason.
            mem::forget((intake, Arc::clone(&self.parts)));
        } else if kept.free.len() < KEPT_INTAKES {
            kept.free.push(intake);
        }
    }
}
