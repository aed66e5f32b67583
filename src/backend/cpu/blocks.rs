//! Runs whose rows are computed some at a time: each thread takes a block of them through all
//! launches. So threads wait for each other once in a run, and what a launch writes is in a cache
//! for the next.

use std::any::Any;
use std::cell::Cell;
use std::mem;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::borders::{Borders, Part};
use super::place::Memory;
use crate::backend::RunError;
use crate::backend::host::{Crew, Few, HostSteps, StepError, crew, lock};
use crate::lower::{Action, Bound, BoundDevice, BufferId, DeviceProgram, Program};
use crate::types::{Dim, Tensor};

/// The bytes of a block's arena, if more rows do not need them: those that a core's caches hold.
const CACHE: usize = 4 << 20;

/// What the arenas of blocks may take beyond that of all rows.
const ROUNDING: usize = 1 << 16;

/// The bytes of rows that each thread moves, at least, for blocks to be worth what they cost: some
/// microseconds. In tests one byte is worth it.
const WORTH: usize = if cfg!(test) { 1 } else { 1 << 16 };

/// Rows of a device that are computed in blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The rows that the device has.
    n: usize,
    /// The rows of a block.
    rows: usize,
    each: Part,
    /// For the last one, if it has fewer.
    last: Option<Part>,
    /// The blocks that are computed at a time.
    slots: usize,
    borders: Borders,
}

/// What the blocks of a device share in a run.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub(super) program: &'a DeviceProgram,
    pub(super) inputs: &'a [&'a Tensor],
    pub(super) params: &'a [Option<Tensor>],
    pub(super) crew: &'a Crew,
    pub(super) progress: Option<&'a AtomicU64>,
    /// Whether another device has failed, so that no more blocks are begun.
    pub(super) is_stopped: &'a (dyn Fn() -> bool + Sync),
}

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
    /// The time that their steps took.
    time: Duration,
    /// The error of the first block that failed, and its first row.
    failed: Option<(usize, RunError)>,
}

/// What a device did in a run.
#[derive(Debug, Default)]
pub(super) struct Worked {
    /// The bytes of its arena.
    pub(super) planned: u64,
    /// Those that it used: one more than the highest.
    pub(super) used: u64,
    /// The time that its steps took.
    pub(super) time: Duration,
}

/// What a panic says.
pub(super) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "a value without text".to_owned())
}

/// The rows of a block; `None` where all rows are better taken at once. One thread gains what the
/// caches hold.
fn rows_of_block(
    device: &DeviceProgram,
    plan: &BoundDevice,
    n: usize,
    threads: usize,
) -> Option<usize> {
    if n < threads {
        return None;
    }
    let Traffic { of_all, of_rows } = traffic(device, plan);
    if of_rows / threads < WORTH {
        return None;
    }
    // What has no rows is read by each block: of its rows it has to move as much.
    let (least, most) = (of_all.div_ceil((of_rows / n).max(1)).max(1), n.div_ceil(threads));
    if least > most {
        return None;
    }
    let in_cache = CACHE / (plan.planned / n).max(1);
    let count = n.div_ceil(in_cache.clamp(least, most));
    // As many for each thread, and none below the least.
    let up = count.next_multiple_of(threads);
    let even = if n.div_ceil(up) < least { count / threads * threads } else { up };
    let rows = n.div_ceil(even.max(threads));
    (rows < n).then_some(rows)
}

/// The bytes that the launches of a device read and write.
struct Traffic {
    /// Of values without rows: parameters, and what follows from them.
    of_all: usize,
    of_rows: usize,
}

