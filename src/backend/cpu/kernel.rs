//! Which code runs a launch.

use smallvec::SmallVec;

use super::conv::{ConvPlan, conv};
use super::elementwise::{self, Epilogue};
use crate::lower::{BoundDevice, BufferId, Chain, Launch};
use crate::op::Op;
use crate::types::{Dim, KernelClass};

/// The code of one launch at one batch size.
#[derive(Clone, Debug)]
pub(super) enum Kernel {
    /// The reference evaluation, with the batch size in the attributes.
    Reference(Op),
    /// A chain alone.
    Chain,
    /// Convolution.
    Conv(Box<ConvPlan>),
}

/// The `f32` operands of a kernel and its result.
pub(super) struct Slices<'a> {
    /// The operands of the operator, or the one that a chain is applied to; `None` where the result has its place.
    pub(super) operands: SmallVec<[Option<&'a [f32]>; 4]>,
    /// The operands of the chain.
    pub(super) others: SmallVec<[&'a [f32]; 4]>,
    pub(super) result: &'a mut [f32],
}

/// Operands that do not suit a kernel: a fault of whoever lowered or prepared the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unsuited;

impl Kernel {
    /// The code of a launch of a device; an operator that its kernel does not take is evaluated by reference.
    pub(super) fn new(launch: &Launch, bound: &BoundDevice, n: i64) -> Self {
        let Some(op) = &launch.op else { return Self::Chain };
        let dims = |b: &BufferId| bound.locations[b.index()].dims.as_slice();
        let sizes: SmallVec<[&[usize]; 4]> = launch.operands.iter().map(dims).collect();
        let mut op = op.clone();
        op.at_rows(&Dim::from(n));
        if launch.class == KernelClass::Reference {
            return Self::Reference(op);
        }
        let fast = match (&op, sizes.as_slice()) {
            (Op::Conv(op), [x, w, ..]) => {
                ConvPlan::new(op, x, w).ok().map(|plan| Self::Conv(Box::new(plan)))
            }
            _ => None,
        };
        fast.unwrap_or(Self::Reference(op))
    }

    /// Computes the result, with the chain applied to it.
    pub(super) fn run(&self, chain: &Chain, slices: Slices<'_>) -> Result<(), Unsuited> {
        let Slices { operands, others, result } = slices;
        let chain = Epilogue::new(chain, &others).ok_or(Unsuited)?;
        match (self, operands.as_slice()) {
            (Self::Chain, [None]) => elementwise::in_place(result, &chain),
            (Self::Chain, [Some(x)]) => elementwise::map(x, result, &chain),
            (Self::Conv(plan), [Some(x), Some(w)]) => conv(plan, x, w, None, result, &chain),
            (Self::Conv(plan), [Some(x), Some(w), Some(bias)]) => {
                conv(plan, x, w, Some(bias), result, &chain);
            }
            _ => return Err(Unsuited),
        }
        Ok(())
    }
}
