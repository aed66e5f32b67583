//! What a kernel's text depends on, and how a launch calls it.

use std::sync::Arc;

use crate::lower::BufferId;
use crate::types::Dim;

/// A kernel file specialised to what one or more launches compute.
///
/// It depends on element types, attributes, chains and the sizes that do not follow from the batch,
/// never on the batch: replicas of different rows share it, and so do all batch sizes. Two equal
/// kernels are one.
///
/// Elsewhere: `gpu.func` (MLIR).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel {
    /// The file in `kernels/`, as `conv.cu`.
    pub file: &'static str,
    /// What the file is specialised by: names and the text they stand for, in this order, without
    /// `ENTRY` and what is said of [`Kernel::params`].
    pub defines: Vec<(String, String)>,
    /// The text of `expression.cuh`, which files that end in a chain include.
    pub expression: String,
    /// The members of the struct that is the kernel's only argument, in order.
    pub params: Vec<ParamDecl>,
    /// Threads of a block along x; y and z are 1.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
}

/// A member of a kernel's argument. Each takes eight bytes, so a struct of them has no padding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParamDecl {
    /// A pointer to elements that are read; the name and the CUDA element type, as `float`.
    Read(String, &'static str),
    /// A pointer to elements that are written.
    Write(String, &'static str),
    /// A `long long` that follows from the batch size; the text names it as it names a size known
    /// beforehand.
    Size(String),
}

/// A call of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// The blocks along x, y and z as functions of the batch size. A call with none along an axis
    /// does nothing.
    pub grid: [Dim; 3],
    /// The values of [`Kernel::params`], in order.
    pub args: Vec<Arg>,
}

/// The value of a member of a kernel's argument.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// The address of a buffer of the device.
    Buffer(BufferId),
    /// A size.
    Size(Dim),
    /// The address of the device's word for elements that name no entry; see `report.cuh`.
    Report,
    /// A number that is larger for earlier steps of the device's program, and not 0.
    Step,
}
