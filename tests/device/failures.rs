//! The fake driver with failures injected: no hang, no leak, and either the right outputs or an
//! error that names the operator, the device and the code.

use std::collections::BTreeSet;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use fanwise::backend::cuda::Cuda;
use fanwise::backend::{CUDA, Executable, RunError, RunOptions, RunOutput, Staged};
use fanwise::ir::verify;
use fanwise::lower::{Action, BufferId, DeviceProgram, Program, Storage, lower};
use fanwise::types::Dim;
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use support::turn::part;

use crate::apart::{Ended, spawn};
use crate::collectives::needy;
use crate::results::trial;
use crate::setup::{digest, inputs, is_fake, options, replicas, say, small};
use crate::variables;

/// What a call that fails gives, by its name for the fake driver.
const CODES: [&str; 3] = ["out_of_memory", "device_lost", "illegal_address"];

/// Asked also when a stream ends or what it has done is looked at: then nobody is told of a
/// failure, but the next call that meets it. The host asks of GPUs whose own workers ask, too.
const QUESTION: &str = "cuStreamQuery";

/// Questions and waits: what they meet is of work before, which another call may meet first.
const QUESTIONS: [&str; 3] = [QUESTION, "cuEventQuery", "cuEventSynchronize"];

/// Functions that a run does without for want of memory when its inputs are to come before it: they
/// come with it.
const ASIDE: [&str; 7] = [
    "cuMemAlloc",
    "cuMemHostAlloc",
    "cuStreamCreate",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventRecord",
    "cuMemcpyHtoDAsync",
];

/// Functions of whose failure for want of memory the error says more than their names.
const MEMORY: [&str; 4] = ["cuMemAlloc", "cuMemHostAlloc", "cuStreamCreate", "cuEventCreate"];

/// Functions that take something of a GPU, whoever calls them.
const OF_GPUS: [&str; 3] = ["cuMemAlloc", "cuStreamCreate", "cuEventCreate"];

/// What runs do without for want of memory: kernels are launched one by one then, and tried again.
const GRAPH: [&str; 4] = ["cuGraphInstantiate", "cuGraphUpload", "cuGraphLaunch", "cuLaunchKernel"];

/// Functions that order streams: that another call on the GPU fails is nearer to a cause.
const MARKS: [&str; 2] = ["cuStreamWaitEvent", "cuEventRecord"];

/// Programs of which every call fails once, with one code after the other.
const EVERY_CALL: [&str; 3] = ["staged/nested/1", "gru/2", "needy/2"];

/// Commits take the calls in turns: one in so many.
const PARTS: usize = 4;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![trial("a_kernel_that_fails_is_named", a_kernel_that_fails_is_named)];
    if is_fake() {
        trials.extend([
            trial("failures_of_every_kind", failures_of_every_kind),
            trial("failures_on_a_shared_gpu", a_failure_on_a_shared_gpu_names_its_device),
            trial("a_code_that_nobody_knows_is_told", a_code_that_nobody_knows_is_told),
            trial("a_kernel_that_never_ends_is_named", a_kernel_that_never_ends_is_named),
            trial("a_gpu_that_is_slow_is_waited_for", a_gpu_that_is_slow_is_waited_for),
            trial("a_process_that_was_stopped_goes_on", a_process_that_was_stopped_goes_on),
            trial("memory_that_is_too_small_is_said", memory_that_is_too_small_is_said),
            trial("pinned_memory_that_is_too_small_is_said", pinned_memory_is_said),
        ]);
        trials.extend(EVERY_CALL.map(|scenario| {
            let name = format!("failures_at_every_call_of_{scenario}");
            trial(name, move || failures_at_every_call(scenario))
        }));
    }
    trials
}

/// Runs a scenario in a process of its own, whose driver reads these variables.
pub(crate) fn disturbed(scenario: &str, variables: &[(&str, &str)]) -> Ended {
    spawn(&["--scenario", scenario], variables)
}

