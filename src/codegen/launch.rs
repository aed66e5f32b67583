//! Which file computes a launch.

use super::kernel::Call;
use super::{CodegenError, conv, elementwise, lines, matmul, moves, pool};
use crate::lower::{DeviceProgram, Launch, Step};
use crate::op::Op;
use crate::types::{DType, KernelClass};

/// A launch and where it is.
pub(super) struct Context<'a> {
    pub(super) device: &'a DeviceProgram,
    pub(super) launch: &'a Launch,
    label: &'a str,
}

impl Context<'_> {
    /// The error for what no kernel does.
    pub(super) fn unsupported(&self, reason: impl Into<String>) -> CodegenError {
        let op = self.launch.op.as_ref().map_or(self.launch.class.name(), Op::name);
        CodegenError::Unsupported { label: self.label.to_owned(), op, reason: reason.into() }
    }

    /// Fails unless all operands and results are `f32`.
    pub(super) fn only_f32(&self) -> Result<(), CodegenError> {
        let all = self.launch.operands.iter().chain(&self.launch.results);
        match all.map(|id| self.device.buffer(*id)).find(|b| b.ty.dtype != DType::F32) {
            Some(buffer) => {
                Err(self.unsupported(format!("`{}` is {}", buffer.name, buffer.ty.dtype)))
            }
            None => Ok(()),
        }
    }
}

/// How a launch of a device's program calls its kernel. Nothing is compiled, and no driver is asked.
pub fn call(device: &DeviceProgram, step: &Step, launch: &Launch) -> Result<Call, CodegenError> {
    let context = Context { device, launch, label: &step.label };
    match launch.class {
        KernelClass::Elementwise => elementwise::chain(&context),
        KernelClass::Broadcast => elementwise::broadcast(&context),
        KernelClass::Conv => conv::call(&context),
        KernelClass::MatMul => matmul::call(&context),
        KernelClass::Pool => pool::call(&context),
        KernelClass::Reduce => lines::reduce(&context),
        KernelClass::Softmax => lines::softmax(&context),
        KernelClass::Norm => lines::norm(&context),
        KernelClass::Move | KernelClass::Reorder => moves::call(&context),
        KernelClass::BatchNorm
        | KernelClass::View
        | KernelClass::Copy
        | KernelClass::Recurrent
        | KernelClass::Reference => {
            Err(context.unsupported(format!("the class `{}` has none", launch.class)))
        }
    }
}
