//! Kernels and their calls: the specialisation of a file, and the grid and arguments of a launch.

use std::sync::Arc;

use crate::lower::BufferId;
use crate::types::Dim;
use crate::types::invariant::invariant;

/// A specialisation of a kernel file for one or more launches.
///
/// It depends on element types, attributes, chains and constant sizes, never on the batch size: all
/// batch sizes share it, and so do replicas with different numbers of rows. Equal kernels are
/// compiled once.
///
/// Elsewhere: `gpu.func` (MLIR).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel {
    /// The file in `kernels/`, as `conv.cu`.
    pub file: &'static str,
    /// The macros that specialise the file and their replacements, in order, without `ENTRY` and
    /// the macros of [`Kernel::params`].
    pub defines: Vec<(String, String)>,
    /// The text of `expression.cuh`, which files with a fused epilogue include.
    pub expression: String,
    /// The members of the struct that is the kernel's only argument, in order.
    pub params: Vec<ParamDecl>,
    /// Threads of a block along x; along y and z there is 1.
    pub threads: u32,
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// The kernels that it runs side by side; `file` only chooses among them.
    pub parts: Vec<Arc<Kernel>>,
}

impl Kernel {
    /// The position of the first of the parts that equals the part `k`: equal ones are one
    /// function.
    pub(super) fn part(&self, k: usize) -> usize {
        let first = self.parts.iter().position(|part| *part == self.parts[k]);
        invariant(first, "that a part equals itself")
    }
}

/// A member of a kernel's argument. Each takes eight bytes, so a struct of them has no padding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ParamDecl {
    /// A pointer to elements that are read; the name and the CUDA element type, as `float`.
    Read(String, &'static str),
    /// A pointer to elements that are written.
    Write(String, &'static str),
    /// A `long long` that follows from the batch size; the text refers to it like a constant size.
    Size(String),
}

/// A call of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// The blocks along x, y and z as functions of the batch size. A call with 0 blocks along an
    /// axis is skipped.
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
    /// The address of the device's word that reports invalid elements; see `report.cuh`.
    Report,
    /// A nonzero number that is larger for earlier steps of the device's program: an `atomicMax` on
    /// the report word keeps the first error.
    Step,
}
