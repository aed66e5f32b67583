use std::collections::BTreeMap;
use std::sync::Arc;

use super::Cpu;
use crate::backend::{CPU, Executable, RunError, RunOptions, Trace};
use crate::ir::{Builder, Graph, Placement, Value, Weights, parse, verify};
use crate::lower::testing::{Replication, batch, block, naive, numbers, template, views};
use crate::lower::{Access, Action, BufferId, ChainStep, lower};
use crate::op::{
    Binary, Cast, CellKind, CellSettings, Concat, Conv, Coordinates, Gemm, MatMul, Nearest, Op,
    Pad, PadMode, Pool, Recurrent, Reduce, Resize, ResizeMode, Slice, Softmax, Unary,
};
use crate::types::{DType, Device, Dim, Shape, ShardRule, Tensor, TensorType, subnormals};

fn executable(graph: &Graph, weights: &Weights, threads: usize) -> super::CpuExecutable {
    let verified = verify(graph).unwrap_or_else(|e| panic!("{e}"));
    let program = lower(&verified, &CPU).unwrap();
    Cpu::new(threads).unwrap().executable(program, weights).unwrap()
}

#[test]
fn replicas_give_what_the_template_gives() {
    let (graph, weights) = template();
    let whole = executable(&graph, &weights, 1);
    let merges = [Device::HOST, Device::gpu(0)];
    for (count, merge) in (1..=3).flat_map(|count| merges.map(|merge| (count, merge))) {
        for weights in [Placement::Shared(Device::HOST), Placement::Mirrored] {
            for rule in [ShardRule::RemainderLast, ShardRule::Ceil] {
                compare(&graph, &whole, &Replication { count, rule, merge, weights });
            }
        }
    }
}

/// Runs the template and its replicas at several batch sizes.
fn compare(template: &Graph, whole: &super::CpuExecutable, how: &Replication) {
    let (graph, weights) = how.graph();
    let split = executable(&graph, &weights, 2);
    for n in [0, 1, 2, 3, 7] {
        let rows = i64::try_from(n).unwrap();
        let expected = whole.run(&batch(n), &RunOptions::default()).unwrap();
        let got = split.run(&batch(n), &RunOptions::default()).unwrap();
        assert_eq!(expected.outputs, got.outputs, "{n} rows, {how:?}");
        let tensors: Vec<Tensor> = expected.outputs.into_iter().map(|o| o.1).collect();
        assert_eq!(tensors, naive(template, &weights, &batch(n), rows));
        assert_eq!(got.devices.iter().filter_map(|d| d.rows).sum::<i64>(), rows);
        assert!(got.devices.iter().all(|d| d.used <= d.planned));
    }
}

#[test]
fn traces_have_every_launch_and_copy() {
    let (graph, weights) = Replication::of(2).graph();
    let program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
    let bound = program.bind(4).unwrap();
    let devices = program.devices.iter().zip(&bound.devices);
    let steps = devices.flat_map(|(device, own)| device.steps.iter().zip(&own.active));
    let works = |action: &Action| matches!(action, Action::Launch(_) | Action::Copy { .. });
    let steps: Vec<&Action> = steps
        .filter(|(step, active)| **active && works(&step.action))
        .map(|(step, _)| &step.action)
        .collect();
    let expected = steps.len();
    let copies = steps.iter().filter(|action| matches!(action, Action::Copy { .. })).count();
    let trace = Arc::new(Trace::new());
    let traced = Cpu::new(2).unwrap().traced(Some(Arc::clone(&trace)));
    let traced = traced.executable(program, &weights).unwrap();
    let plain = executable(&graph, &weights, 2);
    for run in 1..3 {
        let got = traced.run(&batch(4), &RunOptions::default()).unwrap();
        let plain = plain.run(&batch(4), &RunOptions::default()).unwrap();
        assert_eq!(got.outputs, plain.outputs);
        let json: serde_json::Value = serde_json::from_str(&trace.to_json()).unwrap();
        let events = json["traceEvents"].as_array().unwrap();
        assert_eq!(events.iter().filter(|event| event["ph"] == "X").count(), run * expected);
        let tracks = events.iter().filter(|event| event["name"] == "thread_name");
        let tracks: Vec<&str> = tracks.filter_map(|e| e["args"]["name"].as_str()).collect();
        assert_eq!(tracks[..3], ["cpu:0", "gpu:0", "gpu:1"]);
    }
    assert!(traced.run(&BTreeMap::new(), &RunOptions::default()).is_err());
    let chart = trace.timeline();
    let bars = |kind: &str| chart.panels[0].bars.iter().filter(|bar| bar.look.0 == kind).count();
    assert_eq!((chart.panels.len(), bars("copy")), (2, copies));
    assert!(bars("compute") > 0 && bars("compute") + copies <= expected);
}

