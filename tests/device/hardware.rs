//! What hardware does and a friendly driver does not: memory that is taken late, captures of
//! others, peers that promise too much, waits that cost cores.

use std::thread;
use std::time::Instant;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
use fanwise::backend::cuda::Cuda;
use fanwise::backend::{CUDA, Executable, RunOptions};
use fanwise::ir::verify;
use fanwise::lower::lower;
use fanwise::pass::Repair;
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::apart::{Ended, spawn};
use crate::failures::{assert_sound, disturbed, undisturbed};
use crate::orders::whole_step;
use crate::results::trial;
use crate::setup::{
    executable, inputs, on_gpus, options, outputs, replicas, said, say, small, traced,
};

/// The tests for every driver.
pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("captures_of_others_are_not_broken", captures_of_others_are_not_broken)]
}

/// The tests that start processes, for the fake driver.
pub(crate) fn disturbed_trials() -> Vec<Trial> {
    vec![
        trial("graphs_without_memory_are_launched_one_by_one", graphs_without_memory),
        trial("graphs_of_other_batch_sizes_give_way", graphs_of_others_give_way),
        trial("a_kernel_without_memory_for_its_code_is_told", a_kernel_without_memory),
        trial("code_takes_memory_that_is_kept_for_later", code_takes_memory_that_is_kept),
        trial("peers_that_copy_wrongly_are_not_trusted", peers_that_copy_wrongly),
        trial("peers_of_others_are_tried", peers_of_others_are_tried),
        trial("codes_of_other_parties_are_told", codes_of_other_parties_are_told),
        trial("who_waits_for_a_gpu_does_not_ask_all_the_time", waits_do_not_poll),
        trial("downloads_wait_for_their_gpu_alone", downloads_wait_for_their_gpu_alone),
        trial("a_step_is_few_graphs", a_step_is_few_graphs),
        trial("a_steady_loop_frees_nothing", a_steady_loop_frees_nothing),
        trial("an_instance_of_a_gpu_is_told", an_instance_of_a_gpu_is_told),
        trial("ptx_that_a_driver_does_not_load_is_told", ptx_of_a_later_version),
    ]
}

/// One process of a test.
pub(crate) fn scenario(name: &str) {
    match name.split_once('/') {
        Some(("loop", rounds)) => steady(rounds.parse().unwrap()),
        Some(("steps", runs)) => steps(runs.parse().unwrap()),
        Some(("sizes", rows)) => sizes(rows.parse().unwrap()),
        Some(("downloads", runs)) => downloads(runs.parse().unwrap()),
        _ => panic!("no scenario {name}"),
    }
}

/// A capture in global mode, as an embedder makes it, while programs are readied, run and dropped
/// on another thread, and on the one that captures.
fn captures_of_others_are_not_broken() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let (graph, weights) = small("two_head");
    let expected = outputs(
        &on_gpus(&graph, &weights, 1, 1),
        &inputs(&graph, 5, &mut ChaCha8Rng::seed_from_u64(3)),
    );
    let work =
        || {
            let run = executable(&replicas(&graph, 2, 1), &weights, options(2));
            for n in [5, 9, 5, 5, 1] {
                let batch = inputs(&graph, n, &mut ChaCha8Rng::seed_from_u64(3));
                let found = outputs(&run, &batch);
                assert!(n != 5 || found == expected);
            }
            drop(run.stage(
                &inputs(&graph, 4, &mut ChaCha8Rng::seed_from_u64(4)),
                &RunOptions::default(),
            ));
        };
    for is_elsewhere in [true, false] {
        stream.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL).unwrap();
        if is_elsewhere {
            thread::scope(|scope| scope.spawn(work).join().unwrap());
        } else {
            work();
        }
        let ended = stream
            .end_capture(CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        assert!(ended.is_ok(), "elsewhere: {is_elsewhere}: {:?}", ended.err());
    }
}

/// Fails unless all runs of a process are right, and the driver has nothing to say.
fn assert_right(ended: &Ended, right: &str, what: &str) {
    assert_sound(ended, right, what);
    assert!(ended.output.lines().all(|line| line == right), "{what}: {ended:?}");
}

