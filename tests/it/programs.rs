//! Programs of whole models: what memory they plan, and that they compute what their operators do.

use std::collections::BTreeMap;

use fanwise::backend::{CPU, CUDA, Cpu, CpuExecutable, Executable, RunError, RunOptions};
use fanwise::internal::Traits;
use fanwise::internal::check;
use fanwise::ir::{Builder, Graph, Label, NodeKind, Value, Weights, parse, verify};
use fanwise::lower::{Kernels, LowerError, Program, Support, Types, lower};
use fanwise::op::{Gather, Op, OpError, Unary};
use fanwise::pass::{Merge, Repair, Replicate, WeightPlacement, replicate};
use fanwise::types::{
    DType, Device, Dim, KernelClass, Shape, ShardRule, Target, Tensor, TensorType,
};
use fanwise::zoo;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::random;
use crate::random::Reference;

/// A target that has few kernels and no reference evaluation: the other operators run on the host.
#[derive(Debug)]
struct Offloading;

impl Kernels for Offloading {
    fn target(&self) -> &Target {
        const TARGET: Target = Target {
            name: "offloading",
            alignment: 64,
            keeps_params: true,
            updates: true,
            together: false,
            collectives: false,
            channels_last: false,
            any_channels_last: false,
        };
        &TARGET
    }

    fn supports(&self, op: &Op, types: &Types<'_>) -> Support {
        let mut support = CPU.supports(op, types);
        if support.kernel != Some(KernelClass::MatMul) {
            let is_step = support.is_step && op.is(Traits::ELEMENTWISE);
            support = Support::default();
            support.is_step = is_step;
        }
        support
    }

    fn host(&self) -> Option<&dyn Kernels> {
        Some(&CPU)
    }
}

fn program(graph: &Graph, target: &dyn Kernels) -> Program {
    lower(&verify(graph).unwrap_or_else(|e| panic!("{e}")), target).unwrap()
}

/// The replicas of a graph on `count` devices; the other choices vary with `variant`.
pub(crate) fn replicas(graph: &Graph, count: u32, variant: u64) -> Graph {
    repaired_replicas(graph, (count, variant), Repair::Local)
}

/// The same with these repairs.
pub(crate) fn repaired_replicas(
    graph: &Graph,
    (count, variant): (u32, u64),
    repair: Repair,
) -> Graph {
    replicate(graph, &options(count, variant, repair)).unwrap_or_else(|e| panic!("{e}"))
}

/// How [`repaired_replicas`] replicates.
pub(crate) fn options(count: u32, variant: u64, repair: Repair) -> Replicate {
    let mut how = Replicate::over((0..count).map(Device::gpu).collect());
    how.repair = repair;
    how.rule = match variant % 4 {
        0 => ShardRule::RemainderLast,
        1 => ShardRule::Balanced,
        2 => ShardRule::Ceil,
        _ => ShardRule::Weighted((0..count).rev().map(|w| w + 1).collect()),
    };
    how.merge = if variant.is_multiple_of(3) { Merge::Gpu } else { Merge::Cpu };
    how.weights =
        if variant.is_multiple_of(2) { WeightPlacement::Mirrored } else { WeightPlacement::Cpu };
    how
}

fn assert_sound(program: &Program, n: i64, name: &str) {
    let bound = program.bind(n).unwrap();
    check(program, &bound).unwrap_or_else(|e| panic!("{name}, {n} rows: {e}\n{program}"));
    for (device, plan) in program.devices.iter().zip(&bound.devices) {
        assert!(
            plan.live <= plan.planned && plan.planned * 100 <= plan.live * 105,
            "{name}, {n} rows on {}: {} bytes are planned, {} are live",
            device.device,
            plan.planned,
            plan.live
        );
    }
}

#[test]
fn the_zoo_plans_hardly_more_memory_than_is_live() {
    for name in zoo::names() {
        let (template, _) = zoo::build(name).unwrap();
        let single = program(&template, &CPU);
        let triple = program(&replicas(&template, 3, 1), &CPU);
        for rows in [1, 7, 64] {
            assert_sound(&single, rows, name);
            assert_sound(&triple, 3 * rows, name);
        }
    }
}

/// Random inputs of `n` rows.
pub(crate) fn inputs(graph: &Graph, n: i64, rng: &mut ChaCha8Rng) -> BTreeMap<String, Tensor> {
    let input = |value: Value| {
        let info = graph.info(value);
        let dims = info.ty.shape.at(n);
        let count = dims.iter().product();
        let tensor = if info.ty.dtype == DType::I64 {
            let ids: Vec<i64> = (0..count).map(|_| rng.random_range(0..9)).collect();
            Tensor::new(&dims, &ids)
        } else if info.ty.dtype == DType::F64 {
            let data: Vec<f64> = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
            Tensor::new(&dims, &data)
        } else {
            let data: Vec<f32> = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
            Tensor::new(&dims, &data)
        };
        (info.name.to_string(), tensor.unwrap())
    };
    graph.inputs().map(input).collect()
}

