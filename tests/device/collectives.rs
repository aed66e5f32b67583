//! Collectives on devices: every combination of every type, on one to eight devices, with peers
//! that have no rows, of small and large values; and repaired models.

use std::sync::Arc;

use fanwise::backend::{CUDA, Executable};
use fanwise::internal::check;
use fanwise::internal::{AllGather, AllReduce, CopyOp, ExclusiveScan, MergeTopK};
use fanwise::ir::{Builder, DevicePlacement, Graph, Origin, Value, Weights, parse, verify};
use fanwise::lower::{Action, DeviceProgram, Program, Step, lower};
use fanwise::op::{
    Binary, Concat, Expand, MatMul, Op, Reduce, Reshape, Scan, Slice, TopK, Transpose, Unary,
};
use fanwise::pass::{
    BatchStatistics, Merge, Repair, RepairOptions, Replicate, WeightPlacement, repair,
};
use fanwise::types::{
    Combine, DType, Device, Dim, KernelClass, Shape, ShardRule, Split, Tensor, TensorType,
};
use libtest_mimic::Trial;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::results;
use crate::setup::{Tensors, assert_close, executable, expected, options, outputs};

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |name: &str, test: fn()| results::trial(format!("collectives_{name}"), test);
    vec![
        trial("combine", parts_are_combined),
        trial("large", large_values_are_combined_in_slices),
        trial("scan", parts_before_are_combined),
        trial("gather", rows_are_gathered),
        trial("candidates", candidates_are_merged),
        trial("repaired", repaired_graphs),
        trial("weights", models_with_weights),
        trial("batch_norm", synchronised_statistics),
    ]
}

/// What joins the parts.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Reduce(Combine),
    Scan(Combine, bool),
    /// Rows of an axis behind another, or of the first.
    Gather(usize),
    TopK(bool),
}

/// Entries of which each replica gives the best.
const ENTRIES: i64 = 5;

/// Candidates of a replica.
const BEST: i64 = 3;

/// A graph by hand: each of `count` replicas has a part of the input `w`, they are joined, and each
/// replica gives a row with its result for each of its rows.
struct Net {
    graph: Graph,
    split: Split,
    merge: Device,
}

impl Net {
    fn new(count: u32, rule: ShardRule, merge: Device) -> Self {
        let split = Split::new((0..count).map(Device::gpu).collect(), rule).unwrap();
        let mut graph = Graph::new("collective");
        graph.set_split(Some(split.clone()));
        Self { graph, split, merge }
    }

    fn add(&mut self, op: impl Into<Op>, of: &[Value], name: &str, at: DevicePlacement) -> Value {
        self.all(op, of, &[name.into()], at)
    }

    fn all(
        &mut self,
        op: impl Into<Op>,
        operands: &[Value],
        names: &[Arc<str>],
        place: DevicePlacement,
    ) -> Value {
        let node = self.graph.add(op.into(), operands, names, place, Origin::default()).unwrap();
        Value { node, output: 0 }
    }

    /// A value on a device.
    fn on(&mut self, value: Value, name: &str, place: DevicePlacement) -> Value {
        if self.graph.node(value.node).place().device == place.device {
            return value;
        }
        self.add(CopyOp {}, &[value], name, place)
    }

    fn rows(&self) -> Vec<Dim> {
        (0..self.split.replicas()).map(|r| self.split.rows(r).unwrap()).collect()
    }

