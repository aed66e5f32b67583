//! What steps of training move on GPUs: launches, bytes, exchanges, and what is left to the host.

use std::collections::BTreeSet;

use fanwise::backend::CUDA;
use fanwise::internal::{Kernel, calls, replicated};
use fanwise::ir::{Graph, Value, parse, verify};
use fanwise::lower::{Action, BufferId, DeviceProgram, Program, lower};
use fanwise::pass::{Repair, Replicate, WeightPlacement};
use fanwise::train::Distribution;
use fanwise::types::Device;
use fanwise::zoo;

use crate::cuda_training::{on_host, step_of};

/// A step of training of a model of the zoo on so many GPUs, with the defaults of the command line.
fn step(name: &str, optimizer: &str, gpus: u32) -> Program {
    let (graph, weights) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
    placed(&step_of(&graph, &weights, optimizer), gpus)
}

/// A graph on so many GPUs, with the defaults of the command line.
fn placed(graph: &Graph, gpus: u32) -> Program {
    let over = Replicate::over((0..gpus).map(Device::gpu).collect());
    let how = Replicate { weights: WeightPlacement::Mirrored, repair: Repair::Comm, ..over };
    let place = Distribution { replicate: Some(how), ..Distribution::default() };
    let placed = replicated(graph, &place).unwrap_or_else(|e| panic!("{e}"));
    lower(&verify(&placed).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap()
}

/// The steps of a GPU.
fn own(program: &Program, device: Device) -> &DeviceProgram {
    program.devices.iter().find(|of| of.device == device).unwrap()
}

/// The launches on a GPU, and the bytes that its steps read and write for `n` rows.
fn work(program: &Program, device: Device, n: i64) -> (usize, i64) {
    let own = own(program, device);
    let size = |id: &BufferId| own.buffers[id.0 as usize].ty.bytes().eval(n);
    let bytes = own.steps.iter().map(|step| match &step.action {
        Action::Launch(launch) => {
            let touched: BTreeSet<_> = launch.operands.iter().chain(&launch.results).collect();
            touched.into_iter().map(size).sum()
        }
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => 0,
    });
    (calls(own).unwrap().iter().flatten().count(), bytes.sum())
}

/// One GPU has all rows: batch normalisation is one kernel, nothing is exchanged, and the host has
/// nothing to compute.
#[test]
fn a_step_on_one_gpu_is_not_repaired() {
    let program = step("xception", "rmsprop", 1);
    let (launches, bytes) = work(&program, Device::gpu(0), 256);
    assert!(launches <= 600, "{launches} launches");
    assert!(bytes <= 340_000_000_000, "{bytes} bytes");
    assert_eq!(on_host(&program), BTreeSet::new());
}

/// The graphs of a step on a GPU: runs of launches and copies of its own on one lane. What concerns
/// other devices lies between them.
fn graphs(program: &Program, device: Device) -> usize {
    let at = program.devices.iter().position(|of| of.device == device).unwrap();
    let mut graphs = 0;
    let mut lane = None;
    for step in &program.devices[at].steps {
        let alone = match &step.action {
            Action::Launch(_) => false,
            Action::Copy { device, .. } => *device != at,
            Action::Wait(_) | Action::Record(_) => true,
        };
        graphs += usize::from(!alone && lane != Some(step.lane));
        lane = (!alone).then_some(step.lane);
    }
    graphs
}

/// A step on one GPU is few graphs: the first ends where it takes the targets, the second where the
/// host may take the loss.
#[test]
fn a_step_on_one_gpu_is_few_graphs() {
    for name in ["xception", "mini_googlenet", "resnet50"] {
        let found = graphs(&step(name, "rmsprop", 1), Device::gpu(0));
        assert!((1..=4).contains(&found), "{name}: {found} graphs");
    }
}

/// Small launches that do not depend on one another run side by side, and so do updates.
#[test]
fn small_layers_are_few_launches() {
    let program = step("mini_googlenet", "sgd:momentum=0.9", 1);
    let (launches, bytes) = work(&program, Device::gpu(0), 64);
    assert!(launches <= 150, "{launches} launches");
    assert!(bytes <= 4_000_000_000, "{bytes} bytes");
}

/// The bytes that every way to compute the layers moves: of each product, pool, reduction and
/// softmax its operands and its result once; of an addition of two images one operand, since the
/// other is the result of a layer that can go on with it.
fn least(graph: &Graph, n: i64) -> i64 {
    let bytes = |value: Value| graph.ty(value).bytes().eval(n);
    let mut sum = 0;
    for id in graph.ids() {
        let Some(op) = graph.node(id).op() else { continue };
        let result = Value { node: id, output: 0 };
        let operands = graph.operands(id);
        sum += match op.name() {
            "conv" | "conv_transpose" | "gemm" | "matmul" | "max_pool" | "average_pool"
            | "reduce_mean" | "softmax" => {
                bytes(result) + operands.into_iter().map(bytes).sum::<i64>()
            }
            "add" if operands.iter().all(|v| graph.ty(*v).shape == graph.ty(result).shape) => {
                bytes(operands[1])
            }
            _ => 0,
        };
    }
    sum
}

/// Inference moves little more than its layers must.
#[test]
fn inference_reads_and_writes_what_layers_must() {
    for name in ["xception", "resnet50"] {
        let (graph, _) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
        let (launches, bytes) = work(&placed(&graph, 1), Device::gpu(0), 256);
        let least = least(&graph, 256);
        assert!(
            bytes * 100 <= least * 115,
            "{name}: {bytes} bytes in {launches} launches, {least}"
        );
    }
}

/// The taps that the places of each phase meet.
fn phases(kernel: &[i64], stride: &[i64], before: &[i64], count: i64) -> Vec<i64> {
    if count == 1 {
        return vec![kernel.iter().product()];
    }
    let taps = |phase: i64| {
        let axes = kernel.iter().zip(stride).zip(before).rev();
        let (_, taps) = axes.fold((phase, 1), |(phase, taps), ((kernel, stride), before)| {
            let first = (phase % stride + before) % stride;
            (phase / stride, taps * ((kernel - first + stride - 1) / stride))
        });
        taps
    };
    (0..count).map(taps).collect()
}

/// The multiplications that the results of a kernel of a convolution need, and those that it does
/// for `n` rows, up to a common factor.
fn multiplications(kernel: &Kernel, n: i64) -> Option<(i64, i64)> {
    let number = |name: &str| {
        let found = kernel.defines.iter().find(|(own, _)| own == name);
        found.map(|(_, text)| text.parse::<i64>().unwrap())
    };
    let list = |name: &str| -> Vec<i64> {
        let found = kernel.defines.iter().find(|(own, _)| own == name).unwrap();
        let parts = found.1.trim_matches(['{', '}']).split(',').map(str::trim);
        parts.filter(|part| !part.is_empty()).map(|part| part.parse().unwrap()).collect()
    };
    let up = |size: i64, by: i64| (size + by - 1) / by * by;
    let get = |name: &str| number(name).unwrap();
    match kernel.file {
        "conv.cu" => {
            let rows = up(n * get("CELLS"), get("BM")) * up(get("M_EACH"), get("BN"));
            let terms = phases(&list("KERNEL"), &list("STRIDE"), &list("BEFORE"), get("PHASES"));
            let done = terms.iter().map(|taps| rows * up(taps * get("C_EACH"), get("BK"))).sum();
            let holes = if get("TRANSPOSED") == 1 { list("STRIDE").iter().product() } else { 1 };
            let needed = n * get("OUTPUTS") * get("TAPS") * get("C_EACH") * get("M_EACH") / holes;
            Some((needed, done))
        }
        "conv_weight_grad.cu" => {
            let columns = get("TAPS") * get("C_EACH");
            let needed = get("M_EACH") * columns;
            Some((needed, up(get("M_EACH"), get("BM")) * up(columns, get("BN"))))
        }
        "few_weight_grad.cu" => {
            let channels = get("M_EACH") * get("GROUPS");
            Some((channels, up(channels, get("LINES"))))
        }
        "depthwise.cu" => {
            let channels = get("CHANNELS") / get("C_EACH") * get("EACH");
            let across = up(channels, get("CHANNEL_THREADS") * get("VECTOR"));
            Some((channels, across))
        }
        _ => None,
    }
}

/// The kernels of convolutions that multiply more than twice as often as their results need, and
/// how often.
fn wasteful(program: &Program) -> BTreeSet<String> {
    let own = own(program, Device::gpu(0));
    let mut found = BTreeSet::new();
    for call in calls(own).unwrap().into_iter().flatten() {
        let alone = std::slice::from_ref(&call.kernel);
        let parts = if call.kernel.parts.is_empty() { alone } else { &call.kernel.parts };
        for kernel in parts {
            if let Some((needed, done)) = multiplications(kernel, 256)
                && done > 2 * needed
            {
                found.insert(format!(
                    "{} {}.{}",
                    kernel.file,
                    done / needed,
                    done * 10 / needed % 10
                ));
            }
        }
    }
    found
}

/// No launch of a convolution wastes more than half of its multiplications, but those known.
#[test]
fn convolutions_waste_little() {
    let mut found = BTreeSet::new();
    for name in zoo::names() {
        let (graph, weights) = zoo::build(name).unwrap_or_else(|e| panic!("{e}"));
        let trained = step_of(&graph, &weights, "sgd");
        for (kind, graph) in [("inference", &graph), ("training", &trained)] {
            let own = wasteful(&placed(graph, 1));
            found.extend(own.into_iter().map(|text| format!("{name} {kind} {text}")));
        }
    }
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found, KNOWN_WASTE);
}

