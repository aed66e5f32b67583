//! Gather along an axis.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{finish, vector};
use crate::codegen::lines::product;
use crate::op::Gather;
use crate::types::Dim;

impl CudaOp for Gather {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Move)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, places], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let shape = &b.ty(x).shape;
        let axis = context.axis(self.axis, shape.rank())?;
        let inner = product(&shape[axis + 1..]);
        let (ty, many) = vector(&b, [x, y], &[&inner]);
        let part = |size: Dim| size.floor_div(&many.into());
        b.read_as("x", x, ty);
        b.read("places", places);
        b.write_as("y", y, ty);
        b.report();
        b.define("T", ty);
        let count = part(b.ty(y).shape.elements());
        b.size("COUNT", &count);
        b.size("LENGTH", &shape[axis]);
        b.size("PLACES", &b.ty(places).shape.elements());
        b.size("INNER", &part(inner));
        Ok(finish(b, "gather.cu", &count))
    }
}
