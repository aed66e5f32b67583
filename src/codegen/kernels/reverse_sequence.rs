//! Reversal of the first entries of each sequence.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{bits_type, finish};
use crate::op::ReverseSequence;

impl CudaOp for ReverseSequence {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Index)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, numbers], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let (shape, steps) = (&b.ty(x).shape, b.strides(x));
        let batch = context.axis(self.batch_axis, shape.rank())?;
        let time = context.axis(self.time_axis, shape.rank())?;
        let ty = bits_type(b.ty(x).dtype);
        b.read_as("x", x, ty);
        b.read("numbers", numbers);
        b.write_as("y", y, ty);
        b.report();
        let count = shape.elements();
        b.size("COUNT", &count);
        b.size("SEQUENCES", &shape[batch]);
        b.size("BESIDE", &steps[batch]);
        b.size("STEPS", &shape[time]);
        b.size("STRIDE", &steps[time]);
        Ok(finish(b, "reverse_sequence.cu", &count))
    }
}
