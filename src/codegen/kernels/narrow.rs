//! Rounding of wide sums and products to plain numbers.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::finish;
use crate::op::Narrow;
use crate::types::{Combine, DType, Dim};

impl CudaOp for Narrow {
    fn supports(&self, types: &Types<'_>) -> Support {
        Support::by(KernelClass::Reduce).with_own_bits(self.log).when(types.are(DType::F64))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let components = b.ty(x).shape.first().and_then(Dim::as_const);
        let count = b.ty(y).shape.elements();
        b.read("x", x);
        b.write("y", y);
        let by = match (self.by, components) {
            (Combine::WideProd, Some(2)) => 2,
            (Combine::WideSum, Some(4)) => 1,
            (Combine::WideSum, Some(2)) => 0,
            _ => return Err(context.unsupported("its operand has no components")),
        };
        b.define("BY", by);
        b.size("DIVISOR", &self.count);
        b.flag("LOG", self.log);
        b.size("COUNT", &count);
        Ok(finish(b, "narrow.cu", &count))
    }
}
