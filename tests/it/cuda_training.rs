//! Training graphs on GPUs: what of them the host computes.

use std::collections::BTreeSet;

use fanwise::backend::CUDA;
use fanwise::internal::calls;
use fanwise::ir::{Graph, verify};
use fanwise::lower::{Action, Buffer, Program, Storage, lower};
use fanwise::pass::{BatchStatistics, Repair, RepairOptions, Replicate, WeightPlacement, repair};
use fanwise::types::{Device, KernelClass};

/// A step of training of a model of the zoo with few features, by a loss of each output.
pub(crate) fn step(name: &str, optimizer: &str) -> Graph {
    let (graph, weights) = expect::model(name, true);
    expect::step(&graph, &weights, optimizer).graph
}

pub(crate) fn on_gpus(graph: &Graph, statistics: BatchStatistics) -> Program {
    in_buckets(graph, statistics, (2, RepairOptions::BUCKET))
}

/// On so many GPUs, with buckets of so many bytes.
pub(crate) fn in_buckets(
    graph: &Graph,
    statistics: BatchStatistics,
    (count, bucket): (u32, u64),
) -> Program {
    let batch_norm = Some(statistics);
    let options = RepairOptions { batch_norm, bucket, ..RepairOptions::new(Repair::Comm) };
    let repaired = repair(graph, options).unwrap_or_else(|e| panic!("{e}"));
    let over = Replicate::over((0..count).map(Device::gpu).collect());
    let how = Replicate { weights: WeightPlacement::Mirrored, repair: Repair::Comm, ..over };
    let split = repaired.replicate(&how).unwrap_or_else(|e| panic!("{e}"));
    lower(&verify(&split).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap()
}

/// The operators of launches on the host.
pub(crate) fn on_host(program: &Program) -> BTreeSet<&'static str> {
    let host = program.devices.iter().filter(|d| d.device == Device::HOST);
    let launches = host.flat_map(|d| &d.steps).filter_map(|step| match &step.action {
        Action::Launch(launch) => Some(launch),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    launches.map(|launch| launch.op.as_ref().map_or("chain", |op| op.name())).collect()
}

#[test]
fn what_of_training_the_host_computes() {
    let models = [
        ("mlp:narrow=8", BatchStatistics::Sync),
        ("mini_googlenet:narrow=8", BatchStatistics::Sync),
        ("mobilenet_v2:narrow=16,pixels=32", BatchStatistics::Local),
        ("resnet50:narrow=16,pixels=32", BatchStatistics::Local),
        ("transformer", BatchStatistics::Sync),
        ("gru:narrow=8,steps=5", BatchStatistics::Sync),
        ("lstm:narrow=32,steps=5", BatchStatistics::Sync),
        ("video:narrow=8,pixels=16", BatchStatistics::Sync),
    ];
    for (name, statistics) in models {
        let found = on_host(&on_gpus(&step(name, "adam:global_clipnorm=1"), statistics));
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [""; 0], "{name}");
    }
}

/// Of the launches that give parameters their new elements a device makes one for all that are
/// computed alike, as far as the addresses of theirs fit in a kernel's argument; none of more than
/// one element is left over. Running means and variances, and the scales and biases of
/// normalisations, have formulas of their own.
#[test]
fn parameters_are_updated_together() {
    let models = [
        ("mlp:narrow=8", "sgd", 1),
        ("mini_googlenet:narrow=8", "sgd:momentum=0.9", 7),
        ("mini_googlenet:narrow=8", "adamw", 8),
        ("transformer", "rmsprop:centered=true,momentum=0.9", 3),
        ("transformer", "adam:global_clipnorm=1", 3),
    ];
    for (name, optimizer, most) in models {
        let program = on_gpus(&step(name, optimizer), BatchStatistics::Sync);
        for device in program.devices.iter().filter(|d| d.device != Device::HOST) {
            let calls = calls(device).unwrap_or_else(|e| panic!("{e}"));
            let updates = calls.iter().flatten().filter(|call| call.kernel.file == "update.cu");
            let found = updates.count();
            assert!((1..=most).contains(&found), "{name}, {optimizer}: {found} launches");
            let alone = device.steps.iter().filter_map(|step| match &step.action {
                Action::Launch(launch) if launch.class == KernelClass::Elementwise => {
                    Some(&device.buffers[launch.results[0].0 as usize])
                }
                Action::Launch(_) | Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => {
                    None
                }
            });
            let is_update = |b: &&Buffer| matches!(b.storage, Storage::Update(_));
            for buffer in alone.filter(is_update) {
                let count = buffer.ty.shape.elements().as_const();
                assert_eq!(count, Some(1), "{name}, {optimizer}: {}", buffer.name);
            }
        }
    }
}

/// What a device takes from the host in a step is its inputs: what GPUs have they take from one
/// another.
#[test]
fn the_host_sends_inputs_alone() {
    for (name, gpus) in [("mini_googlenet", 4), ("xception", 8), ("resnet50", 3)] {
        let program = expect::on_gpus(&step(name, "sgd"), gpus, Repair::Comm);
        for device in &program.devices[1..] {
            let from_host = device.steps.iter().filter_map(|step| match &step.action {
                Action::Copy { device: 0, .. } => Some(&*step.label),
                Action::Copy { .. } | Action::Launch(_) | Action::Wait(_) | Action::Record(_) => {
                    None
                }
            });
            let labels: Vec<&str> = from_host.collect();
            let most = program.inputs.len();
            assert!(labels.len() <= most, "{name} {}: {labels:?}", device.device);
        }
    }
}
