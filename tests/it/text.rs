//! The text form, from outside the crate.

use std::collections::BTreeMap;

use fanwise::ir::{Builder, from_json, parse, to_json, verify};
use fanwise::op::Unary;
use fanwise::pass::{Merge, Replicate, WeightPlacement, replicate};
use fanwise::types::{DType, Device, Dim, Shape, TensorType};
use support::snap;

use crate::random;

#[test]
fn names_that_are_no_words_are_quoted() {
    let mut b = Builder::new("a \"graph\"");
    let ty = TensorType::new(DType::F32, [Dim::n()].into_iter().collect::<Shape>());
    let x = b.input("x/é:0\n", ty);
    let y = b.op("2nd", Unary::Relu, &[x]).unwrap();
    b.output("y\\\u{7}", y);
    let graph = b.finish().0;
    verify(&graph).unwrap();
    snap::assert("print", "quoted_names", &graph.to_string());
}

#[test]
fn random_graphs_read_back() {
    for seed in 0..100usize {
        let (graph, weights) = random::graph(seed as u64, 3 + seed % 40);
        verify(&graph).unwrap_or_else(|e| panic!("{seed}: {e}"));
        assert_eq!(weights.len(), graph.params().len());
        let text = graph.to_string();
        let read = parse(&text).unwrap_or_else(|e| panic!("{seed}: {e}\n{text}"));
        assert_eq!(read, graph, "{seed}");
        assert_eq!(read.to_string(), text, "{seed}");
        let json = to_json(&graph);
        let read = from_json(&json).unwrap_or_else(|e| panic!("{seed}: {e}\n{json}"));
        assert_eq!(read, graph, "{seed}");
        assert_eq!(to_json(&read), json, "{seed}");
    }
}

#[test]
fn random_graphs_use_what_there_is() {
    let mut used = BTreeMap::<&str, usize>::new();
    for seed in 0..200 {
        let graph = random::graph(seed, 20).0;
        assert!(graph.ids().filter(|n| graph.node(*n).op().is_some()).count() >= 15, "{seed}");
        for op in graph.ids().filter_map(|n| graph.node(n).op()) {
            *used.entry(op.name()).or_default() += 1;
        }
    }
    assert!(used.len() > 40, "{used:?}");
}

#[test]
fn replicated_random_graphs_read_back() {
    let rules = ["remainder-last", "balanced", "ceil", "weighted:3,1,0,2"];
    for seed in 0..60usize {
        let template = random::graph(seed as u64, 4 + seed % 30).0;
        let mut options = Replicate::over((0..4).map(Device::gpu).collect());
        options.rule = rules[seed % 4].parse().unwrap();
        options.merge = if seed % 3 == 0 { Merge::Gpu } else { Merge::Cpu };
        options.weights = [WeightPlacement::Mirrored, WeightPlacement::Cpu][seed % 2];
        let graph =
            replicate(&template, &options).unwrap_or_else(|e| panic!("{seed}: {e}\n{template}"));
        verify(&graph).unwrap_or_else(|e| panic!("{seed}: {e}"));
        let text = graph.to_string();
        let read = parse(&text).unwrap_or_else(|e| panic!("{seed}: {e}\n{text}"));
        assert_eq!(read, graph, "{seed}");
        assert_eq!(read.to_string(), text, "{seed}");
        let read = from_json(&to_json(&graph)).unwrap_or_else(|e| panic!("{seed}: {e}"));
        assert_eq!(read, graph, "{seed}");
    }
}
