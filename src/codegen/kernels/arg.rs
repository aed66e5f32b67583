//! Arg-max and arg-min along an axis.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::real;
use crate::codegen::lines::{Lines, known_size};
use crate::op::Arg;

impl CudaOp for Arg {
    fn supports(&self, types: &Types<'_>) -> Support {
        // Of no entries there is no extreme, which a kernel cannot say.
        let (Self::Max { axis, .. } | Self::Min { axis, .. }) = self;
        Support::by(KernelClass::Line).when(known_size(types, *axis).is_some())
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let (Arg::Max { axis, select_last_index, .. } | Arg::Min { axis, select_last_index, .. }) =
            self;
        let ty = b.ty(x);
        let axis = context.axis(*axis, ty.rank())?;
        b.read("x", x);
        b.write("y", y);
        b.define("R", real(ty.dtype));
        b.flag("LARGEST", matches!(self, Arg::Max { .. }));
        b.flag("LAST", *select_last_index);
        Ok(Lines::new(&ty.shape, axis..axis + 1).finish(b, "arg.cu"))
    }
}
