//! Code generation: from the launches of a program to CUDA source text. Pure text and numbers; no
//! driver call.
//!
//! A file in `kernels/` computes one class of operators. A [`Kernel`] is a specialisation of such a
//! file, a [`Call`] its use by a launch: the grid and the arguments as functions of the batch size.
//! Kernels never depend on the batch size, so the result for a row is bit-identical for every batch
//! and every number of replicas.

mod beside;
mod builder;
mod context;
mod cuda_op;
pub(crate) mod error;
mod expression;
mod float;
mod function;
pub(crate) mod kernel;
pub(crate) mod kernels;
pub(crate) mod key;
mod lines;
pub(crate) mod program;
pub(crate) mod source;
mod strides;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tile;
pub(crate) mod unit;
mod windows;

pub(crate) use error::CodegenError;
pub(crate) use kernel::{Arg, Call, Kernel, ParamDecl};
pub(crate) use kernels::{CudaKernels, calls};
pub(crate) use key::{Arch, CodeFormat, Key, key, options};
pub(crate) use program::kernels;
pub(crate) use unit::{Unit, units};
