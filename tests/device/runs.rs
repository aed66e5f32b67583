//! Runs of one executable: other batch sizes, several at a time, with a trace, beyond the memory.

use std::thread;

use fanwise::backend::{Executable, RunError, RunOptions};
use fanwise::ir::{Builder, Graph, Weights};
use fanwise::op::{
    CustomOp, Gather, GatherAt, OpError, Reduction, Scatter, Sharding, Unary, Unsqueeze,
};
use fanwise::types::{DType, Dim, Shape, Tensor, TensorType};
use fanwise::zoo;
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::results::trial;
use crate::setup::{
    compiler, executable, expected, inputs, is_fake, on_gpus, options, outputs, replicas, small,
    traced,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("batch_sizes_change", batch_sizes_change),
        trial("runs_at_the_same_time", runs_at_the_same_time),
        trial("graphs_and_streams_agree", graphs_and_streams_agree),
        trial("traces_name_streams_and_work", traces_name_streams_and_work),
        trial("too_large_a_batch_is_an_error", too_large_a_batch_is_an_error),
        trial("a_device_that_is_not_there_is_named", a_device_that_is_not_there_is_named),
        trial("numbers_outside_an_axis_are_errors", numbers_outside_an_axis_are_errors),
        trial("entries_of_an_empty_axis_are_errors", entries_of_an_empty_axis_are_errors),
        trial("operators_of_a_framework_run", operators_of_a_framework_run),
        trial("kernels_are_kept_between_starts", kernels_are_kept_between_starts),
    ];
    if !is_fake() {
        trials.push(trial("memory_runs_out", memory_runs_out));
    }
    trials
}

/// Plans, arenas and graphs of one batch size do not disturb those of another.
fn batch_sizes_change() {
    let (graph, weights) = small("nested");
    let run = on_gpus(&graph, &weights, 3, 2);
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let batches: Vec<_> = [1, 5, 2].map(|n| inputs(&graph, n, &mut rng)).into();
    let first: Vec<_> = batches.iter().map(|batch| outputs(&run, batch)).collect();
    for _ in 0..3 {
        for (batch, first) in batches.iter().zip(&first) {
            assert_eq!(&outputs(&run, batch), first);
        }
    }
}

/// Runs in flight together do not meet.
fn runs_at_the_same_time() {
    let (graph, weights) = small("two_head");
    let run = on_gpus(&graph, &weights, 2, 1);
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let batches: Vec<_> = (1..7).map(|n| inputs(&graph, n, &mut rng)).collect();
    let alone: Vec<_> = batches.iter().map(|batch| outputs(&run, batch)).collect();
    thread::scope(|scope| {
        for (batch, alone) in batches.iter().zip(&alone) {
            let run = &run;
            scope.spawn(move || {
                for _ in 0..4 {
                    assert_eq!(&outputs(run, batch), alone);
                }
            });
        }
    });
}

fn graphs_and_streams_agree() {
    let (graph, weights) = small("mini_googlenet");
    let split = replicas(&graph, 2, 1);
    let batch = inputs(&graph, 3, &mut ChaCha8Rng::seed_from_u64(3));
    let replayed = executable(&split, &weights, options(2));
    let mut streamed = options(2);
    streamed.graphs = false;
    let streamed = executable(&split, &weights, streamed);
    for _ in 0..3 {
        assert_eq!(outputs(&replayed, &batch), outputs(&streamed, &batch));
    }
}