/// Checks that outputs of replicas are those of one device: in every bit, or within rounding of the
/// largest value where the output's label says that sums are reassociated.
pub(crate) fn assert_promised(replicated: &Graph, one: &[Tensor], many: &[Tensor], what: &str) {
    let labels = replicated.labels();
    assert_eq!((one.len(), many.len()), (labels.len(), labels.len()), "{what}");
    for (label, (one, many)) in labels.into_iter().zip(one.iter().zip(many)) {
        if label == Label::Reassociated {
            assert_eq!(one.tensor_type(), many.tensor_type(), "{what}");
            let rounding = one.dtype().rounding();
            let (a, b) = (one.to_f64(), many.to_f64());
            let largest = a.iter().filter(|x| x.is_finite()).fold(0.0f64, |m, x| m.max(x.abs()));
            for (a, b) in a.iter().zip(&b) {
                let same = a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                assert!(
                    same || (a - b).abs() <= rounding * largest,
                    "{what}: {a} and {b} of {largest}"
                );
            }
        } else {
            assert_eq!(one, many, "{what}: {label}");
        }
    }
}

/// The outputs and updates of a graph node after node, by reference evaluation.
pub(crate) fn naive(
    graph: &Graph,
    weights: &Weights,
    inputs: &BTreeMap<String, Tensor>,
    n: i64,
) -> Vec<Tensor> {
    evaluate(graph, weights, inputs, n).unwrap()
}

/// The same, or the error of the operator that has no result.
pub(crate) fn evaluate(
    graph: &Graph,
    weights: &Weights,
    inputs: &BTreeMap<String, Tensor>,
    n: i64,
) -> Result<Vec<Tensor>, OpError> {
    let mut values: BTreeMap<Value, Tensor> = BTreeMap::new();
    for id in graph.order().unwrap() {
        let node = graph.node(id);
        let operands: Vec<&Tensor> = graph.operands(id).iter().map(|v| &values[v]).collect();
        let results = match node.kind() {
            NodeKind::Input => vec![inputs[&*node.results()[0].name].clone()],
            NodeKind::Param(id) => vec![weights.get(&graph.param(*id).name).unwrap().clone()],
            NodeKind::Op(op) => {
                let mut op = Op::clone(op);
                op.at_rows(&Dim::from(n));
                op.eval(&operands)?
            }
        };
        for (output, result) in (0u32..).zip(results) {
            values.insert(Value { node: id, output }, result);
        }
    }
    let updates = graph.updates().iter().flat_map(|update| update.values.iter().copied());
    let kept = graph.outputs().iter().map(|output| output.value).chain(updates);
    Ok(kept.map(|value| values[&value].clone()).collect())
}

