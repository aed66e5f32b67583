//! Programs beside each other on one GPU with little memory: what one keeps for later gives way to
//! what another needs.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use fanwise::backend::cuda::Cuda;
use fanwise::backend::{CUDA, Executable, RunError, RunOptions, RunOutput, Staged};
use fanwise::internal::CudaExecutable;
use fanwise::ir::{Graph, Weights, parse, verify};
use fanwise::lower::lower;
use fanwise::types::Tensor;
use libtest_mimic::Trial;

use crate::apart::{Ended, spawn};
use crate::results::trial;
use crate::setup::{Tensors, digest, options, replicas, say};

/// Elements of a row.
const ROW: usize = 4096;

/// Rows of a batch.
const ROWS: usize = 64;

/// How often a run that is short meets an intake that is being filled.
const TIMES: usize = 24;

/// The bytes in which kernels say which element they cannot take.
const WORD: usize = 8;

/// How long the device may make no progress where a kernel never ends.
const WATCHDOG: Duration = Duration::from_secs(1);

/// Sums of squares.
const SQUARES: &str = "fanwise 1
symbol N >= 0
graph @squares(%x: f32[N,4096]) -> (y: f32[N]) {
  %y : f32[N] = reduce_sum_square(%x) {axes=[1], keepdims=false}
  return %y
}
";

/// The tests, which start processes, for the fake driver.
pub(crate) fn disturbed() -> Vec<Trial> {
    vec![
        trial("an_idle_intake_gives_way_to_another_program", || gives_way("idle")),
        trial("an_idle_arena_gives_way_to_another_program", an_idle_arena_gives_way),
        trial("a_run_without_memory_beside_another_waits", a_run_waits_for_another),
        trial("a_staged_intake_gives_way_to_another_program", || gives_way("staged")),
        trial("an_intake_that_is_filled_gives_way", an_intake_that_is_filled_gives_way),
        trial("a_copy_that_never_ends_is_of_its_gpu", a_copy_that_never_ends),
        trial("what_gives_way_on_a_device_that_hangs_is_not_waited_for", on_a_device_that_hangs),
    ]
}

fn squares() -> Graph {
    replicas(&parse(SQUARES).unwrap_or_else(|e| panic!("{e}")), 1, 1)
}

fn batch(rows: usize) -> Tensors {
    let data: Vec<f32> = (0u8..=250).cycle().take(rows * ROW).map(f32::from).collect();
    BTreeMap::from([("x".to_owned(), Tensor::new(&[rows, ROW], &data).unwrap())])
}

/// Two programs that are ready on the same GPU.
fn two(watchdog: Option<Duration>) -> [CudaExecutable; 2] {
    let mut options = options(1);
    options.watchdog = watchdog.unwrap_or(options.watchdog);
    let cuda = Cuda::new(options).unwrap_or_else(|e| panic!("{e}"));
    [(), ()].map(|()| {
        let verified = squares();
        let program = lower(&verify(&verified).unwrap_or_else(|e| panic!("{e}")), &CUDA);
        cuda.executable(program.unwrap(), &Weights::default()).unwrap_or_else(|e| panic!("{e}"))
    })
}

/// The bytes of an arena for so many rows, and of their input.
fn sizes(rows: usize) -> (usize, usize) {
    let graph = squares();
    let program = lower(&verify(&graph).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap();
    let arena = program.bind(i64::try_from(rows).unwrap()).unwrap().devices[1].planned;
    (arena, batch(rows)["x"].bytes().len())
}

fn tell(result: Result<RunOutput, RunError>) {
    match result {
        Ok(output) => {
            let outputs: Vec<_> = output.outputs.into_iter().map(|(_, tensor)| tensor).collect();
            say(&format!("outputs {}", digest(&outputs)));
        }
        Err(error) => say(&format!("error: {error}")),
    }
}

/// Three threads run one program.
fn crowded(x: &Tensors, how: &RunOptions) {
    let [run, _] = two(None);
    let several = || (0..4).map(|_| run.run(x, how)).collect::<Vec<_>>();
    let results = thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(several));
        threads.map(|thread| thread.join().unwrap())
    });
    results.into_iter().flatten().for_each(tell);
}

