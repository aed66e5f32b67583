//! The fake driver with failures injected and streams in other orders: no hang, no leak, no access out of order, and
//! either the right outputs or an error.

use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fanwise::backend::cuda::Cuda;
use fanwise::backend::{Executable, RunOptions};
use fanwise::ir::verify;
use fanwise::lower::{Action, BufferId, Program, Storage, lower};
use fanwise::types::{Dim, Target};
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::setup::{digest, inputs, is_fake, options, replicas, say, small};

/// How long one process may take.
const LIMIT: Duration = Duration::from_mins(2);

/// The calls at which a failure is injected one by one; of those behind, every seventh.
const EACH: u64 = 150;

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, test: fn()| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    };
    let mut trials = vec![trial("a_kernel_that_fails_is_named", a_kernel_that_fails_is_named)];
    if is_fake() {
        trials.extend([
            trial("failures_at_every_call", failures_at_every_call),
            trial("failures_of_every_kind", failures_of_every_kind),
            trial("a_code_that_nobody_knows_is_told", a_code_that_nobody_knows_is_told),
            trial("streams_in_every_order", streams_in_every_order),
            trial("a_kernel_that_never_ends_is_named", a_kernel_that_never_ends_is_named),
            trial("memory_that_is_too_small_is_said", memory_that_is_too_small_is_said),
        ]);
    }
    trials
}

/// What a process said and how it ended.
#[derive(Debug)]
struct Ended {
    success: bool,
    output: String,
    report: String,
    calls: u64,
}

/// Runs a scenario in a process of its own, whose driver reads these variables.
fn spawn(scenario: &str, variables: &[(&str, &str)]) -> Ended {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--scenario", scenario]).stdout(Stdio::piped()).stderr(Stdio::null());
    command.env("FAKECUDA_REPORT", file("report")).env("FAKECUDA_STATS", file("stats"));
    command.envs(variables.iter().copied());
    let mut child = command.spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).map(|_| text)
    });
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{scenario} with {variables:?} hangs");
        }
        thread::sleep(Duration::from_millis(5));
    };
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let calls = read(&file("stats")).lines().find_map(|l| l.strip_prefix("calls ")?.parse().ok());
    Ended {
        success: status.success(),
        output: reader.join().unwrap().unwrap(),
        report: read(&file("report")),
        calls: calls.unwrap_or(0),
    }
}

/// One process of a test: two runs of a model on replicas, with what the driver is told to do.
pub(crate) fn scenario(name: &str) -> ExitCode {
    let is_damaged = name.starts_with("damaged/");
    let (model, count) = name.trim_start_matches("damaged/").split_once('/').unwrap();
    let count = count.parse().unwrap();
    let (graph, weights) = small(model);
    let split = replicas(&graph, count, u64::from(count));
    let inputs = inputs(&graph, 5, &mut ChaCha8Rng::seed_from_u64(9));
    let lowered = lower(&verify(&split).unwrap_or_else(|e| panic!("{e}")), &Target::CUDA);
    let mut program = lowered.unwrap();
    if is_damaged {
        damage(&mut program);
    }
    let mut options = options(count);
    let hangs = std::env::var("FAKECUDA_FAIL").is_ok_and(|fail| fail.ends_with("hang"));
    options.watchdog = Duration::from_secs(if hangs { 2 } else { 20 });
    let ready = Cuda::new(options).and_then(|cuda| cuda.executable(program, &weights));
    let run = match ready {
        Ok(run) => run,
        Err(error) => {
            say(&format!("error: {error}"));
            return ExitCode::SUCCESS;
        }
    };
    for _ in 0..3 {
        match run.run(&inputs, &RunOptions::default()) {
            Ok(output) => {
                let outputs: Vec<_> = output.outputs.into_iter().map(|(_, t)| t).collect();
                say(&format!("outputs {}", digest(&outputs)));
            }
            Err(error) => say(&format!("error: {error}")),
        }
    }
    ExitCode::SUCCESS
}

