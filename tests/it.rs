//! Tests of the crate as a whole.

#![allow(clippy::unwrap_used, reason = "tests")]

#[allow(unreachable_pub, reason = "the library of the fuzz targets, too")]
mod fuzzed;
mod random;
mod splits;

/// The modules of `tests/it/`.
mod it {
    mod acceptance;
    mod architectures;
    mod bench;
    mod bits;
    mod browser;
    mod buckets;
    mod circles;
    mod cli;
    #[cfg(feature = "cuda")]
    mod cli_cuda;
    mod cli_help;
    mod cli_options;
    mod commands;
    #[cfg(feature = "cuda")]
    mod cuda_indexing;
    mod cuda_kernels;
    mod cuda_traffic;
    pub(super) mod cuda_training;
    mod custom;
    mod data;
    pub(super) mod data_sets;
    mod decoder;
    mod defaults;
    mod digits;
    mod discovery;
    mod docs;
    pub(super) mod embed;
    mod errors;
    mod every_option;
    mod examples;
    mod expected;
    pub(super) mod fit;
    mod fit_classes;
    pub(super) mod fit_cli;
    mod fit_data;
    mod fit_images;
    mod fit_keras;
    mod fit_loop;
    mod fit_memory;
    mod fit_modes;
    mod fit_onnx;
    mod fit_parameters;
    pub(super) mod fit_shards;
    mod functions;
    mod fuzz;
    mod gradient;
    pub(super) mod hostile;
    mod infer;
    pub(super) mod isa;
    mod json_schema;
    mod keras;
    mod layering;
    mod long_work;
    mod mentions;
    pub(super) mod mutations;
    mod numeric;
    mod onnx_import;
    mod onnx_nodes;
    pub(super) mod onnx_runtime;
    mod onnx_single;
    pub(super) mod operators;
    mod positions;
    pub(super) mod predictions;
    pub(super) mod programs;
    pub(super) mod proof;
    pub(super) mod python;
    mod repairs;
    pub(super) mod source;
    mod sums;
    mod text;
    mod training_memory;
    pub(super) mod variables;
    mod writes;
}

// A test names what another one has as `crate::fit` and the like.
use it::{
    cuda_training, data_sets, embed, fit, fit_cli, fit_shards, isa, mutations, onnx_runtime,
    operators, predictions, programs, proof, python, source, variables,
};
