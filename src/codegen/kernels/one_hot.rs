//! One-hot encoding.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{bits_type, finish};
use crate::codegen::lines::product;
use crate::op::OneHot;
use crate::types::DType;

impl CudaOp for OneHot {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Index)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([numbers, values], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let shape = &b.ty(y).shape;
        let axis = context.axis(self.axis, shape.rank())?;
        let ty = bits_type(b.ty(y).dtype);
        b.read("numbers", numbers);
        b.read_as("values", values, ty);
        b.write_as("y", y, ty);
        b.flag("UNSIGNED", b.ty(numbers).dtype == DType::U64);
        let count = shape.elements();
        b.size("COUNT", &count);
        b.size("DEPTH", &shape[axis]);
        b.size("INNER", &product(&shape[axis + 1..]));
        Ok(finish(b, "one_hot.cu", &count))
    }
}
