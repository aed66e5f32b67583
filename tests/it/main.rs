//! Tests of the crate as a whole.

#![allow(clippy::unwrap_used, reason = "tests")]

mod acceptance;
mod buckets;
mod cli;
#[cfg(feature = "cuda")]
mod cli_cuda;
mod cli_options;
#[cfg(feature = "cuda")]
mod cuda_indexing;
mod cuda_kernels;
mod cuda_training;
mod damage;
mod data;
mod digits;
mod discovery;
mod docs;
mod embed;
mod every_option;
mod examples;
mod fit;
mod fit_classes;
mod fit_cli;
mod fit_data;
mod fit_images;
mod fit_keras;
mod fit_loop;
mod fit_memory;
mod fit_modes;
mod fit_onnx;
mod fit_parameters;
mod fit_shards;
mod fuzz;
mod fuzzed;
mod gradient;
mod hostile;
mod infer;
mod layering;
mod mentions;
mod mutations;
mod numeric;
mod onnx_nodes;
mod onnx_proto;
mod onnx_runtime;
mod onnx_single;
mod operators;
mod programs;
mod proof;
mod random;
mod reference;
mod repairs;
mod snap;
mod source;
#[path = "../support/splits.rs"]
mod splits;
mod sums;
mod text;
mod training_memory;
mod variables;
mod writes;
