//! Backends, programs and comparisons that the device tests share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fanwise::backend::cuda::{CodeFormat, Cuda, CudaOptions, NvrtcSearch};
use fanwise::backend::{CPU, CUDA, Cpu, Executable, RunOptions};
use fanwise::internal::{Cache, Compiler, CudaExecutable, driver};
use fanwise::ir::{Graph, Label, Weights, verify};
use fanwise::lower::{Kernels, lower};
use fanwise::pass::{Merge, Replicate, WeightPlacement, replicate};
use fanwise::types::{DType, Device, ShardRule, Tensor};
use fanwise::zoo;
use rand::Rng;
use rand_chacha::ChaCha8Rng;

/// Named tensors.
pub(crate) type Tensors = BTreeMap<String, Tensor>;

/// Whether the driver is the fake one.
pub(crate) fn is_fake() -> bool {
    std::env::var_os("FANWISE_FAKE").is_some()
}

#[expect(clippy::print_stderr, reason = "what a test finds out beside its result")]
pub(crate) fn complain(text: &str) {
    eprintln!("{text}");
}

#[expect(clippy::print_stdout, reason = "the result of a process")]
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Whether the whole models run, which takes the fake driver long.
pub(crate) fn runs_whole_models() -> bool {
    !is_fake() || std::env::var_os("FANWISE_DEVICE_WHOLE").is_some()
}

/// The folder in which compiled kernels are kept between processes.
pub(crate) fn cache_folder() -> PathBuf {
    let named = std::env::var_os("FANWISE_DEVICE_CACHE").map(PathBuf::from);
    named.unwrap_or_else(|| std::env::temp_dir().join("fanwise-device-tests"))
}

/// The compiler, with a cache that processes share.
pub(crate) fn compiler(cache: Option<PathBuf>) -> Compiler {
    let folder = std::env::var_os("FANWISE_NVRTC").map(PathBuf::from);
    let search = NvrtcSearch { folder, driver: driver().ok(), ..NvrtcSearch::default() };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let cache = cache.map(|folder| Cache::new(folder, 1 << 30));
    Compiler::open(&search, cache, threads).unwrap_or_else(|e| panic!("{e}"))
}

/// Options for `count` logical GPUs: each one of its own where there are enough, else shared.
pub(crate) fn options(count: u32) -> CudaOptions {
    let mut options = CudaOptions::new(compiler(Some(cache_folder())), 2);
    options.logical = Some(count);
    if is_fake() {
        options.form = CodeFormat::Ptx;
        // Its kernels take as long as the host is busy, and no other thread gets an answer
        // meanwhile. Of a whole model, which is one graph, no progress is seen at all.
        let limit = Duration::from_mins(15);
        options.watchdog = if runs_whole_models() { Duration::MAX } else { limit };
    }
    options
}

/// The replicas of a graph on `count` GPUs; the other choices vary with `variant`.
pub(crate) fn replicas(graph: &Graph, count: u32, variant: u64) -> Graph {
    let mut how = Replicate::over((0..count).map(Device::gpu).collect());
    how.rule = match variant % 3 {
        0 => ShardRule::RemainderLast,
        1 => ShardRule::Balanced,
        _ => ShardRule::Ceil,
    };
    how.merge = if variant.is_multiple_of(2) { Merge::Gpu } else { Merge::Cpu };
    how.weights =
        if variant.is_multiple_of(5) { WeightPlacement::Cpu } else { WeightPlacement::Mirrored };
    replicate(graph, &how).unwrap_or_else(|e| panic!("{e}"))
}

