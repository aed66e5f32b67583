//! Gradients of whole graphs: against finite differences, and on devices against one.

use std::collections::BTreeMap;

use fanwise::backend::{Backend, Cpu, RunOptions};
use fanwise::internal::BatchNormTrain;
use fanwise::internal::OpDef;
use fanwise::ir::{self, Builder, Graph, Value, Weights};
use fanwise::op::{
    Binary, CellKind, CellSettings, Conv, Direction, External, Flatten, Gather, GatherAt, Gemm,
    Pool, Recurrent, Reduce, Reduction, Scatter, Softmax, Transpose, Unary,
};
use fanwise::pass::{self, GradientError, Repair, Replicate, differentiate};
use fanwise::types::{DType, Device, Dim, Shape, Tensor, TensorType};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Inputs = BTreeMap<String, Tensor>;

fn random(rng: &mut ChaCha8Rng, dims: &[usize]) -> Tensor {
    let count = dims.iter().product();
    let values: Vec<f64> = (0..count).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::new(dims, &values).unwrap()
}

fn rows(sizes: &[i64]) -> TensorType {
    let shape: Shape =
        std::iter::once(Dim::n()).chain(sizes.iter().map(|d| Dim::from(*d))).collect();
    TensorType::new(DType::F64, shape)
}

/// The mean over rows of the cross-entropy of `logits` and the input `y`.
fn cross_entropy(b: &mut Builder, logits: Value, classes: i64) -> Value {
    let y = b.input("y", rows(&[classes]));
    let log = b.op("log", Softmax::LogSoftmax { axis: -1 }, &[logits]).unwrap();
    let terms = b.op("terms", Binary::Mul, &[y, log]).unwrap();
    let each = b.op("each", Reduce::Sum { axes: vec![1], keepdims: false }, &[terms]).unwrap();
    let mean = b.op("mean", Reduce::Mean { axes: vec![0], keepdims: false }, &[each]).unwrap();
    b.op("loss", Unary::Neg, &[mean]).unwrap()
}

/// Adds the gradients of all parameters as outputs, behind the loss.
fn with_gradients(mut b: Builder, loss: Value) -> (Graph, Weights) {
    let params: Vec<(String, Value)> = b
        .graph()
        .ids()
        .filter(|id| matches!(b.graph().node(*id).kind(), ir::NodeKind::Param(_)))
        .map(|id| b.graph().node(id).results()[0].name.to_string())
        .zip(
            b.graph()
                .ids()
                .filter(|id| matches!(b.graph().node(*id).kind(), ir::NodeKind::Param(_)))
                .map(|node| Value { node, output: 0 }),
        )
        .filter(|(name, _)| !name.starts_with("running"))
        .collect();
    let values: Vec<Value> = params.iter().map(|(_, v)| *v).collect();
    let gradients = differentiate(&mut b, loss, &values).unwrap();
    b.output("loss", loss);
    for ((name, _), gradient) in params.iter().zip(gradients) {
        b.output(name, gradient.unwrap_or_else(|| panic!("{name} has no gradient")));
    }
    let (graph, weights) = b.finish();
    ir::verify(&graph).unwrap();
    (graph, weights)
}

fn mlp(rng: &mut ChaCha8Rng) -> (Graph, Weights) {
    let mut b = Builder::new("mlp");
    let x = b.input("x", rows(&[5]));
    let sizes = [5usize, 7, 6, 4];
    let acts = [Unary::Tanh, Unary::Sigmoid];
    let mut h = x;
    for (i, pair) in sizes.windows(2).enumerate() {
        let w = b.param(&format!("w{i}"), random(rng, pair));
        let bias = b.param(&format!("b{i}"), random(rng, &pair[1..]));
        let gemm = Gemm { alpha: 1.0, beta: 1.0, trans_a: false, trans_b: false };
        h = b.op(&format!("h{i}"), gemm, &[h, w, bias]).unwrap();
        if let Some(act) = acts.get(i) {
            h = b.op(&format!("a{i}"), act.clone(), &[h]).unwrap();
        }
    }
    let loss = cross_entropy(&mut b, h, 4);
    with_gradients(b, loss)
}