fn traffic(device: &DeviceProgram, plan: &BoundDevice) -> Traffic {
    let mut all = Traffic { of_all: 0, of_rows: 0 };
    let launches = device.steps.iter().filter_map(|step| match &step.action {
        Action::Launch(launch) => Some(launch),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    for buffer in launches.flat_map(|launch| launch.operands.iter().chain(&launch.results)) {
        let has_rows = device.buffer(*buffer).ty.shape.iter().any(Dim::depends_on_batch);
        let of = if has_rows { &mut all.of_rows } else { &mut all.of_all };
        *of = of.saturating_add(plan.locations[*buffer].bytes);
    }
    all
}

impl Blocks {
    /// The blocks of a device where what it computes of its rows is apart: for several threads,
    /// where they are better off with some rows each than with a part of each launch. A replica has
    /// one block, if not more: it reads inputs where they are, and its arena is that of others.
    pub(super) fn new(program: &Program, bound: &Bound, d: usize, threads: usize) -> Option<Self> {
        let (device, plan) = (&program.devices[d], &bound.devices[d]);
        let is_alone = program.devices.len() == 1;
        let rows = match device.replicas.as_slice() {
            [] if is_alone => bound.n,
            [replica] if d > 0 => bound.rows[*replica as usize],
            _ => return None,
        };
        let n = usize::try_from(rows).ok().filter(|n| *n > 0 && device.rows_are_apart)?;
        let cut = rows_of_block(device, plan, n, threads);
        let rows = if is_alone { cut? } else { cut.unwrap_or(n) }; // All rows.
        let of = |rows| Self::of(program, bound, d, n, rows, threads);
        of(rows).or_else(|| if is_alone { None } else { of(n) })
    }

    /// Blocks of so many of `n` rows; `None` where there are none, or they take too much memory.
    fn of(
        program: &Program,
        bound: &Bound,
        d: usize,
        n: usize,
        rows: usize,
        threads: usize,
    ) -> Option<Self> {
        let (count, left) = (n.div_ceil(rows), n % rows);
        let borders = Borders::new(program, bound, d)?;
        let last = if left > 0 { Some(borders.part(program, d, left)?) } else { None };
        let each = borders.part(program, d, rows)?;
        let blocks = Self { n, rows, each, last, slots: count.min(threads), borders };
        // The arenas take no more than that of all rows would, but for what rounding adds.
        let taken = blocks.slots.saturating_mul(blocks.arena());
        (taken <= bound.devices[d].planned.saturating_add(ROUNDING)).then_some(blocks)
    }

    /// The blocks that are computed at a time.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// The bytes of an arena. Fewer rows may take more, as they are planned one by one.
    pub(super) fn arena(&self) -> usize {
        // Where all blocks have as many rows there is no other arena to hold.
        let last = self.last.as_ref().map_or(0, |last| last.bound.planned);
        self.each.bound.planned.max(last)
    }

    /// The bytes that are used of all arenas.
    fn used(&self) -> u64 {
        let last = self.last.as_ref().map(|last| last.used);
        last.into_iter().fold(self.each.used, u64::max) * self.slots as u64
    }

    /// The results that other devices copy.
    pub(super) fn results(&self) -> &[BufferId] {
        &self.borders.results
    }

    /// The device that holds the parameters.
    pub(super) fn holder(&self) -> usize {
        self.borders.holder
    }

    /// Runs all blocks, each in one of the arenas, which are as many as slots.
    pub(super) fn run(
        &self,
        shared: &Shared<'_>,
        arenas: &mut [&mut [u8]],
        outputs: Vec<&mut [u8]>,
    ) -> Result<Worked, RunError> {
        let left = Mutex::new(Left { from: 0, outputs });
        let done = Mutex::new(Done::default());
        let all = |arena: &mut [u8]| {
            while let Some(block) = self.next(&left).filter(|_| !(shared.is_stopped)()) {
                let from = block.rows.start;
                let outcome = self.block(shared, arena, block);
                let mut done = lock(&done);
                match outcome {
                    Ok(time) => done.time += time,
                    Err(error) => {
                        // Blocks are taken in order: those before this one end, too.
                        lock(&left).from = self.n;
                        if done.failed.as_ref().is_none_or(|(first, _)| from < *first) {
                            done.failed = Some((from, error));
                        }
                    }
                }
            }
        };
        match arenas {
            [arena] => all(arena),
            arenas => shared.crew.enter(|| {
                // Offered also to members that have work at this moment: blocks take long.
                let count = arenas.len();
                let left: Few<_> = arenas.iter_mut().map(Some).collect();
                let left = Mutex::new(left);
                let work = || {
                    let mut left = lock(&left);
                    // In each run a member has the same one: it finds in its cache what it wrote.
                    let own = crew::number() % count;
                    let free = (own..count).chain(0..own).find_map(|i| left[i].take());
                    drop(left);
                    free.map(|arena| all(arena)).is_some()
                };
                shared.crew.offer(&work, |offered| while offered.work() {});
            }),
        }
        let Done { time, failed } = mem::take(&mut *lock(&done));
        if let Some((_, error)) = failed {
            return Err(error);
        }
        let planned = self.slots as u64 * self.arena() as u64;
        Ok(Worked { planned, used: self.used(), time })
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

    /// Runs a block; returns how long that took.
    fn block(
        &self,
        shared: &Shared<'_>,
        arena: &mut [u8],
        block: Block<'_>,
    ) -> Result<Duration, RunError> {
        let Block { rows, outputs } = block;
        let sources = self.borders.inputs.iter();
        let inputs: Vec<Tensor> =
            sources.map(|source| source.of(shared.inputs[source.input], &rows, self.n)).collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let last = self.last.as_ref().filter(|_| rows.len() < self.rows);
        // Most blocks are not the last.
        let Part { bound, kernels, steps, .. } = last.unwrap_or(&self.each);
        let (begin, at) = (Instant::now(), Cell::new(0));
        let mut memory = Memory { arena, outputs, updates: Vec::new() };
        let Shared { program, params, crew, .. } = *shared;
        let own = HostSteps { program, bound, inputs: &inputs, params, crew };
        let run = || -> Result<(), StepError> {
            for i in steps {
                at.set(*i);
                match &program.steps[*i].action {
                    Action::Launch(launch) => own.launch(kernels.of(*i), launch, &mut memory)?,
                    Action::Copy { from, to, .. } => {
                        own.copy(*from, *to, &mut memory)?;
                    }
                    Action::Wait(_) | Action::Record(_) => {}
                }
            }
            Ok(())
        };
        let failed = |error: StepError| error.at(program.device, &program.steps[at.get()].label);
        catch_unwind(AssertUnwindSafe(run))
            .unwrap_or_else(|panic| {
                Err(StepError::Internal(format!("panic: {}", text_of(&*panic))))
            })
            .map_err(failed)?;
        if let Some(progress) = shared.progress {
            // The steps of a whole run, in as many parts as there are rows.
            let steps = program.steps.len();
            let until = |row: usize| (steps.saturating_mul(row) / self.n) as u64;
            progress.fetch_add(until(rows.end) - until(rows.start), Ordering::Relaxed);
        }
        Ok(begin.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::Blocks;
    use crate::backend::{Backend, CPU, Cpu, RunError, RunOptions, RunOutput};
    use crate::ir::{self, Builder, Weights};
    use crate::lower::{Program, lower};
    use crate::op::{Binary, Flatten, Gather, Reduce, Unary};
    use crate::pass::{Replicate, WeightPlacement, replicate};
    use crate::types::{Device, Tensor};

    fn program() -> (Program, Weights) {
        program_on(1, WeightPlacement::Template)
    }

    /// Rows picked from a table by number, scaled by an input that has no rows; and one number of
    /// each row: on so many devices, with the weights there.
    fn program_on(count: u32, weights_on: WeightPlacement) -> (Program, Weights) {
        let mut build = Builder::new("g");
        let ty = |text: &str| text.parse().unwrap();
        let x = build.input("x", ty("f32[N,4]"));
        let ids = build.input("ids", ty("i64[N]"));
        let factor = build.input("factor", ty("f32[]"));
        let table: Vec<f32> = (0..20).map(|i| (i as f32).cos()).collect();
        let table = build.param("table", Tensor::new(&[5, 4], &table).unwrap());
        let words = build.op("words", Gather { axis: 0 }, &[table, ids]).unwrap();
        let sum = build.op("sum", Binary::Add, &[words, x]).unwrap();
        let y = build.op("y", Binary::Mul, &[sum, factor]).unwrap();
        let s = build.op("s", Reduce::Sum { axes: vec![1], keepdims: false }, &[y]).unwrap();
        build.output("y", y);
        build.output("s", s);
        let (mut graph, weights) = build.finish();
        if count > 1 {
            let devices = Replicate::over((0..count).map(Device::gpu).collect());
            graph = replicate(&graph, &Replicate { weights: weights_on, ..devices }).unwrap();
        }
        (lower(&ir::verify(&graph).unwrap(), &CPU).unwrap(), weights)
    }

    fn inputs(ids: &[i64]) -> BTreeMap<String, Tensor> {
        let x: Vec<f32> = (0..ids.len() * 4).map(|i| (i as f32).sin()).collect();
        let all = [
            ("x", Tensor::new(&[ids.len(), 4], &x).unwrap()),
            ("ids", Tensor::new(&[ids.len()], ids).unwrap()),
            ("factor", Tensor::scalar(1.5f32)),
        ];
        all.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
    }

    fn run(threads: usize, ids: &[i64], options: &RunOptions) -> Result<RunOutput, RunError> {
        run_on(1, WeightPlacement::Template, threads, ids, options)
    }

    /// On so many devices, with the weights there.
    fn run_on(
        devices: u32,
        weights_on: WeightPlacement,
        threads: usize,
        ids: &[i64],
        options: &RunOptions,
    ) -> Result<RunOutput, RunError> {
        let (program, weights) = program_on(devices, weights_on);
        let executable = Cpu::new(threads).unwrap().compile(program, &weights).unwrap();
        executable.run(&inputs(ids), options)
    }

    #[test]
    fn blocks_give_the_rows_that_all_give() {
        for n in 0..40 {
            let ids: Vec<i64> = (0..n).map(|i| i % 5).collect();
            let whole = run(1, &ids, &RunOptions::default()).unwrap();
            for threads in [2, 3, 8] {
                let progress = Arc::new(AtomicU64::new(0));
                let options = RunOptions { progress: Some(progress.clone()), ..Default::default() };
                let own = run(threads, &ids, &options).unwrap();
                for ((name, own), (_, whole)) in own.outputs.iter().zip(&whole.outputs) {
                    assert_eq!(own.bytes(), whole.bytes(), "{name} of {n} rows by {threads}");
                }
                let steps = program().0.devices[0].steps.len() as u64;
                assert_eq!(progress.load(Ordering::Relaxed), steps);
            }
        }
    }

    #[test]
    fn replicas_in_blocks_give_the_rows_that_one_device_gives() {
        for (weights, n) in [(WeightPlacement::Template, 23), (WeightPlacement::Mirrored, 40)] {
            let ids: Vec<i64> = (0..n).map(|i| i * 3 % 5).collect();
            let whole = run(1, &ids, &RunOptions::default()).unwrap();
            for devices in [2, 3, 7] {
                let (program, _) = program_on(devices, weights);
                let bound = program.bind(n).unwrap();
                let blocks = |d| Blocks::new(&program, &bound, d, 1);
                assert!((1..program.devices.len()).all(|d| blocks(d).is_some()));
                for threads in [1, 2, 5, 16] {
                    let progress = Arc::new(AtomicU64::new(0));
                    let options =
                        RunOptions { progress: Some(progress.clone()), ..Default::default() };
                    let own = run_on(devices, weights, threads, &ids, &options).unwrap();
                    for ((name, own), (_, whole)) in own.outputs.iter().zip(&whole.outputs) {
                        let what = format!("{name} on {devices} devices by {threads} threads");
                        assert_eq!(own.bytes(), whole.bytes(), "{what}");
                    }
                    let steps: usize = program.devices.iter().map(|d| d.steps.len()).sum();
                    assert_eq!(progress.load(Ordering::Relaxed), steps as u64);
                }
            }
        }
    }

    #[test]
    fn replicas_whose_results_lie_elsewhere_have_no_blocks() {
        let mut build = Builder::new("g");
        let x = build.input("x", "f32[N,2,3]".parse().unwrap());
        let y = build.op("y", Unary::Neg, &[x]).unwrap();
        let flat = build.op("flat", Flatten { axis: 1 }, &[y]).unwrap();
        let other = build.op("other", Unary::Abs, &[flat]).unwrap();
        let results = [("x", x), ("flat", flat), ("other", other)];
        for (name, result) in results {
            let mut build = Builder::over(build.graph().clone(), Weights::default());
            build.output(name, result);
            build.output("more", other);
            let (graph, weights) = build.finish();
            let lowered = |graph: &ir::Graph| lower(&ir::verify(graph).unwrap(), &CPU).unwrap();
            let devices = (0..3).map(Device::gpu).collect();
            let split = lowered(&replicate(&graph, &Replicate::over(devices)).unwrap());
            let blocks = Blocks::new(&split, &split.bind(11).unwrap(), 2, 1);
            assert_eq!(blocks.is_some(), name == "other", "{name}");
            let x: Vec<f32> = (0..66).map(|i| i as f32 - 30.0).collect();
            let inputs = BTreeMap::from([("x".to_owned(), Tensor::new(&[11, 2, 3], &x).unwrap())]);
            let run = |program| {
                let executable = Cpu::new(2).unwrap().compile(program, &weights).unwrap();
                let outputs = executable.run(&inputs, &RunOptions::default()).unwrap().outputs;
                outputs.into_iter().map(|(_, t)| t.bytes().to_vec()).collect::<Vec<_>>()
            };
            assert_eq!(run(split), run(lowered(&graph)), "{name}");
        }
    }

    #[test]
    fn a_replica_that_fails_ends_the_run() {
        let mut ids = [1; 12];
        ids[7] = 9;
        for threads in [1, 4] {
            let (on, options) = (WeightPlacement::Mirrored, RunOptions::default());
            let error = run_on(4, on, threads, &ids, &options).unwrap_err();
            assert!(error.to_string().contains("on gpu:2"), "{error}");
        }
    }

    #[test]
    fn blocks_are_as_many_for_each_thread() {
        let (program, _) = program();
        let blocks = |n, threads| {
            let blocks = Blocks::new(&program, &program.bind(n).unwrap(), 0, threads);
            blocks.map(|blocks| (blocks.rows, blocks.last.is_some(), blocks.slots))
        };
        // One thread gains nothing from what caches hold in any case.
        assert_eq!(blocks(64, 1), None);
        assert_eq!(blocks(1, 2), None);
        assert_eq!(blocks(2, 2), Some((1, false, 2)));
        assert_eq!(blocks(64, 2), Some((32, false, 2)));
        assert_eq!(blocks(65, 4), Some((17, true, 4)));
    }

    #[test]
    #[cfg(feature = "zoo")]
    fn blocks_read_no_more_weights_than_they_move_beside_them() {
        let (graph, _) = crate::zoo::build("mlp").unwrap();
        let program = lower(&ir::verify(&graph).unwrap(), &CPU).unwrap();
        let is_cut = |n| Blocks::new(&program, &program.bind(n).unwrap(), 0, 2).is_some();
        assert!(!is_cut(32) && is_cut(1024));
    }

    #[test]
    fn the_error_is_that_of_the_first_row() {
        let mut ids = [1; 64];
        (ids[20], ids[60]) = (7, 9);
        let said = |threads| run(threads, &ids, &RunOptions::default()).unwrap_err().to_string();
        assert_eq!(said(4), said(1));
        assert!(said(4).contains('7'), "{}", said(4));
    }
}