#[test]
fn views_and_repeated_outputs() {
    let (graph, weights) = views();
    let run = executable(&graph, &weights, 1);
    for n in [0, 1, 5] {
        let got = run.run(&batch(n), &RunOptions::default()).unwrap();
        let tensors: Vec<Tensor> = got.outputs.into_iter().map(|o| o.1).collect();
        assert_eq!(tensors, naive(&graph, &weights, &batch(n), i64::try_from(n).unwrap()));
    }
}

/// Kernels read some weights of `f32` in an order of their own, the reference evaluation those of
/// other types, and of products without terms, as they are.
#[test]
fn parameters_in_another_order_are_those_that_were_given() {
    let tensor = |dtype: DType, dims: &[usize], from: f64| {
        let count = dims.iter().product::<usize>();
        let data: Vec<f64> = (0..count).map(|i| (i % 23) as f64 * 0.25 - from).collect();
        let tensor = Tensor::new(dims, &data).unwrap();
        Op::from(Cast { to: dtype }).eval(&[&tensor]).unwrap().remove(0)
    };
    let conv = Op::from(Conv { pads: vec![1; 4], ..Conv::default() });
    let settings = CellSettings { batch_first: true, ..CellSettings::default() };
    let cell = |kind| Op::from(Recurrent { kind, settings: settings.clone() });
    let product = |trans_b| Op::from(Gemm { trans_b, ..Gemm::default() });
    // Last, whether the kernel has an order of its own.
    let cases: [(Op, &[usize], &[usize], bool); 7] = [
        (cell(CellKind::Lstm), &[4, 5, 16], &[1, 64, 16], true),
        (cell(CellKind::Gru), &[4, 5, 16], &[1, 48, 16], false),
        (conv, &[4, 2, 5, 5], &[3, 2, 3, 3], true),
        (product(false), &[4, 7], &[7, 70], false),
        (product(true), &[4, 7], &[70, 7], true),
        (product(true), &[4, 0], &[70, 0], false),
        (MatMul {}.into(), &[4, 0], &[0, 70], false),
    ];
    let all = [DType::F32, DType::F64, DType::F16];
    for ((op, x_dims, w_dims, turns), dtype) in
        cases.iter().flat_map(|case| all.map(|dtype| (case, dtype)))
    {
        let mut build = Builder::new("net");
        let sizes = x_dims[1..].iter().map(|size| Dim::from(i64::try_from(*size).unwrap()));
        let dims: Vec<Dim> = std::iter::once(Dim::n()).chain(sizes).collect();
        let x = build.input("x", TensorType::new(dtype, Shape::from(dims.as_slice())));
        let mut weights = Weights::default();
        weights.insert("w", tensor(dtype, w_dims, 1.0));
        let w = build.param("w", weights.get("w").unwrap().clone());
        // Both weights of a cell are the same here.
        let (names, operands): (&[&str], &[Value]) = if let Op::Recurrent(op) = op {
            (&["y", "h", "c"][..op.result_count()], &[x, w, w])
        } else {
            (&["y"], &[x, w])
        };
        let y = build.ops(names, op.clone(), operands).unwrap();
        build.output("y", y[0]);
        let graph = build.finish().0;
        let run = executable(&graph, &weights, 2);
        let is_own = dtype == DType::F32 && *turns;
        assert_eq!(run.program().shared_params().count(), usize::from(!is_own), "{op:?} {dtype}");
        let inputs = BTreeMap::from([("x".to_owned(), tensor(dtype, x_dims, 2.0))]);
        for from in [1.0, 3.0] {
            weights.insert("w", tensor(dtype, w_dims, from));
            run.set_weights(&weights).unwrap();
            let given = run.weights().unwrap();
            assert_eq!(given.get("w").unwrap(), weights.get("w").unwrap(), "{op:?} {dtype}");
            let got = run.run(&inputs, &RunOptions::default()).unwrap();
            assert_eq!(vec![got.outputs[0].1.clone()], naive(&graph, &weights, &inputs, 4));
        }
    }
}

