//! Dispatch of launches to kernels.

use smallvec::{Array, SmallVec};

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::{self, Epilogue};
use super::reorder::ReorderPlan;
use crate::backend::host::{Code, Source, Unsuited, Views};
use crate::lower::{
    Action, BoundDevice, BufferId, Chain, DeviceProgram, Kernels, Launch, Step, Support, Types,
};
use crate::op::{BatchNorm, LpNorm, Op, Reverse, Tile, Traits, Unary};
use crate::types::invariant::invariant;
use crate::types::{DType, Dim, KernelClass, Order, Target, Tensor, subnormals};

/// The most bytes of results that are kept from one run to the next.
const KEPT_BYTES: usize = 1 << 12;

/// The registry: the operators that have a kernel, or are steps of chains.
macro_rules! kernels {
    ($($op:ident),* $(,)?) => {
        fn kernel(op: &Op) -> Option<&dyn CpuOp> {
            match op {
                $(Op::$op(op) => Some(op),)*
                _ => None,
            }
        }
    };
}

kernels! {
    AllGather, BatchMoments, BatchNorm, BatchNormApply, BatchNormApplyGrad, BatchNormGrad,
    BatchNormSums, BatchNormTrain, Binary, Blocks, Concat, Conv, ConvTranspose, ConvWeightGrad,
    Dft, DropoutTrain, Expand, Gather, Gemm, GroupNorm, LayerNorm, LpNorm, MatMul, Pad, Pool,
    PoolGrad, Recurrent, RecurrentGrad, Reduce, Resize, Reverse, Slice, Softmax, SplitOp, Tile,
    Transpose, Unary,
}

/// Operators that programs name by a class, and that are evaluated by reference.
macro_rules! by_reference {
    ($($op:ident: $class:ident),* $(,)?) => {
        $(impl CpuOp for $op {
            fn supports(&self, types: &Types<'_>) -> Support {
                of_f32(KernelClass::$class, types)
            }
        })*
    };
}

by_reference! {
    LpNorm: Norm, Reverse: Move, Tile: Move,
}

/// Operators that are computed in chains only.
macro_rules! steps {
    ($($op:ident),*) => {
        $(impl CpuOp for $op {
            fn supports(&self, types: &Types<'_>) -> Support {
                Support::step().when(types.are(DType::F32))
            }
        })*
    };
}

steps!(BatchNorm, Unary);

/// The kernels of the CPU. What has none is evaluated by reference.
#[derive(Debug)]
pub struct CpuKernels;

/// The CPU: any number of virtual devices on the host.
pub static CPU: CpuKernels = CpuKernels;

const TARGET: Target = Target {
    name: "cpu",
    alignment: 64,
    keeps_params: false,
    updates: true,
    together: false,
    collectives: false,
    channels_last: true,
    any_channels_last: false,
};

impl Kernels for CpuKernels {
    fn target(&self) -> &Target {
        &TARGET
    }

    fn supports(&self, op: &Op, types: &Types<'_>) -> Support {
        // No kernel of its own: the operator is evaluated by reference.
        kernel(op).map(|kernel| kernel.supports(types)).unwrap_or_default()
    }
}

/// The code of one launch at one batch size.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// The reference evaluation, with the batch size in the attributes.
    Reference(Op),
    /// What the reference evaluation gives in every run.
    Kept(Vec<Tensor>),
    /// A chain alone.
    Chain,
    /// A kernel of the operator's own.
    Own(Box<dyn CpuKernel>),
}

/// For each step of a device its kernel; `None` where the step launches none or has nothing to
/// compute.
#[derive(Debug)]
pub(crate) struct StepKernels(Vec<Option<Kernel>>);

