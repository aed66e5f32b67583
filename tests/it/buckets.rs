//! Sums over replicas that are made in buckets.

use fanwise::backend::{CPU, CUDA, Executable, RunOptions};
use fanwise::internal::check;
use fanwise::ir::{Graph, Weights, parse, verify};
use fanwise::lower::{Action, Lane, Program, Step, lower};
use fanwise::op::Op;
use fanwise::pass::{
    BatchStatistics, Merge, Repair, RepairOptions, Replicate, Training, TrainingGraph,
    WeightPlacement, repair, training,
};
use fanwise::types::{Device, Tensor};
use fanwise::zoo;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use support::turn::turns;

use crate::cuda_training::{in_buckets, step};
use crate::programs::{executable, inputs};
use crate::variables::train;

/// A graph on three devices, with buckets of so many bytes.
fn split(graph: &Graph, bucket: u64, how: (WeightPlacement, Merge)) -> Graph {
    let options = RepairOptions { bucket, ..RepairOptions::new(Repair::Comm) };
    let repaired = repair(graph, options).unwrap();
    let over = Replicate::over((0..3).map(Device::gpu).collect());
    let how = Replicate { weights: how.0, merge: how.1, repair: Repair::Comm, ..over };
    repaired.replicate(&how).unwrap_or_else(|e| panic!("{e}"))
}

/// What some steps give, and the parameters after them.
fn stepped(graph: &Graph, weights: &Weights, template: &Graph) -> Vec<Tensor> {
    let run = executable(graph, weights, &CPU, 2);
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let mut all = Vec::new();
    for rows in [7, 1, 3] {
        let done = run.run(&inputs(template, rows, &mut rng), &RunOptions::default());
        all.extend(done.unwrap_or_else(|e| panic!("{e}")).outputs.into_iter().map(|(_, t)| t));
    }
    let weights = run.weights().unwrap();
    all.extend(weights.iter().map(|(_, tensor)| tensor.clone()));
    all
}

/// In buckets of any size gradients have the bits that they have one by one: scalars, wide and
/// narrow ones, of two types.
#[test]
fn buckets_change_no_bit() {
    let of_zoo = |name: &str, optimizer: &str| {
        let (model, weights) = zoo::build(name).unwrap();
        let output = model.outputs()[0].name.to_string();
        let how = Training::new(&output, "mse".parse().unwrap(), optimizer.parse().unwrap());
        let TrainingGraph { graph, weights, .. } = training(&model, &weights, &how).unwrap();
        (graph, weights)
    };
    let graphs = [
        ("a linear model", train()),
        ("mlp", of_zoo("mlp:narrow=32", "adam:global_clipnorm=1")),
        ("mini_googlenet", of_zoo("mini_googlenet:narrow=32", "rmsprop:centered=true")),
    ];
    for (name, (graph, weights)) in graphs {
        for how in
            [(WeightPlacement::Mirrored, Merge::Cpu), (WeightPlacement::Template, Merge::Gpu)]
        {
            let one_by_one = stepped(&split(&graph, 0, how), &weights, &graph);
            let mut concats = Vec::new();
            let sizes = [1, 100, 5000, RepairOptions::BUCKET];
            let run = turns(&sizes[1..2], &[sizes[0], sizes[2], sizes[3]], name);
            for bucket in sizes {
                let split = split(&graph, bucket, how);
                let buckets = split.ids().filter(|id| {
                    matches!(split.node(*id).op(), Some(Op::Concat(_)))
                        && split.node(*id).label().starts_with("bucket")
                });
                concats.push(buckets.count() / 3);
                if run.contains(&bucket) {
                    let found = stepped(&split, &weights, &graph);
                    assert_eq!(found, one_by_one, "{name}, {how:?}, {bucket} bytes");
                }
            }
            assert!(concats.iter().any(|c| *c > 0), "{name}: {concats:?}");
            assert!(concats[0] <= concats[1] || name != "mini_googlenet", "{name}: {concats:?}");
        }
    }
}

/// The positions of what a device sums beside its computing, and of the last product that it
/// computes.
fn beside(steps: &[Step]) -> (Vec<usize>, usize) {
    let sums = steps.iter().enumerate().filter(|(_, step)| {
        step.lane == Lane::Exchange && matches!(step.action, Action::Launch(_))
    });
    let product = |step: &Step| {
        let Action::Launch(launch) = &step.action else { return false };
        let multiplies = matches!(
            launch.op,
            Some(Op::MatMul(_) | Op::Gemm(_) | Op::ConvWeightGrad(_) | Op::ConvTranspose(_))
        );
        step.lane == Lane::Compute && multiplies
    };
    (sums.map(|(i, _)| i).collect(), steps.iter().rposition(product).unwrap())
}

/// Gradients are summed beside the backward pass: all but the last buckets are on their way while
/// products of it are still computed, and the memory plan is sound.
#[test]
fn gradients_are_exchanged_beside_the_backward_pass() {
    let (sync, local) = (BatchStatistics::Sync, BatchStatistics::Local);
    let models = [
        ("mlp:narrow=8", sync, &[2, 3, 8][..]),
        ("mini_googlenet:narrow=16", sync, &[2]),
        ("mini_googlenet:narrow=16", local, &[3]),
        ("transformer", sync, &[3]),
    ];
    for (name, statistics, counts) in models {
        let graph = step(name, "adam:global_clipnorm=1");
        for count in counts {
            let program = in_buckets(&graph, statistics, (*count, 512));
            for rows in [0, 7] {
                let bound = program.bind(rows).unwrap();
                check(&program, &bound).unwrap_or_else(|e| panic!("{name} on {count}: {e}"));
            }
            for device in &program.devices[1..] {
                let (sums, last) = beside(&device.steps);
                let early = sums.iter().filter(|at| **at < last).count();
                assert!(sums.len() >= 2, "{name} on {count}: {} sums", sums.len());
                let few = early * 2 < sums.len();
                assert!(!few, "{name} on {count}: {early} of {} sums come early", sums.len());
            }
        }
    }
}

/// A sum that lies in something larger is waited for by what takes that.
#[test]
fn a_sum_in_its_place_is_waited_for() {
    let template = parse(
        "fanwise 1
symbol N >= 0
param @w : f32[4,4] = \"t#w\" blake3:0000000000000001
param @v : f32[4,4] = \"t#v\" blake3:0000000000000002
param @both : f32[8,4] = \"t#both\" blake3:0000000000000003
graph @fit(%x: f32[N,4], %dy: f32[N,4]) -> (y: f32[N,4]) {
  %y : f32[N,4] = matmul(%x, @w)
  %t : f32[4,N] = transpose(%x) {perm=[1, 0]}
  %g : f32[4,4] = matmul(%t, %dy)
  %c : f32[8,4] = concat(%g, @v) {axis=0}
  %n : f32[8,4] = sub(@both, %c)
  update @both = %n
  return %y
}
",
    );
    let template = template.unwrap_or_else(|e| panic!("{e}"));
    let how = (WeightPlacement::Mirrored, Merge::Cpu);
    let split = split(&template, RepairOptions::BUCKET, how);
    let program: Program = lower(&verify(&split).unwrap(), &CUDA).unwrap();
    check(&program, &program.bind(7).unwrap()).unwrap_or_else(|e| panic!("{e}\n{program}"));
    let waits = |step: &Step| step.lane == Lane::Compute && matches!(step.action, Action::Wait(_));
    for device in &program.devices[1..] {
        assert!(device.steps.iter().any(waits), "{program}");
    }
}