    /// The part of `input` that replica `r` has, brought to where parts are merged.
    fn part(&mut self, input: Value, name: &str, r: usize, kind: Kind) -> Value {
        let replica = u32::try_from(r).unwrap();
        let there = DevicePlacement { device: Device::gpu(replica), replica: Some(replica) };
        let whole = self.on(input, &format!("{name}.r{r}.d"), there);
        let at = Dim::from(i64::try_from(r).unwrap());
        let rows = self.rows()[r].clone();
        let slice = match kind {
            Kind::Reduce(_) | Kind::Scan(..) => Slice::rows(0, at.clone(), at + 1),
            Kind::TopK(_) => {
                let from = at * BEST;
                Slice::rows(0, from.clone(), from + (rows * ENTRIES).minimum(&BEST.into()))
            }
            Kind::Gather(axis) => {
                let (from, to) = self.split.range(r).unwrap();
                Slice::rows(axis, from.clone(), to.clone())
            }
        };
        let mut own = self.add(slice, &[whole], &format!("{name}.r{r}"), there);
        if let Kind::Reduce(by) | Kind::Scan(by, _) = kind
            && by.is_wide()
        {
            // Sums of `f64` have four components, and so have moments; products have two.
            let more = 2 * i64::from(by != Combine::WideProd);
            let shape = vec![
                (2 + more).into(),
                self.graph.ty(own).shape.elements().floor_div(&(2 + more).into()),
            ];
            own = self.add(Reshape { shape }, &[own], &format!("{name}.r{r}.wide"), there);
        }
        let merge = DevicePlacement { device: self.merge, replica: Some(replica) };
        self.on(own, &format!("{name}.r{r}.h"), merge)
    }

    /// The node that joins, and how many results each replica takes of it.
    fn join(&mut self, kind: Kind, inputs: &[Value]) -> (Value, u32) {
        let count = self.split.replicas();
        let names = ["w", "i"];
        let mut parts = Vec::new();
        for r in 0..count {
            for (input, name) in inputs.iter().zip(names) {
                parts.push(self.part(*input, name, r, kind));
            }
        }
        let rows = self.rows();
        let (op, results): (Op, usize) = match kind {
            Kind::Reduce(by) => (AllReduce { by, rows }.into(), 1),
            Kind::Scan(by, reverse) => (ExclusiveScan { by, reverse, rows }.into(), count),
            Kind::Gather(axis) => (AllGather { axis: i64::try_from(axis).unwrap() }.into(), 1),
            Kind::TopK(largest) => {
                let entries = rows.into_iter().map(|rows| rows * ENTRIES).collect();
                (MergeTopK { axis: 0, entries, k: BEST.into(), largest }.into(), 2)
            }
        };
        let names: Vec<Arc<str>> = (0..results).map(|i| format!("all{i}").into()).collect();
        let place = DevicePlacement { device: self.merge, replica: None };
        let each = if matches!(kind, Kind::TopK(_)) { 2 } else { 1 };
        (self.all(op, &parts, &names, place), each)
    }

    /// A row with the whole result for each row of a replica, all rows together as an output.
    fn give(&mut self, joined: Value, output: u32, scans: bool) {
        let count = self.split.replicas();
        let mut parts = Vec::with_capacity(count);
        for r in 0..count {
            let replica = u32::try_from(r).unwrap();
            let there = DevicePlacement { device: Device::gpu(replica), replica: Some(replica) };
            let value = Value { output: if scans { replica } else { output }, ..joined };
            let own = self.on(value, &format!("all{output}.r{r}.d"), there);
            let shape = &self.graph.ty(own).shape;
            let flat = vec![Dim::ONE, shape.elements()];
            let rows = vec![self.rows()[r].clone(), flat[1].clone()];
            let flat = Reshape { shape: flat };
            let flat = self.add(flat, &[own], &format!("flat{output}.r{r}"), there);
            let wide =
                self.add(Expand { shape: rows }, &[flat], &format!("wide{output}.r{r}"), there);
            let host = DevicePlacement { device: Device::HOST, replica: Some(replica) };
            parts.push(self.on(wide, &format!("wide{output}.r{r}.h"), host));
        }
        let name = format!("y{output}");
        let whole = self.add(Concat { axis: 0 }, &parts, &name, DevicePlacement::HOST);
        self.graph.add_output(&*name, whole);
    }
}