fn cnn(rng: &mut ChaCha8Rng) -> (Graph, Weights) {
    let mut b = Builder::new("cnn");
    let x = b.input("x", rows(&[2, 7, 6]));
    let w = b.param("w", random(rng, &[4, 2, 3, 2]));
    let bias = b.param("bias", random(rng, &[4]));
    let conv = Conv { strides: vec![2, 1], pads: vec![1, 0, 2, 1], ..Conv::default() };
    let h = b.op("conv", conv, &[x, w, bias]).unwrap();
    let channel = |b: &mut Builder, name: &str, tensor: Tensor| b.param(name, tensor);
    let scale = channel(&mut b, "scale", random(rng, &[4]));
    let shift = channel(&mut b, "shift", random(rng, &[4]));
    let mean = channel(&mut b, "running.mean", Tensor::new(&[4], &[0.0f64; 4]).unwrap());
    let var = channel(&mut b, "running.var", Tensor::new(&[4], &[1.0f64; 4]).unwrap());
    let norm = BatchNormTrain { epsilon: 1e-3, local: false, momentum: 0.9 };
    let h =
        b.ops(&["norm", "new_mean", "new_var"], norm, &[h, scale, shift, mean, var]).unwrap()[0];
    let h = b.op("relu", Unary::Relu, &[h]).unwrap();
    let depthwise = b.param("depthwise", random(rng, &[4, 1, 2, 2]));
    let h = b.op("dw", Conv { groups: 4, ..Conv::default() }, &[h, depthwise]).unwrap();
    let pool = Pool::Max {
        kernel: vec![2, 2],
        strides: Vec::new(),
        dilations: Vec::new(),
        pads: vec![0, 1, 0, 0],
        ceil_mode: false,
        indices: false,
        column_major: false,
    };
    let h = b.op("pool", pool, &[h]).unwrap();
    let h = b.op("flat", Flatten { axis: 1 }, &[h]).unwrap();
    let size = usize::try_from(b.graph().ty(h).shape[1].as_const().unwrap()).unwrap();
    let dense = b.param("dense", random(rng, &[size, 3]));
    let h = b.op("logits", fanwise::op::MatMul {}, &[h, dense]).unwrap();
    let loss = cross_entropy(&mut b, h, 3);
    with_gradients(b, loss)
}

/// Steps first, then the batch; in two directions, sequences end at steps of their own.
fn cell(rng: &mut ChaCha8Rng) -> (Graph, Weights) {
    let mut b = Builder::new("cell");
    let x = b.input("x", rows(&[STEPS, 2]));
    let lengths: Shape = std::iter::once(Dim::n()).collect();
    let lengths = b.input("lengths", TensorType::new(DType::I64, lengths));
    let x = b.op("steps", Transpose { perm: vec![1, 0, 2] }, &[x]).unwrap();
    let kernel = b.param("kernel", random(rng, &[2, 9, 2]));
    let recurrent = b.param("recurrent", random(rng, &[2, 9, 3]));
    let bias = b.param("bias", random(rng, &[2, 18]));
    let settings = CellSettings {
        direction: Direction::Both,
        bias: true,
        lengths: true,
        ..CellSettings::default()
    };
    let gru = Recurrent { kind: CellKind::Gru, settings };
    let h = b.ops(&["states", "last"], gru, &[x, kernel, recurrent, bias, lengths]).unwrap();
    let mean = Reduce::Mean { axes: vec![0, 1], keepdims: false };
    let mean = b.op("mean_state", mean, &h[..1]).unwrap();
    let last = b.op("both", Reduce::Sum { axes: vec![0], keepdims: false }, &h[1..]).unwrap();
    let h = b.op("sum", Binary::Add, &[mean, last]).unwrap();
    let loss = cross_entropy(&mut b, h, 3);
    with_gradients(b, loss)
}

