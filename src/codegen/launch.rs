//! Which file computes a launch.

use super::builder::Builder;
use super::kernel::Call;
use super::{
    CodegenError, collective, conv, elementwise, lines, matmul, moves, pool, random, ranks,
    recurrent, reduce, training, update,
};
use crate::lower::{Action, BufferId, DeviceProgram, Launch, Step};
use crate::op::Op;
use crate::types::{DType, KernelClass};

/// A launch and where it is.
pub(super) struct Context<'a> {
    pub(super) device: &'a DeviceProgram,
    pub(super) launch: &'a Launch,
    label: &'a str,
}

impl<'a> Context<'a> {
    /// That of a step, if it is a launch.
    fn of(device: &'a DeviceProgram, step: &'a Step) -> Option<Self> {
        let Action::Launch(launch) = &step.action else { return None };
        Some(Self { device, launch, label: &step.label })
    }

    /// The error for what no kernel does.
    pub(super) fn unsupported(&self, reason: impl Into<String>) -> CodegenError {
        let (label, op) = (self.label.to_owned(), self.launch.name());
        CodegenError::Unsupported { label, op, reason: reason.into() }
    }

    /// The parts of a call on values that all are row-major.
    pub(super) fn row_major(&self) -> Result<Builder<'a>, CodegenError> {
        let b = Builder::new(self.device);
        let mut all = self.launch.operands.iter().chain(&self.launch.results);
        if all.any(|id| !b.is_row_major(*id)) {
            return Err(self.unsupported("its values are not row-major"));
        }
        Ok(b)
    }

    /// The axis that a number names among so many, negative from the end.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize, CodegenError> {
        let found = lines::position(axis, rank).filter(|a| *a < rank);
        found.ok_or_else(|| self.unsupported("it has no such axis"))
    }

    /// Fails unless all operands and results are `f32`.
    pub(super) fn only_f32(&self) -> Result<(), CodegenError> {
        self.are_f32(&self.launch.operands)?;
        self.are_f32(&self.launch.results)
    }

    /// Fails unless these buffers are `f32`.
    pub(super) fn are_f32(&self, buffers: &[BufferId]) -> Result<(), CodegenError> {
        let mut all = buffers.iter().map(|id| self.device.buffer(*id));
        match all.find(|b| b.ty.dtype != DType::F32) {
            Some(buffer) => {
                Err(self.unsupported(format!("`{}` is {}", buffer.name, buffer.ty.dtype)))
            }
            None => Ok(()),
        }
    }

    /// The text of the launch's chain, if there is one.
    pub(super) fn chained(&self, text: Option<String>) -> Result<String, CodegenError> {
        text.ok_or_else(|| self.unsupported("its chain takes or gives elements of another type"))
    }
}

/// The kernels that each step of a device's program calls, one after the other: one for a launch;
/// of launches of the class [`KernelClass::Update`] in a row, all with the first one and none with
/// the others. Nothing is compiled, and no driver is asked.
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
        if !row.is_empty() {
            calls[at] = update::calls(device, &row)?;
        } else if let Some(context) = Context::of(device, first) {
            calls[at].push(call(&context)?);
        }
        at += row.len().max(1);
    }
    Ok(calls)
}

/// How a launch calls its kernel.
fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    match launch.class {
        KernelClass::Elementwise => elementwise::chain(context),
        KernelClass::Broadcast => elementwise::broadcast(context),
        KernelClass::Conv => conv::call(context),
        KernelClass::MatMul => matmul::call(context),
        KernelClass::Pool => pool::call(context),
        KernelClass::Reduce => reduce::call(context),
        KernelClass::Softmax => lines::softmax(context),
        KernelClass::Norm => lines::norm(context),
        KernelClass::Move | KernelClass::Reorder => moves::call(context),
        KernelClass::Index | KernelClass::Line => ranks::call(context),
        KernelClass::Collective => collective::call(context),
        KernelClass::Recurrent if matches!(launch.op, Some(Op::RecurrentGrad(_))) => {
            recurrent::gradient(context)
        }
        KernelClass::Recurrent => recurrent::call(context),
        KernelClass::Random => random::call(context),
        KernelClass::Partial if matches!(launch.op, Some(Op::Reduce(_))) => reduce::call(context),
        KernelClass::Partial
            if matches!(
                launch.op,
                Some(Op::Softmax(_) | Op::LayerNorm(_) | Op::GroupNorm(_) | Op::LpNorm(_))
            ) =>
        {
            lines::parts(context)
        }
        KernelClass::Partial
            if matches!(launch.op, Some(Op::Recurrent(_) | Op::RecurrentGrad(_))) =>
        {
            recurrent::products(context)
        }
        KernelClass::Partial => training::partial(context),
        KernelClass::Training => training::call(context),
        KernelClass::BatchNorm
        | KernelClass::View
        | KernelClass::Copy
        | KernelClass::Update
        | KernelClass::Reference => {
            Err(context.unsupported(format!("the class `{}` has none", launch.class)))
        }
    }
}