/// One process of a test: two runs of a model on replicas, with what the driver is told to do.
pub(crate) fn scenario(name: &str) -> ExitCode {
    if let Some(way) = name.strip_prefix("train/") {
        return variables::scenario(way);
    }
    let (is_damaged, is_staged) = (name.starts_with("damaged/"), name.starts_with("staged/"));
    let is_stopped = name.starts_with("stopped/");
    let mut words = name.rsplit('/');
    let count = words.next().unwrap().parse().unwrap();
    let model = words.next().unwrap();
    let (graph, split, weights) = if model == "needy" {
        needy(count, 1)
    } else {
        let (graph, weights) = small(model);
        let split = replicas(&graph, count, u64::from(count));
        (graph, split, weights)
    };
    let inputs = inputs(&graph, 5, &mut ChaCha8Rng::seed_from_u64(9));
    let lowered = lower(&verify(&split).unwrap_or_else(|e| panic!("{e}")), &CUDA);
    let mut program = lowered.unwrap();
    if is_damaged {
        damage(&mut program);
    }
    let mut options = options(count);
    let hangs = std::env::var("FAKECUDA_FAIL").is_ok_and(|fail| fail.ends_with("hang"));
    let asked = std::env::var("FANWISE_WATCHDOG").ok().and_then(|text| text.parse().ok());
    options.watchdog = Duration::from_millis(asked.unwrap_or(if hangs { 2000 } else { 300_000 }));
    let ready = Cuda::new(options).and_then(|cuda| cuda.executable(program, &weights));
    let run = match ready {
        Ok(run) => {
            run.warnings().iter().for_each(|warning| say(&format!("note: {warning}")));
            run
        }
        Err(error) => {
            say(&format!("not ready: {error}"));
            return ExitCode::SUCCESS;
        }
    };
    let tell = |result: Result<RunOutput, RunError>| match result {
        Ok(output) => {
            let outputs: Vec<_> = output.outputs.into_iter().map(|(_, t)| t).collect();
            say(&format!("outputs {}", digest(&outputs)));
        }
        Err(error) => say(&format!("error: {error}")),
    };
    let options = RunOptions::default();
    let stops = is_stopped.then(stop_soon);
    if is_staged {
        // One is never run; another comes while one runs, as in a row of batches.
        let (first, dropped) = (run.stage(&inputs, &options), run.stage(&inputs, &options));
        tell(first.and_then(Staged::run));
        let next = run.stage(&inputs, &options);
        drop(dropped);
        tell(next.and_then(Staged::run));
    }
    for _ in 0..if is_staged { 1 } else { 3 } {
        tell(run.run(&inputs, &options));
    }
    stops.into_iter().for_each(assert_over);
    ExitCode::SUCCESS
}

/// Stops this process for two seconds, a moment from now.
fn stop_soon() -> Child {
    let script = "sleep 0.2; kill -STOP $PPID; sleep 2; kill -CONT $PPID";
    Command::new("sh").args(["-c", script]).spawn().unwrap()
}

/// Fails unless the stop is over when the runs are: it fell into one then.
fn assert_over(mut stop: Child) {
    let end = stop.try_wait().unwrap();
    assert!(end.is_some_and(|end| end.success()), "the process was not stopped in a run");
}

/// The buffer in which the bytes of another one lie.
fn root(device: &DeviceProgram, id: BufferId) -> BufferId {
    match device.buffers[id.0 as usize].storage {
        Storage::Part { of, .. } | Storage::Strip { of, .. } => of,
        Storage::Input(_)
        | Storage::Output(_)
        | Storage::Param(_)
        | Storage::Update(_)
        | Storage::Arena
        | Storage::Reuse { .. } => id,
    }
}

