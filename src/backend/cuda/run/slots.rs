//! The pool of runs in flight, and the limit on their number. Each run in flight needs a slot
//! with an arena on every device. The pool makes slots on demand, up to `IN_FLIGHT`. If memory
//! does not suffice for another one, the run waits for a slot of an earlier run and the limit
//! falls for a while.

use std::fmt;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::parts::{Bytes, IN_FLIGHT, Parts};
use super::plan::Plan;
use super::report;
use super::slot::{RunEnd, Slot, SlotError};
use crate::backend::RunError;
use crate::backend::cuda::driver::context::{Context, Reclaim};
use crate::backend::cuda::driver::memory::PIN;
use crate::backend::host::lock;

/// The number of runs that end before the limit on runs in flight is lifted, after memory was
/// short. A failed trial is expensive: it frees the arenas of all free slots. Yet the limit must
/// not stay for ever, because the memory may have been taken by another process or executable.
const RUNS_UNTIL_RETRY: u32 = 64;

/// The slots of an executable.
#[derive(Default)]
struct Slots {
    free: Vec<Slot>,
    /// The number of slots, free or not.
    made: usize,
    /// The number of slots that were given up so far. A thread that sees it change knows that
    /// memory may have become free since it looked.
    given_up: u64,
    /// The limit on runs in flight after memory did not suffice for another one.
    limit: Option<InFlightLimit>,
    /// The kernels that the captured graphs of the slots launch: they must outlive the graphs.
    _kernels: Option<Arc<Parts>>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots")
            .field("free", &self.free)
            .field("made", &self.made)
            .finish_non_exhaustive()
    }
}

/// The limit on runs in flight after an allocation failed.
#[derive(Clone, Copy, Debug)]
struct InFlightLimit {
    /// The bytes that its plan takes on all devices.
    bytes: u64,
    /// The number of runs in flight if one of them takes as much.
    most: usize,
    /// The runs that have to end before the limit is lifted: another process may have held the
    /// memory.
    runs: u32,
}

impl Slots {
    /// For an executable of these parts.
    fn new(parts: Arc<Parts>) -> Self {
        Self { _kernels: Some(parts), ..Self::default() }
    }

    /// True if another run, whose plan takes `bytes` on all devices, has to wait.
    ///
    /// A smaller run than the one that failed is not limited, since its arena may still fit.
    fn must_wait(&self, bytes: u64) -> bool {
        let limit = self.limit.filter(|limit| bytes >= limit.bytes);
        self.free.is_empty() && self.made >= limit.map_or(IN_FLIGHT as usize, |limit| limit.most)
    }

    /// Limits the number of runs in flight after no memory was left for a run of `bytes`.
    ///
    /// `made` no longer counts the slot that failed. The limit is at least 1: if nothing is in
    /// flight, a run may always try, and its error is reported instead of a wait without end.
    fn limit_in_flight(&mut self, bytes: u64) {
        let bytes = self.limit.map_or(bytes, |limit| limit.bytes.min(bytes));
        let most = self.made.clamp(1, IN_FLIGHT as usize);
        self.limit = Some(InFlightLimit { bytes, most, runs: RUNS_UNTIL_RETRY });
    }

    /// Counts a run that has ended.
    fn run_ended(&mut self) {
        self.limit = self.limit.and_then(|limit| {
            Some(InFlightLimit {
                runs: limit.runs.checked_sub(1).filter(|runs| *runs > 0)?,
                ..limit
            })
        });
    }
}

impl Reclaim for Mutex<Slots> {
    /// The arenas of the runs that are not in flight: the next ones make theirs anew.
    fn give_up(&self, on: &Context) -> bool {
        let mut slots = lock(self);
        let given: Vec<_> = slots.free.iter_mut().flat_map(|slot| slot.give_up(on)).collect();
        let had = !given.is_empty();
        // The arenas are freed under the lock: a thread that waits for it finds their memory free.
        drop(given);
        drop(slots);
        had
    }
}

/// Slots that runs take and give back.
pub(super) struct SlotPool {
    parts: Arc<Parts>,
    slots: Arc<Mutex<Slots>>,
    freed: Condvar,
}

/// A slot in the hands of a run.
pub(super) struct ReservedSlot {
    pub(super) slot: Slot,
    /// The address of each device's arena.
    pub(super) arenas: Vec<u64>,
}

impl SlotPool {
    /// Without slots, for an executable of these parts.
    pub(super) fn new(parts: Arc<Parts>) -> Self {
        let slots = Arc::new(Mutex::new(Slots::new(parts.clone())));
        Self { parts, slots, freed: Condvar::new() }
    }

    /// The memory that gives way to others.
    pub(super) fn reclaimable(&self) -> Arc<dyn Reclaim> {
        self.slots.clone()
    }

