//! The CPU kernels by themselves, on as many threads as the machine has, in floating-point
//! operations per second.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fanwise::internal::{BroadcastPlan, StridedPlan, broadcast, strided};
use fanwise::internal::{Chain, ChainStep, Epilogue};
use fanwise::internal::{ConvOperands, ConvPlan};
use fanwise::internal::{LayerNormPlan, ReducePlan, SoftmaxPlan, layer_norm, reduce, softmax};
use fanwise::internal::{View, gemm};
use fanwise::op::{Binary, Conv, GeluForm, Gemm, LayerNorm, Op, Reduce, Softmax, Transpose, Unary};
use fanwise::types::{Order, Tensor};

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i % 101) as f32 / 101.0 - 0.5).collect()
}

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("gemm");
    for (m, k, n, trans_b) in [
        (512, 512, 512, false),
        (1024, 1024, 1024, false),
        (64, 2048, 1000, true),
        (1, 4096, 4096, true),
        (1, 4096, 4096, false),
    ] {
        let op = Gemm { trans_b, ..Gemm::default() };
        let (a, b, mut y) = (numbers(m * k), numbers(k * n), vec![0.0; m * n]);
        let (a_dims, b_dims) = ([m, k], if trans_b { [n, k] } else { [k, n] });
        group.throughput(Throughput::Elements(2 * (m * k * n) as u64));
        let name = format!("{m}x{k}x{n}{}", if trans_b { "_transposed" } else { "" });
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            bench.iter(|| {
                let a = View::new(&a_dims, &a);
                // As a model holds it.
                let order = if trans_b { Order::RowPanels } else { Order::RowMajor };
                let b = View { order, ..View::new(&b_dims, &b) };
                gemm(&op, a, b, None, black_box(&mut y), &Epilogue::default());
            });
        });
    }
    group.finish();
}

fn convolutions(c: &mut Criterion) {
    let mut group = c.benchmark_group("conv");
    for (channels, size, filters, kernel, groups) in
        [(64, 56, 64, 3, 1), (256, 14, 256, 3, 1), (512, 7, 2048, 1, 1), (384, 14, 384, 3, 384)]
    {
        let op = Conv { pads: vec![kernel / 2; 4], groups, ..Conv::default() };
        let [kernel, groups] = [kernel, groups].map(|x| usize::try_from(x).expect("small"));
        let (x, w) = ([1, channels, size, size], [filters, channels / groups, kernel, kernel]);
        let plan = ConvPlan::new(&op, &x, &w).expect("the sizes fit");
        let chain = Chain { steps: vec![ChainStep::Unary(Unary::Relu)] };
        let epilogue = Epilogue::new(&chain, &[]).expect("no operands");
        let bias = numbers(filters);
        let (x, w) = (numbers(x.iter().product()), numbers(w.iter().product()));
        let mut y = vec![0.0; filters * size * size];
        let flops = 2 * y.len() * (channels / groups) * kernel * kernel;
        group.throughput(Throughput::Elements(flops as u64));
        let name = format!("{size}x{size}x{channels}_{kernel}x{kernel}_{filters}");
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            let (bias, epilogue) = (Some(&bias[..]), epilogue.steps());
            let operands = ConvOperands { x: &x, w: &w, bias, epilogue };
            bench.iter(|| plan.convolve(operands, black_box(&mut y)));
        });
    }
    group.finish();
}

/// The kernels that work row by row, each beside the reference evaluation of its operator.
fn rows(c: &mut Criterion) {
    let mut group = c.benchmark_group("rows");
    let tensor =
        |dims: &[usize]| Tensor::new(dims, &numbers(dims.iter().product())).expect("the sizes fit");
    let mut both = |name: &str, op: Op, operands: &[&Tensor], kernel: &dyn Fn(&mut [f32])| {
        let mut y = op.eval(operands).expect("the operands fit").remove(0);
        group.throughput(Throughput::Elements(y.len() as u64));
        group.bench_function(BenchmarkId::new(name, "kernel"), |bench| {
            bench.iter(|| kernel(black_box(y.as_mut_slice())));
        });
        group.bench_function(BenchmarkId::new(name, "reference"), |bench| {
            bench.iter(|| op.eval(black_box(operands)));
        });
    };
    let scores = tensor(&[4, 4, 128, 128]);
    let op = Softmax::Softmax { axis: -1 };
    let plan = SoftmaxPlan::new(&op, scores.dims()).expect("the sizes fit");
    let x = scores.as_slice();
    both("softmax", op.into(), &[&scores], &|y| softmax(&plan, x, y));

    let tokens = tensor(&[4, 128, 512]);
    let row = numbers(512);
    let scale = Tensor::new(&[512], &row).expect("the sizes fit");
    let op = LayerNorm::Layer { axis: -1, epsilon: 1e-5, statistics: false };
    let plan = LayerNormPlan::new(&op, tokens.dims()).expect("the sizes fit");
    let x = tokens.as_slice();
    both("layer_norm", op.into(), &[&tokens, &scale, &scale], &|y| {
        layer_norm(&plan, x, &row, &row, y);
    });

    let op = Reduce::Mean { axes: vec![2], keepdims: false };
    let plan = ReducePlan::new(&op, tokens.dims()).expect("the sizes fit");
    both("reduce_mean", op.into(), &[&tokens], &|y| reduce(&plan, x, y));

    let heads = tensor(&[4, 128, 8, 64]);
    let op = Transpose { perm: vec![0, 2, 1, 3] };
    let plan = StridedPlan::new(&op, heads.dims(), &[4, 8, 128, 64]).expect("the sizes fit");
    let x = heads.as_slice();
    both("transpose", op.into(), &[&heads], &|y| strided(&plan, x, y));

    let mask = tensor(&[4, 1, 1, 128]);
    let plan = BroadcastPlan::new(&Binary::Add, scores.dims(), mask.dims());
    both("add_mask", Binary::Add.into(), &[&scores, &mask], &|y| {
        broadcast(&plan, scores.as_slice(), mask.as_slice(), y);
    });
    group.finish();
}

/// The functions of `f32` on a million elements, on one core.
fn functions(c: &mut Criterion) {
    const COUNT: usize = 1 << 20;
    let mut group = c.benchmark_group("functions");
    group.throughput(Throughput::Elements(COUNT as u64));
    let x: Vec<f32> = (0..COUNT).map(|i| (i * 40_503 % COUNT) as f32 / COUNT as f32).collect();
    let x: Vec<f32> = x.into_iter().map(|x| 8.0 * x + 0.01).collect();
    let mut y = x.clone();
    for (name, op) in [
        ("exp", Unary::Exp),
        ("tanh", Unary::Tanh),
        ("log", Unary::Log),
        ("sin", Unary::Sin),
        ("sigmoid", Unary::Sigmoid),
        ("gelu", Unary::Gelu { approximate: GeluForm::Exact }),
    ] {
        let chain = Chain { steps: vec![ChainStep::Unary(op)] };
        let chain = Epilogue::new(&chain, &[]).expect("no operands");
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            bench.iter(|| {
                y.copy_from_slice(&x);
                chain.apply(black_box(&mut y), 0);
            });
        });
    }
    let plan = BroadcastPlan::new(&Binary::Pow, &[COUNT], &[COUNT]);
    group.bench_function(BenchmarkId::from_parameter("pow"), |bench| {
        bench.iter(|| broadcast(&plan, &x, &x, black_box(&mut y)));
    });
    group.finish();
}

criterion_group!(kernels, products, convolutions, rows, functions);
criterion_main!(kernels);
