//! Segment sums.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{c_type, finish, wide};
use crate::codegen::lines::product;
use crate::op::SegmentSum;
use crate::types::DType;

/// The most segments: each row of the result reads the numbers of all rows.
const MAX: i64 = 1 << 10;

impl CudaOp for SegmentSum {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Line).when(self.segments <= MAX)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, numbers], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let ty = b.ty(x);
        let Some((rows, columns)) = ty.shape.split_first() else {
            return Err(context.unsupported("it has no rows"));
        };
        b.read("x", x);
        b.read("numbers", numbers);
        b.write("y", y);
        b.report();
        b.define("T", c_type(ty.dtype));
        b.define("A", wide(ty.dtype));
        let count = b.ty(y).shape.elements();
        b.size("COUNT", &count);
        b.size("ROWS", rows);
        b.size("WIDTH", &product(columns));
        b.define("SEGMENTS", self.segments);
        b.flag("DOUBLES", ty.dtype == DType::F64);
        b.flag("WIDE", self.wide);
        Ok(finish(b, "segment_sum.cu", &count))
    }
}
