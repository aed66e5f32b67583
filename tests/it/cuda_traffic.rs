//! What steps of training move on GPUs: launches, bytes, exchanges, and what is left to the host.

use std::collections::BTreeSet;

use expect::{Cost, Started, costs, on_gpus};
use fanwise::internal::calls;
use fanwise::ir::{Graph, Value, parse};
use fanwise::lower::{Action, BufferId, DeviceProgram, Lane, Program, Step};
use fanwise::pass::Repair;
use fanwise::types::{Device, DeviceKind, KernelClass};
use fanwise::zoo;

use crate::cuda_training::{self, on_host};

/// The bytes that each GPU moves for the weights of Xception, however many GPUs there are: what
/// their exchange and their update read and write.
const WEIGHTS: i64 = 3_000_000_000;

/// A step of training of a model of the zoo on so many GPUs, with the defaults of the command line.
fn step(name: &str, optimizer: &str, gpus: u32) -> Program {
    placed(&cuda_training::step(name, optimizer), gpus)
}

/// A step of training on so many GPUs, with the defaults of the command line: repairs may exchange
/// values (`ReplicateArgs::choice` in `src/cli/replicate.rs`).
fn placed(graph: &Graph, gpus: u32) -> Program {
    on_gpus(graph, gpus, Repair::Comm)
}

/// The inference of a model of the zoo on one GPU, with the defaults of the command line: repairs
/// exchange nothing.
fn inference(graph: &Graph) -> Program {
    on_gpus(graph, 1, Repair::Local)
}

/// The steps of a GPU.
fn own(program: &Program, device: Device) -> &DeviceProgram {
    program.devices.iter().find(|of| of.device == device).unwrap()
}

/// The launches on a GPU, and the bytes that are read and written in its memory for `n` rows: what
/// it pulls from other GPUs, others pull from it.
fn work(program: &Program, device: Device, n: i64) -> (usize, i64) {
    let own = own(program, device);
    let size = |id: &BufferId| own.buffers[id.0 as usize].ty.bytes().eval(n);
    let bytes = own.steps.iter().map(|step| match &step.action {
        Action::Launch(launch) => {
            let touched: BTreeSet<_> = launch.operands.iter().chain(&launch.results).collect();
            touched.into_iter().map(size).sum()
        }
        Action::Copy { device, to, .. } if program.devices[*device].device == Device::HOST => {
            size(to)
        }
        Action::Copy { to, .. } => 2 * size(to),
        Action::Wait(_) | Action::Record(_) => 0,
    });
    (calls(own).unwrap().iter().flatten().count(), bytes.sum())
}

/// The exchanges of a device: the launches that combine parts of replicas.
fn exchanges(program: &Program, device: Device) -> usize {
    own(program, device).steps.iter().filter(|step| combines(step)).count()
}

fn combines(step: &Step) -> bool {
    matches!(&step.action, Action::Launch(l) if l.class == KernelClass::Collective)
}