/// Lets the first launch of the first GPU write far outside of all memory.
fn damage(program: &mut Program) {
    let device = &mut program.devices[1];
    let result = device.steps.iter().find_map(|step| match &step.action {
        Action::Launch(launch) => Some(root(device, launch.results[0])),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    let result = result.unwrap();
    let arena = |(_, b): &(u32, &fanwise::lower::Buffer)| b.storage == Storage::Arena;
    let other = (0..).zip(&device.buffers).filter(arena).find(|(i, _)| *i != result.0);
    let of = BufferId(other.unwrap().0);
    device.buffers[result.0 as usize].storage = Storage::Part { of, offset: Dim::from(1i64 << 44) };
}

/// It makes the device unusable, which the next runs say.
fn a_kernel_that_fails_is_named() {
    let ended = disturbed("damaged/two_head/2", &[]);
    assert!(ended.success, "{ended:?}");
    let lines: Vec<&str> = ended.output.lines().collect();
    let [first, second, third] = lines[..] else { panic!("{ended:?}") };
    for word in ["error: `", "gpu:0", "CUDA_ERROR_ILLEGAL_ADDRESS"] {
        assert!(first.contains(word), "{first}");
    }
    assert!(second.contains("can no longer be used") && second == third, "{ended:?}");
}

/// The watchdog ends the run, and nothing then waits for the device: not the executable's end, not
/// the process'.
fn a_kernel_that_never_ends_is_named() {
    const GRAPH: u32 = 7;

    // The last is the first launch of the second run, whose kernels are in graphs.
    for at in [1, 2, 4, GRAPH] {
        let fail = format!("launch@{at}:hang");
        let ended = disturbed("two_head/2", &[("FAKECUDA_FAIL", &fail)]);
        assert!(ended.success, "{fail}: {ended:?}");
        let mut lines = ended.output.lines().skip_while(|line| line.starts_with("outputs "));
        let first = lines.next().unwrap_or_default();
        assert!(first.contains("gpu:") && first.contains("no progress"), "{fail}: {ended:?}");
        let is_graph = first.contains("(graph)") && ended.output.starts_with("outputs ");
        assert!(at != GRAPH || is_graph, "{fail}: {ended:?}");
        assert!(lines.all(|line| line.contains("can no longer be used")), "{fail}: {ended:?}");
    }
}

/// A graph of many kernels takes longer than the watchdog waits for a sign of progress, though none
/// of them does.
fn a_gpu_that_is_slow_is_waited_for() {
    assert_waited_for("nested/1");
}

/// To stop the process, as Ctrl-Z does, for longer than the watchdog waits is no fault of the GPU.
fn a_process_that_was_stopped_goes_on() {
    assert_waited_for("stopped/nested/1");
}

/// Fails unless slow kernels give the right outputs under a watchdog that waits for one of them.
fn assert_waited_for(scenario: &str) {
    let (right, _) = undisturbed("nested/1");
    let slow = [("FAKECUDA_SLOW", "150"), ("FANWISE_WATCHDOG", "1000")];
    let ended = disturbed(scenario, &slow);
    assert_sound(&ended, &right, scenario);
    assert!(ended.output.lines().all(|line| line == right), "{ended:?}");
}

/// The outputs without failures, and the calls of the driver that it takes.
pub(crate) fn undisturbed(scenario: &str) -> (String, u64) {
    let ended = disturbed(scenario, &[]);
    assert!(ended.success && ended.report.is_empty(), "{ended:?}");
    let first = ended.output.lines().next().unwrap().to_owned();
    assert!(first.starts_with("outputs "), "{ended:?}");
    assert!(ended.output.lines().all(|line| line == first), "{ended:?}");
    (first, ended.calls)
}

/// Fails unless each line is an error or the right outputs, and the driver has nothing to say.
pub(crate) fn assert_sound(ended: &Ended, right: &str, what: &str) {
    assert!(ended.success, "{what}: {ended:?}");
    assert!(ended.report.is_empty(), "{what}: {ended:?}");
    let is_note = |line: &str| line.starts_with("note: direct copies from GPU ");
    for line in ended.output.lines().filter(|line| *line != right && !is_note(line)) {
        let on_device = line.contains("gpu:") || line.contains("cpu:");
        // What failed is named, with the device and the code.
        let named = if let Some(error) = line.strip_prefix("error: ") {
            let other = ["can no longer be used", "has no memory for"];
            on_device && (error.starts_with('`') || other.iter().any(|text| error.contains(text)))
        } else {
            line.starts_with("not ready: ") && (on_device || line.contains("libcuda"))
        };
        assert!(named, "{what}: {line}");
    }
}

/// Fails unless the error that comes first names the call that failed, or it is one that runs do
/// without. A device that is lost takes copies of others from it along, each of which may be told
/// first.
fn assert_named(ended: &Ended, right: &str, what: &str) {
    let failed = ended.failed.as_ref().unwrap_or_else(|| panic!("{what}: no call failed"));
    let function = failed.function.trim_end_matches("WithFlags");
    let by_worker = failed.thread.starts_with("fanwise-");
    let mut others = ended.output.lines().filter(|line| *line != right);
    let untried = |line: &str| line.contains("could not be tried for want of memory");
    let is_noted = others.clone().any(untried);
    let Some(told) = others.find(|line| !line.starts_with("note: ")) else {
        let known: &[&str] = if by_worker { &GRAPH } else { &ASIDE };
        let is_aside = is_noted || known.contains(&function);
        let is_aside = is_aside && what.ends_with("out_of_memory");
        assert!(is_aside || function == QUESTION, "{what}: nobody says that {function} failed");
        return;
    };
    if what.ends_with("device_lost") {
        return;
    }
    let is_memory = MEMORY.contains(&function) && told.contains("has no memory for");
    let is_named = told.contains(&format!("{function} failed: "));
    let is_left = QUESTIONS.contains(&function) || MARKS.contains(&function);
    // Each logical GPU is one of its own, or all are one, of which the first is named, too.
    let on_gpu = failed.gpu.is_none_or(|gpu| told.contains(&format!("gpu:{gpu}")));
    // The host asks for a GPU while its worker launches: where the GPU breaks, whoever asks first
    // tells.
    let by_either = what.ends_with("illegal_address") && on_gpu;
    let is_named = is_named || is_memory || is_left || by_either;
    assert!(is_named, "{what}: {function} failed, not what is said: {told}");
    // A copy from a GPU that failed fails as well, and so does a wait for it.
    let by_other = is_left && ["(copy)", "(wait)"].iter().any(|op| told.contains(op));
    let is_of_gpu = by_worker || OF_GPUS.contains(&function);
    assert!(on_gpu || by_other || !is_of_gpu, "{what}: {failed:?}, not what is said: {told}");
}

fn failures_at_every_call(scenario: &str) {
    let (right, calls) = undisturbed(scenario);
    assert!(calls > 0);
    for (at, code) in part((1..=calls).zip(CODES.into_iter().cycle()), PARTS, 0) {
        let fail = format!("any@{at}:{code}");
        let ended = disturbed(scenario, &[("FAKECUDA_FAIL", &fail)]);
        let what = format!("{scenario} with {fail}");
        assert_sound(&ended, &right, &what);
        assert_named(&ended, &right, &what);
    }
}

/// All devices on a GPU are told of what one of them did.
fn a_failure_on_a_shared_gpu_names_its_device() {
    /// Launches of kernels in the first run, of the captures and of graphs.
    const LAUNCHES: u32 = 14;

    let scenario = "two_head/2";
    let (right, _) = undisturbed(scenario);
    let mut named = BTreeSet::new();
    for at in 1..=LAUNCHES {
        let fail = format!("launch@{at}:illegal_address");
        let variables = [("FAKECUDA_DEVICES", "1"), ("FAKECUDA_FAIL", &*fail)];
        let ended = disturbed(scenario, &variables);
        let what = format!("{scenario} on one GPU with {fail}");
        assert_sound(&ended, &right, &what);
        assert_named(&ended, &right, &what);
        let thread = ended.failed.map(|failed| failed.thread).unwrap_or_default();
        let device = thread.strip_prefix("fanwise-").unwrap();
        let other = if device == "gpu:0" { "gpu:1" } else { "gpu:0" };
        let told = ended.output.lines().find(|line| *line != right).unwrap();
        let says = |on: &str, with: &str| {
            told.contains(&format!("on {on}: "))
                && told.contains(&format!("shares the GPU with {with},"))
        };
        // Such a failure is told to whichever device calls next.
        let is_told = says(device, other) || says(other, device);
        assert!(is_told, "{what}: {device} failed, not what is said: {told}");
        named.insert(device.to_owned());
    }
    assert_eq!(named.len(), 2);
}

fn failures_of_every_kind() {
    let scenario = "two_head/3";
    let (right, _) = undisturbed(scenario);
    for class in ["launch", "copy", "sync", "alloc"] {
        for code in ["illegal_address", "launch_failed", "device_lost", "out_of_memory"] {
            for at in [1, 2, 7] {
                let fail = format!("{class}@{at}:{code}");
                let ended = disturbed(scenario, &[("FAKECUDA_FAIL", &fail)]);
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
        let ended = disturbed(scenario, &[("FAKECUDA_FAIL", &fail)]);
        assert_sound(&ended, &right, &format!("{scenario} with {fail}"));
        assert!(ended.output.contains("(4321)"), "{fail}: {ended:?}");
        // Nobody knows whether it ended the context: what was launched may never end.
        if class == "sync" {
            let mut behind = ended.output.lines().skip_while(|line| !line.contains("(4321)"));
            behind.next();
            let is_final = |line: &str| line.contains("can no longer be used");
            assert!(behind.all(is_final), "{fail}: {ended:?}");
        }
    }
}

fn memory_that_is_too_small_is_said() {
    let ended = disturbed("nested/1", &[("FAKECUDA_MEMORY", "16384")]);
    assert_sound(&ended, "", "16 KiB of memory");
    assert!(
        ["has no memory for", "planned to take", "are free"]
            .iter()
            .all(|t| ended.output.contains(t)),
        "{ended:?}"
    );
}

/// Of the host, from which GPUs copy: too little for the parameters, then for a run, then enough.
fn pinned_memory_is_said() {
    let (right, _) = undisturbed("nested/1");
    let [mut not_ready, mut short] = [0; 2];
    for bytes in (6..).map(|i| 1u64 << i) {
        let ended = disturbed("nested/1", &[("FAKECUDA_PINNED", &bytes.to_string())]);
        assert_sound(&ended, &right, &format!("{bytes} bytes of pinned memory"));
        let first = ended.output.lines().next().unwrap();
        if first == right {
            break;
        }
        not_ready += u32::from(first.starts_with("not ready: "));
        short += u32::from(first.starts_with("error: "));
        let said = ["cpu:0 has no memory for", "planned to take", "are free"];
        assert!(said.iter().all(|text| first.contains(text)), "{bytes}: {ended:?}");
    }
    assert!(not_ready > 0 && short > 0, "{not_ready} and {short}");
}
