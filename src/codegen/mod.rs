//! From the launches of a program to the text of CUDA kernels. Pure text and numbers; no driver
//! call.
//!
//! A file in `kernels/` computes one class of operators. A [`Kernel`] says what it is specialised
//! to, a [`Call`] how a launch calls it: the grid and the arguments as functions of the batch size.
//! Kernels never depend on the batch, so what they compute for a row has the same bits for every
//! batch and every number of replicas.

mod builder;
mod context;
mod cuda_op;
mod error;
mod expression;
mod function;
mod kernel;
mod kernels;
mod key;
mod lines;
mod program;
pub mod source;
mod strides;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod tile;
mod unit;
mod windows;

pub use error::CodegenError;
pub use kernel::{Arg, Call, Kernel, ParamDecl};
pub use kernels::{CudaKernels, calls};
pub use key::{Arch, ArchError, Form, Key, key, options};
pub use program::kernels;
pub use unit::{Entry, Unit, entry_name, units};
