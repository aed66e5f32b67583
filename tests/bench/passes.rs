//! The cost of the `replicate` pass with its repairs, that of verification of the graph that it
//! gives, and that of the proof that this graph computes what its template does; freeing graphs is
//! not counted.

#![allow(missing_docs, reason = "criterion's macros declare undocumented functions")]

mod towers;

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{
    BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
};
use fanwise::analysis::{claims, prove};
use fanwise::ir::{Graph, verify};
use fanwise::pass::{Replicate, WeightPlacement, replicate};
use towers::{devices, synthetic};

fn rewrite(template: &Graph, options: &Replicate) -> Graph {
    replicate(template, options).expect("a row-wise graph")
}

/// Rewrite, verification and proof; gives the graph back, which the caller frees.
fn whole(template: &Graph, options: &Replicate) -> Graph {
    let graph = rewrite(template, options);
    prove(template, &verify(&graph).expect("a valid graph")).expect("a proof");
    graph
}

/// The pass as a whole, and each part of it alone.
fn parts(group: &mut BenchmarkGroup<'_, WallTime>, name: &str, graph: &Graph, options: &Replicate) {
    group.bench_function(format!("{name}, whole"), |b| {
        b.iter_with_large_drop(|| whole(graph, options));
    });
    group.bench_function(format!("{name}, rewrite"), |b| {
        b.iter_with_large_drop(|| rewrite(graph, options));
    });
    let replicas = rewrite(graph, options);
    group.bench_function(format!("{name}, verification"), |b| {
        b.iter(|| verify(&replicas).expect("a valid graph"));
    });
    let verified = verify(&replicas).expect("a valid graph");
    group.bench_function(format!("{name}, proof"), |b| {
        b.iter(|| prove(graph, &verified).expect("a proof"));
    });
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
    for (name, weights) in
        [("mirrored", WeightPlacement::Mirrored), ("template", WeightPlacement::Template)]
    {
        let options = Replicate { weights, ..Replicate::over(devices(8)) };
        parts(&mut group, &format!("xception onto 8, {name}"), &model.graph, &options);
    }
    let onto = |count: u32| Replicate::over(devices(count));
    for nodes in [12_500, 25_000, 50_000, 100_000] {
        let graph = synthetic(nodes);
        group.throughput(Throughput::Elements(nodes as u64 * 8));
        let id = BenchmarkId::new("nodes onto 8", nodes);
        group.bench_with_input(id, &graph, |b, g| b.iter_with_large_drop(|| whole(g, &onto(8))));
    }
    parts(&mut group, "100000 nodes onto 8", &synthetic(100_000), &onto(8));
    let graph = synthetic(25_000);
    for replicas in [2u32, 4, 8, 16] {
        group.throughput(Throughput::Elements(25_000 * u64::from(replicas)));
        let id = BenchmarkId::new("25000 nodes onto", replicas);
        group.bench_with_input(id, &replicas, |b, k| {
            b.iter_with_large_drop(|| whole(&graph, &onto(*k)));
        });
    }
    for nodes in [25_000, 50_000, 100_000] {
        let graph = synthetic(nodes);
        group.throughput(Throughput::Elements(nodes as u64));
        let id = BenchmarkId::new("claims of nodes", nodes);
        group.bench_function(id, |b| b.iter(|| claims(&graph).expect("a row-wise graph")));
    }
    let graph = synthetic(1_000_000);
    group.throughput(Throughput::Elements(4_000_000));
    group.bench_function("1000000 nodes onto 4", |b| {
        b.iter_with_large_drop(|| whole(&graph, &onto(4)));
    });
    group.finish();
}

criterion_group!(benches, passes);
criterion_main!(benches);
