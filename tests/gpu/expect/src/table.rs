//! The table of all models of the zoo.

use fanwise::backend::CUDA;
use fanwise::internal::replicated;
use fanwise::ir::{Graph, Weights, verify};
use fanwise::lower::{Program, lower};
use fanwise::pass::{
    Loss, OutputLoss, Repair, Replicate, SimplifyOptions, Training, TrainingGraph, WeightPlacement,
    simplify, training,
};
use fanwise::train::Distribution;
use fanwise::types::{DType, Device, KernelClass};
use fanwise::zoo;

use crate::{Cost, MACHINES, Machine, costs};

/// The optimizer of the steps that are expected and measured.
pub const OPTIMIZER: &str = "sgd:momentum=0.9";

/// The models whose steps are counted, and their rows on all GPUs.
const COUNTED: [(&str, i64); 3] = [("xception", 256), ("resnet50", 256), ("mini_googlenet", 64)];

/// A model of the zoo as the command line takes it: simplified for inference or for training.
///
/// # Panics
/// If there is no such model.
pub fn model(name: &str, for_training: bool) -> (Graph, Weights) {
    let (mut graph, mut weights) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
    let options = SimplifyOptions { for_training, ..SimplifyOptions::default() };
    simplify(&mut graph, &mut weights, &options).unwrap_or_else(|e| panic!("{name}: {e}"));
    (graph, weights)
}

/// A step of training, by a mean squared error of each output.
///
/// # Panics
/// If the model cannot be trained.
pub fn step(graph: &Graph, weights: &Weights, optimizer: &str) -> TrainingGraph {
    let floats = graph.outputs().iter().filter(|o| graph.ty(o.value).dtype == DType::F32);
    let loss: Loss = "mse".parse().unwrap_or_else(|e| panic!("{e}"));
    let losses = floats.map(|o| OutputLoss::new(&o.name, loss)).collect();
    let optimizer = optimizer.parse().unwrap_or_else(|e| panic!("{e}"));
    let of = Training { losses, ..Training::new("", loss, optimizer) };
    training(graph, weights, &of).unwrap_or_else(|e| panic!("{}: {e}", graph.name()))
}

/// A graph on so many GPUs, with the defaults of the command line.
///
/// # Panics
/// If it cannot be replicated.
pub fn on_gpus(graph: &Graph, gpus: u32, repair: Repair) -> Program {
    let over = Replicate::over((0..gpus).map(Device::gpu).collect());
    let how = Replicate { weights: WeightPlacement::Mirrored, repair, ..over };
    let place = Distribution { replicate: Some(how), ..Distribution::default() };
    let placed = replicated(graph, &place).unwrap_or_else(|e| panic!("{e}"));
    lower(&verify(&placed).unwrap_or_else(|e| panic!("{e}")), &CUDA)
        .unwrap_or_else(|e| panic!("{e}"))
}

/// A line of a table.
fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// The table of counts: for the chosen ones of some models, and numbers of GPUs, what each GPU
/// launches, moves and exchanges in a step of training by `rmsprop`.
pub fn counts(chosen: impl Fn(&str) -> bool) -> String {
    let heads = ["model, rows of all GPUs", "GPUs", "launches", "GB", "exchanges"];
    let mut rows = vec![row(&heads.map(str::to_owned))];
    rows.push(row(&["---", "---:", "---:", "---:", "---:"].map(str::to_owned)));
    for (name, n) in COUNTED.into_iter().filter(|(name, _)| chosen(name)) {
        let (graph, weights) = model(name, true);
        let step = step(&graph, &weights, "rmsprop").graph;
        for gpus in [1, 2, 8] {
            let program = on_gpus(&step, gpus, Repair::Comm);
            let costs = costs(&program.devices[1], n);
            let launches = costs.iter().filter(|cost| cost.launch.is_some());
            let kernels: usize = launches.clone().map(|cost| cost.kernels).sum();
            let bytes: f64 = costs.iter().map(|cost| cost.work.bytes).sum();
            let combines = |cost: &&Cost<'_>| {
                cost.launch.is_some_and(|launch| launch.class == KernelClass::Collective)
            };
            let exchanges = launches.filter(combines).count();
            let counted = [gpus as usize, kernels].map(|count| count.to_string());
            let last = [format!("{:.2}", 1e-9 * bytes), exchanges.to_string()];
            rows.push(row(&[&[format!("`{name}`, {n}")][..], &counted, &last].concat()));
        }
    }
    rows.concat()
}

/// The program of a model of the zoo on one GPU: its inference, and a step of training.
fn programs(name: &str) -> [Program; 2] {
    let inference = on_gpus(&model(name, false).0, 1, Repair::Local);
    let (graph, weights) = model(name, true);
    let step = step(&graph, &weights, OPTIMIZER).graph;
    [inference, on_gpus(&step, 1, Repair::Comm)]
}

/// The table: for each chosen model, in so many rows, the expected milliseconds on each GPU, and
/// the shares of its floors in `f32` and in `bf16`.
pub fn table(n: i64, chosen: impl Fn(&str) -> bool) -> String {
    let mut head = vec![format!("model, {n} rows"), "kernels".to_owned(), "GB".to_owned()];
    head.extend(MACHINES.iter().map(|machine| machine.name.to_owned()));
    let under = ["---", "---:", "---:"].into_iter().chain(MACHINES.iter().map(|_| "---"));
    let mut rows = vec![row(&head), row(&under.map(str::to_owned).collect::<Vec<_>>())];
    for name in zoo::names().filter(|name| chosen(name)) {
        for (kind, program) in ["inference", "training"].iter().zip(programs(name)) {
            let costs = costs(&program.devices[1], n);
            let mut cells = vec![format!("`{name}`, {kind}")];
            cells.push(costs.iter().map(|cost| cost.kernels).sum::<usize>().to_string());
            let bytes: f64 = costs.iter().map(|cost| cost.work.bytes).sum();
            cells.push(format!("{:.3}", 1e-9 * bytes));
            cells.extend(MACHINES.iter().map(|machine| cell(&costs, machine)));
            rows.push(row(&cells));
        }
    }
    rows.concat()
}

/// The time of a program on a GPU, and the shares of its floors.
fn cell(costs: &[Cost<'_>], machine: &Machine) -> String {
    let time: f64 = costs.iter().map(|cost| cost.seconds(machine)).sum();
    let floors = costs.iter().map(|cost| cost.floors(machine));
    let [f32, bf16] = floors.fold([0.0; 2], |sum, own| [sum[0] + own[0], sum[1] + own[1]]);
    format!("{:.3} ms, {:.2}, {:.3}", 1e3 * time, f32 / time, bf16 / time)
}
