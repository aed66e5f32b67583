//! What launches become, without a compiler or a device.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Arg, Call, Kernel, ParamDecl, call, units};
use crate::ir::{Builder, Graph, Value, verify};
use crate::lower::{Action, Program, lower};
use crate::op::{BatchNorm, Binary, Conv, MatMul, Reduce, Softmax, Unary};
use crate::pass::{Replicate, replicate};
use crate::types::{DType, Device, Dim, Shape, Target, Tensor, TensorType};

fn input(b: &mut Builder, name: &str, dims: &[i64]) -> Value {
    let shape: Shape =
        std::iter::once(Dim::n()).chain(dims.iter().map(|d| Dim::from(*d))).collect();
    b.input(name, TensorType::new(DType::F32, shape))
}

fn param(b: &mut Builder, name: &str, dims: &[usize]) -> Value {
    b.param(name, Tensor::zeros(DType::F32, dims).unwrap())
}

/// A block of a convolutional network.
#[expect(clippy::many_single_char_names, reason = "values named as in formulas")]
fn block(channels: usize) -> Graph {
    let mut b = Builder::new("block");
    let c = i64::try_from(channels).unwrap();
    let x = input(&mut b, "x", &[c, 14, 14]);
    let depth = param(&mut b, "depth", &[channels, 1, 3, 3]);
    let pads = vec![1; 4];
    let op = Conv { pads: pads.clone(), groups: c, ..Conv::default() };
    let d = b.op("d", op, &[x, depth]).unwrap();
    let w = param(&mut b, "w", &[2 * channels, channels, 3, 3]);
    let h = b.op("h", Conv { pads, ..Conv::default() }, &[d, w]).unwrap();
    let vectors = ["scale", "bias", "mean", "var"].map(|name| param(&mut b, name, &[2 * channels]));
    let [scale, bias, mean, var] = vectors;
    let n = b.op("n", BatchNorm { epsilon: 0.001 }, &[h, scale, bias, mean, var]).unwrap();
    let side = input(&mut b, "side", &[2 * c, 14, 14]);
    let s = b.op("s", Binary::Add, &[n, side]).unwrap();
    let r = b.op("r", Unary::Relu, &[s]).unwrap();
    let m = b.op("m", Reduce::Mean { axes: vec![2, 3], keepdims: false }, &[r]).unwrap();
    let top = param(&mut b, "top", &[2 * channels, 10]);
    let t = b.op("t", MatMul {}, &[m, top]).unwrap();
    let y = b.op("y", Softmax::Softmax { axis: 1 }, &[t]).unwrap();
    b.output("y", y);
    b.finish().0
}

fn on_gpus(graph: &Graph, count: u32) -> Program {
    let how = Replicate::over((0..count).map(Device::gpu).collect());
    let graph = replicate(graph, &how).unwrap();
    lower(&verify(&graph).unwrap(), &Target::CUDA).unwrap()
}

/// The calls of each device but the host.
fn calls(program: &Program) -> Vec<Vec<Call>> {
    let of = |device: &crate::lower::DeviceProgram| {
        let launch = |step: &crate::lower::Step| match &step.action {
            Action::Launch(launch) => Some(call(device, step, launch).unwrap()),
            Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
        };
        device.steps.iter().filter_map(launch).collect()
    };
    program.devices.iter().filter(|d| d.device != Device::HOST).map(of).collect()
}

fn find(calls: &[Call], file: &str) -> Call {
    calls.iter().find(|c| c.kernel.file == file).unwrap_or_else(|| panic!("no {file}")).clone()
}

fn define<'a>(kernel: &'a Kernel, name: &str) -> Option<&'a str> {
    kernel.defines.iter().find(|(n, _)| n == name).map(|(_, text)| text.as_str())
}

#[test]
fn a_block_of_a_network() {
    let calls = calls(&on_gpus(&block(64), 1)).remove(0);
    let conv = find(&calls, "conv.cu");
    let kernel = &conv.kernel;
    assert_eq!((kernel.threads, kernel.shared), (256, 0));
    for (name, text) in
        [("BM", "128"), ("BN", "128"), ("C_EACH", "64"), ("M_EACH", "128"), ("X_VECTORS", "1")]
    {
        assert_eq!(define(kernel, name), Some(text), "{name}");
    }
    assert!(kernel.params.contains(&ParamDecl::Size("PLACES".to_owned())));
    // 14 * 14 places of each of 10 samples, by 128; 128 channels are one tile.
    assert_eq!(conv.grid.each_ref().map(|d| d.eval(10)), [16, 1, 1]);
    assert_eq!(conv.grid.each_ref().map(|d| d.eval(0)), [0, 1, 1]);
    let text = &kernel.expression;
    for line in [
        "    k.f0 = scale_shift(p.c0[c], p.c1[c], p.c2[c], p.c3[c], 0.001f);\n",
        "    x = x * k.f0.x + k.f0.y;\n    x = x + w4;\n    x = relu(x);\n",
        "    const float4 w4 = load4(p.c4 + i);\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let depthwise = find(&calls, "depthwise.cu");
    assert_eq!(define(&depthwise.kernel, "VECTOR"), Some("4"));
    let mean = find(&calls, "reduce.cu");
    assert_eq!(define(&mean.kernel, "REDUCED_STEPS"), Some("{128}"));
    assert_eq!(define(&mean.kernel, "ALONG"), Some("0"));
    assert_eq!(mean.grid[0].eval(4), 16);
    let product = find(&calls, "matmul.cu");
    assert_eq!(product.grid[0].eval(65), 2);
    let sizes = product.args.iter().filter(|a| matches!(a, Arg::Size(d) if *d == Dim::n())).count();
    assert_eq!(sizes, 1);
    let files: BTreeSet<&str> = calls.iter().map(|c| c.kernel.file).collect();
    assert!(files.contains("softmax.cu"), "{files:?}");
}

#[test]
fn replicas_share_kernels_whatever_their_rows() {
    let kernels = |count: u32| -> BTreeSet<Arc<Kernel>> {
        calls(&on_gpus(&block(20), count)).concat().into_iter().map(|c| c.kernel).collect()
    };
    let one = kernels(1);
    assert_eq!(one, kernels(3));
    assert_eq!(one, kernels(8));
    let all: Vec<Arc<Kernel>> = one.into_iter().collect();
    let text: String = units(&all).unwrap().into_iter().map(|unit| unit.text).collect();
    assert!(!text.contains("#include"));
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
        let program = lower(&verify(&graph).unwrap(), &Target::CUDA).unwrap();
        calls(&program).into_iter().flatten().collect::<Vec<Call>>()
    };
    let any = find(&with(Dim::n()), "softmax.cu");
    let lanes = define(&any.kernel, "LANES").map(str::to_owned);
    assert_eq!(lanes.as_deref(), Some("32"));
    for known in with(Dim::from(500)) {
        assert_eq!(define(&known.kernel, "LANES"), lanes.as_deref());
    }
}