impl StepKernels {
    /// The kernels of a device at a batch of `n` rows.
    pub(crate) fn new(device: &DeviceProgram, bound: &BoundDevice, n: i64) -> Self {
        // Their tables are made on the thread of the caller.
        let _kept = subnormals::kept();
        let kernel = |(step, active): (&Step, &bool)| {
            let Action::Launch(launch) = &step.action else { return None };
            let empty = |b: &BufferId| bound.locations[*b].bytes == 0;
            let idle = !active || launch.results.iter().all(empty);
            (!idle).then(|| Kernel::new(launch, device, bound, n))
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
    fn new(launch: &Launch, device: &DeviceProgram, bound: &BoundDevice, n: i64) -> Self {
        let dims = |b: &BufferId| bound.locations[*b].dims.clone();
        let order = |b: &BufferId| device.buffer(*b).order;
        let (operands, _) = launch.split_operands();
        let Some(op) = &launch.op else {
            if launch.class != KernelClass::Reorder {
                // A chain writes its elements in the order in which it reads them.
                return Self::Chain;
            }
            let result = invariant(launch.results.first(), "that a reorder has a result");
            return Self::Own(Box::new(ReorderPlan::new(&dims(result), order(result))));
        };
        let mut images = operands.first().into_iter().chain(&launch.results).map(order);
        let last = images.any(|order| order == Order::ChannelsLast);
        let sizes = Sizes {
            operands: operands.iter().map(dims).collect(),
            orders: operands.iter().map(order).collect(),
            images: if last { Order::ChannelsLast } else { Order::RowMajor },
            results: launch.results.iter().map(dims).collect(),
            written: order(invariant(launch.results.first(), "that a launch has a result")),
        };
        let is_empty = sizes.operands.iter().flatten().any(|d| *d == 0);
        let mut op = op.clone();
        op.at_rows(&Dim::from(n));
        let by_reference = launch.class == KernelClass::Reference || is_empty;
        let own = kernel(&op).filter(|_| !by_reference).and_then(|kernel| kernel.plan(&sizes));
        own.map_or_else(|| Self::by_reference(op, launch, device, bound), Self::Own)
    }

    /// The reference evaluation. What an operator without operands gives is kept, if it is small;
    /// one that fails does so in its step.
    fn by_reference(op: Op, launch: &Launch, device: &DeviceProgram, bound: &BoundDevice) -> Self {
        let bytes: usize = launch.results.iter().map(|b| bound.locations[*b].bytes).sum();
        if !launch.operands.is_empty() || bytes > KEPT_BYTES || op.is(Traits::UNREPEATABLE) {
            return Self::Reference(op);
        }
        let suits = |(b, tensor): (&BufferId, &Tensor)| {
            let dims = &bound.locations[*b].dims;
            tensor.dtype() == device.buffer(*b).ty.dtype && tensor.dims() == dims.as_slice()
        };
        match op.eval(&[]) {
            Ok(kept)
                if kept.len() == launch.results.len()
                    && launch.chain.is_empty()
                    && launch.results.iter().zip(&kept).all(suits) =>
            {
                Self::Kept(kept)
            }
            _ => Self::Reference(op),
        }
    }
}

/// Adds the words of operands, none of which lies where a result does. What a kernel takes or gives
/// in `f64` has two words for each element.
fn floats<'a, A: Array<Item = &'a [f32]>>(
    reads: impl Iterator<Item = Option<&'a [u8]>>,
    all: &mut SmallVec<A>,
) -> Result<(), Unsuited> {
    for bytes in reads {
        all.push(bytemuck::try_cast_slice(bytes.ok_or(Unsuited)?).map_err(|_| Unsuited)?);
    }
    Ok(())
}

/// The words of a result; where there are none they lie nowhere.
fn floats_mut(bytes: &mut [u8]) -> Result<&mut [f32], Unsuited> {
    if bytes.is_empty() {
        return Ok(&mut []);
    }
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| Unsuited)
}

impl Code for Kernel {
    fn source(&self) -> Source<'_> {
        match self {
            Self::Reference(op) => Source::Reference(op),
            Self::Kept(results) => Source::Kept(results),
            Self::Chain | Self::Own(_) => Source::Kernel,
        }
    }

    fn reference(&self) -> Option<&Op> {
        match self {
            Self::Own(plan) => plan.reference(),
            Self::Reference(_) | Self::Kept(_) | Self::Chain => None,
        }
    }

    fn run(&self, launch: &Launch, views: &mut Views<'_>) -> Result<(), Unsuited> {
        let mut reads = views.reads.iter().copied();
        let mut own: SmallVec<[&[f32]; 8]> = SmallVec::new();
        let mut of_chain: SmallVec<[&[f32]; 4]> = SmallVec::new();
        let mut results: SmallVec<[&mut [f32]; 2]> = SmallVec::new();
        let (operands, _) = launch.split_operands();
        // A chain alone may have its operand where its result is.
        let is_in_place = matches!((self, &*views.reads), (Self::Chain, [None, ..]));
        let first = reads.by_ref().take(operands.len()).skip(usize::from(is_in_place));
        floats(first, &mut own)?;
        floats(reads, &mut of_chain)?;
        for bytes in &mut views.writes {
            results.push(floats_mut(bytes)?);
        }
        let mut chain = Epilogue::default();
        chain.set(&launch.chain, &of_chain).ok_or(Unsuited)?;
        match (self, own.as_slice(), results.as_mut_slice()) {
            (Self::Chain, [], [result]) if is_in_place => elementwise::in_place(result, &chain),
            (Self::Chain, [x], [result]) => elementwise::map(x, result, &chain),
            (Self::Own(plan), operands, results) if chain.is_empty() || plan.ends_in_chain() => {
                plan.run(operands, results, &chain)?;
            }
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