/// A replicated graph; `is_output` says whether the host takes the result, too.
fn graph(kind: Kind, dtype: DType, count: u32, rule: ShardRule, how: (bool, bool, i64)) -> Graph {
    let (on_gpu, is_output, width) = how;
    let merge = if on_gpu { Device::gpu(0) } else { Device::HOST };
    let mut net = Net::new(count, rule, merge);
    let rows = Dim::from(i64::from(count));
    let dims: Vec<Dim> = match kind {
        Kind::Reduce(_) | Kind::Scan(..) => vec![rows, width.into()],
        Kind::TopK(_) => vec![rows * BEST, width.into()],
        Kind::Gather(0) => vec![Dim::n(), width.into()],
        Kind::Gather(_) => vec![2.into(), Dim::n(), width.into()],
    };
    let shape = Shape::from(dims.as_slice());
    // What has the batch, so that there is one.
    net.graph.add_input("n", TensorType::new(DType::U8, Shape::from([Dim::n()].as_slice())));
    let mut inputs = vec![net.graph.add_input("w", TensorType::new(dtype, shape.clone()))];
    if matches!(kind, Kind::TopK(_)) {
        inputs.push(net.graph.add_input("i", TensorType::new(DType::I64, shape)));
    }
    let (joined, results) = net.join(kind, &inputs);
    let scans = matches!(kind, Kind::Scan(..));
    for output in 0..results {
        net.give(joined, output, scans);
    }
    if is_output && !scans {
        let home = net.on(joined, "home", DevicePlacement::HOST);
        net.graph.add_output("home", home);
    }
    net.graph
}

/// Small whole numbers, so that every order of sums is exact, or any numbers.
fn numbers(dtype: DType, dims: &[usize], whole: bool, rng: &mut ChaCha8Rng) -> Tensor {
    let count: usize = dims.iter().product();
    let mut some = || -> f64 {
        if dtype == DType::Bool {
            return f64::from(rng.random_range(0..2u8));
        }
        if whole { f64::from(rng.random_range(-3..9i8)) } else { rng.random_range(-2.0..2.0) }
    };
    let values: Vec<f64> = (0..count).map(|_| some()).collect();
    #[expect(clippy::cast_possible_truncation, reason = "any number will do")]
    let tensor = if dtype == DType::F64 {
        Tensor::new(dims, &values)
    } else if dtype == DType::F32 {
        Tensor::new(dims, &values.iter().map(|x| *x as f32).collect::<Vec<f32>>())
    } else {
        let bytes = values.iter().flat_map(|x| (*x as i64).to_le_bytes()[..dtype.bytes()].to_vec());
        Tensor::from_bytes(dtype, dims, &bytes.collect::<Vec<u8>>())
    };
    tensor.unwrap()
}

/// Candidates as a ranking of each replica's entries gives them.
fn candidates(
    dtype: DType,
    count: u32,
    width: usize,
    largest: bool,
    rng: &mut ChaCha8Rng,
) -> Tensors {
    let (count, best) = (count as usize, usize::try_from(BEST).unwrap());
    let dims = [count * best, width];
    let (mut values, mut places) = (vec![0.0f64; dims[0] * width], vec![0i64; dims[0] * width]);
    for replica in 0..count {
        for column in 0..width {
            let mut all: Vec<(f64, i64)> =
                (0..ENTRIES).map(|i| (f64::from(rng.random_range(-2..3i8)), i)).collect();
            if dtype == DType::F32 && rng.random_bool(0.3) {
                all[0].0 = f64::NAN;
            }
            let high = |x: f64| if x.is_nan() { f64::INFINITY } else { x };
            all.sort_by(|a, b| {
                let order = high(a.0).total_cmp(&high(b.0));
                if largest { order.reverse() } else { order }
            });
            for (row, (value, place)) in all.into_iter().take(best).enumerate() {
                let at = (replica * best + row) * width + column;
                (values[at], places[at]) = (value, place);
            }
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "small whole numbers")]
    let values = if dtype == DType::F32 {
        Tensor::new(&dims, &values.iter().map(|x| *x as f32).collect::<Vec<f32>>())
    } else {
        Tensor::new(&dims, &values.iter().map(|x| *x as i32).collect::<Vec<i32>>())
    };
    let values = values.unwrap();
    let places = Tensor::new(&dims, &places).unwrap();
    [("w".to_owned(), values), ("i".to_owned(), places)].into()
}

