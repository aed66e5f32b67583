//! The cost of the `replicate` pass with verification of the graph that it gives, and that of the
//! proof that this graph computes what its template does; freeing graphs is not counted.

#![allow(missing_docs, reason = "criterion's macros declare undocumented functions")]

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fanwise::analysis::{claims, prove};
use fanwise::ir::{DevicePlacement, Graph, Origin, Value, verify};
use fanwise::op::{Binary, Op, Unary};
use fanwise::pass::{Replicate, replicate};
use fanwise::types::{DType, Device, Dim, Shape, TensorType};

fn devices(count: u32) -> Vec<Device> {
    (0..count).map(Device::gpu).collect()
}

/// Towers of unary operators that meet in sums: `nodes` operators on rows of 16.
fn synthetic(nodes: usize) -> Graph {
    let mut graph = Graph::new("synthetic");
    let shape: Shape = [Dim::n(), 16.into()].into_iter().collect();
    let x = graph.add_input("x", TensorType::new(DType::F32, shape));
    let mut tips = [x; 4];
    for i in 0..nodes {
        let lane = i % tips.len();
        let (op, operands): (Op, Vec<Value>) = if i % 7 == 0 {
            (Binary::Add.into(), vec![tips[lane], tips[(lane + 1) % tips.len()]])
        } else {
            (Unary::Relu.into(), vec![tips[lane]])
        };
        let name: Arc<str> = format!("v{i}").into();
        let node = graph
            .add(op, &operands, &[name], DevicePlacement::HOST, Origin::default())
            .expect("a valid operator");
        tips[lane] = Value { node, output: 0 };
    }
    for (i, tip) in tips.into_iter().enumerate() {
        graph.add_output(format!("y{i}"), tip);
    }
    graph
}

fn rewrite(template: &Graph, replicas: u32) -> Graph {
    let graph = replicate(template, &Replicate::over(devices(replicas))).expect("a row-wise graph");
    verify(&graph).expect("a valid graph");
    graph
}

fn passes(c: &mut Criterion) {
    let mut group = c.benchmark_group("replicate");
    group
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3));
    let mut model = fanwise::model::load("zoo:xception", &fanwise::model::LoadOptions::default())
        .expect("a model");
    model.weights = fanwise::ir::Weights::default();
    group
        .bench_function("xception onto 8", |b| b.iter_with_large_drop(|| rewrite(&model.graph, 8)));
    for nodes in [12_500, 25_000, 50_000, 100_000] {
        let graph = synthetic(nodes);
        group.throughput(Throughput::Elements(nodes as u64 * 8));
        group.bench_with_input(BenchmarkId::new("nodes onto 8", nodes), &graph, |b, g| {
            b.iter_with_large_drop(|| rewrite(g, 8));
        });
    }
    let graph = synthetic(25_000);
    for replicas in [2u32, 4, 8, 16] {
        group.throughput(Throughput::Elements(25_000 * u64::from(replicas)));
        let id = BenchmarkId::new("25000 nodes onto", replicas);
        group
            .bench_with_input(id, &replicas, |b, k| b.iter_with_large_drop(|| rewrite(&graph, *k)));
    }
    for nodes in [25_000, 50_000, 100_000] {
        let graph = synthetic(nodes);
        group.throughput(Throughput::Elements(nodes as u64));
        let id = BenchmarkId::new("claims of nodes", nodes);
        group.bench_function(id, |b| b.iter(|| claims(&graph).expect("a row-wise graph")));
    }
    for nodes in [50_000, 100_000] {
        let template = synthetic(nodes);
        let graph = rewrite(&template, 8);
        let verified = verify(&graph).expect("a valid graph");
        group.throughput(Throughput::Elements(nodes as u64 * 8));
        let id = BenchmarkId::new("proof of nodes onto 8", nodes);
        group.bench_function(id, |b| b.iter(|| prove(&template, &verified).expect("a proof")));
    }
    let graph = rewrite(&model.graph, 8);
    let verified = verify(&graph).expect("a valid graph");
    group.bench_function("proof of xception onto 8", |b| {
        b.iter(|| prove(&model.graph, &verified).expect("a proof"));
    });
    group.finish();
}

criterion_group!(benches, passes);
criterion_main!(benches);
