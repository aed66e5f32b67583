//! Inference of a model, or a step of its training: its starts, its kernels, its throughput on
//! replicas that share the GPUs there are.

use std::time::Instant;

use fanwise::backend::Executable;
use fanwise::backend::cuda::{Cuda, CudaOptions};
use fanwise::internal::CudaExecutable;
use fanwise::ir::{Graph, Weights};
use fanwise::lower::Program;
use fanwise::pass::Repair;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use super::ceilings::Ceilings;
use super::floors::{self, Kernel};
use super::{Scope, busy, execute, median};
use crate::setup::{Tensors, compiler, inputs, options, traced};

/// The numbers of replicas.
const REPLICAS: [u32; 4] = [1, 2, 4, 8];

/// Runs that do not count.
const WARM: usize = 3;

/// What is measured: a model of the zoo, and whether it is trained.
pub(super) struct Subject<'a> {
    pub(super) model: &'a str,
    pub(super) is_trained: bool,
}

impl Subject<'_> {
    /// Its name among what is found.
    pub(super) fn name(&self) -> String {
        let Self { model, is_trained } = self;
        if *is_trained { format!("{model} training") } else { (*model).to_owned() }
    }

    fn graph(&self) -> (Graph, Weights) {
        let (graph, weights) = expect::model(self.model, self.is_trained);
        if !self.is_trained {
            return (graph, weights);
        }
        let step = expect::step(&graph, &weights, expect::OPTIMIZER);
        (step.graph, step.weights)
    }

    /// A graph of it on so many GPUs.
    fn on_gpus(&self, graph: &Graph, count: u32) -> Program {
        let repair = if self.is_trained { Repair::Comm } else { Repair::Local };
        expect::on_gpus(graph, count, repair)
    }
}

/// A program on these GPUs, ready to run.
fn ready(program: Program, weights: &Weights, options: CudaOptions) -> CudaExecutable {
    let cuda = Cuda::new(options).unwrap_or_else(|e| panic!("{e}"));
    cuda.executable(program, weights).unwrap_or_else(|e| panic!("{e}"))
}

/// Measures a subject; what is found stands in `model` even where a later part fails or time runs
/// out.
pub(super) fn measure(
    subject: &Subject<'_>,
    scope: &Scope,
    ceilings: &Ceilings,
    model: &mut Map<String, Value>,
) {
    let (graph, weights) = subject.graph();
    let batch = inputs(&graph, scope.batch, &mut ChaCha8Rng::seed_from_u64(3));
    let program = subject.on_gpus(&graph, 1);
    let (cold, warm) = starts(&program, &weights);
    model.insert("cold_seconds".to_owned(), json!(cold));
    model.insert("warm_seconds".to_owned(), json!(warm));
    let (traced, trace) = traced(1);
    let run = ready(program.clone(), &weights, traced);
    (0..6).for_each(|_| drop(execute(&run, &batch)));
    drop(run);
    let kernels = floors::kernels(&program, scope.batch, &trace, ceilings);
    let floor: f64 = kernels.iter().map(Kernel::floor).sum();
    let spent: f64 = kernels.iter().map(|k| k.time).sum();
    let bf16: Option<f64> = kernels.iter().map(|k| k.bf16).sum();
    let expected: Option<f64> = kernels.iter().map(|k| k.expected).sum();
    let images = scope.batch as f64;
    model.insert("floor_seconds".to_owned(), json!(floor));
    model.insert("floor_from".to_owned(), json!(ceilings.flops().1));
    model.insert("floor_images_per_second".to_owned(), json!(images / floor));
    model.insert("bf16_floor_seconds".to_owned(), json!(bf16));
    model.insert("expected_seconds".to_owned(), json!(expected));
    model.insert("kernel_seconds".to_owned(), json!(spent));
    model.insert("kernels".to_owned(), kernels.iter().map(Kernel::json).collect());
    let (mut counts, mut first) = (Map::new(), None);
    for (at, count) in REPLICAS.into_iter().enumerate() {
        model.insert("replicas_not_measured".to_owned(), json!(REPLICAS[at..]));
        if scope.is_over() {
            return;
        }
        let run = ready(subject.on_gpus(&graph, count), &weights, options(count));
        let (seconds, device) = times(&run, &batch, scope);
        let (one, device_one) = *first.get_or_insert((seconds, device));
        let found = json!({
            "seconds": seconds,
            "device_seconds": device,
            "images_per_second": images / seconds,
            "device_images_per_second": images / device,
            "against_one": one / seconds,
            "device_against_one": device_one / device,
            "share_of_floor": floor / device,
            "share_of_bf16_floor": bf16.map(|bf16| bf16 / device),
        });
        counts.insert(count.to_string(), found);
        model.insert("replicas".to_owned(), Value::Object(counts.clone()));
    }
    model.remove("replicas_not_measured");
}

/// Seconds to ready a program with an empty cache, and with the cache that this leaves.
fn starts(program: &Program, weights: &Weights) -> (f64, f64) {
    let cache = tempfile::tempdir().unwrap();
    let start = || {
        let mut options = options(1);
        options.compiler = compiler(Some(cache.path().to_owned()));
        let begin = Instant::now();
        drop(ready(program.clone(), weights, options));
        begin.elapsed().as_secs_f64()
    };
    (start(), start())
}

/// The median seconds of a run from its inputs to its outputs, and of the devices in it. Where time
/// runs out, of fewer runs.
fn times(run: &dyn Executable, batch: &Tensors, scope: &Scope) -> (f64, f64) {
    let (mut walls, mut devices) = (Vec::new(), Vec::new());
    for i in 0..scope.repeat + WARM {
        if scope.is_over() && !walls.is_empty() {
            break;
        }
        let begin = Instant::now();
        let output = execute(run, batch);
        if i >= WARM {
            walls.push(begin.elapsed().as_secs_f64());
            devices.push(busy(&output));
        }
    }
    (median(walls), median(devices))
}