/// Elements of each sample that numbers of its own pick, which multiply others of it.
fn places(rng: &mut ChaCha8Rng) -> (Graph, Weights) {
    let mut b = Builder::new("places");
    let x = b.input("x", rows(&[4, 3]));
    let [blocks, columns] = [("blocks", [2, 1]), ("columns", [2, 3])]
        .map(|(name, sizes)| b.input(name, TensorType { dtype: DType::I64, ..rows(&sizes) }));
    let w = b.param("w", random(rng, &[4, 3]));
    let h = b.op("h", Binary::Mul, &[x, w]).unwrap();
    let picked = b.op("picked", GatherAt::Nd { batch_dims: 1 }, &[h, blocks]).unwrap();
    let bias = b.param("bias", random(rng, &[3]));
    let factors = b.op("factors", Binary::Add, &[picked, bias]).unwrap();
    let product = Scatter::Elements { axis: 1, reduction: Reduction::Mul };
    let h = b.op("products", product, &[h, columns, factors]).unwrap();
    let h = b.op("sum", Reduce::Sum { axes: vec![1], keepdims: false }, &[h]).unwrap();
    // Rows of the batch by number.
    let others = b.input("others", TensorType { dtype: DType::I64, ..rows(&[]) });
    let other = b.op("other", Gather { axis: 0 }, &[h, others]).unwrap();
    let h = b.op("both", Binary::Mul, &[h, other]).unwrap();
    let loss = cross_entropy(&mut b, h, 3);
    with_gradients(b, loss)
}

/// The steps of the sequences of [`cell`].
const STEPS: i64 = 4;

fn inputs(rng: &mut ChaCha8Rng, graph: &Graph, n: usize) -> Inputs {
    let of = |v: Value| {
        let dims: Vec<usize> = graph
            .ty(v)
            .shape
            .iter()
            .map(|d| usize::try_from(d.eval(i64::try_from(n).unwrap())).unwrap())
            .collect();
        dims
    };
    let all: Vec<(String, Vec<usize>)> =
        graph.inputs().map(|v| (graph.info(v).name.to_string(), of(v))).collect();
    let ends = all.iter().any(|(name, _)| name == "lengths");
    let length = |row: usize| row % (usize::try_from(STEPS).unwrap() + 1);
    let one = |(name, dims): (String, Vec<usize>)| {
        if name == "lengths" {
            let lengths: Vec<i64> =
                (0..dims[0]).map(|i| i64::try_from(length(i)).unwrap()).collect();
            return (name, Tensor::new(&dims, &lengths).unwrap());
        }
        if ["blocks", "columns", "others"].contains(&&*name) {
            // Places of an axis of four entries or of the batch, some from its end and some of them
            // twice.
            let size = if name == "others" { i64::try_from(n).unwrap() } else { 4 };
            let places: Vec<i64> =
                (0..dims.iter().product()).map(|_| rng.random_range(-size..size)).collect();
            return (name, Tensor::new(&dims, &places).unwrap());
        }
        if name != "y" {
            let mut x = random(rng, &dims);
            if ends {
                // What stands behind the end of a sequence is nobody's business.
                for (at, x) in x.as_mut_slice::<f64>().iter_mut().enumerate() {
                    let (row, step) = (at / dims[2] / dims[1], at / dims[2] % dims[1]);
                    *x = if step < length(row) { *x } else { f64::NAN };
                }
            }
            return (name, x);
        }
        let mut hot = vec![0.0f64; dims[0] * dims[1]];
        for row in 0..dims[0] {
            hot[row * dims[1] + rng.random_range(0..dims[1])] = 1.0;
        }
        (name, Tensor::new(&dims, &hot).unwrap())
    };
    all.into_iter().map(one).collect()
}

