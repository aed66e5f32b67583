//! A short, seeded run of every fuzz target over its corpus: whole, and damaged in every way that
//! is cheap to think of.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use support::damage::{corpus, damage};

use crate::fuzzed;

fn run(target: &str, times: usize, check: fn(&[u8])) {
    let seeds = corpus(target);
    for seed in &seeds {
        check(seed);
    }
    let more = std::env::var("FANWISE_FUZZ_TIMES").map_or(1, |times| times.parse().unwrap());
    let seed = support::turn::seed().unwrap_or(11);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for i in 0..times * more {
        let mut data = seeds[i % seeds.len()].clone();
        damage(&mut data, &mut rng);
        check(&data);
    }
}

#[test]
fn damaged_texts_are_graphs_or_errors() {
    run("text", 1000, fuzzed::text);
}

#[test]
fn damaged_json_is_a_graph_or_an_error() {
    run("json", 500, fuzzed::json);
}

#[test]
fn damaged_tensors_are_tensors_or_errors() {
    run("tensor", 1000, fuzzed::tensor);
}

#[test]
fn damaged_onnx_files_are_models_or_errors() {
    run("onnx", 1000, fuzzed::onnx);
}

#[test]
fn damaged_architectures_are_graphs_or_errors() {
    run("keras", 400, fuzzed::keras);
}

#[test]
fn damaged_keras_files_are_models_or_errors() {
    run("keras_file", 400, fuzzed::keras_file);
}

#[test]
fn damaged_archives_are_tensors_or_errors() {
    run("npz", 1000, fuzzed::npz);
}

#[test]
fn damaged_safetensors_are_weights_or_errors() {
    run("safetensors", 1000, fuzzed::safetensors);
}

#[test]
fn damaged_formulas_are_sizes_or_errors() {
    run("dim", 2000, fuzzed::dim);
}

#[test]
fn damaged_files_of_kernels_are_kernels_or_nothing() {
    run("kernels", 2000, fuzzed::kernels);
}

#[test]
fn damaged_data_are_rows_or_errors() {
    run("data", 1000, fuzzed::data);
}
