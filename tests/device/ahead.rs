//! Inputs that come to the GPUs before the run that takes them.

use std::collections::BTreeMap;

use fanwise::backend::{CUDA, Executable, RunError, RunOptions, RunOutput, Staged};
use fanwise::internal::run_each;
use fanwise::ir::{Graph, Weights, parse, verify};
use fanwise::lower::lower;
use fanwise::types::Tensor;
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::apart::spawn;
use crate::results::trial;
use crate::setup::{
    Tensors, digest, executable, inputs, on_gpus, options, outputs, replicas, say, small, traced,
};
use crate::variables;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("staged_batches_give_what_runs_give", staged_batches_give_what_runs_give),
        trial("staged_steps_change_variables_as_runs_do", staged_steps),
        trial("the_next_inputs_come_before_a_run_ends", the_next_inputs_come_before_a_run_ends),
    ]
}

/// The tests that start processes, for the fake driver.
pub(crate) fn disturbed() -> Vec<Trial> {
    vec![trial("staged_inputs_give_way_to_arenas", staged_inputs_give_way_to_arenas)]
}

fn stage<'a>(run: &'a dyn Executable, batch: &Tensors) -> Box<dyn Staged + 'a> {
    run.stage(batch, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn tensors(output: RunOutput) -> Vec<Tensor> {
    output.outputs.into_iter().map(|(_, tensor)| tensor).collect()
}

/// In any order, beside runs that are not staged, with batches that are dropped, and in a row.
fn staged_batches_give_what_runs_give() {
    let (graph, weights) = small("two_head");
    for count in [1, 3] {
        let run = on_gpus(&graph, &weights, count, 1);
        let mut rng = ChaCha8Rng::seed_from_u64(12);
        let batches: Vec<_> = [4, 7, 0, 7, 2].map(|n| inputs(&graph, n, &mut rng)).into();
        let alone: Vec<_> = batches.iter().map(|batch| outputs(&run, batch)).collect();
        for _ in 0..2 {
            let [first, second, none, dropped, last] =
                [0, 1, 2, 3, 4].map(|i| stage(&run, &batches[i]));
            assert_eq!(tensors(second.run().unwrap()), alone[1]);
            drop(dropped);
            assert_eq!(outputs(&run, &batches[3]), alone[3]);
            for (staged, i) in [(last, 4), (none, 2), (first, 0)] {
                assert_eq!(tensors(staged.run().unwrap()), alone[i], "batch {i} on {count}");
            }
        }
        let mut found = Vec::new();
        let batches = batches.iter().map(|batch| Ok(((), batch.clone())));
        run_each(&run, &RunOptions::default(), batches, |(), output| {
            found.push(tensors(output));
            Ok::<_, RunError>(())
        })
        .unwrap();
        assert_eq!(found, alone, "{count}");
    }
}

/// A step takes the parameters that the one before it left, though it was staged before that ran.
fn staged_steps() {
    let (graph, weights) = variables::on_two();
    let batches = variables::batches(&graph, &[5, 5, 3, 5]);
    let [plain, staged] = [0; 2].map(|_| executable(&graph, &weights, options(2)));
    for batch in &batches {
        outputs(&plain, batch);
    }
    let mut next = Some(stage(&staged, &batches[0]));
    for i in 0..batches.len() {
        let one = next.take().unwrap();
        next = batches.get(i + 1).map(|batch| stage(&staged, batch));
        one.run().unwrap_or_else(|e| panic!("{e}"));
    }
    assert_eq!(staged.weights().unwrap(), plain.weights().unwrap());
    let mut bad = batches[0].clone();
    bad.insert("i".to_owned(), Tensor::new(&[5], &[0i64, 9, 0, 0, 0]).unwrap());
    let (wrong, right) = (stage(&staged, &bad), stage(&staged, &batches[0]));
    let error = wrong.run().unwrap_err();
    assert!(matches!(error, RunError::Op { .. }), "{error}");
    assert_eq!(staged.weights().unwrap(), plain.weights().unwrap());
    right.run().unwrap_or_else(|e| panic!("{e}"));
    outputs(&plain, &batches[0]);
    assert_eq!(staged.weights().unwrap(), plain.weights().unwrap());
}

/// The trace shows for each device that the copies of the second batch begin before the kernels of
/// the first have ended.
fn the_next_inputs_come_before_a_run_ends() {
    let (graph, weights) = small("two_head");
    let (options, trace) = traced(2);
    let run = executable(&replicas(&graph, 2, 1), &weights, options);
    let batch = inputs(&graph, 4, &mut ChaCha8Rng::seed_from_u64(13));
    let (first, second) = (stage(&run, &batch), stage(&run, &batch));
    assert_eq!(tensors(first.run().unwrap()), tensors(second.run().unwrap()));
    let json: serde_json::Value = serde_json::from_str(&trace.to_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let mut tracks = BTreeMap::new();
    for e in events.iter().filter(|e| e["name"] == "thread_name") {
        tracks.insert((e["pid"].as_u64(), e["tid"].as_u64()), e["args"]["name"].as_str().unwrap());
    }
    let spans = |run: u64, track: &str| -> Vec<(f64, f64)> {
        let of = |e: &&serde_json::Value| {
            let at = (e["pid"].as_u64(), e["tid"].as_u64());
            e["ph"] == "X" && at.0 == Some(run) && tracks.get(&at) == Some(&track)
        };
        let time = |e: &serde_json::Value| {
            let (start, length) = (e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap());
            (start, start + length)
        };
        events.iter().filter(of).map(time).collect()
    };
    for gpu in ["gpu:0", "gpu:1"] {
        let came = spans(1, &format!("{gpu} inputs"));
        let ran = spans(0, &format!("{gpu} compute"));
        let ended = ran.iter().map(|span| span.1).fold(f64::MIN, f64::max);
        assert!(came.len() == 1 && came[0].0 < ended, "{gpu}: {came:?}, {ran:?}");
        assert_eq!(spans(0, &format!("{gpu} inputs")).len(), 1);
    }
}

/// Rows of a batch, each of which is large beside what is made of it.
const ROWS: i64 = 64;

/// Sums of squares.
const SQUARES: &str = "fanwise 1
symbol N >= 0
graph @squares(%x: f32[N,4096]) -> (y: f32[N]) {
  %y : f32[N] = reduce_sum_square(%x) {axes=[1], keepdims=false}
  return %y
}
";

fn squares() -> (Graph, Tensors) {
    let graph = parse(SQUARES).unwrap_or_else(|e| panic!("{e}"));
    let batch = inputs(&graph, ROWS, &mut ChaCha8Rng::seed_from_u64(14));
    (replicas(&graph, 1, 1), batch)
}

/// One process of a test: two batches are staged, then run.
pub(crate) fn scenario() {
    let (graph, batch) = squares();
    let run = executable(&graph, &Weights::default(), options(1));
    let staged = [stage(&run, &batch), stage(&run, &batch)];
    for one in staged {
        match one.run() {
            Ok(output) => say(&format!("outputs {}", digest(&tensors(output)))),
            Err(error) => say(&format!("error: {error}")),
        }
    }
}

/// Where memory is enough for the arena alone the runs are those of a device with plenty.
fn staged_inputs_give_way_to_arenas() {
    let (graph, batch) = squares();
    let program = lower(&verify(&graph).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap();
    let arena = program.bind(ROWS).unwrap().devices[1].planned;
    let input = batch["x"].bytes().len();
    let run = |memory: usize| {
        spawn(&["--scenario", "ahead"], &[("FAKECUDA_MEMORY", &memory.to_string())])
    };
    let plenty = run(64 << 20);
    let lines: Vec<&str> = plenty.output.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].starts_with("outputs ") && lines[0] == lines[1],
        "{plenty:?}"
    );
    for memory in [arena + input / 2, arena + input + input / 2, arena + 3 * input] {
        let ended = run(memory);
        assert!(ended.success && ended.report.is_empty(), "{memory}: {ended:?}");
        assert_eq!(ended.output, plenty.output, "{memory}: {ended:?}");
    }
    let ended = run(arena - input / 2);
    assert!(ended.success && ended.report.is_empty(), "{ended:?}");
    assert!(ended.output.lines().all(|line| line.contains("has no memory for")), "{ended:?}");
}
