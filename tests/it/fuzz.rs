//! A short, seeded run of every fuzz target over its corpus: whole, and damaged in every way that is cheap to think of.

use std::fs;
use std::path::{Path, PathBuf};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::fuzzed;

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target);
    let entries = fs::read_dir(&folder).expect("the corpus").map(|e| e.expect("an entry").path());
    let mut paths: Vec<PathBuf> = entries.collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}", folder.display());
    paths.iter().map(|p| fs::read(p).expect("a seed")).collect()
}

/// Flips bits, cuts, repeats, removes, exchanges or sets to extremes a part of `data`.
fn damage(data: &mut Vec<u8>, rng: &mut ChaCha8Rng) {
    for _ in 0..rng.random_range(1..4) {
        if data.is_empty() {
            return;
        }
        let (a, b) = (rng.random_range(0..data.len()), rng.random_range(0..data.len()));
        let (from, to) = (a.min(b), a.max(b).min(a.min(b) + 64));
        match rng.random_range(0..7) {
            0 | 1 => data[a] ^= 1 << rng.random_range(0..8),
            2 => data.truncate(a),
            3 => data.splice(a..a, data[from..to].to_vec()).for_each(drop),
            4 => data.drain(from..to).for_each(drop),
            5 => data.swap(a, b),
            _ => data[from..to].fill(if rng.random() { 0xff } else { 0 }),
        }
    }
}

fn run(target: &str, times: usize, check: fn(&[u8])) {
    let seeds = corpus(target);
    for seed in &seeds {
        check(seed);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for i in 0..times {
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
fn damaged_onnx_files_are_models_or_errors() {
    run("onnx", 1000, fuzzed::onnx);
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
