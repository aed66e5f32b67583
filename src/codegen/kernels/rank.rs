//! Sorting along an axis, by ranks: each thread counts the entries that precede its own, and writes
//! its entry at that rank. Stable, and the same for every grid.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{c_type, finish};
use crate::codegen::lines::{known_size, product};
use crate::op::{Sort, TopK};

/// The most entries of a line: the work is quadratic, since a thread compares its entry with all of
/// them.
const MAX: i64 = 1 << 13;

impl CudaOp for Sort {
    fn supports(&self, types: &Types<'_>) -> Support {
        supported(types, self.axis)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        rank(context, self.axis, self.descending, true)
    }
}

impl CudaOp for TopK {
    fn supports(&self, types: &Types<'_>) -> Support {
        supported(types, self.axis)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        rank(context, self.axis, self.largest, false)
    }
}

fn supported(types: &Types<'_>, axis: i64) -> Support {
    Support::by(KernelClass::Line).when(known_size(types, axis).is_some_and(|size| size <= MAX))
}

/// `rank.cu`, in descending order or in ascending one, with a NaN last in either or as the largest.
fn rank(
    context: &Context<'_>,
    axis: i64,
    descending: bool,
    nans_last: bool,
) -> Result<Call, CodegenError> {
    let ([x], [y, places]) = (context.operands()?, context.results()?);
    let mut b = context.row_major()?;
    let ty = b.ty(x);
    let axis = context.axis(axis, ty.rank())?;
    b.read("x", x);
    b.write("y", y);
    b.write("places", places);
    b.define("T", c_type(ty.dtype));
    b.flag("DESCENDING", descending);
    b.flag("NANS_LAST", nans_last);
    let count = ty.shape.elements();
    b.size("COUNT", &count);
    b.size("SIZE", &ty.shape[axis]);
    b.size("INNER", &product(&ty.shape[axis + 1..]));
    b.size("K", &b.ty(y).shape[axis]);
    Ok(finish(b, "rank.cu", &count))
}