fn program(graph: &Graph) -> Program {
    lower(&verify(graph).unwrap_or_else(|e| panic!("{e}")), &CUDA).unwrap()
}

/// How many launches of GPUs join or combine, and whether the host combines anything.
fn launches(program: &Program) -> (usize, bool) {
    let joins = |s: &&Step| {
        let Action::Launch(launch) = &s.action else { return false };
        matches!(launch.op, Some(Op::AllReduce(_) | Op::ExclusiveScan(_) | Op::MergeTopK(_)))
    };
    let count = |d: &DeviceProgram| d.steps.iter().filter(joins).count();
    (program.devices[1..].iter().map(count).sum(), count(&program.devices[0]) > 0)
}

/// Runs a graph for these inputs at several batch sizes; some floats are only close.
fn compare(graph: &Graph, count: u32, exact: bool, batches: &[(i64, Tensors)], what: &str) {
    let lowered = program(graph);
    let run = executable(graph, &Weights::default(), options(count));
    for (n, inputs) in batches {
        let what = format!("{what}, {n} rows");
        let bound = lowered.bind(*n).unwrap();
        check(&lowered, &bound).unwrap_or_else(|e| panic!("{what}: {e}\n{lowered}"));
        let wanted = expected(graph, &Weights::default(), inputs, false);
        for _ in 0..2 {
            let found = outputs(&run, inputs);
            if exact {
                let bytes =
                    |all: &[Tensor]| all.iter().map(|t| t.bytes().to_vec()).collect::<Vec<_>>();
                assert_eq!(bytes(&found), bytes(&wanted), "{what}\n{lowered}");
            } else {
                let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-6 * b.abs().max(1.0);
                let all = |t: &[Tensor]| t.iter().flat_map(Tensor::to_f64).collect::<Vec<f64>>();
                assert!(all(&found).iter().zip(&all(&wanted)).all(near), "{what}");
            }
        }
    }
}

/// A batch of `n` rows whose input `w` is the given one.
fn batch(n: i64, w: Tensor) -> (i64, Tensors) {
    let rows = usize::try_from(n).unwrap();
    let flags = Tensor::from_bytes(DType::U8, &[rows], &vec![0; rows]).unwrap();
    (n, [("n".to_owned(), flags), ("w".to_owned(), w)].into())
}

fn rules(count: u32) -> [ShardRule; 3] {
    let zero_last = (0..count).map(|i| u32::from(i + 1 < count || count == 1)).collect();
    [ShardRule::RemainderLast, ShardRule::Ceil, ShardRule::Weighted(zero_last)]
}

