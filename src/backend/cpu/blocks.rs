//! Runs whose rows are computed some at a time: each thread takes a block of them through all
//! launches. So threads meet once in a run, and what a launch writes is in a cache for the next.

use std::mem;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use rayon::prelude::*;

use super::place::Memory;
use super::run::{Given, Prepared, Run, Worked};
use crate::backend::RunError;
use crate::backend::host::{Each, lock};
use crate::lower::{Action, Bound, BoundDevice, BufferId, DeviceProgram, Program, Space};
use crate::types::Tensor;
use crate::types::invariant::{int, invariant};

/// The bytes of a block's arena, if more rows do not need them: those that a core's caches hold.
const CACHE: usize = 2 << 20;

/// A batch that is computed in blocks of rows.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The rows of the batch.
    n: usize,
    /// The rows of a block.
    rows: usize,
    each: Prepared,
    /// For the last one, if it has fewer.
    last: Option<Prepared>,
    /// The blocks that are computed at a time.
    slots: usize,
}

/// The bytes that each thread moves, at least, for blocks to be worth what they cost: some
/// microseconds.
const WORTH: usize = 1 << 16;

/// What a block reads and writes.
struct Block<'a> {
    rows: Range<usize>,
    outputs: Vec<&'a mut [u8]>,
}

/// The blocks that nobody has taken.
struct Left<'a> {
    /// The first row.
    from: usize,
    /// The outputs from there on.
    outputs: Vec<&'a mut [u8]>,
}

/// What came of the blocks.
#[derive(Default)]
struct Done {
    worked: Worked,
    /// The error of the first block that failed, and its first row.
    failed: Option<(usize, RunError)>,
}

/// The rows of a block; `None` where all rows are better taken at once.
fn rows_of_block(program: &Program, bound: &Bound, threads: usize) -> Option<usize> {
    let (device, plan) = (&program.devices[0], &bound.devices[0]);
    let n = usize::try_from(bound.n).ok()?;
    if !program.rows_are_apart || program.devices.len() > 1 || threads < 2 || n < threads {
        return None;
    }
    let (weights, moved) = traffic(device, plan);
    // Each block reads all weights: what it moves beside them has to be as much.
    let least = weights.div_ceil((moved / n).max(1)).max(1);
    let most = n / threads;
    if least > most || moved / threads < WORTH {
        return None;
    }
    let in_cache = CACHE / (plan.planned / n).max(1);
    // As many for each thread, as nearly as may be.
    let count = n.div_ceil(in_cache.clamp(least, most)).next_multiple_of(threads);
    Some(n.div_ceil(count))
}

