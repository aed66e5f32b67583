//! What launches become, without a compiler or a device.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Arg, Call, Kernel, ParamDecl, units};
use crate::backend::CUDA;
use crate::ir::{Builder, Graph, Value, verify};
use crate::lower::{Action, Program, lower};
use crate::op::{
    Activation, BatchNorm, Binary, Cast, CellKind, CellSettings, Compare, Concat, Conv,
    Coordinates, Direction, Gather, Gemm, GroupNorm, LayerNorm, LpNorm, Lrn, MatMul, Nearest, Op,
    Operand, Pool, Recurrent, RecurrentGrad, Reduce, Reduction, Resize, ResizeMode, Reverse, Scan,
    Scatter, Slice, Softmax, Sort, TopK, Transpose, Trilu, Unary, Where,
};
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
    let n = b
        .op("n", BatchNorm { epsilon: 0.001, ..BatchNorm::default() }, &[h, scale, bias, mean, var])
        .unwrap();
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
    lower(&verify(&graph).unwrap(), &CUDA).unwrap()
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

/// A squeeze-and-excite block between convolutions.
#[test]
#[expect(clippy::many_single_char_names, reason = "the values of a graph")]
fn scaled_images_stay_in_their_order() {
    let mut b = Builder::new("scaled");
    let x = input(&mut b, "x", &[4, 6, 6]);
    let w = param(&mut b, "w", &[8, 4, 3, 3]);
    let h = b.op("h", Conv::default(), &[x, w]).unwrap();
    let m = b.op("m", Reduce::Mean { axes: vec![2, 3], keepdims: true }, &[h]).unwrap();
    let s = b.op("s", Unary::Sigmoid, &[m]).unwrap();
    let e = b.op("e", Binary::Mul, &[h, s]).unwrap();
    let v = param(&mut b, "v", &[2, 8, 3, 3]);
    let y = b.op("y", Conv::default(), &[e, v]).unwrap();
    b.output("y", y);
    let program = on_gpus(&b.finish().0, 1);
    let text = program.to_string();
    let places = calls(&program).remove(0);
    assert_eq!(text.matches(": reorder ").count(), 2, "the input and the output: {text}");
    let scaled = find(&places, "broadcast.cu");
    assert_eq!(define(&scaled.kernel, "B_STEPS"), Some("{8, 0, 1}"));
}

