use std::collections::BTreeMap;
use std::sync::Arc;

use super::Cpu;
use crate::backend::{CPU, Executable, RunError, RunOptions, Trace};
use crate::ir::{Builder, Graph, Placement, Weights, verify};
use crate::lower::testing::{Replication, batch, block, naive, numbers, template, views};
use crate::lower::{Access, Action, BufferId, ChainStep, lower};
use crate::op::{Binary, Cast, Conv, Gemm, MatMul, Op};
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
    let product = |trans_b| Op::from(Gemm { trans_b, ..Gemm::default() });
    // Last, whether the kernel has an order of its own.
    let cases: [(Op, &[usize], &[usize], bool); 5] = [
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
        let y = build.op("y", op.clone(), &[x, w]).unwrap();
        build.output("y", y);
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