/// A graph, as it is, ready to run on the GPUs of these options.
pub(crate) fn executable(graph: &Graph, weights: &Weights, options: CudaOptions) -> CudaExecutable {
    let program = lower(&verify(graph).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap();
    let cuda = Cuda::new(options).unwrap_or_else(|e| panic!("{e}"));
    cuda.executable(program, weights).unwrap_or_else(|e| panic!("{e}"))
}

/// The backends that programs share, by their number of logical GPUs.
static BACKENDS: Mutex<BTreeMap<u32, Cuda>> = Mutex::new(BTreeMap::new());

/// Gives the shared backends back.
pub(crate) fn close() {
    BACKENDS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// The replicas of a graph on `count` GPUs, ready to run.
pub(crate) fn on_gpus(
    graph: &Graph,
    weights: &Weights,
    count: u32,
    variant: u64,
) -> CudaExecutable {
    let graph = replicas(graph, count, variant);
    let program = lower(&verify(&graph).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap();
    let mut backends = BACKENDS.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = backends
        .entry(count)
        .or_insert_with(|| Cuda::new(options(count)).unwrap_or_else(|e| panic!("{e}")));
    cuda.executable(program, weights).unwrap_or_else(|e| panic!("{e}"))
}

/// The outputs by reference evaluation, or by the CPU backend where that would take long.
pub(crate) fn expected(
    graph: &Graph,
    weights: &Weights,
    inputs: &Tensors,
    fast: bool,
) -> Vec<Tensor> {
    let kernels: &dyn Kernels = if fast { &CPU } else { &crate::random::Reference };
    let program = lower(&verify(graph).unwrap_or_else(|e| panic!("{e}")), kernels).unwrap();
    let cpu = Cpu::new(2).unwrap().executable(program, weights).unwrap();
    outputs(&cpu, inputs)
}

/// The outputs of one run.
pub(crate) fn outputs(executable: &dyn Executable, inputs: &Tensors) -> Vec<Tensor> {
    let run = executable.run(inputs, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(run.devices.iter().all(|d| d.used <= d.planned), "{:?}", run.devices);
    run.outputs.into_iter().map(|(_, tensor)| tensor).collect()
}

/// Random inputs of `n` rows.
pub(crate) fn inputs(graph: &Graph, n: i64, rng: &mut ChaCha8Rng) -> Tensors {
    let input = |value| {
        let info = graph.info(value);
        let dims = info.ty.shape.at(n);
        let count = dims.iter().product();
        let tensor = if info.ty.dtype == DType::I64 {
            // Few enough for the smallest table and the shortest sequence.
            let ids: Vec<i64> = (0..count).map(|_| rng.random_range(0..6)).collect();
            Tensor::new(&dims, &ids)
        } else if info.ty.dtype == DType::F64 {
            let data: Vec<f64> = (0..count).map(|_| rng.random_range(0.0..0.1)).collect();
            Tensor::new(&dims, &data)
        } else {
            let data: Vec<f32> = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
            Tensor::new(&dims, &data)
        };
        (info.name.to_string(), tensor.unwrap())
    };
    graph.inputs().map(input).collect()
}

/// Fails unless floats are within `tolerance` of the largest magnitude, and all else is equal.
pub(crate) fn assert_close(found: &[Tensor], expected: &[Tensor], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (o, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.tensor_type(), expected.tensor_type(), "{what}: output {o}");
        let (a, b) = (found.to_f64(), expected.to_f64());
        if expected.dtype() != DType::F32 {
            // Which of its forms a NaN has is not promised.
            let is_same =
                |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
            let same =
                found == expected || (expected.dtype().is_float() && a.iter().zip(&b).all(is_same));
            assert!(same, "{what}: output {o}: {found:?}, not {expected:?}");
            continue;
        }
        let finite = b.iter().filter(|x| x.is_finite());
        let largest = finite.fold(f64::from(f32::MIN_POSITIVE), |m, x| m.max(x.abs()));
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            // Also for infinities, whose difference is no number.
            let same = a.to_bits() == b.to_bits()
                || (a.is_nan() && b.is_nan())
                || (a - b).abs() <= tolerance * largest;
            assert!(
                same,
                "{what}: output {o}, element {i}: {a}, not {b}; the largest is {largest}"
            );
        }
    }
}

/// Fails unless all have the same bits; a NaN equals a NaN.
pub(crate) fn assert_equal(found: &[Tensor], expected: &[Tensor], what: &str) {
    assert_close(found, expected, 0.0, what);
    let zeros = |tensors: &[Tensor]| -> Vec<bool> {
        let elements = tensors.iter().filter(|t| t.dtype().is_float()).flat_map(Tensor::to_f64);
        elements.map(|x| x == 0.0 && x.is_sign_negative()).collect()
    };
    assert!(zeros(found) == zeros(expected), "{what}: zeros of other signs");
}

/// Fails unless each output has the same bits, but those that replicas may reassociate.
pub(crate) fn assert_bits(graph: &Graph, found: &[Tensor], expected: &[Tensor], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (o, (label, (found, expected))) in
        graph.labels().into_iter().zip(found.iter().zip(expected)).enumerate()
    {
        if label == Label::Reassociated {
            let (found, expected) = (std::slice::from_ref(found), std::slice::from_ref(expected));
            assert_close(found, expected, 1e-5, what);
        } else {
            assert!(found.bytes() == expected.bytes(), "{what}: output {o} differs");
        }
    }
}

/// A number that differs between outputs that differ.
pub(crate) fn digest(outputs: &[Tensor]) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in outputs.iter().flat_map(Tensor::bytes) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{hash:016x}")
}

/// A model of the zoo with few features and small images, where it has options for that.
pub(crate) fn small(name: &str) -> (Graph, Weights) {
    let options = match name {
        "gru" | "lstm" => "narrow=8,steps=5",
        "mini_googlenet" => "narrow=16",
        "mlp" | "nested" => "narrow=8",
        "mobilenet_v2" | "resnet50" => "narrow=32,pixels=32",
        "unet" | "video" => "narrow=8,pixels=16",
        "xception" => "narrow=32,pixels=71",
        _ => return zoo::build(name).unwrap_or_else(|e| panic!("{e}")),
    };
    zoo::build(&format!("{name}:{options}")).unwrap_or_else(|e| panic!("{e}"))
}

/// Options that record a trace.
pub(crate) fn traced(count: u32) -> (CudaOptions, Arc<fanwise::backend::Trace>) {
    let trace = Arc::new(fanwise::backend::Trace::new());
    let mut options = options(count);
    options.trace = Some(Arc::clone(&trace));
    (options, trace)
}

/// What the command line says, on a machine whose driver reads these variables.
pub(crate) fn said(args: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fanwise"));
    // What a process leaves behind whose device hangs is no leak of this one.
    command.env("FAKECUDA_REPORT", "");
    let output = command.args(args).envs(variables.iter().copied()).output().unwrap();
    let texts = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    texts.concat()
}
