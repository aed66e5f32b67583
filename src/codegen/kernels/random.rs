//! Pseudorandom numbers from a seed.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, c_type, finish};
use crate::op::Random;
use crate::types::DType;

impl CudaOp for Random {
    fn supports(&self, types: &Types<'_>) -> Support {
        let drawn = types.are(DType::F32) || types.are(DType::F64);
        let normal = matches!(self, Self::Normal { .. });
        Support::by(KernelClass::Random).with_own_bits(normal).when(drawn)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [y] = context.results()?;
        let mut b = Builder::new(context.device);
        let dtype = b.ty(y).dtype;
        let (kind, low, high, each) = match self {
            Self::Uniform { low, high, .. } => (0, *low, *high, 8i64),
            Self::Normal { mean, scale, .. } => (1, *mean, *scale, 4),
        };
        b.define("KIND", kind);
        b.define("LOW", format!("{:?}", f64::from(low)));
        b.define("HIGH", format!("{:?}", f64::from(high)));
        b.define("BITS", self.digits());
        b.define("ELEMENT", c_type(dtype));
        b.numbers("KEY", self.key().map(|word| format!("{word:#x}u")));
        b.write("y", y);
        let runs = self.runs();
        let run = runs.rows * runs.inner.clone();
        b.size("OUTER", &runs.outer);
        b.size("RUN", &run);
        b.size("FIRST", &(runs.first * runs.inner.clone()));
        b.size("WHOLE", &(runs.whole * runs.inner));
        let groups = runs.outer * ((run + (each - 1)).floor_div(&each.into()) + 1);
        Ok(finish(b, "random.cu", &groups))
    }
}
