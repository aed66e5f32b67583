//! Which code runs a launch.

use smallvec::SmallVec;

use super::batch_norm::{
    ChannelSizes, Differentiated, Normalised, batch_norm_grad, batch_norm_train,
};
use super::conv::{ConvPlan, conv};
use super::conv_transpose::{SpreadPlan, conv_transpose};
use super::conv_weights::{ConvWeightsPlan, conv_weights};
use super::elementwise::{self, Epilogue};
use super::matmul::{View, gemm, matmul};
use super::moves::{JoinPlan, PadPlan, join, pad};
use super::pool::{PoolPlan, pool};
use super::pool_grad::{PoolGradPlan, pool_grad};
use super::recurrent::{RecurrentPlan, recurrent};
use super::resize::{ResizePlan, resize};
use super::rows::{
    GroupNormPlan, LayerNormPlan, ReducePlan, SoftmaxPlan, group_norm, layer_norm, reduce, softmax,
};
use super::strides::{BroadcastPlan, StridedPlan, broadcast, strided};
use crate::backend::host::{Code, Slices, Unsuited};
use crate::lower::{Action, BoundDevice, BufferId, Chain, DeviceProgram, Launch, Step};
use crate::op::{BatchNormGrad, BatchNormTrain, Gemm, Op};
use crate::types::invariant::invariant;
use crate::types::{Dim, KernelClass};

/// The code of one launch at one batch size.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// The reference evaluation, with the batch size in the attributes.
    Reference(Op),
    /// A chain alone.
    Chain,
    /// Convolution.
    Conv(Box<ConvPlan>),
    /// Transposed convolution.
    ConvTranspose(Box<SpreadPlan>),
    /// The gradient of a convolution's kernel.
    ConvWeights(Box<ConvWeightsPlan>),
    /// The gradient of pooling.
    PoolGrad(Box<PoolGradPlan>),
    /// Normalisation by statistics of the batch.
    BatchNormTrain(BatchNormTrain, ChannelSizes),
    /// Its gradients.
    BatchNormGrad(BatchNormGrad, ChannelSizes),
    /// Product of matrices with an addend; the sizes of its operands.
    Gemm(Gemm, Sizes),
    /// Product of stacks of matrices; the sizes of its operands.
    MatMul(Sizes),
    /// Pooling.
    Pool(Box<PoolPlan>),
    /// Resizing.
    Resize(Box<ResizePlan>),
    /// Concatenation.
    Join(JoinPlan),
    /// Padding.
    Pad(PadPlan),
    /// Softmax and its kin.
    Softmax(SoftmaxPlan),
    /// Normalisation over last axes.
    LayerNorm(LayerNormPlan),
    /// Normalisation of channels.
    GroupNorm(GroupNormPlan),
    /// Reduction.
    Reduce(ReducePlan),
    /// Elements at other places.
    Strided(StridedPlan),
    /// An operator of two operands that broadcast.
    Broadcast(BroadcastPlan),
    /// A recurrent cell.
    Recurrent(Box<RecurrentPlan>),
}

/// The sizes of the axes of each operand.
type Sizes = SmallVec<[SmallVec<[usize; 4]>; 3]>;

/// For each step of a device its kernel; `None` where the step launches none or has nothing to
/// compute.
#[derive(Debug)]
pub(crate) struct Kernels(Vec<Option<Kernel>>);

impl Kernels {
    /// The kernels of a device at a batch of `n` rows.
    pub(crate) fn new(device: &DeviceProgram, bound: &BoundDevice, n: i64) -> Self {
        let kernel = |(step, active): (&Step, &bool)| {
            let Action::Launch(launch) = &step.action else { return None };
            let empty = |b: &BufferId| bound.locations[b.index()].bytes == 0;
            let idle = !active || launch.results.iter().all(empty);
            (!idle).then(|| Kernel::new(launch, bound, n))
        };
        Self(device.steps.iter().zip(&bound.active).map(kernel).collect())
    }

    /// The kernel of the step at a position.
    pub(crate) fn of(&self, step: usize) -> Option<&Kernel> {
        self.0.get(step)?.as_ref()
    }
}