/// Where the driver has no memory for graphs, be it that it says so when one is made, uploaded or
/// launched, once or always, kernels are launched one by one.
fn graphs_without_memory() {
    let scenario = "two_head/2";
    let (right, _) = undisturbed(scenario);
    for function in ["cuGraphInstantiateWithFlags", "cuGraphUpload", "cuGraphLaunch"] {
        for at in ["1", "2", "1+"] {
            let fail = format!("{function}@{at}:out_of_memory");
            let ended = disturbed(scenario, &[("FAKECUDA_FAIL", &fail)]);
            assert_right(&ended, &right, &fail);
            assert!(ended.failed.is_some(), "{fail}: no call failed");
            let launches = ended.count("cuGraphLaunch");
            let is_launched = function == "cuGraphLaunch" || at != "1+";
            assert_eq!(launches > 0, is_launched, "{fail}: {launches} launches of graphs");
        }
    }
    // As drivers do it: a graph takes memory, of which there is too little for all.
    let graph = 1 << 20;
    let peak = disturbed(scenario, &[]).peak(0);
    for memory in [peak, peak + graph / 2, peak + 3 * graph / 2] {
        let variables =
            [("FAKECUDA_GRAPH", graph.to_string()), ("FAKECUDA_MEMORY", memory.to_string())];
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
        let ended = disturbed(scenario, &variables);
        assert_right(&ended, &right, &format!("{memory} bytes for graphs of {graph}"));
    }
}

/// One process: batches of eight rows, of so many, and of eight again, on one GPU.
fn sizes(rows: i64) {
    let (graph, weights) = small("two_head");
    let run = on_gpus(&graph, &weights, 1, 1);
    let found = |n| outputs(&run, &inputs(&graph, n, &mut ChaCha8Rng::seed_from_u64(3)));
    let first = found(8);
    for n in [8, rows, rows, 8] {
        let again = found(n);
        assert!(n != 8 || again == first);
    }
}

/// Where there is no memory to launch a graph, those of other batch sizes are given up, and it is
/// launched again: kernels are not launched one by one.
fn graphs_of_others_give_way() {
    let process = |fails: &[(&str, &str)]| {
        let ended = disturbed("hardware/sizes/3", fails);
        assert!(ended.success && ended.report.is_empty(), "{fails:?}: {ended:?}");
        ended
    };
    let calm = process(&[]);
    let (graphs, kernels) = (calm.count("cuGraphLaunch"), calm.count("cuLaunchKernel"));
    let fail = format!("cuGraphLaunch@{graphs}:out_of_memory");
    let last = process(&[("FAKECUDA_FAIL", &fail)]);
    assert!(last.failed.is_some(), "{last:?}");
    assert_eq!(last.count("cuGraphLaunch"), graphs + 1, "{last:?}");
    assert_eq!(last.count("cuLaunchKernel"), kernels, "{last:?}");
    // The first has no others beside it.
    let first = process(&[("FAKECUDA_FAIL", "cuGraphLaunch@1:out_of_memory")]);
    assert!(first.count("cuGraphLaunch") < graphs, "{first:?}");
}

/// Its first launch fails for want of memory: once, as where something else gives memory back
/// meanwhile, and always.
fn a_kernel_without_memory() {
    let scenario = "two_head/2";
    let (right, _) = undisturbed(scenario);
    for at in 1..8 {
        let fail = format!("cuLaunchKernel@{at}:out_of_memory");
        assert_right(&disturbed(scenario, &[("FAKECUDA_FAIL", &fail)]), &right, &fail);
    }
    let ended = disturbed(scenario, &[("FAKECUDA_FAIL", "cuLaunchKernel@3+:out_of_memory")]);
    assert_sound(&ended, &right, "no kernel is launched");
    for line in ended.output.lines() {
        let told = ["on gpu:", "cuLaunchKernel failed: CUDA_ERROR_OUT_OF_MEMORY", "first launched"];
        assert!(told.iter().all(|text| line.contains(text)), "{line}");
        assert!(!line.contains("can no longer be used"), "{line}");
    }
}

