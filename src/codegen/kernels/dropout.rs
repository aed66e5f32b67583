//! Dropout.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{c_type, finish, float};
use crate::codegen::lines::product;
use crate::op::DropoutTrain;

impl CudaOp for DropoutTrain {
    fn supports(&self, types: &Types<'_>) -> Support {
        let float = types.operands.first().is_some_and(|x| x.dtype.is_float());
        Support::by(KernelClass::Random).when(float)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, rows, step], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let shape = &b.ty(x).shape;
        let count = shape.elements();
        b.read("x", x);
        b.read("rows", rows);
        b.read("step", step);
        b.write("y", y);
        b.define("ELEMENT", c_type(b.ty(x).dtype));
        b.define("RATE", float(self.rate));
        b.define("FACTOR", format!("{:?}", 1.0 / (1.0 - f64::from(self.rate))));
        b.define("SEED", format!("{:#x}ull", self.seed));
        b.size("WIDTH", &product(&shape[1..]));
        b.size("COUNT", &count);
        Ok(finish(b, "dropout.cu", &count))
    }
}
