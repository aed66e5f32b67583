//! Programs that change parameters: GPUs hold after each run what the CPU holds.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use fanwise::backend::cuda::Cuda;
use fanwise::backend::{CPU, CUDA, CompileError, Cpu, Executable, RunError, RunOptions};
use fanwise::internal::CudaExecutable;
use fanwise::ir::{Graph, Weights, parse, verify};
use fanwise::lower::lower;
use fanwise::pass::{Merge, Repair, Replicate, WeightPlacement, replicate};
use fanwise::types::{Device, ShardRule, Tensor};
use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::apart::spawn;
use crate::results;
use crate::setup::{Tensors, digest, inputs, options, say};

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| results::trial(format!("variables::{name}"), run);
    vec![
        trial("steps", gpus_hold_what_the_cpu_holds_after_every_step),
        trial("failures", a_run_that_fails_on_gpus_leaves_the_variables_as_they_were),
        trial("set", parameters_on_gpus_can_be_set),
        trial("factors", factors_follow_the_parameters_that_they_are_computed_from),
        trial("images", images_that_runs_change_are_those_that_kernels_read),
    ]
}

/// The tests that start processes, for the fake driver.
pub(crate) fn disturbed() -> Vec<Trial> {
    let trial = |name: &str, run: fn()| results::trial(format!("variables::{name}"), run);
    vec![
        trial("disturbed", calls_that_fail_leave_a_state_of_some_step),
        trial("short", parameters_that_are_not_set_for_want_of_memory_stay),
        trial("stuck", parameters_on_a_gpu_that_hangs_are_given_up),
    ]
}

/// A linear model with its gradient written out, momentum, a count of steps, and a table that is
/// looked up, which fails for numbers beyond it.
const TRAIN: &str = "fanwise 1
symbol N >= 0
param @w : f32[8,4] = \"t#w\" blake3:0000000000000001
param @v : f32[8,4] = \"t#v\" blake3:0000000000000002
param @rate : f32[] = \"t#rate\" blake3:0000000000000003
param @steps : i64[] = \"t#steps\" blake3:0000000000000004
param @last : f32[8,4] = \"t#last\" blake3:0000000000000005
param @table : f32[4,2] = \"t#table\" blake3:0000000000000006
graph @train(%x: f32[N,8], %t: f32[N,4], %i: i64[N]) -> (p: f32[N,4], picked: f32[N,2]) {
  %p : f32[N,4] = matmul(%x, @w)
  %e : f32[N,4] = sub(%p, %t)
  %xt : f32[8,N] = transpose(%x) {perm=[1, 0]}
  %g : f32[8,4] = matmul(%xt, %e)
  %half : f32[] = constant() {value=f32[] [0.5]}
  %hv : f32[8,4] = mul(@v, %half)
  %v.new : f32[8,4] = add(%hv, %g)
  %step : f32[8,4] = mul(%v.new, @rate)
  %w.new : f32[8,4] = sub(@w, %step)
  %one : i64[] = constant() {value=i64[] [1]}
  %steps.new : i64[] = add(@steps, %one)
  %twice : f32[4,2] = add(@table, @table)
  %picked : f32[N,2] = gather(%twice, %i) {axis=0}
  update @w = %w.new
  update @v = %v.new
  update @steps = %steps.new
  update @last = @w
  update @table = %twice
  return %p, %picked
}
";

/// An image and the weights of a convolution, which is all that reads them.
const IMAGES: &str = "fanwise 1
symbol N >= 0
param @image : f32[1,4,6,6] = \"t#image\" blake3:0000000000000001
param @w : f32[4,4,3,3] = \"t#w\" blake3:0000000000000002
graph @images(%x: f32[N,4,6,6]) -> (y: f32[N,4,6,6]) {
  %y : f32[N,4,6,6] = conv(%x, @w) {pads=[1, 1, 1, 1]}
  %next : f32[1,4,6,6] = conv(@image, @w) {pads=[1, 1, 1, 1]}
  %bounded : f32[1,4,6,6] = tanh(%next)
  %half : f32[] = constant() {value=f32[] [0.5]}
  %less : f32[4,4,3,3] = mul(@w, %half)
  update @image = %bounded
  update @w = %less
  return %y
}
";

