//! Inputs that come to the GPUs before the run that takes them.
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
use crate::backend::cuda::driver::context::{Context, NOT_READY, Spare};
use crate::backend::cuda::driver::memory::{Global, Pinned};
use crate::backend::cuda::driver::stream::{Event, Stream};
use crate::backend::host::lock;
use crate::backend::{DriverError, RunError};
use crate::lower::{Program, Space};
use crate::types::invariant::invariant;

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
    /// Memory that was too small. It stays while the inlet does: to free it would wait for all that
    /// the device computes.
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

    /// The address of its memory; 0 before it has any.
    pub(super) fn address(&self) -> u64 {
        self.memory.as_ref().map_or(0, Global::address)
    }

    /// Makes its memory large enough: twice as large at least, so that what is outgrown is never
    /// more than what there is.
    fn reserve(&mut self, bytes: usize) -> Result<(), DriverError> {
        // Before the first plan there is none.
        let held = self.memory.as_ref().map_or(0, Global::len);
        if held < bytes {
            let larger = Global::from_free(&self.context, bytes.max(held.saturating_mul(2)))?;
            self.outgrown.extend(self.memory.replace(larger));
        }
        Ok(())
    }

    /// Begins to copy the inputs of a plan.
    fn fill(&self, plan: &GpuPlan, inputs: &BTreeMap<u32, Arc<Pinned>>) -> Result<(), NotFilled> {
        let outside = |error| NotFilled { step: None, error };
        self.stream.record(&self.begun).map_err(outside)?;
        for placed in &plan.tasks {
            let Task::Upload { from, bytes, inlet: Some(at), .. } = &placed.task else { continue };
            let Space::Input(i) = from.space else { continue };
            let block =
                invariant(inputs.get(&i), "that an input with a place in the inlet is staged");
            let copied =
                self.stream.upload(block, from.offset, self.address() + *at as u64, *bytes);
            copied.map_err(|error| NotFilled { step: Some(placed.step), error })?;
        }
        self.stream.record(&self.arrived).map_err(outside)
    }

    /// Waits until its copies are done, but no longer than the device may make no progress; false
    /// where they may be under way for ever.
    fn is_settled(&self) -> bool {
        let limit = self.context.frees().limit();
        let is_busy = |error: DriverError| error.code == NOT_READY;
        let Err(error) = self.stream.finish(limit) else { return true };
        // A question that fails is asked again.
        !is_busy(error) && !self.stream.finish(limit).is_err_and(is_busy)
    }
}

/// Why inputs do not come to an inlet.
struct NotFilled {
    /// The step whose copy failed, if one did.
    step: Option<usize>,
    error: DriverError,
}

/// Why inputs do not come to the devices.
pub(super) struct NotBrought {
    pub(super) error: RunError,
    pub(super) left: Leftover,
}

/// What became of an intake that nobody needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Leftover {
    /// It is kept or freed.
    Settled,
    /// It is leaked, since a device may be at work in it for ever: what that uses must stay.
    Leaked,
}

/// Where the inputs of a run come to all devices: one for each, none for the host and for those
/// that take no input.
#[derive(Debug)]
pub(super) struct Intake(Vec<Option<Inlet>>);

impl Intake {
    /// The inlet of the device at a position.
    pub(super) fn inlet(&self, d: usize) -> Option<&Inlet> {
        self.0.get(d)?.as_ref()
    }

