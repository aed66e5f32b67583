//! Ranges of evenly spaced numbers.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, c_type, finish};
use crate::op::Range;

impl CudaOp for Range {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Index)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [y] = context.results()?;
        let mut b = Builder::new(context.device);
        let ty = b.ty(y);
        b.write("y", y);
        b.define("ELEMENT", c_type(ty.dtype));
        b.define("DELTA", format!("(i64){:#x}ull", self.delta));
        match self.start.as_const() {
            Some(start) => b.define("START", format!("(i64){start:#x}ull")),
            None => b.size("START", &self.start),
        }
        let count = ty.shape.elements();
        b.size("COUNT", &count);
        Ok(finish(b, "range.cu", &count))
    }
}