const COUNTS: [u32; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

/// Two numbers of replicas for a case, which are never equal.
fn two_counts(case: usize) -> [(usize, u32); 2] {
    [(0, COUNTS[case % COUNTS.len()]), (1, COUNTS[(3 * case + 5) % COUNTS.len()])]
}

/// Every way to combine, of every type that it takes.
fn parts_are_combined() {
    let types =
        [DType::F32, DType::F64, DType::I64, DType::I32, DType::U8, DType::I16, DType::Bool];
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for (c, by) in Combine::ALL.into_iter().enumerate() {
        for (t, dtype) in types.into_iter().enumerate() {
            let floats = matches!(by, Combine::Lse | Combine::L2 | Combine::Mean);
            let exact = matches!(by, Combine::Max | Combine::Min);
            let wide = by.is_wide() && dtype != DType::F64;
            if floats && !dtype.is_float() || dtype == DType::Bool && !exact || wide {
                continue;
            }
            // Sums of any floats depend on their order.
            let whole = (!dtype.is_float() || t.is_multiple_of(2)) && by != Combine::Mean;
            for (turn, count) in two_counts(c + t) {
                combine(by, dtype, count, (c + t + turn, whole), &mut rng);
            }
        }
    }
}

/// One way to combine parts of one type on so many devices.
fn combine(
    by: Combine,
    dtype: DType,
    count: u32,
    (variant, whole): (usize, bool),
    rng: &mut ChaCha8Rng,
) {
    let rule = rules(count)[variant % 3].clone();
    let width = if by.is_wide() { 72 } else { 70 };
    let how = (variant.is_multiple_of(2), (variant / 2).is_multiple_of(2), width);
    let graph = graph(Kind::Reduce(by), dtype, count, rule, how);
    let (on_devices, on_host) = launches(&program(&graph));
    assert!(on_devices == count as usize && !on_host, "{}", program(&graph));
    let dims = [count as usize, usize::try_from(width).unwrap()];
    let batches = [7, 0, 2, 9].map(|n| batch(n, numbers(dtype, &dims, whole, rng)));
    let what = format!("{by:?} of {dtype} on {count}");
    compare(&graph, count, by != Combine::Lse, &batches, &what);
}

/// From half a MiB on, each of several devices combines a slice.
fn large_values_are_combined_in_slices() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let width = (1 << 17) + 77;
    for (i, count) in [2, 3, 8].into_iter().enumerate() {
        let rule = rules(count)[i % 3].clone();
        let by = [Combine::Sum, Combine::Mean, Combine::Max][i];
        let graph = graph(Kind::Reduce(by), DType::F32, count, rule, (i == 1, i == 2, width));
        let lowered = program(&graph);
        let device = &lowered.devices[1];
        let launch = device.steps.iter().find_map(|s| match &s.action {
            Action::Launch(l) if l.class == KernelClass::Collective => Some(l),
            Action::Launch(_) | Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
        });
        let launch = launch.unwrap();
        let sliced = device.buffers[launch.results[0].0 as usize].ty.shape.rank() == 1;
        assert_eq!(sliced, count > 2, "{lowered}");
        let dims = [count as usize, usize::try_from(width).unwrap()];
        let n = i64::from(count) - 1;
        let batches = [n, 0].map(|n| batch(n, numbers(DType::F32, &dims, false, &mut rng)));
        compare(&graph, count, true, &batches, &format!("{by:?} of large parts on {count}"));
    }
}

fn parts_before_are_combined() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let types = [DType::F32, DType::I64, DType::F64, DType::U8];
    let ways = [Combine::Sum, Combine::Prod, Combine::Max, Combine::Min];
    let wide = [Combine::WideSum, Combine::WideProd].map(|by| (by, DType::F64));
    let plain = ways.into_iter().flat_map(|by| types.map(|t| (by, t)));
    for (i, (by, dtype)) in plain.chain(wide).enumerate() {
        let width = if by.is_wide() { 8 } else { 9 };
        for (turn, count) in two_counts(i) {
            let rule = rules(count)[i % 3].clone();
            let kind = Kind::Scan(by, (i + turn) % 3 == 1);
            let graph = graph(kind, dtype, count, rule, (i.is_multiple_of(2), false, width));
            let (on_devices, on_host) = launches(&program(&graph));
            assert!(on_devices == count as usize && !on_host, "{}", program(&graph));
            let dims = [count as usize, usize::try_from(width).unwrap()];
            let batches =
                [8, 0, 3].map(|n| batch(n, numbers(dtype, &dims, !dtype.is_float(), &mut rng)));
            compare(&graph, count, true, &batches, &format!("{kind:?} of {dtype} on {count}"));
        }
    }
}

fn rows_are_gathered() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for (i, count) in COUNTS.into_iter().enumerate() {
        for axis in [0, 1] {
            let dtype = [DType::F32, DType::Bool, DType::I64, DType::I16][(i + axis) % 4];
            let rule = rules(count)[(i + axis) % 3].clone();
            let how = ((i + axis).is_multiple_of(2), i.is_multiple_of(3), 6);
            let graph = graph(Kind::Gather(axis), dtype, count, rule, how);
            let batches = [7, 0, 1].map(|n| {
                let rows = usize::try_from(n).unwrap();
                let dims = if axis == 0 { vec![rows, 6] } else { vec![2, rows, 6] };
                batch(n, numbers(dtype, &dims, true, &mut rng))
            });
            compare(&graph, count, true, &batches, &format!("rows on axis {axis} of {count}"));
        }
    }
}