/// One process of a test.
pub(crate) fn scenario(way: &str) {
    let how = RunOptions::default();
    let x = batch(ROWS);
    match way {
        "idle" => {
            let [trainer, evaluator] = two(None);
            tell(trainer.stage(&x, &how).and_then(Staged::run));
            tell(evaluator.run(&x, &how));
            tell(trainer.run(&x, &how));
        }
        "arena" => {
            let [trainer, evaluator] = two(None);
            for run in [&trainer, &evaluator, &trainer, &trainer, &evaluator] {
                tell(run.run(&x, &how));
            }
        }
        "crowded" => crowded(&x, &how),
        "staged" => {
            let [trainer, evaluator] = two(None);
            tell(trainer.run(&x, &how));
            let staged = trainer.stage(&x, &how);
            tell(evaluator.run(&x, &how));
            tell(staged.and_then(Staged::run));
        }
        "filled" => {
            let [run, _] = two(None);
            thread::scope(|scope| {
                let stager = scope.spawn(|| {
                    for _ in 0..TIMES {
                        drop(run.stage(&x, &how).unwrap_or_else(|e| panic!("{e}")));
                    }
                });
                // Each needs a larger arena than the one before.
                for time in 1..=TIMES {
                    tell(run.run(&batch(ROWS + time), &how));
                }
                stager.join().unwrap();
            });
        }
        "copying" => {
            let [run, _] = two(Some(WATCHDOG));
            (0..2).for_each(|_| tell(run.run(&x, &how)));
        }
        _ => {
            let [trainer, evaluator] = two(Some(WATCHDOG));
            thread::scope(|scope| {
                scope.spawn(|| tell(trainer.run(&x, &how)));
                thread::sleep(WATCHDOG / 4);
                let growing = (1..=4).map(|by| trainer.stage(&batch(by * ROWS / 8), &how));
                growing.collect::<Vec<_>>().into_iter().for_each(drop);
                tell(evaluator.run(&x, &how));
            });
            tell(trainer.stage(&x, &how).and_then(Staged::run));
        }
    }
}

fn process(way: &str, variables: &[(&str, &str)]) -> Ended {
    spawn(&["--scenario", &format!("beside/{way}")], variables)
}

/// The runs of a process whose GPU has so many bytes are those of one with plenty.
fn assert_as_with_plenty(way: &str, memory: usize) {
    let ended = process(way, &[("FAKECUDA_MEMORY", &memory.to_string())]);
    let plenty = process(way, &[]);
    assert!(plenty.success && plenty.report.is_empty(), "{plenty:?}");
    assert!(plenty.output.lines().all(|line| line.starts_with("outputs ")), "{plenty:?}");
    assert!(ended.success && ended.report.is_empty(), "{ended:?}");
    assert_eq!(ended.output, plenty.output, "{ended:?}");
}

fn gives_way(way: &str) {
    let (arena, input) = sizes(ROWS);
    assert_as_with_plenty(way, 2 * arena + input / 2);
}

/// Memory suffices for one arena.
fn an_idle_arena_gives_way() {
    let (arena, input) = sizes(ROWS);
    assert_as_with_plenty("arena", arena + input / 2);
}

/// Memory suffices for the kernels and one run, and not for the word of another.
fn a_run_waits_for_another() {
    let (arena, _) = sizes(ROWS);
    assert_as_with_plenty("crowded", arena + 2 * WORD - 1);
}

fn an_intake_that_is_filled_gives_way() {
    let (arena, input) = sizes(ROWS + TIMES);
    assert_as_with_plenty("filled", arena + input / 2);
}

/// The first launch never ends, and memory suffices for one arena and the intakes.
fn on_a_device_that_hangs() {
    let (arena, input) = sizes(ROWS);
    let memory = (arena + 3 * input / 2).to_string();
    let ended =
        process("hanging", &[("FAKECUDA_FAIL", "launch@1:hang"), ("FAKECUDA_MEMORY", &memory)]);
    assert!(ended.success, "{ended:?}");
    let lines: Vec<&str> = ended.output.lines().collect();
    assert_eq!(lines.len(), 3, "{ended:?}");
    for line in lines {
        let named = line.contains("gpu:0 made no progress for 1s at `");
        assert!(named && !line.contains("()"), "{line}");
    }
}

/// Of the input to the GPU, and of the output from it.
fn a_copy_that_never_ends() {
    for (at, what) in [(1, "`x."), (2, "`y")] {
        let fail = format!("copy@{at}:hang");
        let ended = process("copying", &[("FAKECUDA_FAIL", &fail)]);
        assert!(ended.success, "{fail}: {ended:?}");
        let lines: Vec<&str> = ended.output.lines().collect();
        let [first, second] = lines[..] else { panic!("{fail}: {ended:?}") };
        let named = first.starts_with("error: gpu:0 made no progress for 1s at `");
        assert!(named && first.contains(what) && first.contains("(copy)"), "{fail}: {first}");
        assert!(second.contains("can no longer be used"), "{fail}: {second}");
    }
}