fn run(graph: &Graph, weights: &Weights, inputs: &Inputs, devices: u32) -> Vec<(String, Vec<f64>)> {
    let cpu = Cpu::new(2).unwrap();
    let replicated = (devices > 0).then(|| {
        let devices = (0..devices).map(Device::gpu).collect();
        let options = Replicate { repair: Repair::Comm, ..Replicate::over(devices) };
        let repaired = pass::repair(graph, Repair::Comm).unwrap();
        let out = repaired.replicate(&options).unwrap();
        fanwise::analysis::prove(repaired.graph(), &ir::verify(&out).unwrap()).unwrap();
        out
    });
    let graph = replicated.as_ref().unwrap_or(graph);
    let program = fanwise::lower::lower(&ir::verify(graph).unwrap(), cpu.kernels()).unwrap();
    let executable = cpu.compile(program, weights).unwrap();
    let run = executable.run(inputs, &RunOptions::default()).unwrap();
    run.outputs.into_iter().map(|(name, t)| (name.to_string(), t.to_f64())).collect()
}

#[test]
fn gradients_agree_with_differences_and_on_devices_with_one() {
    for (model, n) in [(mlp as fn(&mut ChaCha8Rng) -> _, 7), (cnn, 5), (cell, 6), (places, 5)] {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let (graph, weights) = model(&mut rng);
        let given = inputs(&mut rng, &graph, n);
        let one = run(&graph, &weights, &given, 0);
        for (name, gradient) in &one[1..] {
            for at in [0, gradient.len() / 2, gradient.len() - 1] {
                let loss = |by: f64| {
                    let mut moved = weights.clone();
                    let mut tensor = moved.get(name).unwrap().clone();
                    tensor.as_mut_slice::<f64>()[at] += by;
                    moved.insert(&**name, tensor);
                    run(&graph, &moved, &given, 0)[0].1[0]
                };
                let slope = (loss(1e-6) - loss(-1e-6)) / 2e-6;
                let error = (slope - gradient[at]).abs();
                assert!(error < 1e-7, "{name}[{at}]: {} instead of {slope}", gradient[at]);
            }
        }
        for devices in 1..=8 {
            let all = run(&graph, &weights, &given, devices);
            for ((name, a), (_, b)) in one.iter().zip(&all) {
                let scale = a.iter().fold(1e-3f64, |m, x| m.max(x.abs()));
                for (a, b) in a.iter().zip(b) {
                    assert!(
                        (a - b).abs() <= 1e-12 * scale,
                        "{name} on {devices}: {b} instead of {a}"
                    );
                }
            }
        }
    }
}

#[test]
fn an_operator_without_a_gradient_is_named() {
    let mut b = Builder::new("foreign");
    let w = b.param("w", Tensor::new(&[2], &[1.0f64, 2.0]).unwrap());
    let ty = TensorType::new(DType::F64, [Dim::from(2)].into_iter().collect::<Shape>());
    let foreign = External::new("theirs", [ty]);
    let h = b.op("h", foreign, &[w]).unwrap();
    let loss = b.op("loss", Reduce::Sum { axes: vec![0], keepdims: false }, &[h]).unwrap();
    let error = differentiate(&mut b, loss, &[w]).unwrap_err();
    assert_eq!(error.to_string(), "`h` (external) has no gradient: only its values are known");
    let error = differentiate(&mut b, h, &[w]).unwrap_err();
    assert!(matches!(error, GradientError::Loss(_)), "{error}");
}