fn candidates_are_merged() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for (i, count) in COUNTS.into_iter().enumerate() {
        let dtype = [DType::F32, DType::I32][i % 2];
        let largest = i % 3 != 1;
        let rule = rules(count)[i % 3].clone();
        let graph = graph(Kind::TopK(largest), dtype, count, rule, (i % 2 == 1, i == 2, 5));
        let (on_devices, on_host) = launches(&program(&graph));
        assert!(on_devices == count as usize && !on_host, "{}", program(&graph));
        let batches = [8, 1].map(|n| {
            let mut tensors = candidates(dtype, count, 5, largest, &mut rng);
            let (n, mut inputs) = batch(n, tensors.remove("w").unwrap());
            inputs.append(&mut tensors);
            (n, inputs)
        });
        compare(&graph, count, true, &batches, &format!("candidates of {count}"));
    }
}

/// Templates of which each needs all samples; the CPU does the same with the same replicas.
const REPAIRED: [&str; 3] = [
    "graph @g(%x: f32[N,4]) -> (y: f32[N,4], m: f32[4]) {
  %a : f32[N,4] = relu(%x)
  %m : f32[4] = reduce_max(%a) {axes=[0], keepdims=false}
  %y : f32[N,4] = sub(%a, %m)
  return %y, %m
}
",
    "graph @g(%x: f32[N,4]) -> (y: f32[N,N]) {
  %a : f32[N,4] = relu(%x)
  %t : f32[4,N] = transpose(%a) {perm=[1, 0]}
  %y : f32[N,N] = matmul(%a, %t)
  return %y
}
",
    "graph @g(%x: f32[N,4]) -> (y: f32[N,4], s: f32[N,4]) {
  %a : f32[N,4] = tanh(%x)
  %y : f32[N,4] = cumsum(%a) {axis=0}
  %s : f32[N,4] = softmax(%a) {axis=0}
  return %y, %s
}
",
];

/// The replicas of a template that is repaired by all means.
fn repaired(
    template: &Graph,
    (count, variant): (u32, usize),
    batch_norm: Option<BatchStatistics>,
) -> Graph {
    let mut how = Replicate::over((0..count).map(Device::gpu).collect());
    how.rule = rules(count)[variant % 3].clone();
    how.merge = if variant.is_multiple_of(2) { Merge::Gpu } else { Merge::Cpu };
    how.weights = match variant % 4 {
        0 => WeightPlacement::Template,
        1 => WeightPlacement::Cpu,
        _ => WeightPlacement::Mirrored,
    };
    how.repair = Repair::Comm;
    let options = RepairOptions { batch_norm, ..RepairOptions::new(Repair::Comm) };
    let repaired = repair(template, options).unwrap();
    repaired.replicate(&how).unwrap_or_else(|e| panic!("{e}"))
}

fn repaired_graphs() {
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    for (g, text) in REPAIRED.into_iter().enumerate() {
        let template = parse(&format!("fanwise 1\nsymbol N >= 0\n{text}")).unwrap();
        for (i, count) in COUNTS.into_iter().enumerate() {
            let graph = repaired(&template, (count, g + i), None);
            let run = executable(&graph, &Weights::default(), options(count));
            for n in [7, 1] {
                let inputs = crate::setup::inputs(&template, n, &mut rng);
                let wanted = expected(&graph, &Weights::default(), &inputs, true);
                let what = format!("graph {g} on {count}, {n} rows");
                let lowered = run.program();
                check(lowered, &run.bind(n).unwrap()).unwrap_or_else(|e| panic!("{what}: {e}"));
                for _ in 0..2 {
                    assert_close(&outputs(&run, &inputs), &wanted, 1e-5, &what);
                }
            }
        }
    }
}

