//! Discrete Fourier transforms.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::finish;
use crate::codegen::lines::product;
use crate::op::Dft;
use crate::types::DType;

/// The longest period: a block holds 16 bytes for each place of it.
const MAX: i64 = 2048;

impl CudaOp for Dft {
    fn supports(&self, types: &Types<'_>) -> Support {
        let support = Support::by(KernelClass::Line).with_own_bits(true);
        support.when(self.length <= MAX && types.are(DType::F32))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let (from, to) = (&b.ty(x).shape, &b.ty(y).shape);
        let axis = self.axis(from.rank()).map_err(|e| context.unsupported(e.to_string()))?;
        let last = from.rank() - 1;
        b.read("x", x);
        b.write("y", y);
        b.define("LENGTH", self.length);
        b.flag("INVERSE", self.inverse);
        b.size("FROM_PARTS", &from[last]);
        b.size("TO_PARTS", &to[last]);
        b.size("ENTRIES", &from[axis]);
        b.size("RESULTS", &to[axis]);
        b.size("INNER", &product(&from[axis + 1..last]));
        let count = product(&to[..last]);
        b.size("COUNT", &count);
        Ok(finish(b, "dft.cu", &count))
    }
}