/// The GPUs that each exchange of a device copies from, in the order of the copies.
fn sources(program: &Program, own: usize) -> Vec<Vec<usize>> {
    let lane = |of: Lane| {
        let mut copied = Vec::new();
        let steps = program.devices[own].steps.iter().filter(move |step| step.lane == of);
        steps.filter_map(move |step| match &step.action {
            Action::Copy { device, .. } => {
                let is_host = program.devices[*device].device == Device::HOST;
                copied.extend((!is_host).then_some(*device));
                None
            }
            Action::Launch(_) => {
                let copied = std::mem::take(&mut copied);
                combines(step).then_some(copied)
            }
            Action::Wait(_) | Action::Record(_) => None,
        })
    };
    lane(Lane::Compute).chain(lane(Lane::Exchange)).collect()
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

/// On eight GPUs each does an eighth of the work and one exchange for each normalisation and
/// direction, or fewer, where branches meet; and no device is everybody's source.
#[test]
fn a_step_on_eight_gpus_exchanges_little() {
    let program = step("xception", "rmsprop", 8);
    let gpu = Device::gpu(3);
    let (launches, bytes) = work(&program, gpu, 256);
    let exchanges = exchanges(&program, gpu);
    assert!(exchanges <= 80, "{exchanges} exchanges");
    assert!(launches <= 800, "{launches} launches");
    assert!(bytes <= 340_000_000_000 / 8 + WEIGHTS, "{bytes} bytes");
    assert_eq!(on_host(&program), BTreeSet::new());
    let gpus: Vec<usize> = (0..program.devices.len())
        .filter(|d| program.devices[*d].device.kind == DeviceKind::Gpu)
        .collect();
    assert_eq!(gpus.len(), 8);
    // Before each exchange, behind the last, and beside them what overlaps with the gradients.
    let graphs = graphs(&program, gpu);
    assert!(graphs <= exchanges + 20, "{graphs} graphs");
    for (i, own) in gpus.iter().enumerate() {
        let others: Vec<usize> = [&gpus[i + 1..], &gpus[..i]].concat();
        let found = sources(&program, *own);
        assert_eq!(found.len(), exchanges);
        // Slices that others combined are copied behind the launch that combines the own one.
        for copied in found.concat().chunks(others.len()) {
            assert_eq!(copied, others, "{}", program.devices[*own].device);
        }
    }
}

/// Two GPUs do half of the work each.
#[test]
fn a_step_on_two_gpus_moves_half() {
    let program = step("xception", "rmsprop", 2);
    let (launches, bytes) = work(&program, Device::gpu(1), 256);
    assert!(launches <= 800, "{launches} launches");
    assert!(bytes <= 340_000_000_000 / 2 + WEIGHTS, "{bytes} bytes");
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

/// Inference moves little more than its layers must, and floors are made of that.
#[test]
fn inference_reads_and_writes_what_layers_must() {
    for name in ["xception", "resnet50"] {
        let (graph, _) = expect::model(name, false);
        let program = inference(&graph);
        let (launches, bytes) = work(&program, Device::gpu(0), 256);
        let least = least(&graph, 256);
        assert!(
            bytes * 100 <= least * 115,
            "{name}: {bytes} bytes in {launches} launches, {least}"
        );
        let costs = costs(own(&program, Device::gpu(0)), 256);
        let found: f64 = costs.iter().map(|cost| cost.work.least).sum();
        let share = found / least as f64;
        assert!((0.99..=1.01).contains(&share), "{name}: {found} bytes for floors, {least}");
    }
}

/// Floors of a step are made of what layers must move, not of what its launches do: a sum in two
/// launches, or a copy more, raises none.
#[test]
fn floors_of_a_step_are_those_of_its_layers() {
    // Of an image of 8 channels and 16 places, and a kernel of 8 by 8 taps of one place.
    const ROWS: i64 = 1000;
    let text = "fanwise 1\nsymbol N >= 0\n\
        graph @sums(%x: f32[N,8,4,4], %dy: f32[N,8,4,4]) -> (w: f32[8,8,1,1], b: f32[8]) {\n  \
        %w : f32[8,8,1,1] = conv_weight_grad(%x, %dy) {kernel=[1, 1]}\n  \
        %b : f32[8] = reduce_sum(%dy) {axes=[0, 2, 3], keepdims=false}\n  \
        return %w, %b\n}\n";
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let program = placed(&graph, 1);
    let costs = costs(own(&program, Device::gpu(0)), ROWS);
    let sum = |of: fn(&Cost<'_>) -> f64| costs.iter().map(of).sum::<f64>();
    let is = |found: f64, expected: i64| (found - expected as f64).abs() < 0.5;
    // The image and its gradient once, and the kernel; the sum is that of what is read in any case.
    let image = 4 * ROWS * 8 * 16;
    assert!(is(sum(|cost| cost.work.least), 2 * image + 4 * 64));
    assert!(sum(|cost| cost.work.bytes) > (3 * image) as f64);
    // Each of 16 places of a sample has 64 products.
    assert!(is(sum(|cost| cost.work.operations), 2 * ROWS * 16 * 64));
}

/// The kernels of convolutions and of their gradients.
const CONVOLVE: [&str; 4] =
    ["conv.cu", "conv_weight_grad.cu", "depthwise.cu", "few_weight_grad.cu"];

/// Of the kernels of all models those that multiply have operations, the others none.
#[test]
fn kernels_that_multiply_have_operations() {
    const OTHERS: [&str; 3] = ["matmul.cu", "recurrent.cu", "recurrent_grad.cu"];
    let multiply = [&CONVOLVE[..], &OTHERS[..]].concat();
    let mut met = BTreeSet::new();
    for name in zoo::names() {
        let program = placed(&cuda_training::step(name, "sgd"), 1);
        for cost in costs(own(&program, Device::gpu(0)), 3) {
            let Some(file) = cost.file else { continue };
            let counted = cost.work.operations > 0.0;
            assert_eq!(counted, multiply.contains(&file), "{name}: {} by {file}", cost.label);
            met.insert(file);
        }
    }
    assert!(multiply.iter().all(|file| met.contains(file)), "{met:?}");
}

/// The kernels of convolutions that multiply more than twice as often as their results need, in
/// batches of these rows, and how often.
fn wasteful(program: &Program, batches: &[i64]) -> BTreeSet<String> {
    let calls = calls(own(program, Device::gpu(0))).unwrap();
    // Products and cells take rows of the batch together, however few there are; no convolution is
    // lowered to their kernels.
    let all = calls.iter().flatten().flat_map(Started::of);
    let convolutions = all.filter(|of| CONVOLVE.contains(&of.kernel.file));
    let mut found = BTreeSet::new();
    for of in convolutions {
        let excesses = batches.iter().map(|n| of.excess(*n));
        // A number that is none is no bound.
        let is_little = |excess: &f64| (0.999..=2.0).contains(excess);
        let wasted = excesses.filter(|excess| !is_little(excess));
        found.extend(wasted.map(|excess| format!("{} {excess:.2}", of.kernel.file)));
    }
    found
}

/// No launch of a convolution wastes more than half of its multiplications.
#[test]
fn convolutions_waste_little() {
    for name in zoo::names() {
        let step = placed(&cuda_training::step(name, "sgd"), 1);
        let programs = [inference(&expect::model(name, false).0), step];
        for (kind, program) in ["inference", "training"].iter().zip(&programs) {
            let found = wasteful(program, &[1, 2, 4, 7, 16, 64, 256]);
            assert_eq!(found, BTreeSet::new(), "{name} {kind}");
        }
    }
}

/// What a convolution by 3 by 3 taps of 3 channels to 160, at 7 by 7 places, computes in vain.
#[test]
fn the_excess_of_a_convolution() {
    let text = "fanwise 1\nsymbol N >= 0\n\
        param @w : f32[160,3,3,3] = \"t#w\" blake3:0000000000000001\n\
        graph @one(%x: f32[N,3,9,9]) -> (y: f32[N,160,7,7]) {\n  \
        %y : f32[N,160,7,7] = conv(%x, @w)\n  return %y\n}\n";
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let program = inference(&graph);
    let calls = calls(own(&program, Device::gpu(0))).unwrap();
    let all = calls.iter().flatten().flat_map(Started::of);
    let excess = |n: i64| all.clone().find(|of| of.kernel.file == "conv.cu").unwrap().excess(n);
    // Tiles have 64 places, 64 channels and steps of 8 terms: of a sample 64 places for 49, 192
    // channels for 160, 32 terms for 27. Four samples take 256 places for 196.
    for (n, places) in [(1, 64.0 / 49.0), (4, 256.0 / 196.0)] {
        let expected = places * (192.0 / 160.0) * (32.0 / 27.0);
        assert!((excess(n) - expected).abs() < 1e-9, "{n}: {} and {expected}", excess(n));
    }
}

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
    let program = inference(&graph);
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
