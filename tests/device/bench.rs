//! What the device and the backend on it are worth: ceilings, kernels as shares of their floors, models in images a
//! second, replicas against one, cold and warm starts. Writes JSON and prints a table.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fanwise::backend::cuda::{self, Cuda, CudaOptions};
use fanwise::backend::{Executable, RunOptions, RunOutput};
use fanwise::ir::{Builder, Graph, Weights, verify};
use fanwise::lower::{Action, Launch, Program, lower};
use fanwise::op::{Op, Softmax, Unary};
use fanwise::types::{DType, Dim, Shape, Target, TensorType};
use fanwise::zoo;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::setup::{Tensors, compiler, executable, inputs, options, replicas, say, traced};

/// What is measured, from the arguments after the file.
struct Scope {
    models: Vec<String>,
    batch: i64,
    repeat: usize,
    /// Bytes of the copy that is measured.
    bytes: i64,
    /// Floating-point operations a second of a library's matrix product, if known.
    flops: Option<f64>,
    /// What was built, and when it is measured.
    commit: String,
    date: String,
}

impl Scope {
    fn read(args: &[String]) -> Result<Self, String> {
        let mut scope = Self {
            models: ["mini_googlenet", "resnet50", "xception"].map(str::to_owned).to_vec(),
            batch: 64,
            repeat: 20,
            bytes: 1 << 30,
            flops: None,
            commit: "unknown".to_owned(),
            date: "unknown".to_owned(),
        };
        for pair in args.chunks(2) {
            let [name, value] = pair else { return Err(format!("{} has no value", pair[0])) };
            let number = || value.parse::<f64>().map_err(|e| format!("{name}: {e}"));
            #[expect(clippy::cast_possible_truncation, reason = "sizes are small")]
            match name.as_str() {
                "--models" => scope.models = value.split(',').map(str::to_owned).collect(),
                "--batch" => scope.batch = number()? as i64,
                "--repeat" => scope.repeat = (number()? as i64).max(1).unsigned_abs() as usize,
                "--bytes" => scope.bytes = number()? as i64,
                "--commit" => scope.commit.clone_from(value),
                "--date" => scope.date.clone_from(value),
                "--flops" => scope.flops = Some(number()?),
                _ => return Err(format!("{name} is unknown")),
            }
        }
        Ok(scope)
    }
}

