//! The CUDA kernels of operators: what each supports, its limits, and its call.
//!
//! A file here has the name of a file in `kernels/`, and a line in the registry for each operator
//! that it computes.

mod all_reduce;
mod arg;
mod batch_norm;
mod broadcast;
mod conv;
mod conv_weight_grad;
mod dft;
mod dropout;
mod elementwise;
mod gather;
mod gather_at;
mod join;
mod lrn;
mod matmul;
mod merge_top_k;
mod r#move;
mod narrow;
mod norm;
mod one_hot;
mod pad;
mod pool;
mod pool_grad;
mod random;
mod range;
mod rank;
mod recurrent;
mod recurrent_grad;
mod reduce;
mod resize;
mod reverse_sequence;
mod row_noise;
mod scan;
mod scatter;
mod segment_sum;
mod softmax;
mod trilu;
mod two_pass;
mod update;
mod written;

use super::CodegenError;
use super::beside::together;
use super::context::Context;
use super::cuda_op::CudaOp;
use super::kernel::{Arg, Call};
use crate::lower::{DeviceProgram, Kernels, Support, Types};
use crate::op::Op;
use crate::types::{KernelClass, Target};

/// The registry of operators with a CUDA kernel, or with a step in fused chains.
macro_rules! kernels {
    ($($op:ident),* $(,)?) => {
        fn kernel(op: &Op) -> Option<&dyn CudaOp> {
            match op {
                $(Op::$op(op) => Some(op),)*
                _ => None,
            }
        }
    };
}

kernels! {
    AllGather, AllReduce, Arg, BatchMoments, BatchNorm, BatchNormApply, BatchNormApplyGrad,
    BatchNormGrad, BatchNormSums, BatchNormTrain, Binary, BitCast, Blocks, Cast, Classify,
    Compare, Concat, Constant, Conv, ConvTranspose, ConvWeightGrad, Dft, Dims, DropoutTrain,
    ExclusiveScan, Expand, Gather, GatherAt, Gemm, GroupNorm, LayerNorm, Logic, LpNorm, Lrn,
    MatMul, MergeTopK, Narrow, OneHot, Pad, Pool, PoolGrad, Random, Range, Recurrent,
    RecurrentGrad, Reduce, Resize, Reverse, ReverseSequence, RowNoise, Scan, Scatter,
    SegmentSum, Slice, Softmax, Sort, SplitOp, Tile, TopK, Transpose, Trilu, Unary, Where,
}

/// The target: GPUs with CUDA kernels that are compiled at run time.
const TARGET: Target = Target {
    name: "cuda",
    alignment: 256,
    keeps_params: true,
    updates: true,
    together: true,
    collectives: true,
    channels_last: true,
    any_channels_last: true,
};

/// The CUDA kernels. Operators without one fall back to the host.
#[derive(Debug)]
pub struct CudaKernels {
    /// The kernels of the host.
    pub host: &'static dyn Kernels,
}

impl Kernels for CudaKernels {
    fn target(&self) -> &Target {
        &TARGET
    }

    fn supports(&self, op: &Op, types: &Types<'_>) -> Support {
        // No support without a kernel.
        kernel(op).map(|kernel| kernel.supports(types)).unwrap_or_default()
    }

    fn host(&self) -> Option<&dyn Kernels> {
        Some(self.host)
    }
}

/// Returns the kernel calls of each step of a device's program: one for a launch. Consecutive
/// launches of the class [`KernelClass::Update`], and launches side by side, are merged into calls
/// that belong to the first of them. Nothing is compiled, and no driver is called.
pub fn calls(device: &DeviceProgram) -> Result<Vec<Vec<Call>>, CodegenError> {
    let mut calls = vec![Vec::new(); device.steps.len()];
    let mut at = 0;
    while let Some(first) = device.steps.get(at) {
        let row = device.steps[at..].iter().map_while(|step| {
            let context = Context::of(device, step)?;
            let together = context.launch.class == KernelClass::Update && step.guard == first.guard;
            together.then_some(context)
        });
        let row: Vec<Context<'_>> = row.collect();
        // Only launches with one guard are merged: they run or are skipped together.
        if !row.is_empty() {
            calls[at] = update::calls(device, &row)?;
            at += row.len();
            continue;
        }
        let beside = device.steps[at + 1..].iter().take_while(|step| step.beside).count();
        let mut own = Vec::with_capacity(beside + 1);
        for (step, slot) in device.steps[at..].iter().zip(&mut calls[at..]).take(beside + 1) {
            let Some(context) = Context::of(device, step) else { continue };
            let call = call(&context)?;
            // What a kernel reports is told of the step of its call.
            let reports = call.args.contains(&Arg::Report);
            if reports { slot.push(call) } else { own.push(call) }
        }
        calls[at].extend(together(own));
        at += 1 + beside;
    }
    Ok(calls)
}

/// The kernel call of a launch.
fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let Some(op) = &launch.op else {
        let reorders = launch.class == KernelClass::Reorder;
        return if reorders { r#move::reorder(context) } else { elementwise::chain(context) };
    };
    let kernel = kernel(op).ok_or_else(|| context.unsupported("no kernel computes it"))?;
    if launch.class == KernelClass::Reference {
        return Err(context.unsupported("it is evaluated by reference"));
    }
    let partial = launch.class == KernelClass::Partial;
    if partial { kernel.first_pass(context) } else { kernel.call(context) }
}