/// Two batch norms, of which a run changes an operand of the second.
const NORMS: &str = "fanwise 1
symbol N >= 0
param @s : f32[3] = \"t#s\" blake3:0000000000000001
param @b : f32[3] = \"t#b\" blake3:0000000000000002
param @m : f32[3] = \"t#m\" blake3:0000000000000003
param @v : f32[3] = \"t#v\" blake3:0000000000000004
param @moving : f32[3] = \"t#moving\" blake3:0000000000000005
graph @norms(%x: f32[N,3,2]) -> (z: f32[N,3,2]) {
  %vv : f32[3] = mul(@v, @v)
  %y : f32[N,3,2] = batch_norm(%x, @s, @b, @m, @v)
  %z : f32[N,3,2] = batch_norm(%y, @s, @b, @moving, @v)
  %next : f32[3] = add(@moving, %vv)
  update @moving = %next
  return %z
}
";

fn train() -> (Graph, Weights) {
    with_weights(TRAIN)
}

/// A graph with random weights.
fn with_weights(text: &str) -> (Graph, Weights) {
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let mut weights = Weights::default();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for param in graph.params() {
        let dims = param.ty.shape.at(0);
        let count = dims.iter().product();
        let tensor = match &*param.name {
            "steps" => Tensor::scalar(0i64),
            "rate" => Tensor::scalar(0.015_625f32),
            _ => {
                let data: Vec<f32> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
                Tensor::new(&dims, &data).unwrap()
            }
        };
        weights.insert(param.name.clone(), tensor);
    }
    (graph, weights)
}

fn ways(count: u32) -> Vec<Replicate> {
    let mut ways = Vec::new();
    for weights in [WeightPlacement::Cpu, WeightPlacement::Mirrored] {
        for (merge, rule) in
            [(Merge::Cpu, ShardRule::RemainderLast), (Merge::Gpu, ShardRule::Balanced)]
        {
            let how = Replicate::over((0..count).map(Device::gpu).collect());
            ways.push(Replicate { rule, merge, weights, repair: Repair::Comm, ..how });
        }
    }
    ways
}

/// A model whose steps change parameters, on two GPUs that hold them, and its weights.
pub(crate) fn on_two() -> (Graph, Weights) {
    let (model, weights) = train();
    let graph = replicate(&model, &ways(2)[2]).unwrap_or_else(|e| panic!("{e}"));
    (graph, weights)
}

/// Batches of so many rows for it.
pub(crate) fn batches(graph: &Graph, rows: &[i64]) -> Vec<Tensors> {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    rows.iter().map(|n| batch(graph, *n, &mut rng)).collect()
}