impl Kernel {
    /// The code of a launch of a device; an operator that its kernel does not take is evaluated by
    /// reference.
    pub(super) fn new(launch: &Launch, bound: &BoundDevice, n: i64) -> Self {
        let Some(op) = &launch.op else { return Self::Chain };
        let dims = |b: &BufferId| bound.locations[b.index()].dims.clone();
        let sizes: Sizes = launch.split_operands().0.iter().map(dims).collect();
        let is_empty = sizes.iter().flatten().any(|d| *d == 0);
        let mut op = op.clone();
        op.at_rows(&Dim::from(n));
        let fast = match (&op, sizes.as_slice()) {
            _ if launch.class == KernelClass::Reference || is_empty => None,
            (Op::Conv(op), [x, w, ..]) => {
                ConvPlan::new(op, x, w).ok().map(|plan| Self::Conv(Box::new(plan)))
            }
            (Op::ConvTranspose(op), [x, w, ..]) => {
                SpreadPlan::new(op, x, w).ok().map(|plan| Self::ConvTranspose(Box::new(plan)))
            }
            (Op::Gemm(op), _) => Some(Self::Gemm(op.clone(), sizes)),
            (Op::MatMul(_), _) => Some(Self::MatMul(sizes)),
            (Op::Pool(op), [x]) => {
                PoolPlan::new(op, x).ok().flatten().map(|plan| Self::Pool(Box::new(plan)))
            }
            (Op::Resize(op), [x]) => {
                ResizePlan::new(op, x).map(|plan| Self::Resize(Box::new(plan)))
            }
            (Op::Concat(_) | Op::AllGather(_), _) => {
                let plan = |op| JoinPlan::new(&op, sizes.iter().map(SmallVec::as_slice));
                op.joined().and_then(plan).map(Self::Join)
            }
            (Op::Pad(op), [x]) => PadPlan::new(op, x).map(Self::Pad),
            (Op::Recurrent(op), [x, _, r, ..]) => {
                RecurrentPlan::new(op, x, r).map(|plan| Self::Recurrent(Box::new(plan)))
            }
            _ if launch.class == KernelClass::Training => {
                let result = launch.results.first().map(dims);
                let result = invariant(result, "that a launch has a result");
                Self::of_training(&op, &sizes, &result)
            }
            _ => Self::by_rows(&op, &sizes, launch, bound),
        };
        fast.unwrap_or(Self::Reference(op))
    }

    /// The kernels of what only training has.
    fn of_training(op: &Op, sizes: &Sizes, result: &[usize]) -> Option<Self> {
        match (op, sizes.as_slice()) {
            (Op::ConvWeightGrad(op), [x, dy]) => {
                ConvWeightsPlan::new(op, x, dy).ok().map(|plan| Self::ConvWeights(Box::new(plan)))
            }
            (Op::PoolGrad(op), _) => {
                let plan = PoolGradPlan::new(op, result.get(2..)?);
                plan.ok().flatten().map(|plan| Self::PoolGrad(Box::new(plan)))
            }
            (Op::BatchNormTrain(op), [x, ..]) => {
                ChannelSizes::new(x).map(|sizes| Self::BatchNormTrain(op.clone(), sizes))
            }
            (Op::BatchNormGrad(op), [x, ..]) => {
                ChannelSizes::new(x).map(|sizes| Self::BatchNormGrad(op.clone(), sizes))
            }
            _ => None,
        }
    }

    /// The kernels that take rows or elements one by one.
    fn by_rows(op: &Op, sizes: &Sizes, launch: &Launch, bound: &BoundDevice) -> Option<Self> {
        let [result] = launch.results.as_slice() else { return None };
        let result = &bound.locations[result.index()].dims;
        match (op, sizes.as_slice()) {
            (Op::Softmax(op), [x]) => SoftmaxPlan::new(op, x).map(Self::Softmax),
            (Op::LayerNorm(op), [x, ..]) => LayerNormPlan::new(op, x).map(Self::LayerNorm),
            (Op::GroupNorm(op), [x, ..]) => GroupNormPlan::new(op, x).map(Self::GroupNorm),
            (Op::Reduce(op), [x]) => ReducePlan::new(op, x).map(Self::Reduce),
            (Op::Binary(op), [a, b]) => Some(Self::Broadcast(BroadcastPlan::new(op, a, b))),
            (_, [x]) => StridedPlan::new(op, x, result).map(Self::Strided),
            _ => None,
        }
    }