/// What is known to waste more, each in one model: a gradient by 144 channels of 15 by 15 places in
/// strides, of which tiles of 128 channels and pairs of places cover more; a gradient of one
/// channel, whose terms are fewer than a step of a tile has; and that of its 16 weights, fewer than
/// any tile has.
const KNOWN_WASTE: &[&str] = &[
    "mini_googlenet training conv.cu 2.0",
    "unet training conv.cu 4.0",
    "unet training conv_weight_grad.cu 64.0",
];

/// An image of bytes is copied as bytes; one launch makes numbers of them.
#[test]
fn bytes_become_numbers_on_the_device() {
    let text = "fanwise 1\nsymbol N >= 0\n\
        param @w : f32[8,3,3,3] = \"t#w\" blake3:0000000000000001\n\
        param @scale : f32[] = \"t#scale\" blake3:0000000000000002\n\
        param @one : f32[] = \"t#one\" blake3:0000000000000003\n\
        graph @bytes(%x: u8[N,16,16,3]) -> (y: f32[N,8,14,14]) {\n  \
        %f : f32[N,16,16,3] = cast(%x) {to=f32}\n  \
        %s : f32[N,16,16,3] = mul(%f, @scale)\n  \
        %z : f32[N,16,16,3] = sub(%s, @one)\n  \
        %t : f32[N,3,16,16] = transpose(%z) {perm=[0, 3, 1, 2]}\n  \
        %y : f32[N,8,14,14] = conv(%t, @w)\n  \
        return %y\n}\n";
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let program = placed(&graph, 1);
    let gpu = own(&program, Device::gpu(0));
    let copied = gpu.steps.iter().filter_map(|step| match &step.action {
        Action::Copy { to, .. } => Some(gpu.buffers[to.0 as usize].ty.bytes().eval(1)),
        Action::Launch(_) | Action::Wait(_) | Action::Record(_) => None,
    });
    assert_eq!(copied.collect::<Vec<_>>(), [16 * 16 * 3]);
    let files: Vec<&str> =
        calls(gpu).unwrap().iter().flatten().take(2).map(|call| call.kernel.file).collect();
    assert_eq!(files, ["elementwise.cu", "conv.cu"]);
}
