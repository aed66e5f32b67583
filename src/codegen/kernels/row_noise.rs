//! Random numbers of rows.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{c_type, finish};
use crate::codegen::lines::product;
use crate::op::row_noise::RowNoise;
use crate::types::invariant::invariant;

impl CudaOp for RowNoise {
    fn supports(&self, types: &Types<'_>) -> Support {
        let float = types.operands.first().is_some_and(|x| x.dtype.is_float());
        let support =
            Support::by(KernelClass::Random).with_own_bits(matches!(self, Self::Normal { .. }));
        support.when(float && self.seed().is_some())
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([_, rows, step], [y]) = (context.operands()?, context.results()?);
        let seed = invariant(self.seed(), "that what draws in a kernel has a seed");
        let mut b = context.row_major()?;
        let ty = b.ty(y).clone();
        let count = ty.shape.elements();
        b.read("rows", rows);
        b.read("step", step);
        b.write("y", y);
        b.define("ELEMENT", c_type(ty.dtype));
        b.define("KIND", u8::from(matches!(self, Self::Normal { .. })));
        b.define("BITS", Self::digits(ty.dtype));
        b.define("SEED", format!("{seed:#x}ull"));
        b.size("WIDTH", &product(&ty.shape[1..]));
        b.size("COUNT", &count);
        Ok(finish(b, "row_noise.cu", &count))
    }
}