/// A transpose may have its result with the channels last.
#[test]
fn computed_weights_of_cells_are_row_major() {
    let text = "fanwise 1\nsymbol N >= 0
        graph @g(%x: f32[N,5,16], %v: f32[1,16,64]) -> (y: f32[N,5,1,16]) {
          %w : f32[1,64,16] = transpose(%v) {perm=[0, 2, 1]}
          %y : f32[N,5,1,16], %h : f32[N,1,16], %c : f32[N,1,16] = \
            lstm(%x, %w, %w) {batch_first=true}
          return %y
        }";
    let (graph, weights) = (parse(text).unwrap(), Weights::default());
    let small = |dims: &[usize]| {
        let data = (0..dims.iter().product()).map(|i: usize| (i * 7 % 23) as f32 / 50.0 - 0.2);
        Tensor::new(dims, &data.collect::<Vec<_>>()).unwrap()
    };
    let inputs = [("x", small(&[3, 5, 16])), ("v", small(&[1, 16, 64]))];
    let inputs = inputs.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    let got = executable(&graph, &weights, 2).run(&inputs, &RunOptions::default()).unwrap();
    assert_eq!(got.outputs[0].1, naive(&graph, &weights, &inputs, 3)[0]);
}

#[test]
fn fused_chains_compute_what_their_operators_do() {
    let (graph, weights) = block();
    for threads in [1, 3] {
        let run = executable(&graph, &weights, threads);
        for n in [0, 1, 3] {
            let inputs = BTreeMap::from([("x".to_owned(), numbers(&[n, 4, 5, 5]))]);
            let got = run.run(&inputs, &RunOptions::default()).unwrap();
            let expected = naive(&graph, &weights, &inputs, i64::try_from(n).unwrap());
            assert_eq!(got.outputs[0].1, expected[0]);
        }
    }
}

#[test]
fn inputs_are_checked_before_the_run() {
    let (graph, weights) = template();
    let run = executable(&graph, &weights, 1);
    let error = |inputs: BTreeMap<String, Tensor>| {
        run.run(&inputs, &RunOptions::default()).unwrap_err().to_string()
    };
    assert_eq!(error(BTreeMap::new()), "the input `x` is missing; it is f32[N,8]");
    let with = |tensor| BTreeMap::from([("x".to_owned(), tensor)]);
    let wide = Tensor::zeros(DType::F32, &[2, 9]).unwrap();
    assert_eq!(error(with(wide)), "the input `x` is f32[2,9]; it must be f32[N,8]");
    let ints = Tensor::zeros(DType::I64, &[2, 8]).unwrap();
    assert_eq!(error(with(ints)), "the input `x` is i64; it must be f32");
    let mut two = batch(2);
    two.insert("y".to_owned(), Tensor::scalar(1.0f32));
    assert_eq!(error(two), "there is no input `y`; the inputs are `x`");
    let options = RunOptions { max_memory: Some(100), ..RunOptions::default() };
    let refused = run.run(&batch(2), &options).unwrap_err();
    assert!(matches!(refused, RunError::Memory { n: 2, limit: 100, .. }), "{refused}");
}

/// What the caller's process made of its threads changes no bit.
#[test]
fn subnormal_numbers_are_kept_where_the_caller_takes_them_for_zeros() {
    let mut b = Builder::new("small");
    let rows: Shape = [Dim::n(), 2.into()].into_iter().collect();
    let x = b.input("x", TensorType::new(DType::F32, rows));
    let shares = b.param("shares", Tensor::new(&[2, 2], &[0.5f32, 0.0, 0.0, 0.25]).unwrap());
    let half = b.param("half", Tensor::scalar(0.5f32));
    let y = b.op("y", MatMul {}, &[x, shares]).unwrap();
    let z = b.op("z", Binary::Mul, &[y, half]).unwrap();
    b.output("y", y);
    b.output("z", z);
    let (graph, weights) = b.finish();
    // The smallest normal number, and a subnormal one.
    let x = Tensor::new(&[3, 2], &[f32::MIN_POSITIVE, f32::from_bits(1 << 21)].repeat(3)).unwrap();
    let given = BTreeMap::from([("x".to_owned(), x)]);
    for threads in [1, 3] {
        let found = subnormals::flushed(|| {
            let own = executable(&graph, &weights, threads);
            own.run(&given, &RunOptions::default()).unwrap().outputs
        });
        let bits = |i: usize| -> Vec<u32> {
            found[i].1.as_slice::<f32>().iter().map(|x| x.to_bits()).collect()
        };
        assert_eq!(bits(0), [1 << 22, 1 << 19].repeat(3), "{threads} threads");
        assert_eq!(bits(1), [1 << 21, 1 << 18].repeat(3), "{threads} threads");
    }
}

