//! fanwise runs one model on many devices *without changing what it computes*.
//!
//! It is a compiler of tensor graphs. A model becomes a [`Graph`](ir::Graph); the pass
//! [`replicate`](pass::replicate) clones it onto each device, slices every input that carries the
//! batch, and merges every output; [`lower`](lower::lower) turns the rewritten graph into a program
//! of launches, copies and waits; a [`Backend`](backend::Backend) runs the program, on N virtual
//! devices of the CPU or on GPUs, whose kernels are written and compiled for them.
//!
//! # From a model to numbers
//!
//! ```
//! # #[cfg(all(feature = "onnx", feature = "zoo", feature = "cpu"))]
//! # fn main() -> Result<(), fanwise::Error> {
//! use fanwise::types::{DType, Tensor};
//! use fanwise::{Session, model};
//!
//! let model = model::load("zoo:mlp", &model::LoadOptions::default())?; // or "model.onnx"
//! let session = Session::builder(model).gpus(4).build()?;
//! let outputs = session.run([("image", Tensor::zeros(DType::F32, &[10, 784])?)])?;
//! println!("{:?}", outputs["predictions"].as_slice::<f32>());
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "onnx", feature = "zoo", feature = "cpu")))]
//! # fn main() {}
//! ```
//!
//! [`SessionBuilder::train`] returns a [`Trainer`](train::Trainer) instead. The sections below
//! describe the stages in between, and how to use one of them alone.
//!
//! # Graphs
//!
//! A graph is a list of operators in an order in which every operand comes before its use. Values
//! are tensors whose sizes are formulas of one number, the batch size `N >= 0`
//! ([`Dim`](types::Dim)): a graph is one program for every batch. An operator is a pure function of
//! its operands and its attributes; its [`eval`](op::OpDef::eval) defines that function, and every
//! kernel is tested against it. Positions and sizes are attributes and may be formulas of `N` too,
//! so the type of every value is known before the run.
//!
//! Every operator runs on a device and takes operands that live there; only `copy` moves a value.
//! An operator may belong to a replica, which has its rows of the batch ([`Split`](types::Split)),
//! and is skipped while the replica has no rows.
//!
//! # Splitting
//!
//! [`claims`](analysis::claims) relates every value of the template to what the replicas hold: all
//! of it, or their own rows of one axis. An operator's [split rule](op::OpDef::split) says what
//! follows for its results, and refuses where a replica would need the rows of others; the refusal
//! names the operator, with a stable code.
//!
//! A framework defines operators of its own as types that implement [`CustomOp`](op::CustomOp),
//! with inference, a split rule, a kernel and a gradient. [`External`](op::External) is an operator
//! that is only declared: its types, an assumption about the rows of the batch, and a callback.
//!
//! # Training
//!
//! [`train::data`] prepares batches in the background from mapped arrays, tables, decoded and
//! augmented images, or a custom [`Source`](train::data::Source). The content of a batch depends
//! only on the data, the seed and its position.
//!
//! # The stages
//!
//! ```
//! # #[cfg(feature = "cpu")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use fanwise::backend::{Backend, Cpu, RunOptions};
//! use fanwise::types::{Device, Tensor};
//! use fanwise::{ir, lower, op, pass};
//!
//! // A model: one dense layer. `model::load` and `zoo::build` give the same pair.
//! let mut b = ir::Builder::new("dense");
//! let x = b.input("x", "f32[N,2]".parse()?);
//! let w = b.param("w", Tensor::new(&[2, 1], &[1.0f32, 10.0])?);
//! let y = b.op("y", op::MatMul {}, &[x, w])?;
//! let y = b.op("z", op::Unary::Relu, &[y])?;
//! b.output("z", y);
//! let (template, weights) = b.finish();
//!
//! // The rewritten graph: two replicas, the last takes the remainder.
//! let repaired = pass::repair(&template, pass::Repair::Local)?;
//! let options = pass::Replicate::over(vec![Device::gpu(0), Device::gpu(1)]);
//! let graph = repaired.replicate(&options)?;
//! println!("{graph}");
//!
//! // It is well-formed, and computes what the template does.
//! let proven = repaired.prove(ir::verify(&graph)?)?;
//!
//! // The program, on two virtual devices.
//! let cpu = Cpu::new(2)?;
//! let program = lower::lower(&proven, cpu.kernels())?;
//! let executable = cpu.compile(program, &weights)?;
//! let batch = Tensor::new(&[3, 2], &[1.0f32, 2.0, 3.0, 4.0, -5.0, 0.0])?;
//! let run = executable.run(&[("x".to_owned(), batch)].into(), &RunOptions::default())?;
//! assert_eq!(run.outputs[0].1.as_slice::<f32>(), [21.0, 43.0, 0.0]);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "cpu"))]
//! # fn main() {}
//! ```

#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, unused_imports, reason = "the command line uses more than the interface has")
)]

pub mod analysis;
#[cfg(feature = "lower")]
pub mod backend;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cuda")]
mod codegen;
mod error;
#[cfg(feature = "onnx")]
pub mod format;
#[doc(hidden)]
pub mod internal;
pub mod ir;
#[cfg(feature = "lower")]
pub mod lower;
#[cfg(feature = "onnx")]
pub mod model;
pub mod op;
pub mod pass;
#[cfg(feature = "cpu")]
mod session;
#[cfg(feature = "train")]
pub mod train;
pub mod types;
#[cfg(feature = "zoo")]
pub mod zoo;

pub use error::Error;
#[cfg(feature = "cpu")]
pub use session::{Outputs, Session, SessionBuilder};

/// Pages whose code is compiled and run.
#[cfg(all(doctest, feature = "cli"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/embedding.md")]
    struct Embedding;
}

#[cfg(test)]
use support::snap;
