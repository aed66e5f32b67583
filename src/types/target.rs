//! What a target can do, as plain data.

use std::fmt;

/// The class of code that computes an operator; one kernel, with its variants, on each target that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum KernelClass {
    /// One output element from the elements at the same (broadcast) place.
    Elementwise,
    /// An elementwise operator whose operands meet in a way that no chain takes.
    Broadcast,
    /// Convolution of all channels of a group.
    Conv,
    /// Matrix product.
    MatMul,
    /// Window maximum or average.
    Pool,
    /// Reduction over axes.
    Reduce,
    /// Normalisation of samples by statistics of their own.
    Norm,
    /// Softmax and its kin along an axis.
    Softmax,
    /// Scale and shift by given statistics.
    BatchNorm,
    /// Data movement by position: transpose, slice, pad, concat, expand, gather.
    Move,
    /// Bytes unchanged under another shape.
    View,
    /// From one device's memory to another's.
    Copy,
    /// A cell applied step by step to sequences.
    Recurrent,
    /// The reference evaluation of the operator.
    Reference,
}

impl KernelClass {
    /// The name used in programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Elementwise => "elementwise",
            Self::Broadcast => "broadcast",
            Self::Conv => "conv",
            Self::MatMul => "matmul",
            Self::Pool => "pool",
            Self::Reduce => "reduce",
            Self::Norm => "norm",
            Self::Softmax => "softmax",
            Self::BatchNorm => "batch_norm",
            Self::Move => "move",
            Self::View => "view",
            Self::Copy => "copy",
            Self::Recurrent => "recurrent",
            Self::Reference => "reference",
        }
    }
}

impl fmt::Display for KernelClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A target's capability table: what lowering may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name, as in `--target`.
    pub name: &'static str,
    /// The kernel classes it has; an operator of another class runs by reference evaluation.
    pub kernels: &'static [KernelClass],
    /// The kernel classes that can end in a chain of elementwise operators.
    pub epilogues: &'static [KernelClass],
    /// The kernel classes whose result may take the place of the first operand, where that has as many bytes.
    pub in_place: &'static [KernelClass],
    /// Bytes to which every planned buffer is aligned, a power of two.
    pub alignment: u32,
    /// The kernel classes that take and give images with the channels last in memory; the others, and every target
    /// without such classes, know row-major order only.
    pub channels_last: &'static [KernelClass],
}

/// The order in which a buffer's elements lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// The last axis varies fastest.
    #[default]
    RowMajor,
    /// Axis 1, the channels, varies fastest; then the last axis, and so on to axis 2, then axis 0. Of a weight
    /// `[out, in, ...]` axis 1 is the input channel.
    ChannelsLast,
}

impl Target {
    /// The CPU backend: N virtual devices on the host.
    pub const CPU: Self = Self {
        name: "cpu",
        kernels: &[
            KernelClass::Elementwise,
            KernelClass::Broadcast,
            KernelClass::Conv,
            KernelClass::MatMul,
            KernelClass::Pool,
            KernelClass::Reduce,
            KernelClass::Softmax,
            KernelClass::Norm,
            KernelClass::BatchNorm,
            KernelClass::Move,
            KernelClass::View,
            KernelClass::Copy,
            KernelClass::Recurrent,
            KernelClass::Reference,
        ],
        epilogues: &[KernelClass::Elementwise, KernelClass::Conv, KernelClass::MatMul],
        in_place: &[KernelClass::Elementwise],
        alignment: 64,
        channels_last: &[],
    };

    /// The CUDA backend: kernels compiled at run time. Operators of other classes run on the host.
    pub const CUDA: Self = Self {
        name: "cuda",
        kernels: &[
            KernelClass::Elementwise,
            KernelClass::Broadcast,
            KernelClass::Conv,
            KernelClass::MatMul,
            KernelClass::Pool,
            KernelClass::Reduce,
            KernelClass::Softmax,
            KernelClass::Norm,
            KernelClass::BatchNorm,
            KernelClass::Move,
            KernelClass::View,
            KernelClass::Copy,
        ],
        epilogues: &[KernelClass::Elementwise, KernelClass::Conv, KernelClass::MatMul],
        in_place: &[KernelClass::Elementwise],
        alignment: 256,
        channels_last: &[KernelClass::Conv, KernelClass::Pool],
    };

    /// True if the target computes this class by a kernel of its own.
    pub fn has(&self, class: KernelClass) -> bool {
        self.kernels.contains(&class)
    }
}
