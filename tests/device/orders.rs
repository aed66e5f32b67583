//! Streams in adversarial orders: every model of the zoo, every graph of the cases, one that needs
//! every collective and steps of training on one to eight devices compute the same, and the fake
//! driver finds no access out of order, no leak and no use after a free.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fanwise::backend::{Executable, RunOptions, Staged};
use fanwise::ir::{Graph, Weights, parse};
use fanwise::pass::{
    Repair, RepairOptions, Replicate, Training, WeightPlacement, repair, replicate, training,
};
use fanwise::types::{Device, Tensor};
use fanwise::zoo;
use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use support::turn::{part, turns};

use crate::apart::spawn;
use crate::collectives::needy;
use crate::results::trial;
use crate::setup::{digest, executable, inputs, options, replicas, say, small};

/// Orders, and the number of devices, which some replicas share where there are few.
const ORDERS: [(&str, &str); 4] =
    [("late", "8"), ("random:1", "3"), ("lifo", "8"), ("random:2", "1")];

/// Models of many kernels, for which the first order is enough; each of their outputs is that of
/// one device.
const LARGE: [&str; 7] =
    ["mini_googlenet", "mobilenet_v2", "resnet50", "transformer", "unet", "video", "xception"];

/// Most devices.
const MOST: u32 = 8;

/// The numbers of devices of steps of training: by two sums are made at once, by the others in
/// slices or at once.
const STEPPED: [u32; 3] = [2, 3, MOST];

/// Of the graphs of cases, each runs on one number of devices in so many at once.
const PARTS: usize = 3;

/// Rows of a run, some replicas have none.
const ROWS: i64 = 5;

/// Graphs of cases that must run at the least.
const CASES: usize = 31;

/// Graphs of cases that cannot run, and why.
const REFUSED: [(&str, &str); 1] = [("external", "has no callback")];

pub(crate) fn trials() -> Vec<Trial> {
    let all = |name: &'static str| trial(format!("orders_{name}"), move || check(name));
    let apart = trial("orders_without_peers", devices_that_reach_no_other_compute_the_same);
    // The models of the other half run in `models`.
    let models = part(zoo::names(), 2, 0);
    models.chain(["cases", "needy", "training"]).map(all).chain([apart]).collect()
}

/// Copies between devices that cannot access each other's memory go through the host.
fn devices_that_reach_no_other_compute_the_same() {
    for name in ["nested", "needy", "training"] {
        let args = ["--scenario", &format!("orders/{name}")];
        let usual = spawn(&args, &[("FAKECUDA_DEVICES", "4")]);
        assert_complete(name, &usual.output, name);
        let apart =
            [("FAKECUDA_DEVICES", "4"), ("FAKECUDA_PEERS", "0"), ("FAKECUDA_ORDER", "random:3")];
        let ended = spawn(&args, &apart);
        assert!(ended.success && ended.report.is_empty(), "{name}: {ended:?}");
        assert_eq!(ended.output, usual.output, "{name}: {ended:?}");
    }
}

fn check(name: &str) {
    let args = ["--scenario", &format!("orders/{name}")];
    let orders = match name {
        "training" => &ORDERS[..2],
        _ if LARGE.contains(&name) => &ORDERS[..1],
        _ => &ORDERS[..],
    };
    let mut first: Option<String> = None;
    let orders = match orders {
        [one, others @ ..] if !others.is_empty() => turns(&[*one], others, name),
        few => few.to_vec(),
    };
    for (order, devices) in orders {
        let ended = spawn(&args, &[("FAKECUDA_ORDER", order), ("FAKECUDA_DEVICES", devices)]);
        let what = format!("{name} in the order {order} on {devices}: {ended:?}");
        assert!(ended.success && ended.report.is_empty(), "{what}");
        match &first {
            Some(first) => assert_eq!(ended.output, *first, "{what}"),
            None => assert_complete(name, &ended.output, &what),
        }
        first.get_or_insert(ended.output);
    }
}

/// There is an output of every run, of a model the same on any number of devices.
fn assert_complete(name: &str, output: &str, what: &str) {
    let runs = output.lines().filter_map(|line| Some(line.split_once(" outputs ")?.1));
    let runs: Vec<&str> = runs.collect();
    if name == "cases" {
        assert_cases(output, what);
    }
    let least = match name {
        "cases" => 2 * CASES,
        "training" => 2 * STEPPED.len(),
        "needy" => 2 * MOST as usize,
        _ => 2 * counts(name).len(),
    };
    assert!(runs.len() >= least, "{what}");
    if LARGE.contains(&name) {
        assert!(runs.iter().all(|run| *run == runs[0]), "{what}");
    }
}

/// Every graph of the cases ran on some number of devices, on each number one did, and only what is
/// known to cannot run.
fn assert_cases(output: &str, what: &str) {
    let (mut graphs, mut counts) = (BTreeSet::new(), BTreeSet::new());
    for line in output.lines() {
        if let Some((run, _)) = line.split_once(" outputs ") {
            let (graph, count) = run.split_once(" on ").unwrap_or((run, ""));
            graphs.insert(graph);
            counts.insert(count);
        } else {
            let known = |(graph, why): &(&str, &str)| line.starts_with(graph) && line.contains(why);
            assert!(REFUSED.iter().any(known), "{line}: {what}");
        }
    }
    assert!(graphs.len() >= CASES, "{} graphs: {what}", graphs.len());
    assert_eq!(counts.len(), MOST as usize, "{counts:?}: {what}");
}

