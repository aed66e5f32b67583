//! The models of the zoo: small ones everywhere, whole ones on a GPU.

use std::path::Path;

use fanwise::format::npz;
use fanwise::types::Tensor;
use fanwise::zoo;
use libtest_mimic::Trial;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use support::exported;
use support::turn::{part, turns};

use crate::results::trial;
use crate::setup::{
    assert_bits, assert_close, assert_equal, expected, inputs, is_fake, on_gpus, outputs, replicas,
    runs_whole_models, said, small,
};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    // The models of the other half run in `orders`.
    for name in part(zoo::names(), 2, 1) {
        trials.push(trial(format!("small_{name}"), move || check_small(name)));
    }
    trials.push(trial("the_command_line_compares_cpu_and_gpus", compared));
    trials.push(trial("the_command_line_draws_timelines_of_gpus", timelines));
    if runs_whole_models() {
        for name in zoo::names() {
            trials.push(trial(format!("whole_{name}"), move || check_whole(name)));
        }
    }
    trials
}

/// One to eight devices give the same bits, and what the CPU gives; batches that do not divide,
/// that are smaller than the number of devices, and of no row. The second batch of a size runs as
/// graphs, on other elements than the first.
fn check_small(name: &str) {
    const BATCHES: [i64; 5] = [9, 3, 3, 0, 0];
    let (graph, weights) = small(name);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let batches = BATCHES.map(|rows| inputs(&graph, rows, &mut rng));
    let one = on_gpus(&graph, &weights, 1, 1);
    let alone = batches.each_ref().map(|batch| outputs(&one, batch));
    for (batch, alone) in batches.iter().zip(&alone) {
        assert_equal(alone, &expected(&graph, &weights, batch, true), name);
    }
    for count in turns(&[2, 3, 8], &[4, 5, 6, 7], name) {
        let variant = u64::from(count) - 2;
        let split = replicas(&graph, count, variant);
        let many = on_gpus(&graph, &weights, count, variant);
        for (i, (batch, alone)) in batches.iter().zip(&alone).enumerate() {
            let what = format!("{name}, {} rows on {count}, run {i}", BATCHES[i]);
            assert_bits(&split, &outputs(&many, batch), alone, &what);
        }
    }
}

/// The models of the zoo in sizes that the fake driver runs in seconds.
const SMALL: [&str; 13] = [
    "gru:narrow=8,steps=5",
    "lstm:narrow=8,steps=5",
    "mini_googlenet:narrow=8,pixels=16",
    "mlp:narrow=8",
    "mobilenet_v2:narrow=16,pixels=32",
    "nested",
    "resnet50:narrow=16,pixels=32",
    "siamese",
    "transformer",
    "two_head",
    "unet:narrow=8,pixels=16",
    "video",
    "xception:narrow=16,pixels=71",
];

/// What the CPU and GPUs give, by the command line.
fn compared() {
    for (model, [gpus, rows, threads]) in part(exported::with_counts(&SMALL), 4, 0) {
        let said = said(
            &[
                ["check", &model, "--gpus", &gpus, "--batch", &rows, "--threads", &threads],
                ["--logical", "8", "--target", "cpu,cuda", "--code", "ptx", "--isa", "all"],
            ]
            .concat(),
            &[],
        );
        for name in ["portable", "cuda"] {
            assert!(said.contains(&format!("{name}: the same bits\n")), "{model}: {said}");
        }
    }
    // Without a number of GPUs it is one, whose convolutions have their channels last.
    let alone = ["check", "zoo:unet:narrow=8,pixels=16", "--batch", "3", "--target", "cpu,cuda"];
    let told = said(&[&alone[..], &["--code", "ptx"]].concat(), &[]);
    assert!(told.contains("cuda: the same bits\n"), "{told}");
    let told = said(&["run", "zoo:mlp", "--target", "cpu,cuda"], &[]);
    assert!(told.contains("`fanwise check MODEL --target cpu,cuda`"), "{told}");
    let told = said(&["compile", "zoo:mlp", "--target", "cpu,cuda"], &[]);
    assert!(told.contains("a program is of one target"), "{told}");
}

/// A run, and epochs of training, each GPU with its streams.
fn timelines() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let x: Vec<f32> = (0u16..5 * 784).map(|i| f32::from(i % 7)).collect();
    let arrays = [
        ("x", Tensor::new(&[5, 784], &x).unwrap()),
        ("y", Tensor::new(&[5], &[1i64, 0, 2, 1, 0]).unwrap()),
    ];
    let arrays = arrays.map(|(name, tensor)| (name.to_owned(), tensor));
    npz::write(Path::new(&at("data.npz")), &arrays.into()).unwrap();
    let (data, svg, html) = (at("data.npz"), at("run.svg"), at("fit.html"));
    let model = "zoo:mlp:narrow=16";
    let gpus = ["--gpus", "2", "--target", "cuda", "--code", "ptx", "--timeline"];
    let fit = ["fit", model, "--data", &data, "--loss", "scce", "--batch", "3"];
    for (command, file) in [(&["run", model, "--batch", "5"][..], &svg), (&fit, &html)] {
        let told = said(&[command, &gpus, &[file]].concat(), &[]);
        let drawn = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{e}: {told}"));
        for lane in ["gpu:0 compute", "gpu:1 compute", "gpu:1 uploads"] {
            assert!(drawn.contains(lane), "{file} has no lane {lane}: {told}");
        }
    }
}

/// The whole model on one device and on several; on the fake device, which takes long, few rows on
/// two.
fn check_whole(name: &str) {
    let (rows, counts) = if is_fake() { (2, &[2][..]) } else { (6, &[2, 3, 4, 5, 6, 7, 8][..]) };
    let (graph, weights) = zoo::build(name).unwrap();
    let inputs = inputs(&graph, rows, &mut ChaCha8Rng::seed_from_u64(8));
    let wanted = expected(&graph, &weights, &inputs, true);
    let alone = outputs(&on_gpus(&graph, &weights, 1, 1), &inputs);
    assert_close(&alone, &wanted, 1e-3, name);
    for count in counts.iter().copied() {
        let split = replicas(&graph, count, 1);
        let many = on_gpus(&graph, &weights, count, 1);
        for run in 0..3 {
            let what = format!("{name} on {count}, run {run}");
            assert_bits(&split, &outputs(&many, &inputs), &alone, &what);
        }
    }
}