    /// A slot whose arenas are large enough. Where memory does not suffice for another run in
    /// flight, waits until one ends.
    ///
    /// A failed attempt returns its slot and those that are free, and tries again if that
    /// released anything or others may still release memory. With nothing else to free the error
    /// is final, so the loop ends. The lock is not held while memory is allocated: the
    /// allocation may ask this pool itself to give up its arenas ([`Reclaim`]), which takes the
    /// lock.
    pub(super) fn take(&self, plan: &Plan) -> Result<ReservedSlot, RunError> {
        let bytes = plan.bound.devices.iter().skip(1).map(|device| device.planned as u64).sum();
        loop {
            let mut slots = lock(&self.slots);
            while slots.must_wait(bytes) {
                slots = self.freed.wait(slots).unwrap_or_else(PoisonError::into_inner);
            }
            // After the wait, not before: the run that held the slot may have lost the device.
            self.parts.health.check()?;
            let slot = slots.free.pop();
            if slot.is_none() {
                slots.made += 1;
            }
            // Read under the same lock as the slot is taken: a slot given up after this is noticed
            // by the comparison in `give_up_slot`, and the loop tries again instead of failing.
            let before = slots.given_up;
            drop(slots);
            let (program, contexts) = (&self.parts.program, &self.parts.contexts);
            let made =
                slot.map_or_else(|| Slot::new(program, contexts), Ok).and_then(|mut slot| {
                    let arenas = slot.reserve(&plan.bound, contexts)?;
                    Ok(ReservedSlot { slot, arenas })
                });
            let error = match made {
                Ok(made) => return Ok(made),
                Err(error) => error,
            };
            let short = error.short();
            let mut others = self.give_up_slot(short.map(|_| bytes), before);
            if let Some(context) = short.and_then(|d| contexts[d].as_ref()) {
                others |= context.reclaim_all();
            }
            if short.is_none() || !others {
                return Err(self.no_slot(plan, error));
            }
        }
    }

    /// Says that a slot is no more, and the bytes of the plan for which there was no memory, if
    /// that is why; true if there are others, or were since the number of those given up was
    /// `before`.
    fn give_up_slot(&self, short: Option<u64>, before: u64) -> bool {
        let mut slots = lock(&self.slots);
        slots.made -= 1;
        // Free slots go too: their arenas hold the memory that is short.
        slots.made -= slots.free.len();
        let free = mem::take(&mut slots.free);
        let had = !free.is_empty() || slots.made > 0 || slots.given_up != before;
        slots.given_up += 1;
        if let Some(bytes) = short {
            slots.limit_in_flight(bytes);
        }
        // Freed under the lock: a thread that is short waits for it and finds their memory free.
        drop(free);
        drop(slots);
        self.freed.notify_all();
        had
    }

    fn no_slot(&self, plan: &Plan, error: SlotError) -> RunError {
        match error {
            SlotError::Driver { error, .. } if error.call == PIN => {
                let planned = match self.parts.pinned_bytes(plan) {
                    Ok(planned) => planned,
                    Err(error) => return error,
                };
                let bytes = Bytes { asked: report::PINNED, planned };
                self.parts.not_pinned(bytes, "what kernels report", error)
            }
            SlotError::Driver { d, asked, error, .. } if error.is_out_of_memory() => {
                // What the driver takes for streams it does not say; the arena comes behind them.
                let asked = asked.unwrap_or(plan.bound.devices[d].planned as u64);
                self.out_of_memory(plan, d, asked)
            }
            SlotError::Driver { d, what, error, .. } => self.parts.health.failed(d, what, error),
            SlotError::Thread(d, error) => RunError::Internal {
                device: self.parts.health.device(d),
                label: String::new(),
                reason: format!("no worker thread: {error}"),
            },
        }
    }

    fn out_of_memory(&self, plan: &Plan, d: usize, asked: u64) -> RunError {
        let (context, device) = (self.parts.contexts[d].as_ref(), self.parts.health.device(d));
        if let Some(deferred_free) =
            context.map(|context| context.deferred_free()).filter(|f| f.is_late())
        {
            // What was given up for it is still at work.
            let (label, limit) = ("the arena".to_owned(), deferred_free.limit());
            return RunError::Stuck { device, label, op: "memory", limit };
        }
        // The count is for the message only; a device whose driver does not answer has no known
        // one.
        let free = context.and_then(|c| c.free_memory().ok()).unwrap_or(0);
        let planned = plan.bound.devices[d].planned as u64 + self.parts.param_bytes[d];
        RunError::OutOfMemory { device, n: plan.bound.n, asked, planned, free }
    }

    /// Leaks what a device may still be at between runs: whoever frees it waits for the device.
    pub(super) fn abandon(&self) {
        let mut slots = lock(&self.slots);
        slots.made -= slots.free.len();
        mem::forget(mem::take(&mut slots.free));
        mem::forget(Arc::clone(&self.parts));
    }

    /// Gives back a slot in which nothing was run.
    pub(super) fn give_back(&self, slot: Slot) {
        lock(&self.slots).free.push(slot);
        // All, not one: a waiter that finds the devices dead returns without taking the slot.
        self.freed.notify_all();
    }

    /// Gives a slot back after a run, or leaks it where a device is still at work in it.
    pub(super) fn end(&self, slot: Slot, ended: &RunEnd) {
        let mut slots = lock(&self.slots);
        slots.run_ended();
        if ended.is_abandoned {
            slots.made -= 1;
            mem::forget(slot);
            // Its kernels, parameters and contexts stay for the same reason.
            mem::forget(Arc::clone(&self.parts));
        } else {
            slots.free.push(slot);
        }
        drop(slots);
        // All: after a failure every waiter has to see that the devices are dead.
        self.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::{IN_FLIGHT, RUNS_UNTIL_RETRY, Slots};

    #[test]
    fn memory_that_was_short_is_tried_again() {
        let mut slots = Slots { made: 1, ..Slots::default() };
        assert!(!slots.must_wait(1 << 40), "one may run beside it");
        slots.limit_in_flight(1000);
        assert!(slots.must_wait(1000) && slots.must_wait(1001) && !slots.must_wait(999));
        for _ in 1..RUNS_UNTIL_RETRY {
            slots.run_ended();
            assert!(slots.must_wait(1000));
        }
        slots.run_ended();
        assert!(!slots.must_wait(1000));
        slots.made = IN_FLIGHT as usize;
        assert!(slots.must_wait(0));
    }
}
