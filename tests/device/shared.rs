//! GPUs that logical devices, programs and threads share; what is recorded of runs that fail.

use std::sync::Arc;
use std::thread;

use fanwise::backend::Trace;
use fanwise::backend::cuda::Cuda;
use fanwise::backend::{CUDA, CompileError, Executable, RunOptions};
use fanwise::internal::count;
use fanwise::ir::{Graph, Weights, parse, verify};
use fanwise::lower::{Program, lower};
use fanwise::types::{DType, Tensor};
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::results::trial;
use crate::setup::{compiler, inputs, on_gpus, options, outputs, replicas, small, traced};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("gpus_are_those_of_the_list", gpus_are_those_of_the_list),
        trial("only_gpus_in_use_are_opened", only_gpus_in_use_are_opened),
        trial("logical_gpus_are_dealt_round", logical_gpus_are_dealt_round),
        trial("programs_share_gpus", programs_share_gpus),
        trial("a_trace_has_each_run", a_trace_has_each_run),
        trial("a_run_that_fails_is_traced", a_run_that_fails_is_traced),
        trial("a_cache_that_cannot_be_is_told", a_cache_that_cannot_be_is_told),
    ]
}

fn program(graph: &Graph) -> Program {
    lower(&verify(graph).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap()
}

/// The numbers of `many` GPUs, the last first; there may be fewer.
fn last_first(many: u32) -> Vec<u32> {
    let there = u32::try_from(count()).unwrap();
    (0..many.min(there)).rev().collect()
}

/// The first of the list is the program's first GPU, and one that is not there is named.
fn gpus_are_those_of_the_list() {
    let (graph, weights) = small("two_head");
    let batch = inputs(&graph, 5, &mut ChaCha8Rng::seed_from_u64(11));
    let split = replicas(&graph, 2, 1);
    let expected = outputs(&on_gpus(&graph, &weights, 2, 1), &batch);
    let mut chosen = options(2);
    chosen.devices = last_first(3);
    let cuda = Cuda::new(chosen.clone()).unwrap();
    let run = cuda.executable(program(&split), &weights).unwrap();
    assert_eq!(outputs(&run, &batch), expected);
    let mut used: Vec<u32> = chosen.devices.iter().take(2).copied().collect();
    used.sort_unstable();
    assert_eq!(cuda.opened(), used);
    chosen.devices = vec![0, 9999];
    let error = Cuda::new(chosen).unwrap_err();
    assert!(matches!(error, CompileError::NoDevice { .. }), "{error}");
    assert!(error.to_string().contains("gpu:9999"), "{error}");
}

fn only_gpus_in_use_are_opened() {
    let (graph, weights) = small("mlp");
    let mut all = options(1);
    all.logical = None;
    let cuda = Cuda::new(all).unwrap();
    assert_eq!((cuda.opened(), cuda.count()), (Vec::new(), count()));
    let run = cuda.executable(program(&replicas(&graph, 1, 1)), &weights).unwrap();
    assert_eq!(cuda.opened(), [0]);
    outputs(&run, &inputs(&graph, 3, &mut ChaCha8Rng::seed_from_u64(12)));
    assert_eq!(cuda.opened(), [0]);
}

/// Five logical GPUs on two, with rows that do not divide.
fn logical_gpus_are_dealt_round() {
    let (graph, weights) = small("nested");
    let mut rng = ChaCha8Rng::seed_from_u64(13);
    let one = on_gpus(&graph, &weights, 1, 1);
    let mut five = options(5);
    five.devices = last_first(2);
    let cuda = Cuda::new(five).unwrap();
    assert_eq!(cuda.count(), 5);
    for variant in 0..3 {
        let run = cuda.executable(program(&replicas(&graph, 5, variant)), &weights).unwrap();
        for n in [7, 2] {
            let batch = inputs(&graph, n, &mut rng);
            assert_eq!(outputs(&run, &batch), outputs(&one, &batch), "{n} rows, {variant}");
        }
    }
}

/// Programs of one backend run at the same time on the same GPUs, while others are readied.
fn programs_share_gpus() {
    let cuda = Arc::new(Cuda::new(options(3)).unwrap());
    thread::scope(|scope| {
        for (i, name) in ["two_head", "mlp", "nested", "two_head"].into_iter().enumerate() {
            let cuda = &cuda;
            scope.spawn(move || {
                let (graph, weights) = small(name);
                let mut rng = ChaCha8Rng::seed_from_u64(14 + i as u64);
                let alone = on_gpus(&graph, &weights, 1, 1);
                let count = 1 + u32::try_from(i % 3).unwrap();
                let split = replicas(&graph, count, i as u64);
                for n in [5, 1] {
                    let run = cuda.executable(program(&split), &weights).unwrap();
                    let batch = inputs(&graph, n, &mut rng);
                    let expected = outputs(&alone, &batch);
                    for _ in 0..3 {
                        assert_eq!(outputs(&run, &batch), expected, "{name}, {n} rows");
                    }
                }
            });
        }
    });
}

/// The events of a trace of this category.
fn events(trace: &Trace, category: &str) -> Vec<Value> {
    let json: Value = serde_json::from_str(&trace.to_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    events.iter().filter(|e| e["cat"] == category).cloned().collect()
}

/// Runs that overlap do not share tracks, work of one stream does not overlap, and waiting is told
/// from it.
fn a_trace_has_each_run() {
    const RUNS: u64 = 4;
    let (graph, weights) = small("two_head");
    let (options, trace) = traced(2);
    let cuda = Cuda::new(options).unwrap();
    let run = cuda.executable(program(&replicas(&graph, 2, 0)), &weights).unwrap();
    let batch = inputs(&graph, 4, &mut ChaCha8Rng::seed_from_u64(15));
    thread::scope(|scope| {
        for _ in 0..RUNS {
            scope.spawn(|| outputs(&run, &batch));
        }
    });
    let work = events(&trace, "work");
    let number = |e: &Value, key: &str| e[key].as_f64().unwrap();
    let mut tracks: std::collections::BTreeMap<(u64, u64), Vec<(f64, f64)>> =
        std::collections::BTreeMap::new();
    for event in &work {
        let track = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        let begin = number(event, "ts");
        tracks.entry(track).or_default().push((begin, begin + number(event, "dur")));
    }
    let mut runs: Vec<u64> = tracks.keys().map(|(run, _)| *run).collect();
    runs.dedup();
    assert_eq!(runs, (0..RUNS).collect::<Vec<_>>());
    for (track, spans) in &mut tracks {
        spans.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Events tell half microseconds apart.
        let apart = |pair: &[(f64, f64)]| pair[1].0 >= pair[0].1 - 2.0;
        assert!(spans.windows(2).all(apart), "{track:?}: {spans:?}");
    }
    assert!(!events(&trace, "wait").is_empty() && events(&trace, "error").is_empty());
}

/// What was done until then is there, and the error.
fn a_run_that_fails_is_traced() {
    const TEXT: &str = "fanwise 1
symbol N >= 0
graph @picked(%x: f32[N,8,4], %i: i64[N,3,1]) -> (y: f32[N,3,4]) {
  %a : f32[N,8,4] = relu(%x)
  %y : f32[N,3,4] = gather_nd(%a, %i) {batch_dims=1}
  return %y
}
";
    let graph = parse(TEXT).unwrap_or_else(|e| panic!("{e}"));
    let (weights, (options, trace)) = (Weights::default(), traced(1));
    let cuda = Cuda::new(options).unwrap();
    let run = cuda.executable(program(&replicas(&graph, 1, 1)), &weights).unwrap();
    let mut batch = inputs(&graph, 2, &mut ChaCha8Rng::seed_from_u64(16));
    let ids = batch.values_mut().find(|tensor| tensor.dtype() == DType::I64).unwrap();
    let dims = ids.dims().to_vec();
    let far = vec![i64::from(u32::MAX); ids.dims().iter().product()];
    *ids = Tensor::new(&dims, &far).unwrap();
    let error = run.run(&batch, &RunOptions::default()).unwrap_err();
    let errors = events(&trace, "error");
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0]["name"].as_str(), Some(error.to_string().as_str()));
    assert!(!events(&trace, "work").is_empty());
}

/// It costs time at the next start, and nothing else.
fn a_cache_that_cannot_be_is_told() {
    let (graph, weights) = small("mlp");
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut options = options(1);
    options.compiler = compiler(Some(file.path().to_owned()));
    let cuda = Cuda::new(options).unwrap();
    let run = cuda.executable(program(&replicas(&graph, 1, 1)), &weights).unwrap();
    let [warning] = run.warnings() else { panic!("{:?}", run.warnings()) };
    assert!(warning.contains("could not be kept"), "{warning}");
    assert!(warning.contains(file.path().to_str().unwrap()), "{warning}");
    outputs(&run, &inputs(&graph, 2, &mut ChaCha8Rng::seed_from_u64(17)));
}
