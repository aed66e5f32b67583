//! Tests of code generation, without a compiler or a device.

use std::collections::BTreeSet;

use super::{Arg, Call, Kernel, units};
use crate::backend::{CPU, CUDA};
use crate::ir::{Builder, Graph, Value, verify};
use crate::lower::{Action, Program, lower, own_bits};
use crate::op::{self, Binary, Cast, Reduce, Softmax, Unary};
use crate::pass::{Replicate, WeightPlacement, replicate};
use crate::types::{DType, Device, Dim, Shape, Tensor, TensorType};

fn input(b: &mut Builder, name: &str, dims: &[i64]) -> Value {
    let shape: Shape =
        std::iter::once(Dim::n()).chain(dims.iter().map(|d| Dim::from(*d))).collect();
    b.input(name, TensorType::new(DType::F32, shape))
}

fn param(b: &mut Builder, name: &str, dims: &[usize]) -> Value {
    b.param(name, Tensor::zeros(DType::F32, dims).unwrap())
}

/// The calls of each device but the host.
fn calls(program: &Program) -> Vec<Vec<Call>> {
    let of = |device| super::calls(device).unwrap().into_iter().flatten().collect();
    program.devices.iter().filter(|d| d.device != Device::HOST).map(of).collect()
}

fn find(calls: &[Call], file: &str) -> Call {
    calls.iter().find(|c| c.kernel.file == file).unwrap_or_else(|| panic!("no {file}")).clone()
}

fn define<'a>(kernel: &'a Kernel, name: &str) -> Option<&'a str> {
    kernel.defines.iter().find(|(n, _)| n == name).map(|(_, text)| text.as_str())
}

#[test]
fn kernels_do_not_depend_on_a_known_batch() {
    let with = |rows: Dim| {
        let mut b = Builder::new("rows");
        let shape: Shape = [rows, 6.into()].into_iter().collect();
        let x = b.input("x", TensorType::new(DType::F32, shape));
        let y = b.op("y", Softmax::Softmax { axis: 1 }, &[x]).unwrap();
        b.output("y", y);
        let graph = b.finish().0;
        let how = Replicate::over(vec![Device::gpu(0)]);
        let graph = replicate(&graph, &how).unwrap_or(graph);
        let program = lower(&verify(&graph).unwrap(), &CUDA).unwrap();
        calls(&program).into_iter().flatten().collect::<Vec<Call>>()
    };
    let any = find(&with(Dim::n()), "softmax.cu");
    let lanes = define(&any.kernel, "LANES").map(str::to_owned);
    assert_eq!(lanes.as_deref(), Some("32"));
    for known in with(Dim::from(500)) {
        assert_eq!(define(&known.kernel, "LANES"), lanes.as_deref());
    }
}

/// Weights with a momentum each, and a rate with none.
#[expect(clippy::many_single_char_names, reason = "the values of a graph")]
fn updated(sizes: &[usize]) -> Graph {
    let mut b = Builder::new("updated");
    let x = input(&mut b, "x", &[4]);
    let y = b.op("y", Unary::Relu, &[x]).unwrap();
    b.output("y", y);
    let rate = param(&mut b, "rate", &[]);
    for (i, size) in sizes.iter().enumerate() {
        let [w, v] = ["w", "v"].map(|name| param(&mut b, &format!("{name}{i}"), &[*size]));
        let mut op = |name: &str, op: Binary, operands: &[Value]| {
            b.op(&format!("{name}{i}"), op, operands).unwrap()
        };
        let part = op("part", Binary::Mul, &[v, rate]);
        let kept = op("kept", Binary::Add, &[part, w]);
        let step = op("step", Binary::Mul, &[kept, rate]);
        let next = op("next", Binary::Sub, &[w, step]);
        b.update(w, next);
        b.update(v, kept);
    }
    let less = b.op("less", Unary::Tanh, &[rate]).unwrap();
    b.update(rate, less);
    b.finish().0
}

