//! The interface of an operator's CPU kernels.

use std::fmt::Debug;

use smallvec::SmallVec;

use super::elementwise::Epilogue;
use crate::backend::host::Unsuited;
use crate::lower::{Support, Types};
use crate::op::Op;
use crate::types::{DType, KernelClass, Order};

/// The sizes of the axes of some values.
pub(super) type Dims = SmallVec<[SmallVec<[usize; 4]>; 3]>;

/// The orders in which the elements of some values lie.
pub(super) type Orders = SmallVec<[Order; 3]>;

/// The sizes of a launch at one batch size, and how its operands lie in memory.
#[derive(Clone, Debug)]
pub(super) struct Sizes {
    /// The sizes of the operands, none 0.
    pub(super) operands: Dims,
    /// The orders of the operands.
    pub(super) orders: Orders,
    /// The order of the images among the operands and results.
    pub(super) images: Order,
    /// The sizes of the results.
    pub(super) results: Dims,
    /// The order of the first result.
    pub(super) written: Order,
}

impl Sizes {
    /// The axes of an image, or of an operand of its rank, as they lie in memory: the channels may
    /// be last.
    pub(super) fn in_memory<T: Clone>(&self, axes: &[T]) -> SmallVec<[T; 4]> {
        let mut axes: SmallVec<[T; 4]> = axes.iter().cloned().collect();
        if self.images == Order::ChannelsLast
            && let Some(behind_rows @ [_, ..]) = axes.get_mut(1..)
        {
            behind_rows.rotate_left(1);
        }
        axes
    }

    /// The place of an axis, negative from the end, among as many in the order of memory.
    pub(super) fn axis_in_memory(&self, axis: i64, rank: usize) -> Option<usize> {
        let from_end = usize::try_from(axis.checked_neg()?).ok().filter(|_| axis < 0);
        let axis = match from_end {
            Some(back) => rank.checked_sub(back)?,
            None => usize::try_from(axis).ok()?,
        };
        let moved = self.images == Order::ChannelsLast && axis > 0;
        Some(match axis {
            1 if moved => rank.checked_sub(1)?,
            _ if moved => axis - 1,
            _ => axis,
        })
    }
}

/// The kernel of an operator; implemented beside it.
pub(super) trait CpuOp {
    /// The kernel support for values of these types.
    fn supports(&self, types: &Types<'_>) -> Support;

    /// The kernel for values of these sizes, which the operator admits; where there is none, it is
    /// evaluated by reference.
    fn plan(&self, _at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        None
    }
}

/// A kernel for values of certain sizes.
pub(in crate::backend) trait CpuKernel: Debug + Send + Sync {
    /// Computes the results, and applies the chain.
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited>;

    /// The operator, for operands that the kernel does not take: it says what is wrong with them.
    fn reference(&self) -> Option<&Op> {
        None
    }

    /// True if it applies chains that are not empty.
    fn ends_in_chain(&self) -> bool {
        false
    }
}

/// A kernel of this class, where all values are `f32`.
pub(super) fn of_f32(class: KernelClass, types: &Types<'_>) -> Support {
    Support::by(class).when(types.are(DType::F32))
}

/// The same, and it can end in a chain.
pub(super) fn ending_in_chain(support: Support) -> Support {
    Support { ends_in_chain: support.kernel.is_some(), ..support }
}
