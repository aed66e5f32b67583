//! Normalisation over neighbouring channels.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{c_type, finish, number, real};
use crate::codegen::lines::product;
use crate::op::Lrn;
use crate::types::{DType, Dim};

/// More channels than there are, and far from the ends of `long long`.
const FAR: i64 = 1 << 60;

impl CudaOp for Lrn {
    fn supports(&self, types: &Types<'_>) -> Support {
        // A power of `f64` is the device's, but for the one that is made of roots.
        let own = types.are(DType::F64) && self.beta.to_bits() != 0.75f32.to_bits();
        Support::by(KernelClass::Line).with_own_bits(own)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        let mut b = context.row_major()?;
        let ty = b.ty(x);
        let Some(channels) = ty.shape.get(1) else {
            return Err(context.unsupported("it has no channels"));
        };
        let (reach, weight) = (self.size - 1, f64::from(self.alpha) / self.size as f64);
        let constant = |x: f64| number(x, ty.dtype);
        b.read("x", x);
        b.write("y", y);
        b.define("T", c_type(ty.dtype));
        b.define("R", real(ty.dtype));
        b.define("BEFORE", (reach / 2).min(FAR));
        b.define("AFTER", (reach - reach / 2).min(FAR));
        b.define("BIAS", constant(f64::from(self.bias)));
        b.define("WEIGHT", constant(weight));
        b.define("BETA", constant(f64::from(self.beta)));
        b.flag("ROOTS", self.beta.to_bits() == 0.75f32.to_bits());
        let count: Dim = ty.shape.elements();
        b.size("COUNT", &count);
        b.size("CHANNELS", channels);
        b.size("PLANE", &product(&ty.shape[2..]));
        Ok(finish(b, "lrn.cu", &count))
    }
}