/// A template with a weight that needs every collective, its replicas, and the weight.
#[expect(clippy::many_single_char_names, reason = "the values of a graph")]
pub(crate) fn needy(count: u32, variant: usize) -> (Graph, Graph, Weights) {
    let mut build = Builder::new("needy");
    let rows = Shape::from([Dim::n(), 6.into()].as_slice());
    let x = build.input("x", TensorType::new(DType::F32, rows));
    let numbers: Vec<f32> = (0..24u8).map(|i| f32::from(i) * 0.125 - 1.0).collect();
    let w = build.param("w", Tensor::new(&[6, 4], &numbers).unwrap());
    let h = build.op("h", MatMul {}, &[x, w]).unwrap();
    let a = build.op("a", Unary::Tanh, &[h]).unwrap();
    let largest = Reduce::Max { axes: vec![0], keepdims: false };
    let m = build.op("m", largest, &[a]).unwrap();
    let y = build.op("y", Binary::Sub, &[a, m]).unwrap();
    let t = build.op("t", Transpose { perm: vec![1, 0] }, &[a]).unwrap();
    let s = build.op("s", MatMul {}, &[a, t]).unwrap();
    let sums = Scan::Sum { axis: 0, exclusive: false, reverse: false };
    let c = build.op("c", sums, &[a]).unwrap();
    let best = TopK { axis: 0, k: 2.into(), largest: true, local: false };
    let best = build.ops(&["b", "p"], best, &[a]).unwrap();
    for (name, value) in [("y", y), ("m", m), ("s", s), ("c", c), ("b", best[0]), ("p", best[1])] {
        build.output(name, value);
    }
    let (template, weights) = build.finish();
    let graph = repaired(&template, (count, variant), None);
    (template, graph, weights)
}

/// Weights on each device, on the first or on the host; the CPU does the same with the same
/// replicas.
fn models_with_weights() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    for (i, count) in COUNTS.into_iter().enumerate() {
        let (template, graph, weights) = needy(count, i);
        let run = executable(&graph, &weights, options(count));
        for n in [7, 2] {
            let inputs = crate::setup::inputs(&template, n, &mut rng);
            let wanted = expected(&graph, &weights, &inputs, true);
            check(run.program(), &run.bind(n).unwrap()).unwrap_or_else(|e| panic!("{e}"));
            for _ in 0..2 {
                let what = format!("on {count}, {n} rows");
                assert_close(&outputs(&run, &inputs), &wanted, 1e-5, &what);
            }
        }
    }
}

/// What normalises by the whole batch, or by groups of its rows, gives on several devices what it
/// gives on one.
fn synchronised_statistics() {
    let text = "fanwise 1
symbol N >= 0
graph @g(%x: f32[N,3,2], %s: f32[3], %b: f32[3], %m: f32[3], %v: f32[3]) -> (y: f32[N,3,2], o: \
f32[3], p: f32[3]) {
  %a : f32[N,3,2] = tanh(%x)
  %y : f32[N,3,2], %o : f32[3], %p : f32[3] = batch_norm_train(%a, %s, %b, %m, %v)
  return %y, %o, %p
}
";
    let template = parse(text).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    for (statistics, n) in [("sync", 7), ("ghost:8", 16)] {
        let statistics: BatchStatistics = statistics.parse().unwrap();
        let inputs = crate::setup::inputs(&template, n, &mut rng);
        let mut first: Option<Vec<Tensor>> = None;
        for (i, count) in [1, 2, 4, 8].into_iter().enumerate() {
            let graph = repaired(&template, (count, 3 * i), Some(statistics));
            let run = executable(&graph, &Weights::default(), options(count));
            let found = outputs(&run, &inputs);
            let wanted = expected(&graph, &Weights::default(), &inputs, true);
            assert_close(&found, &wanted, 1e-5, &format!("{statistics:?} on {count}"));
            let first = first.get_or_insert_with(|| found.clone());
            assert_close(&found, first, 1e-5, &format!("{statistics:?} on {count} and on 1"));
        }
    }
}