/// The numbers of devices of a model.
fn counts(name: &str) -> Vec<u32> {
    turns(&[3, MOST], &[1, 2, 4, 5, 6, 7], name)
}

/// One process of a test: a line for each number of devices.
pub(crate) fn scenario(name: &str) -> ExitCode {
    if name == "cases" {
        for (path, first) in cases().iter().zip(0..) {
            case(path, first);
        }
    } else if name == "needy" {
        for count in 1..=MOST {
            let (_, split, weights) = needy(count, count as usize);
            run(&format!("{name} on {count}"), &split, &weights);
        }
    } else if name == "training" {
        for count in STEPPED {
            let (split, weights) = step(count);
            run(&format!("{name} on {count}"), &split, &weights);
        }
    } else {
        let (graph, weights) = small(name);
        for count in counts(name) {
            run(&format!("{name} on {count}"), &replicas(&graph, count, count.into()), &weights);
        }
    }
    ExitCode::SUCCESS
}

/// A step of training of a small model.
pub(crate) fn whole_step() -> (Graph, Weights) {
    let (model, weights) = zoo::build("mlp:narrow=32").unwrap_or_else(|e| panic!("{e}"));
    let output = &model.outputs()[0].name;
    let of = Training::new(output, "mse".parse().unwrap(), "adam".parse().unwrap());
    let step = training(&model, &weights, &of).unwrap_or_else(|e| panic!("{e}"));
    (step.graph, step.weights)
}

/// Such a step on so many devices whose gradients fill several buckets.
fn step(count: u32) -> (Graph, Weights) {
    let (graph, weights) = whole_step();
    let options = RepairOptions { bucket: 64, ..RepairOptions::new(Repair::Comm) };
    let repaired = repair(&graph, options).unwrap();
    let over = Replicate::over((0..count).map(Device::gpu).collect());
    let how = Replicate { weights: WeightPlacement::Mirrored, repair: Repair::Comm, ..over };
    let split = repaired.replicate(&how).unwrap_or_else(|e| panic!("{e}"));
    (split, weights)
}

/// Runs kernel by kernel, then captured with inputs that were staged before, and says what comes
/// out, and what parameters are then.
fn run(what: &str, graph: &Graph, weights: &Weights) {
    let batch = inputs(graph, ROWS, &mut ChaCha8Rng::seed_from_u64(9));
    let count = u32::try_from(graph.split().map_or(1, |split| split.devices().len())).unwrap();
    let run = executable(graph, weights, options(count));
    let options = RunOptions::default();
    let mut staged = Some(run.stage(&batch, &options));
    for is_ahead in [false, true] {
        let ahead = staged.take_if(|_| is_ahead).map(|staged| staged.and_then(Staged::run));
        match ahead.unwrap_or_else(|| run.run(&batch, &options)) {
            Ok(output) => {
                let mut outputs: Vec<_> = output.outputs.into_iter().map(|(_, t)| t).collect();
                if !graph.updates().is_empty() {
                    let weights = run.weights().unwrap_or_else(|e| panic!("{e}"));
                    outputs.extend(weights.iter().map(|(_, tensor)| tensor.clone()));
                }
                say(&format!("{what} outputs {}", digest(&outputs)));
            }
            Err(error) => say(&format!("{what}: {error}")),
        }
    }
}

/// The files with a graph of their own.
fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let files = ["replicate", "lower"].map(|area| std::fs::read_dir(root.join(area)).unwrap());
    let mut files: Vec<_> = files.into_iter().flatten().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

/// A case on each number of devices, in turns on every third; one that is repaired on every third,
/// from another first one for each; one that is replicated in its text as it is.
fn case(path: &Path, first: usize) {
    let text = std::fs::read_to_string(path).unwrap();
    let head = text.lines().map_while(|line| line.strip_prefix("; ")?.split_once(':'));
    let directives: BTreeMap<&str, &str> = head.map(|(k, v)| (k.trim(), v.trim())).collect();
    // The models run whole.
    if directives.contains_key("model") {
        return;
    }
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let graph = parse(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    let weights = random_weights(&graph);
    if let Some(split) = graph.split() {
        run(&format!("{name} on {}", split.devices().len()), &graph, &weights);
        return;
    }
    let is_repaired = directives.get("repair") == Some(&"comm");
    let counts: Vec<u32> = if is_repaired {
        (1..=MOST).skip(first % PARTS).step_by(PARTS).collect()
    } else {
        part(1..=MOST, PARTS, first).collect()
    };
    for count in counts {
        let mut how = Replicate::over((0..count).map(Device::gpu).collect());
        how.repair = if is_repaired { Repair::Comm } else { how.repair };
        if directives.get("weights") == Some(&"mirrored") {
            how.weights = WeightPlacement::Mirrored;
        }
        let what = format!("{name} on {count}");
        let split = replicate(&graph, &how).unwrap_or_else(|e| panic!("{what}: {e}"));
        run(&what, &split, &weights);
    }
}

/// Elements for each parameter.
fn random_weights(graph: &Graph) -> Weights {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    let mut weights = Weights::default();
    for param in graph.params() {
        let dims = param.ty.shape.at(0);
        let count = dims.iter().product();
        let data: Vec<f32> = (0..count).map(|_| rng.random_range(0.1..1.0)).collect();
        weights.insert(param.name.clone(), Tensor::new(&dims, &data).unwrap());
    }
    weights
}