fn traces_name_streams_and_work() {
    let (graph, weights) = small("two_head");
    let (options, trace) = traced(2);
    let run = executable(&replicas(&graph, 2, 1), &weights, options);
    let batch = inputs(&graph, 4, &mut ChaCha8Rng::seed_from_u64(4));
    for _ in 0..2 {
        outputs(&run, &batch);
    }
    let json: serde_json::Value = serde_json::from_str(&trace.to_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let tracks: Vec<&str> = events.iter().filter_map(|e| e["args"]["name"].as_str()).collect();
    for wanted in ["gpu:0 compute", "gpu:0 uploads", "gpu:1 compute", "gpu:1 uploads"] {
        assert!(tracks.contains(&wanted), "{tracks:?}");
    }
    let work = events.iter().filter(|e| e["ph"] == "X");
    assert!(work.clone().count() > 4 && work.clone().all(|e| e["dur"].as_f64() >= Some(0.0)));
}

/// The error says what was asked for; the next, smaller batch runs.
fn too_large_a_batch_is_an_error() {
    let (graph, weights) = zoo::build("mlp").unwrap();
    let run = on_gpus(&graph, &weights, 1, 1);
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let batch = inputs(&graph, 2, &mut rng);
    let before = outputs(&run, &batch);
    let limited = RunOptions { max_memory: Some(1000), ..RunOptions::default() };
    let error = run.run(&batch, &limited).unwrap_err();
    assert!(matches!(error, RunError::Memory { .. }), "{error}");
    assert_eq!(outputs(&run, &batch), before);
}

/// A batch that no device holds is an error that says so, and the next one runs.
fn memory_runs_out() {
    let (graph, weights) = zoo::build("unet").unwrap();
    let run = on_gpus(&graph, &weights, 1, 1);
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let batch = inputs(&graph, 2, &mut rng);
    let before = outputs(&run, &batch);
    let memory = fanwise::internal::devices().unwrap().list[0].memory;
    let fits = |n: &i64| run.bind(*n).unwrap().devices[1].planned as u64 <= memory;
    let Some(n) = (0..18).map(|i| 1 << i).find(|n| !fits(n)) else {
        return;
    };
    let error = run.run(&inputs(&graph, n, &mut rng), &RunOptions::default()).unwrap_err();
    assert!(matches!(error, RunError::OutOfMemory { .. }), "{error}");
    assert_eq!(outputs(&run, &batch), before);
}

/// Operators that pick, place and sum entries of an axis of 9 by the numbers of each sample.
fn indexing(op: &str) -> (Graph, Weights) {
    let mut b = Builder::new("indexing");
    let ty = |dtype, dims: &[i64]| {
        let sizes = dims.iter().map(|d| Dim::from(*d));
        TensorType::new(dtype, std::iter::once(Dim::n()).chain(sizes).collect::<Shape>())
    };
    let ids = b.input("ids", ty(DType::I64, &[4]));
    let x = b.input("x", ty(DType::F32, &[9]));
    let updates = b.input("updates", ty(DType::F32, &[4]));
    let table: Vec<f32> = (0..27u8).map(f32::from).collect();
    let table = b.param("table", Tensor::new(&[9, 3], &table).unwrap());
    let reduction = Reduction::Add;
    let y = match op {
        "gather" => b.op("y", Gather { axis: 0 }, &[table, ids]),
        "gather_elements" => b.op("y", GatherAt::Elements { axis: 1 }, &[x, ids]),
        "gather_nd" => {
            let axes = Unsqueeze { axes: vec![2] };
            let pairs = b.op("pairs", axes, &[ids]).unwrap();
            b.op("y", GatherAt::Nd { batch_dims: 0 }, &[table, pairs])
        }
        _ => b.op("y", Scatter::Elements { axis: 1, reduction }, &[x, ids, updates]),
    };
    b.output("y", y.unwrap());
    b.finish()
}

/// The error is that of the operator, as on the CPU; the device goes on, and what comes next is
/// right.
fn numbers_outside_an_axis_are_errors() {
    for name in ["gather", "gather_elements", "gather_nd", "scatter_elements"] {
        let (graph, weights) = indexing(name);
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let good = inputs(&graph, 5, &mut rng);
        for count in [1, 3] {
            let split = replicas(&graph, count, 1);
            let run = on_gpus(&graph, &weights, count, 1);
            let wanted = expected(&split, &weights, &good, true);
            for (round, number) in [9, -10, i64::MIN, i64::MAX].into_iter().enumerate() {
                let mut bad = good.clone();
                let ids = bad.get_mut("ids").unwrap().as_mut_slice::<i64>();
                // The last row is that of the last replica; of two wrong numbers the first one
                // counts.
                let last = ids.len() - 1;
                (ids[last - 1], ids[last]) = (number, 77);
                let error = run.run(&bad, &RunOptions::default()).unwrap_err();
                let RunError::Op { label, op, error, .. } = &error else {
                    panic!("{name}: {error}")
                };
                assert_eq!((label.as_str().split('.').next(), *op), (Some("y"), name), "{error}");
                let OpError::Value { operand: 1, reason } = &**error else { panic!("{error}") };
                let rows = if count == 1 { 5 } else { 2 };
                let position = format!("position {} is outside", 4 * rows - 2);
                assert!(reason.contains(&position), "{name} {round}: {reason}");
                // Kernel by kernel at first, then as a graph.
                assert_eq!(outputs(&run, &good), wanted, "{name} behind {number}");
            }
        }
    }
}

fn entries_of_an_empty_axis_are_errors() {
    let mut b = Builder::new("empty");
    let ids: Shape = [Dim::n(), 2.into()].into_iter().collect();
    let ids = b.input("ids", TensorType::new(DType::I64, ids));
    let table = b.param("table", Tensor::zeros(DType::F32, &[0, 3]).unwrap());
    let y = b.op("y", Gather { axis: 0 }, &[table, ids]).unwrap();
    b.output("y", y);
    let (graph, weights) = b.finish();
    let run = on_gpus(&graph, &weights, 1, 1);
    let batch = |n| inputs(&graph, n, &mut ChaCha8Rng::seed_from_u64(8));
    let error = run.run(&batch(2), &RunOptions::default()).unwrap_err();
    let RunError::Op { error, .. } = &error else { panic!("{error}") };
    assert!(matches!(**error, OpError::Value { operand: 1, .. }), "{error}");
    assert_eq!(outputs(&run, &batch(0))[0].dims(), [0, 2, 3]);
}

fn a_device_that_is_not_there_is_named() {
    let (graph, weights) = small("mlp");
    let split = replicas(&graph, 3, 1);
    let program = fanwise::lower::lower(
        &fanwise::ir::verify(&split).unwrap_or_else(|e| panic!("{e}")),
        &fanwise::backend::CUDA,
    );
    let cuda = fanwise::backend::cuda::Cuda::new(options(2)).unwrap();
    let error = cuda.executable(program.unwrap(), &weights).unwrap_err().to_string();
    assert!(error.contains("gpu:2") && error.contains("2 GPUs"), "{error}");
}

/// An operator of a framework that doubles its operand, or fails.
struct Twice {
    fails: bool,
}

impl CustomOp for Twice {
    fn name(&self) -> &'static str {
        "com.acme.Twice"
    }

    fn infer(&self, operands: &[TensorType]) -> Result<Vec<TensorType>, String> {
        Ok(operands.to_vec())
    }

    fn split(&self, operands: &[Sharding]) -> Result<Vec<Sharding>, String> {
        Ok(operands.to_vec())
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, String> {
        assert!(!self.fails, "a bug of the framework");
        let mut y = operands[0].clone();
        y.as_mut_slice::<f32>().iter_mut().for_each(|x| *x *= 2.0);
        Ok(vec![y])
    }
}

/// Between operators of the devices the host runs what only a framework knows; what it does wrong
/// is an error that names it.
fn operators_of_a_framework_run() {
    let graph = |fails| {
        let mut b = Builder::new("framework");
        let x = b.input("x", "f32[N,3]".parse().unwrap());
        let h = b.op("h", Unary::Relu, &[x]).unwrap();
        let h = b.op("twice", Twice { fails }, &[h]).unwrap();
        let y = b.op("y", Unary::Neg, &[h]).unwrap();
        b.output("y", y);
        b.finish()
    };
    let (good, weights) = graph(false);
    let (bad, _) = graph(true);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for count in [1, 3] {
        let run = on_gpus(&good, &weights, count, 1);
        for n in [1, 7] {
            let batch = inputs(&good, n, &mut rng);
            let wanted = expected(&good, &weights, &batch, false);
            assert_eq!(outputs(&run, &batch), wanted);
        }
        let batch = inputs(&bad, 5, &mut rng);
        let run = on_gpus(&bad, &weights, count, 1).run(&batch, &RunOptions::default());
        let error = run.unwrap_err().to_string();
        let named = error.contains("`com.acme.Twice` failed: it panics: a bug of the framework");
        assert!(named, "{error}");
    }
}

/// The second start compiles nothing; a file that is damaged is made again, and the outputs are the
/// same.
fn kernels_are_kept_between_starts() {
    let (graph, weights) = small("two_head");
    let batch = inputs(&graph, 3, &mut ChaCha8Rng::seed_from_u64(7));
    let cache = tempfile::tempdir().unwrap();
    let start = || {
        let mut options = options(2);
        options.compiler = compiler(Some(cache.path().to_owned()));
        outputs(&executable(&replicas(&graph, 2, 1), &weights, options), &batch)
    };
    let files = || {
        let entries = std::fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<_> =
            entries.map(|e| (e.path(), std::fs::read(e.path()).unwrap())).collect();
        files.sort();
        files
    };
    let first = start();
    let kept = files();
    assert!(!kept.is_empty());
    assert_eq!(start(), first);
    assert_eq!(files(), kept);
    for (path, bytes) in &kept {
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    }
    assert_eq!(start(), first);
    let paths = |files: &[(std::path::PathBuf, Vec<u8>)]| {
        files.iter().map(|(path, bytes)| (path.clone(), bytes.len())).collect::<Vec<_>>()
    };
    assert_eq!(paths(&files()), paths(&kept));
}