pub(crate) fn run(executable: &CpuExecutable, inputs: &BTreeMap<String, Tensor>) -> Vec<Tensor> {
    let output = executable.run(inputs, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(output.devices.iter().all(|d| d.used <= d.planned));
    output.outputs.into_iter().map(|(_, tensor)| tensor).collect()
}

/// Fails unless the outputs are equal up to rounding.
pub(crate) fn assert_near(got: &[Tensor], expected: &[Tensor], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (a, b) in got.iter().zip(expected) {
        assert_eq!(a.tensor_type(), b.tensor_type(), "{what}");
        let (a, b) = (a.to_f64(), b.to_f64());
        let finite = b.iter().filter(|x| x.is_finite()).map(|x| x.abs());
        let tolerance = 1e-5 * finite.fold(1.0, f64::max);
        for (a, b) in a.iter().zip(&b) {
            let same = a.total_cmp(b).is_eq() || (a.is_nan() && b.is_nan());
            let same = same || (a - b).abs() <= tolerance;
            assert!(same, "{what}: {a} is not {b}");
        }
    }
}

pub(crate) fn executable(
    graph: &Graph,
    weights: &Weights,
    target: &dyn Kernels,
    threads: usize,
) -> CpuExecutable {
    Cpu::new(threads).unwrap().executable(program(graph, target), weights).unwrap()
}

/// The rows of a run that threads take in blocks, where they do.
const MANY: i64 = 2051;

/// Whether threads take blocks of rows, which have to give the bits of one thread, as has the graph
/// on several devices.
fn in_blocks(
    template: &Graph,
    weights: &Weights,
    [single, split]: [&CpuExecutable; 2],
    seed: u64,
) -> bool {
    let threads = executable(template, weights, &CPU, 2 + usize::try_from(seed % 3).unwrap());
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let inputs = inputs(template, MANY, &mut rng);
    let expected = run(single, &inputs);
    assert_eq!(run(&threads, &inputs), expected, "graph {seed} by several threads");
    assert_eq!(run(split, &inputs), expected, "graph {seed} by several devices");
    // The arenas of blocks are rounded one by one: together they are not that of all rows.
    let told = threads.run(&inputs, &RunOptions::default()).unwrap();
    let planned = threads.program().bind(MANY).unwrap().devices[0].planned;
    told.devices[0].planned != planned as u64
}

/// One random graph: on one device by reference evaluation and by kernels, and replicated. Returns
/// whether several threads took blocks of its rows.
fn try_graph(seed: u64, size: usize) -> bool {
    let (template, weights) = random::graph(seed, size);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let reference = executable(&template, &weights, &Reference, 1);
    let single = executable(&template, &weights, &CPU, 1);
    let count = 1 + u32::try_from(seed % 4).unwrap();
    let graph = replicas(&template, count, seed);
    let threads = 1 + usize::try_from(seed % 3).unwrap();
    let split = executable(&graph, &weights, &CPU, threads);
    let offloaded = executable(&graph, &weights, &Offloading, threads);
    let cuda = program(&graph, &CUDA);
    let is_cut = in_blocks(&template, &weights, [&single, &split], seed);
    for n in [0, 1, 2, i64::from(2 * count + 1)] {
        let what = format!("graph {seed} at {n} rows, {count} replicas");
        let inputs = inputs(&template, n, &mut rng);
        let expected = naive(&template, &weights, &inputs, n);
        let got = run(&single, &inputs);
        for (program, name) in [(reference.program(), "reference"), (single.program(), "single")] {
            let bound = program.bind(n).unwrap();
            check(program, &bound).unwrap_or_else(|e| panic!("{what}, {name}: {e}\n{program}"));
        }
        for program in [split.program(), offloaded.program(), &cuda] {
            let bound = program.bind(n).unwrap();
            check(program, &bound).unwrap_or_else(|e| panic!("{what}: {e}\n{program}"));
        }
        assert_eq!(run(&reference, &inputs), expected, "{what}, by reference evaluation");
        assert_near(&got, &expected, &what);
        assert_eq!(run(&split, &inputs), got, "{what}");
        assert_near(&run(&offloaded, &inputs), &expected, &what);
    }
    is_cut
}

#[test]
fn random_graphs_compute_what_their_operators_do() {
    let seeds = 0..60;
    let cut = seeds.filter(|seed| try_graph(*seed, 4 + usize::try_from(*seed).unwrap() / 2));
    let cut = cut.count();
    assert!(cut >= 10, "{cut} graphs were taken in blocks of rows");
}

#[test]
fn an_error_on_one_device_ends_the_run_on_all() {
    let mut build = Builder::new("lookup");
    let shape: Shape = [Dim::n(), 2.into()].into_iter().collect();
    let ids = build.input("ids", TensorType::new(DType::I64, shape));
    let table = build.param("table", Tensor::zeros(DType::F32, &[4, 3]).unwrap());
    let rows = build.op("rows", Gather { axis: 0 }, &[table, ids]).unwrap();
    let relu = build.op("relu", Unary::Relu, &[rows]).unwrap();
    build.output("y", relu);
    let (template, weights) = build.finish();
    let run = executable(&replicas(&template, 3, 3), &weights, &CPU, 2);
    let batch = |last: i64| {
        let ids: Vec<i64> = (0..11).map(|i| i % 4).chain([last]).collect();
        BTreeMap::from([("ids".to_owned(), Tensor::new(&[6, 2], &ids).unwrap())])
    };
    for _ in 0..20 {
        let error = run.run(&batch(4), &RunOptions::default()).unwrap_err();
        assert!(
            matches!(&error, RunError::Op { device, .. } if *device == Device::gpu(2)),
            "{error}"
        );
        assert!(error.to_string().starts_with("`rows.r2` (gather) on gpu:2: "), "{error}");
        assert!(run.run(&batch(3), &RunOptions::default()).is_ok());
    }
}

#[test]
fn runs_side_by_side_do_not_meet() {
    let (template, weights) = random::graph(7, 12);
    let run = executable(&replicas(&template, 3, 0), &weights, &CPU, 2);
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let batches: Vec<_> = (1..6).map(|n| inputs(&template, n, &mut rng)).collect();
    let expected: Vec<_> = batches.iter().map(|batch| self::run(&run, batch)).collect();
    std::thread::scope(|scope| {
        for (batch, expected) in batches.iter().zip(&expected) {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(self::run(&run, batch), *expected)));
        }
    });
}

#[test]
fn what_may_be_absent_is_not_merged() {
    let text = include_str!("absent.fan");
    let graph = parse(text).unwrap_or_else(|e| panic!("{e}"));
    let error = lower(&verify(&graph).unwrap(), &CPU).unwrap_err();
    assert!(matches!(error, LowerError::Absent { .. }), "{error}");
}