fn on_gpus(graph: &Graph, weights: &Weights, count: u32) -> CudaExecutable {
    let program = lower(&verify(graph).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap();
    let cuda = Cuda::new(options(count)).unwrap_or_else(|e| panic!("{e}"));
    cuda.executable(program, weights).unwrap_or_else(|e| panic!("{e}"))
}

fn batch(graph: &Graph, n: i64, rng: &mut ChaCha8Rng) -> Tensors {
    let mut batch = inputs(graph, n, rng);
    let ids: Vec<i64> = (0..n).map(|_| rng.random_range(0..4)).collect();
    batch.insert("i".to_owned(), Tensor::new(&[ids.len()], &ids).unwrap());
    batch
}

fn assert_near(want: &Weights, got: &Weights, what: &str) {
    assert_eq!(want.len(), got.len(), "{what}");
    for (name, want) in want.iter() {
        let (want, got) = (want.to_f64(), got.get(name).unwrap().to_f64());
        let largest = want.iter().fold(1.0f64, |m, x| m.max(x.abs()));
        for (a, b) in want.iter().zip(&got) {
            assert!((a - b).abs() <= 1e-5 * largest, "{what}: @{name}: {a} and {b}");
        }
    }
}

fn gpus_hold_what_the_cpu_holds_after_every_step() {
    let (model, weights) = train();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let batches: Vec<Tensors> =
        [9, 9, 9, 1, 4, 0, 9].iter().map(|n| batch(&model, *n, &mut rng)).collect();
    let program = lower(&verify(&model).unwrap(), &CPU).unwrap();
    let one = Cpu::new(1).unwrap().executable(program, &weights).unwrap();
    let expected: Vec<Weights> = batches
        .iter()
        .map(|batch| {
            one.run(batch, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            one.weights().unwrap()
        })
        .collect();
    for count in [1, 2, 4] {
        for how in ways(count) {
            let what = format!("{count} GPUs, {:?}, {:?}", how.weights, how.merge);
            let graph = replicate(&model, &how).unwrap_or_else(|e| panic!("{what}: {e}"));
            let gpus = on_gpus(&graph, &weights, count);
            assert_eq!(gpus.weights().unwrap(), weights, "{what}");
            for (batch, want) in batches.iter().zip(&expected) {
                gpus.run(batch, &RunOptions::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_near(want, &gpus.weights().unwrap(), &what);
            }
        }
    }
}

/// Kernels read images channels last, what a run gives them is row-major.
fn images_that_runs_change_are_those_that_kernels_read() {
    let (model, weights) = with_weights(IMAGES);
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let program = lower(&verify(&model).unwrap(), &CPU).unwrap();
    let one = Cpu::new(1).unwrap().executable(program, &weights).unwrap();
    for count in [1, 2] {
        for how in ways(count) {
            let what = format!("{count} GPUs, {:?}, {:?}", how.weights, how.merge);
            let graph = replicate(&model, &how).unwrap_or_else(|e| panic!("{what}: {e}"));
            let gpus = on_gpus(&graph, &weights, count);
            one.set_weights(&weights).unwrap();
            for _ in 0..3 {
                let batch = inputs(&model, 3, &mut rng);
                let want = one.run(&batch, &RunOptions::default()).unwrap();
                let got = gpus.run(&batch, &RunOptions::default()).unwrap();
                for ((_, want), (_, got)) in want.outputs.iter().zip(&got.outputs) {
                    for (a, b) in want.to_f64().iter().zip(got.to_f64()) {
                        assert!((a - b).abs() < 1e-4, "{what}: {a} and {b}");
                    }
                }
                assert_near(&one.weights().unwrap(), &gpus.weights().unwrap(), &what);
            }
        }
    }
}

fn a_run_that_fails_on_gpus_leaves_the_variables_as_they_were() {
    let (model, weights) = train();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for how in ways(2) {
        let what = format!("{:?}, {:?}", how.weights, how.merge);
        let graph = replicate(&model, &how).unwrap();
        let gpus = on_gpus(&graph, &weights, 2);
        let good = batch(&model, 4, &mut rng);
        gpus.run(&good, &RunOptions::default()).unwrap();
        let before = gpus.weights().unwrap();
        for wrong in [[9, 0, 0, 0], [0, 0, 0, 9]] {
            let mut bad = good.clone();
            bad.insert("i".to_owned(), Tensor::new(&[4], &wrong.map(i64::from)).unwrap());
            let error = gpus.run(&bad, &RunOptions::default()).unwrap_err();
            assert!(matches!(error, RunError::Op { .. }), "{what}: {error}");
            assert_eq!(gpus.weights().unwrap(), before, "{what}");
        }
        let mut endless = good.clone();
        endless.insert("x".to_owned(), Tensor::new(&[4, 8], &[f32::INFINITY; 32]).unwrap());
        let finite = RunOptions { finite: Some("p".into()), ..RunOptions::default() };
        let outputs = gpus.run(&endless, &finite).unwrap().outputs;
        assert!(outputs[0].1.to_f64().iter().any(|x| !x.is_finite()), "{what}");
        assert_eq!(gpus.weights().unwrap(), before, "{what}: an output is not finite");
        let finite = RunOptions { finite: Some("picked".into()), ..RunOptions::default() };
        gpus.run(&good, &finite).unwrap();
        assert_eq!(gpus.weights().unwrap().get("steps"), Some(&Tensor::scalar(2i64)), "{what}");
    }
}

fn parameters_on_gpus_can_be_set() {
    let (model, weights) = train();
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for how in ways(3) {
        let graph = replicate(&model, &how).unwrap();
        let gpus = on_gpus(&graph, &weights, 3);
        let good = batch(&model, 6, &mut rng);
        gpus.run(&good, &RunOptions::default()).unwrap();
        let first = gpus.weights().unwrap();
        let mut new = Weights::default();
        new.insert("rate", Tensor::scalar(0.25f32));
        new.insert("other", Tensor::scalar(0.25f32));
        assert!(matches!(gpus.set_weights(&new), Err(CompileError::UnknownParam(_))));
        new.retain(|name| name == "rate");
        gpus.set_weights(&new).unwrap();
        assert_eq!(gpus.weights().unwrap().get("rate"), new.get("rate"));
        gpus.run(&good, &RunOptions::default()).unwrap();
        assert_ne!(gpus.weights().unwrap().get("w"), first.get("w"));
        gpus.set_weights(&weights).unwrap();
        assert_eq!(gpus.weights().unwrap(), weights);
        gpus.run(&good, &RunOptions::default()).unwrap();
        assert_eq!(gpus.weights().unwrap(), first, "the same step from the same state");
    }
}

/// The factors of a batch norm are computed when its operands are given, all or one of them.
fn factors_follow_the_parameters_that_they_are_computed_from() {
    for dtype in ["f32", "f64", "f16"] {
        let image = "f32[N,3,2]";
        let text = NORMS.replace(image, &image.replace("f32", dtype));
        let (model, mut weights) = with_weights(&text);
        weights.insert("v", Tensor::new(&[3], &[0.5f32, 1.25, 3.0]).unwrap());
        let mut mean = Weights::default();
        mean.insert("m", Tensor::new(&[3], &[0.1f32, -2.0, 7.0]).unwrap());
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let mut batch = inputs(&model, 5, &mut rng);
        if dtype == "f16" {
            let x = batch["x"].to_f64().into_iter().map(half::f16::from_f64).collect::<Vec<_>>();
            batch.insert("x".to_owned(), Tensor::new(&[5, 3, 2], &x).unwrap());
        }
        let run = |device: &dyn Executable| {
            let step = || device.run(&batch, &RunOptions::default()).unwrap().outputs.remove(0).1;
            let first = [step(), step()];
            device.set_weights(&mean).unwrap();
            let then = step();
            device.set_weights(&weights).unwrap();
            assert_eq!(device.weights().unwrap(), weights, "{dtype}");
            [first, [then, step()]].concat()
        };
        let program = lower(&verify(&model).unwrap(), &CPU).unwrap();
        let want = run(&Cpu::new(1).unwrap().executable(program, &weights).unwrap());
        assert!(want[0] == want[3] && want[0] != want[1] && want[2] != want[1], "{dtype}");
        for count in [1, 3] {
            for how in ways(count) {
                let graph = replicate(&model, &how).unwrap_or_else(|e| panic!("{dtype}: {e}"));
                let gpus = on_gpus(&graph, &weights, count);
                let derived = gpus.program().to_string().matches(" of batch_norm(").count();
                assert_eq!(derived, 2, "{dtype}: {}", gpus.program());
                assert!(run(&gpus) == want, "{dtype}, {count} GPUs, {:?}", how.weights);
            }
        }
    }
}

/// One process of a test: steps, and after each what the parameters hold, with what the driver is
/// told to do. With `set/` before the way parameters are given other elements after the first step;
/// with `staged/` each step is staged before the one before it runs.
pub(crate) fn scenario(way: &str) -> ExitCode {
    let (way, sets) = way.strip_prefix("set/").map_or((way, false), |way| (way, true));
    let (way, stages) = way.strip_prefix("staged/").map_or((way, false), |way| (way, true));
    let (model, weights) = train();
    let how = ways(2).swap_remove(way.parse().unwrap());
    let graph = replicate(&model, &how).unwrap_or_else(|e| panic!("{e}"));
    let program = lower(&verify(&graph).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap();
    let mut options = options(2);
    if std::env::var("FAKECUDA_FAIL").is_ok_and(|fail| fail.ends_with("hang")) {
        options.watchdog = Duration::from_millis(300);
    }
    let ready = Cuda::new(options).and_then(|cuda| cuda.executable(program, &weights));
    let gpus = match ready {
        Ok(gpus) => gpus,
        Err(error) => {
            say(&format!("not ready: {error}"));
            return ExitCode::SUCCESS;
        }
    };
    let batch = batch(&model, 5, &mut ChaCha8Rng::seed_from_u64(9));
    let stage = || stages.then(|| gpus.stage(&batch, &RunOptions::default()));
    let mut next = stage();
    for _ in 0..3 {
        let step = std::mem::replace(&mut next, stage());
        let run = || gpus.run(&batch, &RunOptions::default());
        match step.map_or_else(run, |staged| staged?.run()) {
            Ok(_) => say("done"),
            Err(error) => say(&format!("error: {error}")),
        }
        match gpus.weights() {
            Ok(now) => {
                let steps = now.get("steps").map_or(-1.0, |steps| steps.to_f64()[0]);
                let all: Vec<Tensor> = now.iter().map(|(_, tensor)| tensor.clone()).collect();
                say(&format!("state {steps} {}", digest(&all)));
            }
            Err(error) => say(&format!("no state: {error}")),
        }
        if sets {
            // These take all blocks that are free: memory of the host has to be taken.
            let held = [(); 16].map(|()| gpus.stage(&batch, &RunOptions::default()));
            for error in held.iter().filter_map(|staged| staged.as_ref().err()) {
                say(&format!("not staged: {error}"));
            }
            let mut new = Weights::default();
            new.insert("rate", Tensor::scalar(0.25f32));
            match gpus.set_weights(&new) {
                Ok(()) => say("set"),
                Err(error) => say(&format!("not set: {error}")),
            }
        }
    }
    ExitCode::SUCCESS
}

/// One copy after the other never ends, up to those that set parameters behind a run: the error
/// comes in time and says so, no device runs again, and the process ends.
fn parameters_on_a_gpu_that_hangs_are_given_up() {
    // Copies of the trials of both GPUs' access to each other, which hang and are done without.
    const TRIALS: u32 = 2;

    let [mut ready, mut ran, mut read, mut set, mut tried] = [0; 5];
    for at in 1.. {
        let fail = format!("copy@{at}:hang");
        let ended = spawn(&["--scenario", "train/set/2"], &[("FAKECUDA_FAIL", &fail)]);
        assert!(ended.success, "{fail}: {ended:?}");
        assert!(ended.errors.contains("never ends, as asked"), "{fail}: {ended:?}");
        let wrong = |line: &&str| line.contains("no progress");
        let Some(first) = ended.output.lines().find(wrong) else {
            tried += 1;
            assert!(tried <= TRIALS && ended.output.contains("set"), "{fail}: {ended:?}");
            continue;
        };
        assert!(first.contains("gpu:"), "{fail}: {ended:?}");
        let behind = ended.output.lines().skip_while(|line| *line != first).skip(1);
        assert!(behind.clone().all(|line| !["done", "set"].contains(&line)), "{fail}: {ended:?}");
        let is = |start: &str| u32::from(first.starts_with(start));
        ready += is("not ready: ");
        ran += is("error: ");
        read += is("no state: ");
        set += is("not set: ");
        if set > 0 {
            break;
        }
    }
    assert!(ready > 0 && ran > 0 && read > 0, "{ready}, {ran} and {read}");
    assert_eq!(tried, TRIALS);
}

/// A run after parameters could not be set does what it does where nobody tried.
fn parameters_that_are_not_set_for_want_of_memory_stay() {
    // Every GPU has the parameters.
    let right = spawn(&["--scenario", "train/2"], &[]);
    let states: Vec<&str> =
        right.output.lines().filter(|line| line.starts_with("state ")).collect();
    let mut refused = 0;
    for at in 1.. {
        // The code is one after which memory is not asked for again.
        let fail = format!("alloc@{at}:4321");
        let ended = spawn(&["--scenario", "train/set/2"], &[("FAKECUDA_FAIL", &fail)]);
        assert!(ended.success && ended.report.is_empty(), "{fail}: {ended:?}");
        if !ended.output.contains("4321") {
            break;
        }
        let lines: Vec<&str> = ended.output.lines().collect();
        if lines.get(2).is_some_and(|line| line.starts_with("not set: ")) {
            refused += 1;
            assert_eq!(lines[..2], ["done", states[0]], "{fail}: {ended:?}");
            assert_eq!(lines[3..6], ["done", states[1], "set"], "{fail}: {ended:?}");
        }
    }
    assert!(refused > 0);
}

/// Whatever call of the driver fails, the parameters hold what they held after the runs that
/// succeeded, or the devices can no longer be used.
fn calls_that_fail_leave_a_state_of_some_step() {
    for way in ["0", "1", "2", "3", "staged/2"] {
        let run =
            |variables: &[(&str, &str)]| spawn(&["--scenario", &format!("train/{way}")], variables);
        let right = run(&[]);
        assert!(right.success && right.report.is_empty(), "{right:?}");
        let states = right.output.lines().filter_map(|line| line.strip_prefix("state "));
        let mut states: BTreeMap<String, String> =
            states.map(|s| s.split_once(' ').unwrap()).map(|(k, d)| (k.into(), d.into())).collect();
        assert_eq!(states.len(), 3, "{right:?}");
        let stride = usize::try_from(right.calls / 16).unwrap().max(1);
        let codes = ["device_lost", "out_of_memory", "illegal_address"];
        for (at, code) in (1..=right.calls).rev().step_by(stride).zip(codes.iter().cycle()) {
            let fail = format!("any@{at}:{code}");
            let ended = run(&[("FAKECUDA_FAIL", &fail)]);
            assert!(ended.success && ended.report.is_empty(), "{fail}: {ended:?}");
            let mut done = 0;
            for line in ended.output.lines() {
                done += usize::from(line == "done");
                let Some((steps, state)) =
                    line.strip_prefix("state ").and_then(|s| s.split_once(' '))
                else {
                    let named =
                        line.contains("gpu:") || line.contains("cpu:") || line.contains("libcuda");
                    assert!(line == "done" || named, "{fail}: {line}");
                    continue;
                };
                assert_eq!(steps, done.to_string(), "{way}, {fail}: {ended:?}");
                let known = states.entry(steps.to_owned()).or_insert_with(|| state.to_owned());
                assert_eq!(known, state, "{way}, {fail}: {ended:?}");
            }
        }
    }
}