#[test]
fn a_kernel_that_panics_ends_the_run_with_an_error() {
    let (graph, weights) = Replication::of(3).graph();
    let mut program = lower(&verify(&graph).unwrap(), &CPU).unwrap();
    let device = &mut program.devices[2];
    let short = device.buffers.iter().position(|b| &*b.name == "w.r1").unwrap();
    let step = device.steps.iter_mut().find(|s| &*s.label == "h.r1").unwrap();
    let Action::Launch(launch) = &mut step.action else { panic!("{step:?}") };
    launch.operands.push(BufferId(u32::try_from(short).unwrap()));
    let (op, access) = (Binary::Add, Access::Full);
    launch.chain.steps.push(ChainStep::Binary { op, operand: 0, access, swapped: false });
    let run = Cpu::new(2).unwrap().executable(program, &weights).unwrap();
    for _ in 0..3 {
        let error = run.run(&batch(30), &RunOptions::default()).unwrap_err();
        assert!(
            matches!(&error, RunError::Internal { device, label, .. }
            if *device == Device::gpu(1) && label == "h.r1"),
            "{error}"
        );
    }
}

/// A graph whose images are of 6 by 6 places, and its parameters.
struct Net {
    build: Builder,
    weights: Weights,
}

impl Net {
    fn param(&mut self, name: &str, dims: &[usize]) -> Value {
        let count: usize = dims.iter().product();
        let data: Vec<f32> = (0..count).map(|i| (i * 37 % 101) as f32 * 0.02 - 1.0).collect();
        let tensor = Tensor::new(dims, &data).unwrap();
        self.weights.insert(name, tensor.clone());
        self.build.param(name, tensor)
    }

    fn op(&mut self, op: impl Into<Op>, operands: &[Value]) -> Value {
        self.build.op("step", op.into(), operands).unwrap()
    }

    /// A convolution of kernels of these sizes, as many windows as elements.
    fn conv(&mut self, x: Value, name: &str, w: &[usize], groups: i64) -> Value {
        let pads = vec![i64::try_from(w[2] / 2).unwrap(); 4];
        let w = self.param(name, w);
        self.op(Conv { pads, groups, ..Conv::default() }, &[x, w])
    }
}

type Made = fn(&mut Net, Value, Value) -> Vec<Value>;