fn numbers(value: &serde_json::Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

/// Elements in the type and the shape of a value.
fn elements(ty: &TensorType, values: &[f64]) -> Tensor {
    let dims = ty.shape.at(0);
    #[expect(clippy::cast_possible_truncation, reason = "the numbers are whole")]
    let whole: Vec<i64> = values.iter().map(|x| *x as i64).collect();
    if ty.dtype == DType::F64 {
        return Tensor::new(&dims, values).unwrap();
    }
    let whole = Tensor::new(&dims, &whole).unwrap();
    fanwise::op::Cast { to: ty.dtype }.eval(&[&whole]).unwrap().remove(0)
}

/// The gradients of the inputs of a graph, given those of its outputs.
fn of_inputs(case: &serde_json::Value) -> Result<Vec<(String, Vec<f64>)>, String> {
    let graph = ir::parse(case["graph"].as_str().unwrap()).map_err(|e| e.to_string())?;
    let inputs: Vec<(String, Value, TensorType)> =
        graph.inputs().map(|v| (graph.info(v).name.to_string(), v, graph.ty(v).clone())).collect();
    let mut b = Builder::over(graph, Weights::default());
    let mut loss = None;
    for output in b.graph().outputs().to_vec() {
        let Some(upstream) = case["upstream"].get(&*output.name) else { continue };
        let (ty, name) = (b.graph().ty(output.value).clone(), output.name.to_string());
        let value = elements(&ty, &numbers(upstream));
        let upstream = b.op(&format!("{name}.dy"), fanwise::op::Constant { value }, &[]).unwrap();
        let weighted = b.op(&format!("{name}.w"), Binary::Mul, &[output.value, upstream]).unwrap();
        let axes = (0..).take(ty.rank()).collect();
        let sum = Reduce::Sum { axes, keepdims: false };
        let sum = b.op(&format!("{name}.sum"), sum, &[weighted]).unwrap();
        loss = Some(match loss {
            None => sum,
            Some(before) => b.op("more", Binary::Add, &[before, sum]).unwrap(),
        });
    }
    let wanted = case["gradients"].as_object().unwrap();
    let wanted: Vec<&(String, Value, TensorType)> =
        inputs.iter().filter(|(name, ..)| wanted.contains_key(name)).collect();
    let values: Vec<Value> = wanted.iter().map(|(_, v, _)| *v).collect();
    let gradients = differentiate(&mut b, loss.unwrap(), &values).map_err(|e| e.to_string())?;
    for ((name, ..), gradient) in wanted.iter().zip(gradients) {
        let gradient = gradient.ok_or_else(|| format!("`{name}` has no gradient"))?;
        b.output(&format!("gradient of {name}"), gradient);
    }
    let (graph, weights) = b.finish();
    ir::verify(&graph).map_err(|e| e.to_string())?;
    let given = |(name, _, ty): &(String, Value, TensorType)| {
        (name.clone(), elements(ty, &numbers(&case["inputs"][name])))
    };
    let all = run(&graph, &weights, &inputs.iter().map(given).collect(), 0);
    let of = |(name, found): (String, Vec<f64>)| {
        Some((name.strip_prefix("gradient of ")?.to_owned(), found))
    };
    Ok(all.into_iter().filter_map(of).collect())
}

/// At a corner a rule takes the slope of the side below, of `clip` that inside its bounds, of `abs`
/// 0; equal elements share where they are reduced or compared, and a pool takes the first of them.
/// PyTorch does the same where it is listed in `tests/models/gradients.py`.
#[test]
fn gradients_are_those_of_pytorch() {
    let text = include_str!("../models/gradients.json");
    let all: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut failed = Vec::new();
    for case in all["cases"].as_array().unwrap() {
        let name = &case["name"];
        let found = match of_inputs(case) {
            Ok(found) => found,
            Err(error) => {
                failed.push(format!("{name}: {error}"));
                continue;
            }
        };
        for (input, found) in found {
            let expected = numbers(&case["gradients"][&input]);
            assert_eq!(found.len(), expected.len(), "{name}, {input}");
            let error = |(a, b): (&f64, &f64)| (a - b).abs() / b.abs().max(1.0);
            let errors = found.iter().zip(&expected).map(error).enumerate();
            let worst = errors.max_by(|a, b| a.1.total_cmp(&b.1));
            if let Some((at, error)) = worst.filter(|(_, e)| e.is_nan() || *e > 1e-6) {
                let (a, b) = (found[at], expected[at]);
                failed.push(format!("{name}, {input}[{at}]: {a} instead of {b} ({error:e})"));
            }
        }
    }
    assert!(failed.is_empty(), "{} fail:\n{}", failed.len(), failed.join("\n"));
}