/// The bytes of the parameters that a device reads, and those of all else that its launches read
/// and write.
fn traffic(device: &DeviceProgram, plan: &BoundDevice) -> (usize, usize) {
    let is_param = |b: &BufferId| matches!(plan.locations[*b].space, Space::Param(_));
    let bytes = |b: &BufferId| plan.locations[*b].bytes;
    let all = (0..device.buffers.len()).map(|b| BufferId(int(b)));
    let weights = all.filter(is_param).map(|b| bytes(&b)).fold(0, usize::saturating_add);
    let launches = device.steps.iter().filter_map(|step| match &step.action {
        Action::Launch(launch) => Some(launch),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    let moved = launches.flat_map(|launch| launch.operands.iter().chain(&launch.results));
    let moved = moved.filter(|b| !is_param(b)).map(bytes).fold(0, usize::saturating_add);
    (weights, moved)
}

impl Blocks {
    /// The blocks of a batch, where threads are better off with some rows each than with a part of
    /// each launch.
    pub(super) fn new(program: &Program, bound: &Bound, threads: usize) -> Option<Self> {
        let rows = rows_of_block(program, bound, threads)?;
        let n = usize::try_from(bound.n).ok()?;
        let (count, left) = (n.div_ceil(rows), n % rows);
        // Fewer rows may be fewer than an operator takes.
        let prepared = |rows: usize| {
            let bound = program.bind(i64::try_from(rows).ok()?).ok()?;
            Some(Prepared::new(program, bound.into()))
        };
        let last = if left > 0 { Some(prepared(left)?) } else { None };
        Some(Self { n, rows, each: prepared(rows)?, last, slots: count.min(threads) })
    }

    /// The bytes of the arenas.
    pub(super) fn arenas(&self) -> impl Iterator<Item = usize> {
        std::iter::repeat_n(self.each.bound.devices[0].planned, self.slots)
    }

    /// What the launches of a block run.
    pub(super) fn prepared(&self) -> &Prepared {
        &self.each
    }

    /// Runs all blocks, each in one of the arenas.
    pub(super) fn run(
        &self,
        given: &Given<'_>,
        arenas: &mut [Tensor],
        outputs: &mut [Tensor],
    ) -> Result<Worked, RunError> {
        let outputs = outputs.iter_mut().map(Tensor::bytes_mut).collect();
        let left = Mutex::new(Left { from: 0, outputs });
        let done = Mutex::new(Done::default());
        let slots = arenas.par_iter_mut();
        given.crew.enter(|| {
            slots.each(|arena| {
                while let Some(block) = self.next(&left) {
                    let from = block.rows.start;
                    let outcome = self.block(given, arena.bytes_mut(), block);
                    let mut done = lock(&done);
                    match outcome {
                        Ok(Worked { used, time, .. }) => {
                            let worked = &mut done.worked;
                            worked.used = worked.used.max(used);
                            worked.time += time;
                        }
                        Err(error) => {
                            // Blocks are taken in order: those before this one end, too.
                            lock(&left).from = self.n;
                            if done.failed.as_ref().is_none_or(|(first, _)| from < *first) {
                                done.failed = Some((from, error));
                            }
                        }
                    }
                }
            });
        });
        let Done { worked, failed } = mem::take(&mut *lock(&done));
        if let Some((_, error)) = failed {
            return Err(error);
        }
        let planned = self.arenas().sum::<usize>() as u64;
        Ok(Worked { planned, used: worked.used * self.slots as u64, ..worked })
    }

    /// The next block.
    fn next<'a>(&self, left: &Mutex<Left<'a>>) -> Option<Block<'a>> {
        let mut left = lock(left);
        let rows = left.from..(left.from + self.rows).min(self.n);
        if rows.is_empty() {
            return None;
        }
        let part = rows.len();
        let outputs = left.outputs.iter_mut().map(|all| {
            let bytes = all.len() / (self.n - rows.start) * part;
            let (own, others) = mem::take(all).split_at_mut(bytes);
            *all = others;
            own
        });
        let outputs = outputs.collect();
        left.from = rows.end;
        Some(Block { rows, outputs })
    }

    /// Runs a block.
    fn block(
        &self,
        given: &Given<'_>,
        arena: &mut [u8],
        block: Block<'_>,
    ) -> Result<Worked, RunError> {
        let Block { rows, outputs } = block;
        let ports = given.program.inputs.iter().zip(given.inputs);
        let inputs: Vec<Tensor> = ports
            .map(|(port, tensor)| match (port.ty.shape.first(), tensor.dims().first()) {
                (Some(dim), Some(entries)) if dim.depends_on_batch() => {
                    let each = entries / self.n;
                    tensor.entries(rows.start * each..rows.end * each)
                }
                _ => (*tensor).clone(),
            })
            .collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let last = self.last.as_ref().filter(|_| rows.len() < self.rows);
        let prepared = last.unwrap_or(&self.each); // Most blocks are not the last.
        let own = Given { prepared, inputs: &inputs, progress: None, ..*given };
        let run = Run::new(own, vec![Memory { arena, outputs, updates: Vec::new() }]);
        let done = run.all_devices()?;
        if let Some(progress) = given.progress {
            // The steps of a whole run, in as many parts as there are rows.
            let steps = given.program.devices[0].steps.len();
            let until = |row: usize| (steps * row / self.n) as u64;
            progress.fetch_add(until(rows.end) - until(rows.start), Ordering::Relaxed);
        }
        Ok(invariant(done.into_iter().next(), "that a run of one device tells of it"))
    }
}
