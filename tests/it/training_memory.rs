//! The memory that training takes: what is planned, what is live, and what a step touches.

use fanwise::backend::{CPU, Executable, RunOptions};
use fanwise::internal::check;
use fanwise::ir::verify;
use fanwise::lower::lower;
use fanwise::pass::{BatchStatistics, Training, TrainingGraph, training};
use fanwise::zoo;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::cuda_training::on_gpus;
use crate::programs::{executable, inputs};

/// The training graph of a model of the zoo.
fn graph(name: &str, optimizer: &str) -> TrainingGraph {
    let (model, weights) = zoo::build(name).unwrap();
    let output = model.outputs()[0].name.to_string();
    let loss = "categorical_crossentropy".parse().unwrap();
    let how = Training::new(&output, loss, optimizer.parse().unwrap());
    training(&model, &weights, &how).unwrap()
}

#[test]
fn hardly_more_is_planned_than_is_live() {
    let models = [("mlp", "adam"), ("mini_googlenet", "sgd:momentum=0.9")];
    for (name, optimizer) in
        models.into_iter().chain([("mobilenet_v2", "sgd"), ("resnet50", "sgd")])
    {
        let graph = graph(name, optimizer).graph;
        let program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
        for rows in [1, 7, 64, 65] {
            let bound = program.bind(rows).unwrap();
            check(&program, &bound).unwrap_or_else(|e| panic!("{name}, {rows} rows: {e}"));
            let plan = &bound.devices[0];
            assert!(
                plan.live <= plan.planned && plan.planned * 100 <= plan.live * 108,
                "{name}, {rows} rows: {} bytes are planned, {} are live",
                plan.planned,
                plan.live
            );
        }
    }
}

/// On GPUs, too, with what they exchange beside the backward pass.
#[test]
fn hardly_more_is_planned_on_gpus() {
    for (name, optimizer) in
        [("mlp", "adam"), ("mini_googlenet", "sgd:momentum=0.9"), ("resnet50", "adam")]
    {
        let program = on_gpus(&graph(name, optimizer).graph, BatchStatistics::Sync);
        for rows in [2, 7, 64, 129] {
            let bound = program.bind(rows).unwrap();
            check(&program, &bound).unwrap_or_else(|e| panic!("{name}, {rows} rows: {e}"));
            for plan in &bound.devices[1..] {
                let (live, planned) = (plan.live, plan.planned);
                assert!(
                    live <= planned && planned * 100 <= live * 108,
                    "{name}, {rows} rows: {planned} bytes are planned, {live} are live"
                );
            }
        }
    }
}

#[test]
fn a_step_touches_what_is_planned() {
    for (name, optimizer, rows) in [("mlp", "adam", 16), ("mini_googlenet", "sgd", 2)] {
        let TrainingGraph { graph, weights, .. } = graph(name, optimizer);
        let executable = executable(&graph, &weights, &CPU, 2);
        let feed = inputs(&graph, rows, &mut ChaCha8Rng::seed_from_u64(1));
        let run = executable.run(&feed, &RunOptions::default()).unwrap();
        let bound = executable.bind(rows).unwrap();
        for (device, plan) in run.devices.iter().zip(&bound.devices) {
            assert_eq!(device.planned, plan.planned as u64, "{name}");
            // What ends last need not fill its place, which is a multiple of 64 bytes.
            let rest = device.planned.checked_sub(device.used);
            assert!(rest.is_some_and(|rest| rest < 64), "{name}: {device:?}");
        }
    }
}