#[test]
fn chains_mix_types() {
    let mut b = Builder::new("mixed");
    let x = input(&mut b, "x", &[6]);
    let zero = param(&mut b, "zero", &[1]);
    let side =
        b.input("side", TensorType::new(DType::I64, Shape::from([Dim::n(), 6.into()].as_slice())));
    let less = b.op("less", Compare::Less, &[x, zero]).unwrap();
    let chosen = b.op("chosen", Where {}, &[less, side, side]).unwrap();
    let half = b.op("half", Binary::Div, &[chosen, side]).unwrap();
    let y = b.op("y", Cast { to: DType::F16 }, &[half]).unwrap();
    b.output("y", y);
    let program = on_gpus(&b.finish().0, 1);
    let calls = calls(&program).remove(0);
    assert_eq!(calls.len(), 1, "{program}");
    let text = &calls[0].kernel.expression;
    for line in [
        "    u8 x1 = (u8)(x < p.c0[0]);\n    i64 x2 = x1 != 0 ? w1 : w2;\n",
        "    x2 = whole_quotient(x2, w3, p.word, STEP);\n    f16 x3 = cast<f16>(x2);\n",
        "    return x3;\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let chain =
        " -> less(., $0[scalar]) -> where(., $1[full], $2[full]) -> div(., $3[full]) -> cast(.)";
    let launches = program.devices[1].steps.iter().filter_map(|step| match &step.action {
        Action::Launch(launch) => Some(launch.chain.to_string()),
        Action::Copy { .. } | Action::Wait(_) | Action::Record(_) => None,
    });
    assert_eq!(launches.collect::<Vec<_>>(), [format!("{chain} {{to=f16}}")]);
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
fn replicas_share_kernels_whatever_their_columns() {
    let mut b = Builder::new("columns");
    let shape: Shape = [24.into(), Dim::n()].into_iter().collect();
    let x = b.input("x", TensorType::new(DType::F32, shape));
    let (w, bias) = (param(&mut b, "w", &[70, 24]), param(&mut b, "bias", &[70, 1]));
    let product = b.op("product", MatMul {}, &[w, x]).unwrap();
    let sum = b.op("sum", Binary::Add, &[product, bias]).unwrap();
    let gemm = Gemm { trans_a: true, ..Gemm::default() };
    let y = b.op("y", gemm, &[w, sum, x]).unwrap();
    b.output("y", y);
    let graph = b.finish().0;
    let kernels = |count: u32| -> BTreeSet<Arc<Kernel>> {
        calls(&on_gpus(&graph, count)).concat().into_iter().map(|c| c.kernel).collect()
    };
    let one = kernels(1);
    assert_eq!(one.iter().filter(|kernel| kernel.file == "matmul.cu").count(), 2);
    assert_eq!(one, kernels(3));
    assert_eq!(one, kernels(8));
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

/// The calls of a graph on one GPU.
fn on_gpu(graph: &Graph) -> Vec<Call> {
    let graph = replicate(graph, &Replicate::over(vec![Device::gpu(0)])).unwrap();
    let program = lower(&verify(&graph).unwrap(), &CUDA).unwrap();
    calls(&program).into_iter().flatten().collect()
}

/// What several blocks take of a line is joined by a second launch, and neither depends on the
/// batch.
#[test]
fn long_lines_are_taken_apart() {
    let layer = LayerNorm::Layer { axis: 1, epsilon: 0.01, statistics: true };
    let rms = LayerNorm::Rms { axis: 2, epsilon: 0.01 };
    let group = GroupNorm::Group { epsilon: 0.1, groups: 2 };
    let vectors = [(DType::F32, &[4][..]); 2];
    for (op, params, files) in [
        (Op::from(Softmax::Softmax { axis: 2 }), &[][..], ["reduce.cu", "long_softmax.cu"]),
        (Op::from(Softmax::LogSoftmax { axis: 2 }), &[], ["reduce.cu", "long_softmax.cu"]),
        (Op::from(LpNorm { axis: -1, p: 1 }), &[], ["reduce.cu", "long_norm.cu"]),
        (Op::from(rms), &[], ["reduce.cu", "long_norm.cu"]),
        (Op::from(layer), &[], ["batch_statistics.cu", "long_norm.cu"]),
        (Op::from(group), &vectors, ["batch_statistics.cu", "long_norm.cu"]),
    ] {
        for (size, is_long) in [(1 << 13, false), (1 << 17, true)] {
            let calls = on_gpu(&single(&[4, size], op.clone(), params));
            let found: Vec<&str> = calls.iter().map(|call| call.kernel.file).collect();
            assert_eq!(found.ends_with(&files), is_long, "{op:?} of {size}: {found:?}");
            assert!(is_long || !found.iter().any(|file| files.contains(file)), "{found:?}");
            for call in calls.iter().filter(|_| is_long) {
                let blocks = [1, 2].map(|n| call.grid[0].eval(n));
                assert!(blocks[0] >= 16 && blocks[1] == 2 * blocks[0], "{op:?}: {blocks:?}");
            }
        }
    }
    let hard = single(&[4, 1 << 17], Softmax::Hardmax { axis: 2 }, &[]);
    let found: Vec<&str> = on_gpu(&hard).iter().map(|call| call.kernel.file).collect();
    assert_eq!(found, ["softmax.cu"]);
}

/// An input with these sizes behind the batch, and one operator on it and on parameters of zeros,
/// with all its results.
fn single(dims: &[i64], op: impl Into<Op>, params: &[(DType, &[usize])]) -> Graph {
    let mut b = Builder::new("single");
    let mut operands = vec![input(&mut b, "x", dims)];
    for (i, (dtype, dims)) in params.iter().enumerate() {
        operands.push(b.param(&format!("p{i}"), Tensor::zeros(*dtype, dims).unwrap()));
    }
    let op = op.into();
    let types: Vec<TensorType> = operands.iter().map(|v| b.graph().ty(*v).clone()).collect();
    let given: Vec<_> = types.iter().map(|ty| Operand { ty, ints: None }).collect();
    let names = (0..op.infer(&given).unwrap().len()).map(|i| format!("y{i}")).collect::<Vec<_>>();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (name, value) in names.iter().zip(b.ops(&names, op, &operands).unwrap()) {
        b.output(name, value);
    }
    b.finish().0
}

/// The files of the kernels of a graph on one device.
fn files(graph: &Graph) -> BTreeSet<&'static str> {
    let program = on_gpus(graph, 1);
    let all = super::kernels(&program).unwrap_or_else(|e| panic!("{e}"));
    all.iter().map(|kernel| kernel.file).collect()
}

#[test]
fn indexing_has_kernels() {
    let (reduction, ids) = (Reduction::Max, (DType::I64, &[3usize, 1][..]));
    let top = TopK { axis: 1, k: 2.into(), largest: true, local: false };
    let arg = crate::op::Arg::Max { axis: 1, keepdims: false, select_last_index: true };
    let lrn = Lrn { alpha: 0.1, beta: 0.75, bias: 1.0, size: 3 };
    let cases: [(&str, Graph); 9] = [
        ("gather.cu", single(&[7, 2], Gather { axis: 1 }, &[ids])),
        ("rank.cu", single(&[7, 2], top, &[])),
        ("rank.cu", single(&[7, 2], Sort { axis: -1, descending: true }, &[])),
        ("arg.cu", single(&[7, 2], arg, &[])),
        ("scan.cu", single(&[7, 2], Scan::Sum { axis: 1, exclusive: true, reverse: true }, &[])),
        ("lrn.cu", single(&[7, 2], lrn, &[])),
        ("trilu.cu", single(&[7, 2], Trilu { k: i64::MIN, upper: true }, &[])),
        ("move.cu", single(&[7, 2], Reverse { axes: vec![-1, 1] }, &[])),
        ("scatter.cu", {
            let mut b = Builder::new("placed");
            let x = input(&mut b, "x", &[2]);
            let back = b.op("back", Transpose { perm: vec![1, 0] }, &[x]).unwrap();
            let rows = b.param("rows", Tensor::zeros(ids.0, &[1, 1]).unwrap());
            let first = Slice {
                axes: vec![0],
                starts: vec![0.into()],
                ends: vec![1.into()],
                steps: vec![1],
            };
            let other = b.op("other", first, &[back]).unwrap();
            let y = b.op("y", Scatter::Nd { reduction }, &[back, rows, other]).unwrap();
            b.output("y", y);
            b.finish().0
        }),
    ];
    for (file, graph) in cases {
        let found = files(&graph);
        assert!(found.contains(file), "{file}: {found:?}\n{graph}");
    }
}

/// What is beyond the sizes that kernels take runs on the host.
#[test]
fn what_is_too_large_for_a_kernel_runs_on_the_host() {
    let long = (1 << 13) + 1;
    let many = |count: usize| {
        let mut b = Builder::new("many");
        let parts: Vec<Value> = (0..count).map(|i| input(&mut b, &format!("x{i}"), &[2])).collect();
        let y = b.op("y", Concat { axis: 1 }, &parts).unwrap();
        b.output("y", y);
        b.finish().0
    };
    let resize = |size: i64| Resize {
        axes: vec![2],
        sizes: vec![size],
        scales: vec![size as f32 / 3.0],
        mode: ResizeMode::Nearest,
        nearest: Nearest::RoundPreferFloor,
        coordinates: Coordinates::HalfPixel,
        cubic: -0.75,
        exclude_outside: false,
        antialias: false,
        roi: Vec::new(),
        extrapolation: 0.0,
    };
    let pool = |stride: i64| Pool::Max {
        kernel: vec![1],
        strides: vec![stride],
        dilations: Vec::new(),
        pads: Vec::new(),
        ceil_mode: false,
        indices: false,
        column_major: false,
    };
    let conv = |strides: Vec<i64>| Conv { strides, ..Conv::default() };
    let weights: &[(DType, &[usize])] = &[(DType::F32, &[2, 1, 1])];
    let positions = i64::from(i32::MAX);
    let sort = Sort { axis: 1, descending: false };
    let top = TopK { axis: 1, k: 1.into(), largest: true, local: false };
    let arg = crate::op::Arg::Max { axis: 1, keepdims: true, select_last_index: false };
    let cases = [
        (many(160), "join.cu", true),
        (many(161), "join.cu", false),
        (single(&[2, 3], resize(70), &[]), "resize.cu", true),
        (single(&[2, 3], resize(70_000), &[]), "resize.cu", false),
        (single(&[2, 3], pool(5), &[]), "pool.cu", true),
        (single(&[2, 3], pool(1 << 30), &[]), "pool.cu", false),
        (single(&[1, 3], conv(vec![5]), weights), "depthwise.cu", true),
        (single(&[1, 3], conv(vec![positions]), weights), "depthwise.cu", false),
        (single(&[5], sort.clone(), &[]), "rank.cu", true),
        (single(&[long], sort, &[]), "rank.cu", false),
        (single(&[long], top, &[]), "rank.cu", false),
        (single(&[long], arg, &[]), "arg.cu", true),
    ];
    for (graph, file, takes) in cases {
        assert_eq!(files(&graph).contains(file), takes, "{file}\n{graph}");
    }
}

/// The calls of a graph of one operator on an input with these sizes behind the batch.
fn calls_of(op: impl Into<Op>, dims: &[i64], params: &[&[usize]], results: usize) -> Vec<Call> {
    let mut b = Builder::new("one");
    let x = input(&mut b, "x", dims);
    let params: Vec<Value> =
        params.iter().enumerate().map(|(i, dims)| param(&mut b, &format!("w{i}"), dims)).collect();
    let operands: Vec<Value> = std::iter::once(x).chain(params).collect();
    let names: Vec<String> = (0..results).map(|i| format!("y{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let values = b.ops(&names, op, &operands).unwrap();
    for (name, value) in names.iter().zip(values) {
        b.output(name, value);
    }
    calls(&on_gpus(&b.finish().0, 1)).remove(0)
}

#[test]
fn long_lines_take_two_launches() {
    let sum = |axes: Vec<i64>| Reduce::Sum { axes, keepdims: false };
    let both = calls_of(sum(vec![1]), &[40_000], &[], 1);
    let [first, last] = both.as_slice() else { panic!("{} launches", both.len()) };
    assert_eq!((first.kernel.file, last.kernel.file), ("reduce.cu", "reduce.cu"));
    assert_eq!(define(&first.kernel, "PARTS"), Some("10"));
    // Ten parts of each of five rows, a block for each; then a warp for each row, eight to a block.
    assert_eq!((first.grid[0].eval(5), last.grid[0].eval(5)), (50, 1));
    assert_eq!(define(&last.kernel, "MEMBERS"), Some("40000"));
    assert_eq!(calls_of(sum(vec![1]), &[30_000], &[], 1).len(), 1);
    let whole = calls_of(sum(vec![0, 1]), &[10], &[], 1);
    let reductions: Vec<&Call> = whole.iter().filter(|c| c.kernel.file == "reduce.cu").collect();
    let grids: Vec<[i64; 2]> =
        reductions.iter().map(|c| [c.grid[0].eval(0), c.grid[0].eval(4096)]).collect();
    assert_eq!(grids, [[0, 10], [1, 1]]);
}

#[test]
fn recurrent_cells_take_two_launches() {
    let settings = CellSettings {
        direction: Direction::Both,
        batch_first: true,
        reset_after: true,
        ..CellSettings::default()
    };
    let op = Recurrent { kind: CellKind::Gru, settings };
    let both = calls_of(op, &[7, 5], &[&[2, 192, 5], &[2, 192, 64]], 2);
    let [first, last] = both.as_slice() else { panic!("{} launches", both.len()) };
    assert_eq!((first.kernel.file, last.kernel.file), ("matmul.cu", "recurrent.cu"));
    assert_eq!(define(&first.kernel, "WIDTH"), Some("384"));
    assert_eq!(define(&last.kernel, "TOGETHER"), Some("4"));
    assert_eq!(last.grid.each_ref().map(|d| d.eval(9)), [3, 2, 1]);
    assert!(last.kernel.expression.contains("float gate_of(float x) { return sigmoid(x); }"));
}

#[test]
fn every_function_of_a_cell_has_its_slope_in_the_gradient() {
    for name in Activation::NAMES {
        let settings = CellSettings {
            direction: Direction::Reverse,
            batch_first: true,
            clip: Some(0.5),
            candidate: Activation::new(name, None, None).unwrap(),
            ..CellSettings::default()
        };
        let rnn = Recurrent { kind: CellKind::Rnn, settings };
        let mut b = Builder::new("one");
        let x = input(&mut b, "x", &[7, 6]);
        let [w, r] = [5, 6].map(|i| param(&mut b, &format!("w{i}"), &[1, 6, 6]));
        let [dy, dlast] =
            [&[7, 1, 6][..], &[1, 6]].map(|dims| input(&mut b, &format!("{dims:?}"), dims));
        let grad = RecurrentGrad::of(&rnn);
        let given = b.ops(&["sums", "states"], grad, &[x, w, r, dy, dlast]).unwrap();
        b.output("sums", given[0]);
        let both = calls(&on_gpus(&b.finish().0, 1)).remove(0);
        let [first, last] = both.as_slice() else { panic!("{} launches", both.len()) };
        assert_eq!((first.kernel.file, last.kernel.file), ("matmul.cu", "recurrent_grad.cu"));
        assert_eq!(define(&last.kernel, "GRADIENT_VECTORS"), Some("0"));
        let expression = &last.kernel.expression;
        assert!(expression.contains("float candidate_slope(float x, float y)"), "{expression}");
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