    /// Makes an inlet for each device that takes inputs, large enough. With an error the device's
    /// position.
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
pub(super) type Shared = Arc<Mutex<Option<Intake>>>;

/// The intakes of an executable that no run has.
#[derive(Debug, Default)]
pub(super) struct Intakes(Mutex<Kept>);

/// Held while an intake changes hands or is filled, so that whoever wants memory waits for it, and
/// finds it then.
#[derive(Debug, Default)]
struct Kept {
    free: Vec<Intake>,
    staged: Vec<Weak<Mutex<Option<Intake>>>>,
}

impl Intakes {
    /// Begins to bring the inputs of a batch to the devices, if they are in pinned memory. Without
    /// an intake they come with the run: devices have no memory for them, or take none.
    pub(super) fn bring(
        &self,
        plan: &Plan,
        pinned: Option<&BTreeMap<u32, Arc<Pinned>>>,
        devices: &Devices<'_>,
    ) -> Result<Shared, NotBrought> {
        let mut kept = lock(&self.0);
        let intake = match pinned.filter(|_| plan.gpus.iter().any(|gpu| gpu.inlet > 0)) {
            Some(pinned) => kept.filled(plan, pinned, devices)?,
            None => None,
        };
        let intake: Shared = Arc::new(Mutex::new(intake));
        kept.staged.retain(|known| known.strong_count() > 0);
        kept.staged.push(Arc::downgrade(&intake));
        Ok(intake)
    }

    /// Takes an intake back when its batch has run.
    pub(super) fn take_back(&self, intake: Intake, devices: &Devices<'_>) -> Leftover {
        lock(&self.0).release(intake, devices)
    }

    /// Takes the intake of a staged batch back, if it has one, when it never will run.
    pub(super) fn drop_staged(&self, staged: &Shared, devices: &Devices<'_>) -> Leftover {
        if lock(staged).is_none() {
            return Leftover::Settled;
        }
        let mut kept = lock(&self.0);
        let intake = lock(staged).take();
        intake.map_or(Leftover::Settled, |intake| kept.release(intake, devices))
    }
}

/// The devices to which inputs come.
#[derive(Clone, Copy)]
pub(super) struct Devices<'a> {
    pub(super) program: &'a Program,
    pub(super) contexts: &'a [Option<Arc<Context>>],
    pub(super) health: &'a Health,
    /// How long one may make no progress.
    pub(super) watchdog: Duration,
}

impl Kept {
    /// An intake to which the inputs of a batch come; none where there is no memory for it.
    fn filled(
        &mut self,
        plan: &Plan,
        pinned: &BTreeMap<u32, Arc<Pinned>>,
        devices: &Devices<'_>,
    ) -> Result<Option<Intake>, NotBrought> {
        let mut intake = self.free.pop().unwrap_or(Intake(Vec::new()));
        if let Err((d, error)) = intake.reserve(plan, devices.contexts) {
            self.free.push(intake);
            if error.is_out_of_memory() {
                return Ok(None);
            }
            let error = devices.health.failed(d, "the inputs", error);
            return Err(NotBrought { error, left: Leftover::Settled });
        }
        for (d, gpu) in plan.gpus.iter().enumerate() {
            let Some(inlet) = intake.inlet(d).filter(|_| gpu.inlet > 0) else { continue };
            if let Err(NotFilled { step, error }) = inlet.fill(gpu, pinned) {
                let left = self.release(intake, devices);
                let label = step.map(|at| &*devices.program.devices[d].steps[at].label);
                let at = Purpose { label: label.unwrap_or("the inputs"), op: "copy" };
                return Err(NotBrought { error: devices.health.failed_at(d, at, error), left });
            }
        }
        Ok(Some(intake))
    }

    /// Takes an intake back; leaks it where a device may be at work for ever.
    fn release(&mut self, intake: Intake, devices: &Devices<'_>) -> Leftover {
        let hangs = devices.health.hangs();
        let stuck = if hangs { None } else { intake.stuck() };
        if let Some(d) = stuck {
            let (device, limit) = (devices.health.device(d), devices.watchdog);
            let label = "the inputs".to_owned();
            devices.health.die(&RunError::Stuck { device, label, op: "copy", limit });
        }
        if hangs || stuck.is_some() {
            mem::forget(intake);
            return Leftover::Leaked;
        }
        if self.free.len() < KEPT_INTAKES {
            self.free.push(intake);
        }
        Leftover::Settled
    }
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