    /// Computes the results of a kernel that may have more than one; false if it is none.
    fn several(
        &self,
        operands: &[Option<&[f32]>],
        results: &mut [&mut [f32]],
    ) -> Result<bool, Unsuited> {
        match (self, operands, results) {
            (Self::Recurrent(plan), operands, results) => {
                let operands: Option<SmallVec<[&[f32]; 8]>> = operands.iter().copied().collect();
                recurrent(plan, &operands.ok_or(Unsuited)?, results);
            }
            (
                Self::BatchNormTrain(op, sizes),
                [Some(x), Some(scale), Some(bias), Some(mean), Some(var)],
                [y, means, vars],
            ) => {
                let operands = Normalised { x, scale, bias, mean, var };
                batch_norm_train(op, *sizes, operands, [y, means, vars]);
            }
            (
                Self::BatchNormGrad(op, sizes),
                [Some(x), Some(scale), Some(dy)],
                [dx, dscale, dbias],
            ) => {
                let operands = Differentiated { x, scale, dy };
                batch_norm_grad(op, *sizes, operands, [dx, dscale, dbias]);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Computes the result of a kernel without a chain.
    fn rows(&self, operands: &[Option<&[f32]>], result: &mut [f32]) -> Result<(), Unsuited> {
        match (self, operands) {
            (Self::Softmax(plan), [Some(x)]) => softmax(plan, x, result),
            (Self::LayerNorm(plan), [Some(x)]) => layer_norm(plan, x, &[], &[], result),
            (Self::LayerNorm(plan), [Some(x), Some(s)]) => layer_norm(plan, x, s, &[], result),
            (Self::LayerNorm(plan), [Some(x), Some(s), Some(t)]) => {
                layer_norm(plan, x, s, t, result);
            }
            (Self::GroupNorm(plan), [Some(x), Some(s), Some(t)]) => {
                group_norm(plan, x, s, t, result);
            }
            (Self::Reduce(plan), [Some(x)]) => reduce(plan, x, result),
            (Self::Resize(plan), [Some(x)]) => resize(plan, x, result),
            (Self::Strided(plan), [Some(x)]) => strided(plan, x, result),
            (Self::ConvWeights(plan), [Some(x), Some(dy)]) => conv_weights(plan, x, dy, result),
            (Self::PoolGrad(plan), [Some(dy)]) => pool_grad(plan, &[], dy, result),
            (Self::PoolGrad(plan), [Some(x), Some(dy)]) => pool_grad(plan, x, dy, result),
            (Self::Broadcast(plan), [Some(a), Some(b)]) => broadcast(plan, a, b, result),
            _ => return Err(Unsuited),
        }
        Ok(())
    }
}

impl Code for Kernel {
    fn reference(&self) -> Option<&Op> {
        if let Self::Reference(op) = self { Some(op) } else { None }
    }

    fn run(&self, chain: &Chain, slices: Slices<'_>) -> Result<(), Unsuited> {
        let Slices { operands, others, mut results } = slices;
        let chain = Epilogue::new(chain, &others).ok_or(Unsuited)?;
        if chain.is_empty() && self.several(&operands, &mut results)? {
            return Ok(());
        }
        let [result] = results.as_mut_slice() else { return Err(Unsuited) };
        match (self, operands.as_slice()) {
            (Self::Chain, [None]) => elementwise::in_place(result, &chain),
            (Self::Chain, [Some(x)]) => elementwise::map(x, result, &chain),
            (Self::Conv(plan), [Some(x), Some(w)]) => conv(plan, x, w, None, result, &chain),
            (Self::Conv(plan), [Some(x), Some(w), Some(bias)]) => {
                conv(plan, x, w, Some(bias), result, &chain);
            }
            (Self::ConvTranspose(plan), [Some(x), Some(w), bias @ ..]) => {
                let bias = bias.first().copied().flatten();
                conv_transpose(plan, x, w, bias, result, &chain);
            }
            (Self::Gemm(op, sizes), [Some(a), Some(b), c @ ..]) => {
                let view = |i: usize, data| Ok(View { dims: sizes.get(i).ok_or(Unsuited)?, data });
                let c = c.first().copied().flatten().map(|c| view(2, c)).transpose()?;
                gemm(op, view(0, a)?, view(1, b)?, c, result, &chain);
            }
            (Self::MatMul(sizes), [Some(a), Some(b)]) => {
                let view = |i: usize, data| Ok(View { dims: sizes.get(i).ok_or(Unsuited)?, data });
                matmul(view(0, a)?, view(1, b)?, result, &chain);
            }
            (Self::Pool(plan), [Some(x)]) if chain.is_empty() => pool(plan, x, result),
            (Self::Join(plan), operands) if chain.is_empty() => {
                let operands: Option<SmallVec<[&[f32]; 4]>> = operands.iter().copied().collect();
                join(plan, &operands.ok_or(Unsuited)?, result);
            }
            (Self::Pad(plan), [Some(x)]) if chain.is_empty() => pad(plan, x, result),
            (kernel, operands) if chain.is_empty() => kernel.rows(operands, result)?,
            _ => return Err(Unsuited),
        }
        Ok(())
    }

    fn apply(chain: &Chain, others: &[&[f32]], result: &mut [f32]) -> Result<(), Unsuited> {
        let chain = Epilogue::new(chain, others).ok_or(Unsuited)?;
        elementwise::in_place(result, &chain);
        Ok(())
    }
}