/// The idle arena of one program gives way to the code of another.
fn code_takes_memory_that_is_kept() {
    let process = |variables: &[(&str, &str)]| spawn(&["--scenario", "beside/arena"], variables);
    let plenty = process(&[]);
    assert!(plenty.success && plenty.report.is_empty(), "{plenty:?}");
    let (code, peak) = (4096, plenty.peak(0));
    // Of a kernel of each program, the second lacks a byte.
    let (code, memory) = (code.to_string(), (peak + 2 * code - 1).to_string());
    let ended = process(&[("FAKECUDA_CODE", &code), ("FAKECUDA_MEMORY", &memory)]);
    assert!(ended.success && ended.report.is_empty(), "{ended:?}");
    assert_eq!(ended.output, plenty.output);
    assert!(ended.count("cuMemFree") > plenty.count("cuMemFree"), "an arena gives way");
}

/// Two devices of which the driver says that one reaches the other. Copies then go through the
/// host, a note says so, and so does `fanwise devices`.
fn peers_that_copy_wrongly() {
    let scenario = "needy/2";
    let (right, _) = undisturbed(scenario);
    for (way, words) in [("garbage", "bring other bytes"), ("hang", "do not end")] {
        let peers = format!("{way}:0-1");
        let ended = disturbed(scenario, &[("FAKECUDA_PEERS", &peers)]);
        let told = format!("note: direct copies from GPU 1 to GPU 0 {words}: they go through");
        assert!(ended.success && ended.output.contains(&told), "{peers}: {ended:?}");
        let runs = ended.output.lines().filter(|line| !line.starts_with("note: "));
        assert!(runs.clone().count() > 2 && { runs }.all(|line| line == right), "{ended:?}");
        // What the hanging copy uses is never given back.
        assert!(way == "hang" || ended.report.is_empty(), "{peers}: {ended:?}");
        let shown = said(&["devices"], &[("FAKECUDA_PEERS", &peers)]);
        let first = shown.lines().find(|line| line.starts_with("gpu:0 ")).unwrap_or_default();
        let last = format!("gpu:1 through the host (direct copies {words})");
        assert!(first.ends_with(&last) && !first.contains("peers gpu:1"), "{shown}");
        assert!(shown.lines().any(|l| l.starts_with("gpu:1 ") && l.contains("peers gpu:0")));
    }
}

/// Access that the application has let before: used where it is right, taken back where copies
/// bring other bytes, and an error where there is no memory to try them.
fn peers_of_others_are_tried() {
    let scenario = "needy/2";
    let (right, _) = undisturbed(scenario);
    let enabled = |others: &[(&str, &str)]| {
        let ended = disturbed(scenario, &[&[("FAKECUDA_ENABLED", "0-1")], others].concat());
        assert!(ended.success && ended.report.is_empty(), "{ended:?}");
        let notes = ended.output.lines().filter(|line| line.starts_with("note: ")).count();
        let runs = ended.output.lines().filter(|line| *line == right).count();
        (notes, runs, ended)
    };
    let (notes, runs, sound) = enabled(&[]);
    assert!(notes == 0 && runs > 2 && sound.count("cuCtxDisablePeerAccess") == 0, "{sound:?}");
    let (notes, runs, broken) = enabled(&[("FAKECUDA_PEERS", "garbage:0-1")]);
    assert!(notes > 0 && runs > 2, "{broken:?}");
    assert!(broken.count("cuCtxDisablePeerAccess") > 0, "{broken:?}");
    // The memory of the trial is the first that is asked for.
    let (_, runs, untried) = enabled(&[("FAKECUDA_FAIL", "cuMemAlloc@1:out_of_memory")]);
    let told = untried.output.contains("not ready: ") && untried.output.contains("out of memory");
    assert!(runs == 0 && told, "{untried:?}");
    assert_eq!(untried.count("cuCtxDisablePeerAccess"), 0, "{untried:?}");
}

/// Of MPS, of a device outside, of a context that something else destroyed: final, and with a way
/// out.
fn codes_of_other_parties_are_told() {
    let scenario = "two_head/2";
    let (right, _) = undisturbed(scenario);
    let of_mps = (805..810).map(|code| (code, "MPS"));
    let others = [(810, "MPS ends all"), (911, "dmesg"), (709, "cudaDeviceReset")];
    for (code, words) in of_mps.chain(others) {
        for at in ["launch@10", "cuEventQuery@30"] {
            let fail = format!("{at}:{code}");
            let ended = disturbed(scenario, &[("FAKECUDA_FAIL", &fail)]);
            assert_sound(&ended, &right, &fail);
            let mut told = ended.output.lines().skip_while(|line| *line == right);
            let first = told.next().unwrap_or_default();
            let is_told = first.contains(&format!("({code})")) && first.contains(words);
            assert!(is_told && first.contains("gpu:"), "{fail}: {ended:?}");
            assert!(told.all(|line| line.contains("can no longer be used")), "{fail}: {ended:?}");
        }
    }
}

