//! Upper and lower triangles of matrices.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{bits_type, finish};
use crate::op::Trilu;

/// Beyond the diagonals of all matrices, and far from the ends of `long long`.
const FAR: i64 = 1 << 60;

impl CudaOp for Trilu {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Index)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let shape = &b.ty(y).shape;
        let [.., rows, columns] = shape.as_ref() else {
            return Err(context.unsupported("it has no matrices"));
        };
        let ty = bits_type(b.ty(y).dtype);
        b.read_as("x", x, ty);
        b.write_as("y", y, ty);
        b.define("T", ty);
        b.flag("UPPER", self.upper);
        b.define("DIAGONAL", format!("({}ll)", self.k.clamp(-FAR, FAR)));
        let count = shape.elements();
        b.size("COUNT", &count);
        b.size("ROWS", rows);
        b.size("COLUMNS", columns);
        Ok(finish(b, "trilu.cu", &count))
    }
}
