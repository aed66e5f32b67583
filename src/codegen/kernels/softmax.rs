//! Softmax, log-softmax and hardmax along an axis.

use super::two_pass::{self, TwoPass};
use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::lines::Lines;
use crate::op::{Reduce, Softmax};
use crate::types::TensorType;

fn long_line(op: &Softmax, x: &TensorType) -> Option<TwoPass> {
    let axis = op.axis(x.rank()).filter(|_| !matches!(op, Softmax::Hardmax { .. }))?;
    TwoPass::along(&x.shape, axis..axis + 1, |axes| Reduce::LogSumExp { axes, keepdims: false })
}

impl CudaOp for Softmax {
    fn supports(&self, types: &Types<'_>) -> Support {
        let long = types.operands.first().and_then(|x| long_line(self, x));
        two_pass::supported(KernelClass::Softmax, types, long.as_ref())
    }

    /// `softmax.cu`, of long lines `long_softmax.cu`.
    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let (x, [y]) = (context.first_operand()?, context.results()?);
        let mut b = context.row_major()?;
        let shape = &b.ty(x).shape;
        let Some(axis) = self.axis(shape.rank()) else {
            return Err(context.unsupported("it has no such axis"));
        };
        b.read("x", x);
        b.write("y", y);
        b.define(
            "KIND",
            match self {
                Self::Softmax { .. } => 0,
                Self::LogSoftmax { .. } => 1,
                Self::Hardmax { .. } => 2,
            },
        );
        let long = long_line(self, b.ty(x));
        let lines = Lines::new(shape, axis..axis + 1);
        two_pass::finish(context, b, lines, ["softmax.cu", "long_softmax.cu"], long.as_ref())
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let x = context.first_operand()?;
        let long = long_line(self, &context.device.buffer(x).ty);
        long.ok_or_else(|| context.unsupported("its lines are not taken apart"))?
            .first_pass(context)
    }
}