pub(crate) fn main(path: &str, args: &[String]) -> ExitCode {
    let scope = match Scope::read(args) {
        Ok(scope) => scope,
        Err(error) => {
            crate::setup::complain(&format!("error: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let devices = cuda::devices().unwrap_or_else(|e| panic!("{e}"));
    let ceilings = Ceilings::measure(&scope);
    let device = devices.devices.first();
    let name = device.map_or_else(String::new, |d| format!("{}, {}", d.name, d.arch));
    let mut rows = vec![
        ("device".to_owned(), name),
        ("driver".to_owned(), devices.driver.to_string()),
        ("date, commit".to_owned(), format!("{}, {}", scope.date, scope.commit)),
    ];
    rows.extend(ceilings.rows());
    let mut models = BTreeMap::new();
    for name in &scope.models {
        let found = model(name, &scope, &ceilings, &mut rows);
        models.insert(name.clone(), found);
    }
    let json = json!({
        "date": scope.date,
        "commit": scope.commit,
        "device": device.map(|d| d.name.clone()),
        "arch": device.map(|d| d.arch.to_string()),
        "driver": devices.driver.to_string(),
        "nvrtc": compiler(None).nvrtc().version().to_string(),
        "batch": scope.batch,
        "ceilings": ceilings.json(),
        "models": models,
    });
    std::fs::write(path, serde_json::to_string_pretty(&json).unwrap()).unwrap();
    say(&format!("written to {path}"));
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in rows {
        say(&format!("{name:width$}  {value}"));
    }
    ExitCode::SUCCESS
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Microseconds of the work on each track with this ending, by name and in order.
fn spans(trace: &cuda::Trace, track: &str) -> Vec<(String, f64)> {
    let json: Value = serde_json::from_str(&trace.to_json()).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let tracks: Vec<&Value> = events
        .iter()
        .filter(|e| e["args"]["name"].as_str().is_some_and(|name| name.ends_with(track)))
        .map(|e| &e["tid"])
        .collect();
    let work = events.iter().filter(|e| e["ph"] == "X" && tracks.contains(&&e["tid"]));
    let span = |e: &Value| (e["name"].as_str().unwrap_or("").to_owned(), e["dur"].as_f64());
    work.map(span).map(|(name, length)| (name, length.unwrap_or(0.0))).collect()
}

/// What the device can do at most, measured through programs of one kernel.
struct Ceilings {
    /// Bytes a second that a kernel reads and writes.
    copy: f64,
    /// Bytes a second that copies of the driver read and write.
    memory: f64,
    /// Bytes a second to the device.
    upload: f64,
    /// Bytes a second from it.
    download: f64,
    /// Seconds from one small kernel to the next, launched one by one.
    launch: f64,
    /// The same in a graph.
    graph: f64,
    flops: Option<f64>,
}

/// A graph of one input of `width` floats for each row, through operators.
fn chain(width: i64, ops: &[Op]) -> Graph {
    let mut build = Builder::new("chain");
    let shape: Shape = [Dim::n(), Dim::from(width)].into_iter().collect();
    let mut x = build.input("x", TensorType::new(DType::F32, shape));
    for (i, op) in ops.iter().enumerate() {
        x = build.op(&format!("op_{i}"), op.clone(), &[x]).unwrap();
    }
    build.output("y", x);
    build.finish().0
}

impl Ceilings {
    fn measure(scope: &Scope) -> Self {
        const WIDTH: i64 = 1 << 16;
        /// The most bytes of a copy between the host and the device.
        const LINK: usize = 256 << 20;
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let graph = replicas(&chain(WIDTH, &[Unary::Relu.into()]), 1, 1);
        let rows = (scope.bytes / (4 * WIDTH)).max(1);
        let batch = inputs(&graph, rows, &mut rng);
        let (options, trace) = traced(1);
        let run = executable(&graph, &Weights::default(), options);
        for _ in 0..4 {
            run.run(&batch, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
        }
        let lengths = spans(&trace, "compute").into_iter().map(|(_, length)| length);
        let best = lengths.filter(|l| *l > 0.0).fold(f64::INFINITY, f64::min);
        let copy = 2.0 * (4 * WIDTH * rows) as f64 / (best * 1e-6);
        drop(run);
        let link = usize::try_from(scope.bytes).unwrap().clamp(1, LINK);
        let rates = cuda::copy_rates(0, link, 8).unwrap_or_else(|e| panic!("{e}"));
        let (launch, graph) = (gap(false), gap(true));
        Self {
            copy,
            memory: rates.on_device,
            upload: rates.upload,
            download: rates.download,
            launch,
            graph,
            flops: scope.flops,
        }
    }

    fn json(&self) -> Value {
        json!({
            "copy_bytes_per_second": self.copy,
            "memory_bytes_per_second": self.memory,
            "upload_bytes_per_second": self.upload,
            "download_bytes_per_second": self.download,
            "launch_gap_seconds": self.launch,
            "graph_gap_seconds": self.graph,
            "library_flops": self.flops,
        })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let rate = |bytes: f64| format!("{:.1} GB/s", bytes / 1e9);
        let mut rows = vec![
            ("a kernel that copies".to_owned(), rate(self.copy)),
            ("a copy on the device".to_owned(), rate(self.memory)),
            ("host to device".to_owned(), rate(self.upload)),
            ("device to host".to_owned(), rate(self.download)),
            ("kernel to kernel, launched".to_owned(), format!("{:.2} µs", self.launch * 1e6)),
            ("kernel to kernel, in a graph".to_owned(), format!("{:.2} µs", self.graph * 1e6)),
        ];
        if let Some(flops) = self.flops {
            rows.push(("library GEMM".to_owned(), format!("{:.1} TFLOP/s", flops / 1e12)));
        }
        rows
    }
}

/// Seconds for each of many small kernels.
fn gap(graphs: bool) -> f64 {
    const KERNELS: u32 = 200;
    let ops: Vec<Op> = (0..KERNELS).map(|_| Softmax::Softmax { axis: -1 }.into()).collect();
    let graph = replicas(&chain(32, &ops), 1, 1);
    let run = executable(&graph, &Weights::default(), CudaOptions { graphs, ..options(1) });
    let batch = inputs(&graph, 1, &mut ChaCha8Rng::seed_from_u64(2));
    let times = (0..12).map(|_| busy(&execute(&run, &batch)).as_secs_f64() / f64::from(KERNELS));
    median(times.skip(2).collect())
}

fn execute(run: &dyn Executable, batch: &Tensors) -> RunOutput {
    run.run(batch, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// The longest time of a device but the host.
fn busy(output: &RunOutput) -> Duration {
    output.devices.iter().skip(1).map(|d| d.time).max().unwrap_or_default()
}

/// Seconds of a run, from the inputs to the outputs.
fn wall(run: &dyn Executable, batch: &Tensors, repeat: usize) -> f64 {
    let mut times = Vec::new();
    for i in 0..repeat + 3 {
        let begin = Instant::now();
        execute(run, batch);
        if i >= 3 {
            times.push(begin.elapsed().as_secs_f64());
        }
    }
    median(times)
}

/// Seconds to ready a program with an empty cache, and with the cache that this leaves.
fn starts(program: &Program, weights: &Weights) -> (f64, f64) {
    let cache = tempfile::tempdir().unwrap();
    let start = || {
        let mut options = options(1);
        options.compiler = compiler(Some(cache.path().to_owned()));
        let begin = Instant::now();
        let cuda = Cuda::new(options).unwrap_or_else(|e| panic!("{e}"));
        drop(cuda.executable(program.clone(), weights).unwrap_or_else(|e| panic!("{e}")));
        begin.elapsed().as_secs_f64()
    };
    (start(), start())
}

fn model(
    name: &str,
    scope: &Scope,
    ceilings: &Ceilings,
    rows: &mut Vec<(String, String)>,
) -> Value {
    let (graph, weights) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
    let batch = inputs(&graph, scope.batch, &mut ChaCha8Rng::seed_from_u64(3));
    let single = replicas(&graph, 1, 1);
    let program = lower(&verify(&single).unwrap_or_else(|e| panic!("{e}")), &Target::CUDA).unwrap();
    let (cold, warm) = starts(&program, &weights);
    rows.push((format!("{name}: cold start"), format!("{cold:.2} s")));
    rows.push((format!("{name}: warm start"), format!("{warm:.3} s")));
    let kernels = kernels(&single, &program, &weights, &batch, ceilings);
    let floor: f64 = kernels.iter().map(|k| k.floor).sum();
    let spent: f64 = kernels.iter().map(|k| k.time).sum();
    let mut throughput = BTreeMap::new();
    let images = scope.batch as f64;
    for count in [1, 2, 4, 8] {
        let run = executable(&replicas(&graph, count, 1), &weights, options(count));
        let seconds = wall(&run, &batch, scope.repeat);
        let device =
            median((0..scope.repeat).map(|_| busy(&execute(&run, &batch)).as_secs_f64()).collect());
        throughput
            .insert(count.to_string(), json!({ "seconds": seconds, "device_seconds": device }));
        let share = if device > 0.0 { floor / device } else { 0.0 };
        rows.push((
            format!("{name}: {count} replicas"),
            format!(
                "{:.0} images/s end to end, {:.0} on the device, {:.0} % of the floor",
                images / seconds,
                images / device,
                100.0 * share
            ),
        ));
    }
    let mut worst: Vec<&Kernel> = kernels.iter().collect();
    worst.sort_by(|a, b| (b.time - b.floor).total_cmp(&(a.time - a.floor)));
    for kernel in worst.iter().take(5) {
        rows.push((
            format!("{name}: {}", kernel.label),
            format!(
                "{:.1} µs, {:.0} % of its floor",
                kernel.time * 1e6,
                100.0 * kernel.floor / kernel.time
            ),
        ));
    }
    let kernels: Vec<Value> = kernels.iter().map(Kernel::json).collect();
    json!({
        "cold_seconds": cold, "warm_seconds": warm, "floor_seconds": floor,
        "kernel_seconds": spent, "replicas": throughput, "kernels": kernels,
    })
}

/// A launch and its cost.
struct Kernel {
    label: String,
    class: String,
    /// Seconds.
    time: f64,
    /// Seconds that its bytes or its operations take at least.
    floor: f64,
    bytes: f64,
    flops: f64,
}

impl Kernel {
    fn json(&self) -> Value {
        json!({
            "label": self.label, "class": self.class, "seconds": self.time,
            "floor_seconds": self.floor, "bytes": self.bytes, "flops": self.flops,
        })
    }
}

/// Each launch of the first GPU with its median time.
fn kernels(
    graph: &Graph,
    program: &Program,
    weights: &Weights,
    batch: &Tensors,
    ceilings: &Ceilings,
) -> Vec<Kernel> {
    const RUNS: usize = 5;
    let n = i64::try_from(batch.values().next().map_or(1, |t| t.dims()[0])).unwrap();
    let (options, trace) = traced(1);
    let run = executable(graph, weights, options);
    (0..RUNS).for_each(|_| drop(execute(&run, batch)));
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, length) in spans(&trace, "compute") {
        times.entry(name).or_default().push(length * 1e-6);
    }
    let device = &program.devices[1];
    let launches = device.steps.iter().filter_map(|step| match &step.action {
        Action::Launch(launch) => Some((step, launch)),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    launches
        .map(|(step, launch)| {
            let bytes = |b: &fanwise::lower::BufferId| device.buffer(*b).ty.bytes().eval(n) as f64;
            let bytes: f64 = launch.operands.iter().chain(&launch.results).map(bytes).sum();
            let flops = operations(launch, device, n);
            let work = ceilings.flops.map_or(0.0, |rate| flops / rate);
            let time = median(times.get(&*step.label).cloned().unwrap_or_default());
            Kernel {
                label: step.label.to_string(),
                class: launch.class.to_string(),
                time,
                floor: work.max(bytes / ceilings.copy),
                bytes,
                flops,
            }
        })
        .collect()
}

/// Multiplications and additions of a convolution or product; 0 for what only moves bytes.
fn operations(launch: &Launch, device: &fanwise::lower::DeviceProgram, n: i64) -> f64 {
    let elements = |i: usize| device.buffer(launch.operands[i]).ty.shape.elements().eval(n) as f64;
    let axis = |i: usize, axis: usize| {
        device.buffer(launch.operands[i]).ty.shape.get(axis).map_or(1, |d| d.eval(n)) as f64
    };
    let result = device.buffer(launch.results[0]).ty.shape.elements().eval(n) as f64;
    match &launch.op {
        Some(Op::Conv(_)) => 2.0 * result * elements(1) / axis(1, 0).max(1.0),
        Some(Op::Gemm(_) | Op::MatMul(_)) => {
            let rank = device.buffer(launch.operands[0]).ty.rank();
            2.0 * result * axis(0, rank.saturating_sub(1))
        }
        _ => 0.0,
    }
}