/// However long kernels take, the driver is asked as often, but for the watchdog.
fn waits_do_not_poll() {
    /// More than the watchdog asks, and far less than whoever waits by asking.
    const A_SECOND: f64 = 100.0;
    let scenario = "two_head/1";
    let asked = |slow: &str| {
        let ended = disturbed(scenario, &[("FAKECUDA_ORDER", "late"), ("FAKECUDA_SLOW", slow)]);
        assert!(ended.success && ended.report.is_empty(), "{ended:?}");
        let asked = ended.count("cuEventQuery") + ended.count("cuStreamQuery");
        (asked, ended.count("cuEventSynchronize"))
    };
    // Fast kernels may have ended before anybody waits for them.
    let (fast, _) = asked("0");
    let start = Instant::now();
    let (slow, waits) = asked("200");
    let most = 2.0 * fast as f64 + A_SECOND * start.elapsed().as_secs_f64();
    assert!(slow as f64 <= most, "{fast} questions, and {slow} of slow kernels");
    assert!(waits > 0, "nobody waits");
}

/// One process: so many runs, and the tracks of what was copied from GPUs in the last one.
fn downloads(runs: usize) {
    let (graph, weights) = small("two_head");
    let (mut options, trace) = traced(2);
    options.watchdog = std::time::Duration::from_secs(1);
    let program = lower(&verify(&replicas(&graph, 2, 1)).unwrap(), &CUDA).unwrap();
    let run = Cuda::new(options).unwrap().executable(program, &weights).unwrap();
    let batch = inputs(&graph, 4, &mut ChaCha8Rng::seed_from_u64(5));
    let results: Vec<_> = (0..runs).map(|_| run.run(&batch, &RunOptions::default())).collect();
    say(if results.iter().all(Result::is_ok) { "all ran" } else { "one failed" });
    let json: serde_json::Value = serde_json::from_str(&trace.to_json()).unwrap();
    for event in json["traceEvents"].as_array().unwrap() {
        if event["name"] == "thread_name" && event["pid"] == runs - 1 {
            say(event["args"]["name"].as_str().unwrap());
        }
    }
}

/// The outputs of one GPU come though the other one, which is waited for before, never ends.
fn downloads_wait_for_their_gpu_alone() {
    let process = |runs: u32, variables: &[(&str, &str)]| {
        spawn(&["--scenario", &format!("hardware/downloads/{runs}")], variables)
    };
    let once = process(1, &[]);
    assert!(once.output.starts_with("all ran\n") && once.report.is_empty(), "{once:?}");
    // The first launch of the second run, whose kernels are not waited for one by one.
    let fail = format!("launch@{}:hang", once.count("cuLaunchKernel") + 1);
    let ended = process(2, &[("FAKECUDA_FAIL", &fail)]);
    assert!(ended.success && ended.output.starts_with("one failed\n"), "{ended:?}");
    let has = |track: &str| ended.output.lines().any(|line| line == track);
    // Either may be the one that launches first.
    let arrived = [0, 1].map(|gpu| has(&format!("gpu:{gpu} downloads")));
    assert!(arrived[0] != arrived[1], "{ended:?}");
}

/// One process: so many steps of training on one GPU.
fn steps(runs: usize) {
    let (graph, weights) = whole_step();
    let program = expect::on_gpus(&graph, 1, Repair::Comm);
    let run = Cuda::new(options(1)).unwrap().executable(program, &weights).unwrap();
    let batch = inputs(&graph, 6, &mut ChaCha8Rng::seed_from_u64(7));
    for _ in 0..runs {
        outputs(&run, &batch);
    }
}