/// Lets the first launch of the first GPU write far outside of all memory.
fn damage(program: &mut Program) {
    let device = &mut program.devices[1];
    let result = device.steps.iter().find_map(|step| match &step.action {
        Action::Launch(launch) => Some(device.root(launch.results[0])),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    let result = result.unwrap();
    let arena = |(_, b): &(u32, &fanwise::lower::Buffer)| b.storage == Storage::Arena;
    let other = (0..).zip(&device.buffers).filter(arena).find(|(i, _)| *i != result.0);
    let of = BufferId(other.unwrap().0);
    device.buffers[result.index()].storage = Storage::Part { of, offset: Dim::from(1i64 << 44) };
}

/// It makes the device unusable, which the next runs say.
fn a_kernel_that_fails_is_named() {
    let ended = spawn("damaged/two_head/2", &[]);
    assert!(ended.success, "{ended:?}");
    let lines: Vec<&str> = ended.output.lines().collect();
    let [first, second, third] = lines[..] else { panic!("{ended:?}") };
    for word in ["error: `", "gpu:0", "CUDA_ERROR_ILLEGAL_ADDRESS"] {
        assert!(first.contains(word), "{first}");
    }
    assert!(second.contains("can no longer be used") && second == third, "{ended:?}");
}

/// The watchdog ends the run, and nothing then waits for the device: not the executable's end, not the process'.
fn a_kernel_that_never_ends_is_named() {
    for at in [1, 2, 4] {
        let fail = format!("launch@{at}:hang");
        let ended = spawn("two_head/2", &[("FAKECUDA_FAIL", &fail)]);
        assert!(ended.success, "{fail}: {ended:?}");
        let mut lines = ended.output.lines().skip_while(|line| line.starts_with("outputs "));
        let first = lines.next().unwrap_or_default();
        assert!(first.contains("gpu:") && first.contains("no progress"), "{fail}: {ended:?}");
        assert!(lines.all(|line| line.contains("can no longer be used")), "{fail}: {ended:?}");
    }
}

/// The outputs without failures, and the calls of the driver that it takes.
fn undisturbed(scenario: &str) -> (String, u64) {
    let ended = spawn(scenario, &[]);
    assert!(ended.success && ended.report.is_empty(), "{ended:?}");
    let first = ended.output.lines().next().unwrap().to_owned();
    assert!(first.starts_with("outputs "), "{ended:?}");
    assert!(ended.output.lines().all(|line| line == first), "{ended:?}");
    (first, ended.calls)
}

/// Fails unless each line is an error or the right outputs, and the driver has nothing to say.
fn assert_sound(ended: &Ended, right: &str, what: &str) {
    assert!(ended.success, "{what}: {ended:?}");
    assert!(ended.report.is_empty(), "{what}: {ended:?}");
    for line in ended.output.lines() {
        assert!(line == right || line.starts_with("error: "), "{what}: {ended:?}");
        // What failed is named, with the device and the code.
        let is_named =
            !line.contains("CUDA_ERROR") || line.contains("gpu:") || line.contains("cpu:");
        assert!(is_named || line.contains("libcuda"), "{what}: {line}");
    }
}

fn failures_at_every_call() {
    for scenario in ["two_head/2", "nested/1"] {
        let (right, calls) = undisturbed(scenario);
        assert!(calls > 0);
        let at = (1..=calls).filter(|at| *at <= EACH || at % 7 == 0);
        for at in at {
            let fail = format!("any@{at}:out_of_memory");
            let ended = spawn(scenario, &[("FAKECUDA_FAIL", &fail)]);
            assert_sound(&ended, &right, &format!("{scenario} with {fail}"));
        }
    }
}

fn failures_of_every_kind() {
    let scenario = "two_head/3";
    let (right, _) = undisturbed(scenario);
    for class in ["launch", "copy", "sync", "alloc"] {
        for code in ["illegal_address", "launch_failed", "device_lost", "out_of_memory"] {
            for at in [1, 2, 7] {
                let fail = format!("{class}@{at}:{code}");
                let ended = spawn(scenario, &[("FAKECUDA_FAIL", &fail)]);
                assert_sound(&ended, &right, &format!("{scenario} with {fail}"));
            }
        }
    }
}

/// A driver may be newer than this.
fn a_code_that_nobody_knows_is_told() {
    let scenario = "two_head/2";
    let (right, _) = undisturbed(scenario);
    for class in ["any", "launch", "copy", "sync", "alloc"] {
        let fail = format!("{class}@3:4321");
        let ended = spawn(scenario, &[("FAKECUDA_FAIL", &fail)]);
        assert_sound(&ended, &right, &format!("{scenario} with {fail}"));
        assert!(ended.output.contains("(4321)"), "{fail}: {ended:?}");
    }
}

fn streams_in_every_order() {
    for scenario in ["two_head/3", "nested/2", "siamese/4", "transformer/2"] {
        let (right, _) = undisturbed(scenario);
        for order in ["late", "lifo", "random:1", "random:2", "random:3"] {
            let ended = spawn(scenario, &[("FAKECUDA_ORDER", order)]);
            let what = format!("{scenario} in the order {order}");
            assert_sound(&ended, &right, &what);
            assert!(!ended.output.contains("error: "), "{what}: {ended:?}");
        }
    }
}

fn memory_that_is_too_small_is_said() {
    let ended = spawn("nested/1", &[("FAKECUDA_MEMORY", "16384")]);
    assert_sound(&ended, "", "16 KiB of memory");
    assert!(
        ended.output.contains("has no memory for") && ended.output.contains("are free"),
        "{ended:?}"
    );
}
