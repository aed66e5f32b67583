//! Targets as plain data.

use std::fmt;

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
    /// Data movement by position: transpose, slice, pad, concat, expand, gather.
    Move,
    /// Elements picked or placed by numbers that other elements give, or by their own place.
    Index,
    /// Lines of numbers ranked, searched, scanned or summed.
    Line,
    /// The same elements in another order in memory.
    Reorder,
    /// A cell applied step by step to sequences.
    Recurrent,
    /// Draws that a seed decides.
    Random,
    /// The first of two launches that compute an operator: what it writes only the second one
    /// reads.
    Partial,
    /// Operators of training only: normalisation by statistics of the batch, gradients of kernels,
    /// windows and statistics.
    Training,
    /// Chains that give parameters their new elements, each of which meets others of them at its
    /// own place alone: a device runs them together.
    Update,
    /// The combination of what replicas have, in their order.
    Collective,
    /// A kernel that only the backend knows: one of another crate, which asks the launch for its
    /// operator.
    Own,
    /// The reference evaluation of the operator.
    Reference,
}

impl KernelClass {
    /// The name used in programs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Elementwise => "elementwise",
            Self::Broadcast => "broadcast",
            Self::Conv => "conv",
            Self::MatMul => "matmul",
            Self::Pool => "pool",
            Self::Reduce => "reduce",
            Self::Norm => "norm",
            Self::Softmax => "softmax",
            Self::Move => "move",
            Self::Index => "index",
            Self::Line => "line",
            Self::Reorder => "reorder",
            Self::Recurrent => "recurrent",
            Self::Random => "random",
            Self::Partial => "partial",
            Self::Training => "training",
            Self::Update => "update",
            Self::Collective => "collective",
            Self::Own => "own",
            Self::Reference => "reference",
        }
    }
}

impl fmt::Display for KernelClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A target, as plain data: what its devices are, whatever its kernels can do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "facts that do not depend on one another")]
pub struct Target {
    /// Its name, as in `--target`.
    pub name: &'static str,
    /// Bytes to which every planned buffer is aligned, a power of two.
    pub alignment: u32,
    /// Whether a device keeps the parameters that it takes from another one, so that no run copies
    /// them.
    pub keeps_params: bool,
    /// Whether programs may have variables, parameters that a run changes.
    pub updates: bool,
    /// Whether a device runs launches together: the chains that give parameters their new elements,
    /// and small launches that do not depend on one another.
    pub together: bool,
    /// Whether devices themselves combine what replicas have; otherwise the host does.
    pub collectives: bool,
    /// Whether images may lie with the channels last in memory. Otherwise all values but
    /// parameters are row-major.
    pub channels_last: bool,
    /// Whether they may in programs that train, too, and with other elements than `f32`.
    pub any_channels_last: bool,
}

/// The order of a buffer: how its elements lie in memory.
///
/// Elsewhere: layout (XLA, MLIR); memory format (PyTorch); data format (Keras).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// The last axis varies fastest.
    #[default]
    RowMajor,
    /// Axis 1, the channels, varies fastest; then the last axis, and so on to axis 2, then axis 0.
    /// Of a weight `[out, in, ...]` axis 1 is the input channel. A tensor with one channel, or with
    /// one element for each channel, has the same bytes in both orders and counts as row-major.
    ChannelsLast,
    /// A matrix in panels of 64 rows, and a last one of what is left: of a panel the elements of
    /// the first column, then of the second. Of a weight `[out, in, ...]` the columns are those
    /// that its rows have with the channels last.
    RowPanels,
    /// Weights `[directions, gates, terms]` of a recurrent cell in panels of 64 gates, of which
    /// each direction has whole ones: of a panel the elements for the first term, then for the
    /// second.
    GatePanels,
    /// Of `[rows, heads, tokens, size]` the heads of a token lie one behind the other: the axes 1
    /// and 2 are exchanged.
    Heads,
}

impl Order {
    /// The rows of a panel.
    pub(crate) const PANEL: usize = 64;

    /// The name in the text of programs; row-major has none.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::RowMajor => None,
            Self::ChannelsLast => Some("channels_last"),
            Self::RowPanels => Some("row_panels"),
            Self::GatePanels => Some("gate_panels"),
            Self::Heads => Some("heads"),
        }
    }
}