#[test]
fn parameters_that_are_updated_alike_are_one_call() {
    let of = |sizes: &[usize]| -> Vec<Call> {
        let mut how = Replicate::over(vec![Device::gpu(0)]);
        how.weights = WeightPlacement::Mirrored;
        let graph = replicate(&updated(sizes), &how).unwrap();
        let program = lower(&verify(&graph).unwrap(), &CUDA).unwrap();
        let all = calls(&program).remove(0);
        all.into_iter().filter(|call| call.kernel.file == "update.cu").collect()
    };
    let [rate, weights] = &of(&[7, 5000, 1024])[..] else { panic!("{:?}", of(&[7, 5000, 1024])) };
    let (rate, weights) = if rate.args.len() == 2 { (rate, weights) } else { (weights, rate) };
    assert_eq!(rate.grid[0].eval(3), 1);
    // The rate, and of each of the three what is read and written: v, w, and the new v and w.
    assert_eq!((weights.args.len(), weights.grid[0].eval(3)), (1 + 3 * 4, 1 + 5 + 1));
    let text = &weights.kernel.expression;
    for line in [
        "struct Segment {\n    const float* a0;\n    const float* a1;\n    const float* a2;\n    \
         float* a3;\n    float* a4;\n    i64 count, first;\n};\n",
        "    if (block < 1) {\n    return {p.s0_a0, p.a1, p.s0_a2, p.s0_a3, p.s0_a4, 7, 0};\n    \
         }\n",
        "    return {p.s2_a0, p.a1, p.s2_a2, p.s2_a3, p.s2_a4, 1024, 6};\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert_eq!(text.matches("s.a3[i] = ").count(), 1, "{text}");
    // 511 addresses are those of 127 parameters.
    let many = of(&[3; 150]);
    assert_eq!(many.iter().map(|call| call.args.len()).sum::<usize>(), 2 + 2 + 150 * 4);
    assert_eq!(many.len(), 3);
}

#[test]
fn parameters_whose_addresses_fit_in_no_argument_are_updated_one_by_one() {
    const COUNT: usize = 300;
    let mut b = Builder::new("joined");
    let x = input(&mut b, "x", &[4]);
    let y = b.op("y", Unary::Relu, &[x]).unwrap();
    b.output("y", y);
    let base = param(&mut b, "base", &[9]);
    let mut last = b.op("first", Unary::Tanh, &[base]).unwrap();
    for i in 0..COUNT {
        let w = param(&mut b, &format!("w{i}"), &[9]);
        // Each takes what the one before takes, too.
        last = b.op(&format!("sum{i}"), Binary::Add, &[last, w]).unwrap();
        let next = b.op(&format!("next{i}"), Binary::Mul, &[last, w]).unwrap();
        b.update(w, next);
    }
    let mut how = Replicate::over(vec![Device::gpu(0)]);
    how.weights = WeightPlacement::Mirrored;
    let graph = replicate(&b.finish().0, &how).unwrap();
    let program = lower(&verify(&graph).unwrap(), &CUDA).unwrap();
    let (device, calls) = (&program.devices[1], calls(&program).remove(0));
    let files: BTreeSet<&str> = calls.iter().map(|call| call.kernel.file).collect();
    assert_eq!(files, BTreeSet::from(["elementwise.cu"]));
    let order = device.steps.iter().filter_map(|step| match &step.action {
        Action::Launch(launch) => Some(Arg::Buffer(launch.results[0])),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    let order: Vec<Arg> = order.collect();
    assert!(order.len() == calls.len() && calls.len() >= 2 * COUNT, "{}", calls.len());
    assert!(order.iter().zip(&calls).all(|(result, call)| call.args.contains(result)));
}

/// The calls of branches on their inputs, `f32[N,width]`, each a softmax.
fn branches(widths: &[i64]) -> Vec<Call> {
    let mut b = Builder::new("branches");
    for (i, width) in widths.iter().enumerate() {
        let x = input(&mut b, &format!("x{i}"), &[*width]);
        let y = b.op(&format!("y{i}"), Softmax::Softmax { axis: 1 }, &[x]).unwrap();
        b.output(&format!("y{i}"), y);
    }
    let how = Replicate::over(vec![Device::gpu(0)]);
    let graph = replicate(&b.finish().0, &how).unwrap();
    calls(&lower(&verify(&graph).unwrap(), &CUDA).unwrap()).remove(0)
}

#[test]
fn branches_run_side_by_side() {
    let both = branches(&[6, 7]);
    let [call] = both.as_slice() else { panic!("{both:?}") };
    let parts: Vec<&str> = call.kernel.parts.iter().map(|part| part.file).collect();
    assert_eq!(parts, ["softmax.cu", "softmax.cu"]);
    let alone = [&[6][..], &[7]].map(|width| branches(width).remove(0));
    assert_eq!(call.args.len(), alone.iter().map(|call| call.args.len()).sum::<usize>());
    let most = alone.iter().map(|call| call.grid[0].eval(1000)).max();
    assert_eq!((Some(call.grid[0].eval(1000)), call.grid[2].eval(1000)), (most, 2));
    let text = units(std::slice::from_ref(&call.kernel)).unwrap().remove(0).text;
    for line in [
        "#define GLOBAL GLOBAL_BESIDE\n",
        "namespace part_0 {\n",
        "namespace part_1 {\n",
        "#undef GLOBAL\n#define GLOBAL GLOBAL_ALONE\n",
        "struct Params {\n    part_0::Params k0;\n    part_1::Params k1;\n",
        "    case 0: part_0::run(p.k0); break;\n    case 1: part_1::run(p.k1); break;\n",
    ] {
        assert_eq!(text.matches(line).count(), 1, "{line}{text}");
    }
}

#[test]
fn equal_kernels_side_by_side_are_one_function() {
    let same = branches(&[6, 6, 6]);
    let [call] = same.as_slice() else { panic!("{same:?}") };
    let text = units(std::slice::from_ref(&call.kernel)).unwrap().remove(0).text;
    assert_eq!(text.matches("namespace part_").count(), 1, "{text}");
    assert!(text.contains("    case 2: part_0::run(p.k2); break;\n"), "{text}");
    assert_eq!(call.args.len(), 3 * branches(&[6]).remove(0).args.len());
}

/// Rows end where the argument of a kernel does, or the rule of lowering.
#[test]
fn many_branches_are_several_rows() {
    let calls = branches(&[5; 40]);
    let parts: Vec<usize> = calls.iter().map(|call| call.kernel.parts.len()).collect();
    assert_eq!(parts, [16, 16, 8]);
}

/// Of these outputs decision 36 says that they may have other bits on each kind of device.
#[test]
fn what_has_bits_of_its_own_is_known_behind_it() {
    let mut b = Builder::new("bits");
    let x = input(&mut b, "x", &[65_536]);
    let short = input(&mut b, "short", &[65_535]);
    let wide = b.op("wide", Cast { to: DType::F64 }, &[short]).unwrap();
    let axes = vec![1];
    let keepdims = true;
    let sum = b.op("sum", Reduce::Sum { axes: axes.clone(), keepdims }, &[short]).unwrap();
    let logs = b.op("logs", Reduce::LogSum { axes: axes.clone(), keepdims }, &[short]).unwrap();
    let long = b.op("long", Softmax::Softmax { axis: 1 }, &[x]).unwrap();
    let most = op::Arg::Max { axis: 1, keepdims, select_last_index: false };
    let ends: [(&str, Value); 12] = [
        ("long", long),
        ("class", b.op("class", most.clone(), &[long]).unwrap()),
        ("largest", b.op("largest", most, &[x]).unwrap()),
        ("hardmax", b.op("hardmax", Softmax::Hardmax { axis: 1 }, &[x]).unwrap()),
        ("softmax", b.op("softmax", Softmax::Softmax { axis: 1 }, &[short]).unwrap()),
        ("most", b.op("most", Reduce::Max { axes, keepdims: false }, &[short]).unwrap()),
        ("exp", b.op("exp", Unary::Exp, &[short]).unwrap()),
        ("root", b.op("root", Unary::Sqrt, &[wide]).unwrap()),
        ("exp64", b.op("exp64", Unary::Exp, &[wide]).unwrap()),
        ("power", b.op("power", Binary::Pow, &[wide, wide]).unwrap()),
        ("sums", b.op("sums", Binary::Add, &[short, sum]).unwrap()),
        ("behind", b.op("behind", Binary::Add, &[short, logs]).unwrap()),
    ];
    for (name, value) in ends {
        b.output(name, value);
    }
    // On the host the CPU's kernels run.
    let model = b.finish().0;
    assert!(own_bits(&model, &CUDA).iter().all(Option::is_none));
    let graph = replicate(&model, &Replicate::over(vec![Device::gpu(0)])).unwrap();
    let own = own_bits(&graph, &CUDA);
    let label = |id| graph.node(id).label().trim_end_matches(".r0");
    let labels: Vec<_> = own.iter().map(|own| own.map(|own| label(own.first))).collect();
    let (long, late) = ([Some("long"); 2], [None, Some("logs")]);
    assert_eq!(labels, [&long[..], &[None; 6], &[Some("exp64"), Some("power")], &late].concat());
    let jumps: Vec<_> = own.iter().map(|own| own.and_then(|own| own.jump).map(label)).collect();
    assert_eq!(jumps, [&[None, Some("class")][..], &[None; 10]].concat());
    assert!(own_bits(&graph, &CPU).iter().all(Option::is_none));
}