/// Each further step is the same few graphs, and as few kernels: a unit of one is no graph.
fn a_step_is_few_graphs() {
    let process = |runs: u32| {
        let ended = spawn(&["--scenario", &format!("hardware/steps/{runs}")], &[]);
        assert!(ended.success && ended.report.is_empty(), "{ended:?}");
        ended
    };
    let (few, many) = (process(4), process(9));
    for function in FREES {
        assert_eq!(few.count(function), many.count(function), "{function}");
    }
    let more = |function: &str| many.count(function) - few.count(function);
    let (graphs, kernels) = (more("cuGraphLaunch"), more("cuLaunchKernel"));
    assert!(graphs % 5 == 0 && (1..=4).contains(&(graphs / 5)), "{graphs} graphs in 5 steps");
    assert!(kernels <= graphs, "{kernels} kernels beside {graphs} graphs");
    // The input and the target are copied by themselves, from where they were staged; variables
    // are not.
    let copies = more("cuMemcpyDtoDAsync");
    assert!(copies <= 2 * 5, "{copies} copies in 5 steps");
}

/// One process: so many rounds of batches of several sizes, some of them staged, of two programs.
fn steady(rounds: usize) {
    let (graph, weights) = small("two_head");
    let cuda = Cuda::new(options(2)).unwrap();
    let program = |count| lower(&verify(&replicas(&graph, count, 1)).unwrap(), &CUDA).unwrap();
    let runs = [1, 2].map(|count| cuda.executable(program(count), &weights).unwrap());
    let how = RunOptions::default();
    for _ in 0..rounds {
        for n in [8, 3, 5, 8] {
            let batch = inputs(&graph, n, &mut ChaCha8Rng::seed_from_u64(6));
            for run in &runs {
                outputs(run, &batch);
                let next = run.stage(&batch, &how).unwrap();
                outputs(run, &batch);
                next.run().unwrap();
            }
        }
    }
}

/// Calls for memory and to free it, which wait for all that a GPU computes.
const FREES: [&str; 4] = ["cuMemFree", "cuMemFreeHost", "cuMemAlloc", "cuMemHostAlloc"];

fn a_steady_loop_frees_nothing() {
    let process = |rounds: u32| {
        let ended = spawn(&["--scenario", &format!("hardware/loop/{rounds}")], &[]);
        assert!(ended.success && ended.report.is_empty(), "{ended:?}");
        ended
    };
    let (few, many) = (process(4), process(12));
    assert!(few.count("cuMemFree") > 0 && many.count("cuGraphLaunch") > few.count("cuGraphLaunch"));
    for function in FREES {
        assert_eq!(few.count(function), many.count(function), "{function}");
    }
}

/// A process sees one, whatever number the machine has.
fn an_instance_of_a_gpu_is_told() {
    let name = ("FAKECUDA_NAME", "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
    let one = [("FAKECUDA_DEVICES", "1"), name];
    let shown = said(&["devices"], &one);
    let line = shown.lines().find(|line| line.starts_with("gpu:0 ")).unwrap_or_default();
    assert!(line.contains("MIG 1g.10gb") && line.contains("instance of a divided GPU"), "{shown}");
    for command in ["run", "check"] {
        let args = [command, "zoo:mlp", "--gpus", "4", "--target", "cuda", "--code", "ptx"];
        let told = said(&args, &one);
        let wanted = ["need gpu:1, gpu:2, gpu:3", "1 GPU (gpu:0)", "(MIG)", "`--logical N`"];
        assert!(wanted.iter().all(|text| told.contains(text)), "{told}");
        let told = said(&args, &one[..1]);
        assert!(told.contains("`--logical N`") && !told.contains("MIG"), "{told}");
    }
    let shared = ["check", "zoo:two_head", "--gpus", "4", "--logical", "4", "--target", "cuda"];
    let told = said(&[&shared[..], &["--code", "ptx"]].concat(), &one);
    assert!(told.contains("1 device and 4"), "{told}");
}

/// Drivers of an earlier major version; a unit test of the compiler has minor ones.
fn ptx_of_a_later_version() {
    for (version, shown) in [("12040", "CUDA 12.4"), ("12090", "CUDA 12.9")] {
        let ended = disturbed("two_head/1", &[("FAKECUDA_VERSION", version)]);
        let told = ["not ready: NVRTC 13.", "PTX", shown, "pip install nvidia-cuda-nvrtc-cu12"];
        assert!(told.iter().all(|text| ended.output.contains(text)), "{ended:?}");
        assert!(ended.report.is_empty() && ended.count("cuModuleLoadData") == 0, "{ended:?}");
    }
}
