//! The CPU kernels by themselves, on as many threads as the machine has, in floating-point operations per second.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fanwise::backend::cpu::conv::{ConvPlan, conv};
use fanwise::backend::cpu::elementwise::Epilogue;
use fanwise::backend::cpu::matmul::{View, gemm};
use fanwise::lower::{Chain, ChainStep};
use fanwise::op::{Conv, Gemm, Unary};

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
        let b_dims = if trans_b { [n, k] } else { [k, n] };
        group.throughput(Throughput::Elements(2 * (m * k * n) as u64));
        let name = format!("{m}x{k}x{n}{}", if trans_b { "_transposed" } else { "" });
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            bench.iter(|| {
                let operands = (View { dims: &[m, k], data: &a }, View { dims: &b_dims, data: &b });
                gemm(&op, operands, None, black_box(&mut y), &Epilogue::default());
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
        let mut y = vec![0.0; plan.sample()];
        let flops = 2 * plan.sample() * (channels / groups) * kernel * kernel;
        group.throughput(Throughput::Elements(flops as u64));
        let name = format!("{size}x{size}x{channels}_{kernel}x{kernel}_{filters}");
        group.bench_function(BenchmarkId::from_parameter(name), |bench| {
            bench.iter(|| conv(&plan, &x, &w, Some(&bias), black_box(&mut y), &epilogue));
        });
    }
    group.finish();
}

criterion_group!(kernels, products, convolutions);
criterion_main!(kernels);
