//! What a target can do, as plain data.

use std::fmt;

use super::Device;

/// The class of code that computes an operator; one kernel, with its variants, on each target that
/// has it.
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
    /// Elements picked or placed by numbers that other elements give, or by their own place.
    Index,
    /// Lines of numbers ranked, searched, scanned or summed.
    Line,
    /// Bytes unchanged under another shape.
    View,
    /// From one device's memory to another's.
    Copy,
    /// The same elements in another order in memory.
    Reorder,
    /// A cell applied step by step to sequences.
    Recurrent,
    /// Draws that a seed decides.
    Random,
    /// The first of two launches that compute an operator: what it writes only the second one
    /// reads.
    Partial,
    /// What only training has: normalisation by statistics of the batch, gradients of kernels,
    /// windows and statistics.
    Training,
    /// Chains that give parameters their new elements, each of which meets others of them at its
    /// own place alone: a device runs them together.
    Update,
    /// The combination of what replicas have, in their order; of all types but half-precision
    /// floats.
    Collective,
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
            Self::Index => "index",
            Self::Line => "line",
            Self::View => "view",
            Self::Copy => "copy",
            Self::Reorder => "reorder",
            Self::Recurrent => "recurrent",
            Self::Random => "random",
            Self::Partial => "partial",
            Self::Training => "training",
            Self::Update => "update",
            Self::Collective => "collective",
            Self::Reference => "reference",
        }
    }
}

impl fmt::Display for KernelClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The sizes up to which a target's kernels go; an operator beyond one of them is evaluated by
/// reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Values that are joined, or into which one is cut.
    pub parts: usize,
    /// Places of resized axes, counted once for each element that meets there.
    pub places: usize,
    /// Elements of a sample and of the kernel of a convolution, and positions along its axes with
    /// their padding; less.
    pub positions: usize,
    /// Elements of a channel of a pool, and positions along its axes.
    pub windows: usize,
    /// Entries of a line that is put in order.
    pub ranked: i64,
    /// Segments whose rows are summed.
    pub segments: i64,
    /// Elements that are written in the graph, or follow from the batch size.
    pub written: usize,
}

impl Limits {
    /// Every size is within.
    pub const NONE: Self = Self {
        parts: usize::MAX,
        places: usize::MAX,
        positions: usize::MAX,
        windows: usize::MAX,
        ranked: i64::MAX,
        segments: i64::MAX,
        written: usize::MAX,
    };
}

/// A target's capability table: what lowering may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name, as in `--target`.
    pub name: &'static str,
    /// The kernel classes it has. An operator of another class runs by reference evaluation: on its
    /// device where the list has [`KernelClass::Reference`], otherwise on the host, which then
    /// works by [`Target::CPU`].
    pub kernels: &'static [KernelClass],
    /// The kernel classes that take elements of every type; others but those of `numbers` take
    /// `f32`. Where there is [`KernelClass::Partial`], reductions and draws take `f64` too, and
    /// recurrent cells lengths.
    pub any_type: &'static [KernelClass],
    /// The kernel classes that take integers, `f32` and `f64`.
    pub numbers: &'static [KernelClass],
    /// How large what its kernels take may be.
    pub limits: Limits,
    /// The kernel classes that can end in a chain of elementwise operators.
    pub epilogues: &'static [KernelClass],
    /// The kernel classes whose result may take the place of the first operand, where that has as
    /// many bytes.
    pub in_place: &'static [KernelClass],
    /// Bytes to which every planned buffer is aligned, a power of two.
    pub alignment: u32,
    /// Whether a device keeps the parameters that it takes from another one, so that no run copies
    /// them.
    pub keeps_params: bool,
    /// Whether programs may have variables, parameters that a run changes.
    pub updates: bool,
    /// The kernel classes that take and give images with the channels last in memory: convolutions,
    /// pools and what only training has always; reductions over all places, concatenations, borders
    /// and slices where their operands come so. What is elementwise follows its first operand, a
    /// broadcast one that has the shape of its result; the others, and every target without such
    /// classes, know row-major order only.
    pub channels_last: &'static [KernelClass],
}

/// The order in which a buffer's elements lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// The last axis varies fastest.
    #[default]
    RowMajor,
    /// Axis 1, the channels, varies fastest; then the last axis, and so on to axis 2, then axis 0.
    /// Of a weight `[out, in, ...]` axis 1 is the input channel. A tensor with one channel, or with
    /// one element for each channel, has the same bytes in both orders and counts as row-major.
    ChannelsLast,
}

/// The classes that every backend has kernels for, and others.
macro_rules! classes {
    ($($own:ident),*) => {
        &[
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
            $(KernelClass::$own),*
        ]
    };
}

/// The classes whose kernels end in chains, on every backend.
const EPILOGUES: &[KernelClass] =
    &[KernelClass::Elementwise, KernelClass::Conv, KernelClass::MatMul];

impl Target {
    /// The CPU backend: N virtual devices on the host.
    pub const CPU: Self = Self {
        name: "cpu",
        kernels: classes!(Training, Reference),
        any_type: &[],
        numbers: &[],
        limits: Limits::NONE,
        epilogues: EPILOGUES,
        in_place: &[KernelClass::Elementwise],
        alignment: 64,
        keeps_params: false,
        updates: true,
        channels_last: &[],
    };

    /// The CUDA backend: kernels compiled at run time. Operators of other classes run on the host.
    pub const CUDA: Self = Self {
        name: "cuda",
        kernels: classes!(Index, Line, Reorder, Random, Partial, Training, Update, Collective),
        any_type: &[
            KernelClass::Elementwise,
            KernelClass::Broadcast,
            KernelClass::BatchNorm,
            KernelClass::Move,
            KernelClass::Index,
            KernelClass::Line,
        ],
        numbers: &[KernelClass::Collective],
        limits: Limits {
            parts: 160,
            places: 1 << 16,
            positions: i32::MAX as usize,
            windows: (i32::MAX / 8) as usize,
            ranked: 1 << 13,
            segments: 1 << 10,
            written: 16,
        },
        epilogues: EPILOGUES,
        in_place: &[KernelClass::Elementwise, KernelClass::Update],
        alignment: 256,
        keeps_params: true,
        updates: true,
        channels_last: &[
            KernelClass::Conv,
            KernelClass::Pool,
            KernelClass::Reduce,
            KernelClass::Move,
            KernelClass::Training,
        ],
    };

    /// The table for what runs on a device: the host of a target that has no reference evaluation
    /// is a CPU.
    pub fn on(&self, device: Device) -> &Self {
        let is_host = device == Device::HOST && !self.has(KernelClass::Reference);
        if is_host { &Self::CPU } else { self }
    }

    /// True if the target computes this class by a kernel of its own.
    pub fn has(&self, class: KernelClass) -> bool {
        self.kernels.contains(&class)
    }
}
