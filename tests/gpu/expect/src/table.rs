//! The table of all models of the zoo.

use fanwise::backend::CUDA;
use fanwise::internal::replicated;
use fanwise::ir::{Graph, Weights, verify};
use fanwise::lower::{Program, lower};
use fanwise::pass::{Loss, OutputLoss, Repair, Replicate, Training, WeightPlacement, training};
use fanwise::train::Distribution;
use fanwise::types::{DType, Device, KernelClass};
use fanwise::zoo;

use crate::{Cost, MACHINES, Machine, costs};

/// A step of training, by a mean squared error of each output.
///
/// # Panics
/// If the model cannot be trained.
pub fn step(graph: &Graph, weights: &Weights, optimizer: &str) -> Graph {
    let floats = graph.outputs().iter().filter(|o| graph.ty(o.value).dtype == DType::F32);
    let loss: Loss = "mse".parse().unwrap_or_else(|e| panic!("{e}"));
    let losses = floats.map(|o| OutputLoss::new(&o.name, loss)).collect();
    let optimizer = optimizer.parse().unwrap_or_else(|e| panic!("{e}"));
    let of = Training { losses, ..Training::new("", loss, optimizer) };
    training(graph, weights, &of).unwrap_or_else(|e| panic!("{}: {e}", graph.name())).graph
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

/// A line for each model and number of GPUs: what each GPU launches, moves and exchanges in a step
/// of training with so many rows in all.
///
/// # Panics
/// If a name is no model's.
pub fn counts(models: &[(&str, i64)]) -> String {
    let mut rows = Vec::new();
    for (name, n) in models {
        let (graph, weights) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
        let step = step(&graph, &weights, "rmsprop");
        for gpus in [1, 2, 8] {
            let program = on_gpus(&step, gpus, Repair::Comm);
            let costs = costs(&program.devices[1], *n);
            let launches = costs.iter().filter(|cost| cost.launch.is_some());
            let kernels: usize = launches.clone().map(|cost| cost.kernels).sum();
            let bytes: f64 = launches.clone().map(|cost| cost.work.bytes).sum();
            let combines = |cost: &&Cost<'_>| {
                cost.launch.is_some_and(|launch| launch.class == KernelClass::Collective)
            };
            let exchanges = launches.filter(combines).count();
            let gigabytes = 1e-9 * bytes;
            rows.push(format!(
                "| `{name}`, {n} | {gpus} | {kernels} | {gigabytes:.2} GB | {exchanges} |\n"
            ));
        }
    }
    rows.concat()
}

/// The program of a model of the zoo on one GPU: its inference, and a step of training.
fn programs(name: &str) -> [Program; 2] {
    let (graph, weights) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
    let inference = on_gpus(&graph, 1, Repair::Local);
    [inference, on_gpus(&step(&graph, &weights, "sgd:momentum=0.9"), 1, Repair::Comm)]
}

/// The table: for each model, in so many rows, the expected milliseconds on each GPU, and the
/// shares of its floors in `f32` and in `bf16`.
pub fn table(n: i64) -> String {
    let row = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = [format!("model, {n} rows"), "kernels".to_owned(), "GB".to_owned()];
    let names = MACHINES.iter().map(|machine| machine.name.to_owned());
    let under = ["---", "---:", "---:"].into_iter().chain(MACHINES.iter().map(|_| "---"));
    let mut rows = vec![row(head.into_iter().chain(names).collect())];
    rows.push(row(under.map(str::to_owned).collect()));
    for name in zoo::names() {
        for (kind, program) in ["inference", "training"].iter().zip(programs(name)) {
            let costs = costs(&program.devices[1], n);
            let mut cells = vec![format!("`{name}`, {kind}")];
            cells.push(costs.iter().map(|cost| cost.kernels).sum::<usize>().to_string());
            let bytes: f64 = costs.iter().map(|cost| cost.work.bytes).sum();
            cells.push(format!("{:.3}", 1e-9 * bytes));
            cells.extend(MACHINES.iter().map(|machine| cell(&costs, machine)));
            rows.push(row(cells));
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