/// What stands behind a convolution, `stem: [N, 8, 6, 6]`, of `x: [N, 4, 6, 6]`: operators that
/// take images as they come, and those that do not.
const BEHIND: [(&str, Made); 8] = [
    ("places of one element", |net, _, stem| {
        let axes = vec![2, 3];
        let mean = net.op(Reduce::Mean { axes, keepdims: true }, &[stem]);
        let few = net.conv(mean, "squeeze", &[4, 8, 1, 1], 1);
        let many = net.conv(few, "excite", &[8, 4, 1, 1], 1);
        let each = net.conv(mean, "each", &[8, 1, 3, 3], 8);
        vec![net.op(Binary::Mul, &[stem, many]), net.op(Binary::Add, &[each, stem])]
    }),
    ("one channel", |net, _, stem| {
        let one = net.conv(stem, "one", &[1, 8, 3, 3], 1);
        vec![net.conv(one, "spread", &[6, 1, 3, 3], 1), net.conv(one, "whole", &[70, 1, 1, 1], 1)]
    }),
    ("joined", |net, x, stem| {
        let channels = net.op(Concat { axis: 1 }, &[x, stem]);
        let columns = net.op(Concat { axis: -1 }, &[stem, stem]);
        let held = net.param("held", &[2, 8, 6, 6]);
        let rows = net.op(Concat { axis: 0 }, &[stem, held]);
        vec![net.conv(channels, "both", &[5, 12, 3, 3], 1), columns, rows]
    }),
    ("a parameter in two orders", |net, _, stem| {
        let held = net.param("held", &[1, 8, 6, 6]);
        let by_conv = net.conv(held, "of_held", &[8, 8, 3, 3], 1);
        let softmax = net.op(Softmax::Softmax { axis: 1 }, &[held]);
        let sum = net.op(Binary::Add, &[stem, held]);
        vec![by_conv, softmax, sum]
    }),
    ("cut", |net, _, stem| {
        let cut = |axis, start: i64, end: i64, step| Slice {
            axes: vec![axis],
            starts: vec![Dim::from(start)],
            ends: vec![Dim::from(end)],
            steps: vec![step],
        };
        let channels = net.op(cut(1, 2, 7, 2), &[stem]);
        let none = net.op(cut(2, 0, 0, 1), &[stem]);
        let sum = net.op(Reduce::Sum { axes: vec![2, 3], keepdims: true }, &[none]);
        vec![net.op(cut(3, 1, 6, 2), &[stem]), channels, sum]
    }),
    ("padded", |net, _, stem| {
        let pads = vec![0, 1, 2, 0, 0, 0, 1, 3];
        let padded = net.op(Pad { pads, mode: PadMode::Constant, value: 0.5 }, &[stem]);
        vec![net.conv(padded, "wide", &[3, 9, 3, 3], 1), padded]
    }),
    ("resized", |net, _, stem| {
        let op = |mode| Resize {
            axes: vec![2, 3],
            sizes: vec![9, 4],
            scales: vec![1.5, 0.67],
            mode,
            nearest: Nearest::RoundPreferFloor,
            coordinates: Coordinates::HalfPixel,
            cubic: -0.75,
            exclude_outside: false,
            antialias: false,
            roi: Vec::new(),
            extrapolation: 0.0,
        };
        [ResizeMode::Nearest, ResizeMode::Linear].map(|mode| net.op(op(mode), &[stem])).to_vec()
    }),
    ("pooled and reduced", |net, _, stem| {
        let (kernel, strides, dilations, pads) = (vec![3, 2], vec![2, 1], vec![], vec![1; 4]);
        let (ceil_mode, indices, column_major) = (true, false, false);
        let max = Pool::Max { kernel, strides, dilations, pads, ceil_mode, indices, column_major };
        let max = net.op(max, &[stem]);
        let rows = net.op(Reduce::Max { axes: vec![3], keepdims: false }, &[max]);
        let channels = net.op(Reduce::Sum { axes: vec![1], keepdims: true }, &[max]);
        vec![max, rows, channels]
    }),
];

#[test]
fn images_with_the_channels_last_give_what_the_operators_do() {
    for (what, behind) in BEHIND {
        let mut net = Net { build: Builder::new("net"), weights: Weights::default() };
        let dims: [Dim; 4] = [Dim::n(), 4.into(), 6.into(), 6.into()];
        let ty = TensorType::new(DType::F32, Shape::from(dims.as_slice()));
        let x = net.build.input("x", ty);
        let stem = net.conv(x, "stem", &[8, 4, 3, 3], 1);
        let stem = net.op(Unary::Relu, &[stem]);
        for (i, value) in behind(&mut net, x, stem).into_iter().enumerate() {
            net.build.output(&format!("y{i}"), value);
        }
        let (graph, weights) = (net.build.finish().0, net.weights);
        let run = executable(&graph, &weights, 2);
        for n in [0, 1, 3] {
            let count = n * 4 * 36;
            let data: Vec<f32> = (0..count).map(|i| (i * 53 % 97) as f32 * 0.03 - 1.4).collect();
            let x = Tensor::new(&[n, 4, 6, 6], &data).unwrap();
            let inputs = BTreeMap::from([("x".to_owned(), x)]);
            let got = run.run(&inputs, &RunOptions::default()).unwrap_or_else(|e| panic!("{e}"));
            let got: Vec<Tensor> = got.outputs.into_iter().map(|output| output.1).collect();
            let rows = i64::try_from(n).unwrap();
            assert_eq!(got, naive(&graph, &weights, &inputs, rows), "{what}, {n} rows");
        }
    }
}
