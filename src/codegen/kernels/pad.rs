//! Padding.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, bits_type, finish};
use crate::lower::Images;
use crate::op::{Pad, PadMode};
use crate::types::Dim;

impl CudaOp for Pad {
    fn supports(&self, types: &Types<'_>) -> Support {
        let images = if types.image().is_some() { Images::First } else { Images::RowMajor };
        Support { images, ..Support::by(KernelClass::Move) }
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        let mut b = Builder::new(context.device);
        let (from, to, steps) = (&b.ty(x).shape, &b.ty(y).shape, b.strides(x));
        // A scalar has no axis, and no elements before it.
        let before = |a: usize| Dim::from(self.pads.get(a).copied().unwrap_or(0));
        let axes = b.axes(y);
        let list = |f: &dyn Fn(usize) -> Dim| -> Vec<Dim> {
            // A scalar has no axis; a kernel has one at least.
            if axes.is_empty() { vec![Dim::ONE] } else { axes.iter().map(|a| f(*a)).collect() }
        };
        let lists = [
            ("SIZES", list(&|a| to[a].clone())),
            ("LENGTHS", list(&|a| from[a].clone())),
            ("STEPS", list(&|a| steps[a].clone())),
            ("BEFORE", if axes.is_empty() { vec![Dim::ZERO] } else { list(&before) }),
        ];
        let dtype = b.ty(y).dtype;
        let Some(value) = self.entry(dtype) else {
            return Err(context.unsupported(format!("{} is not of type {dtype}", self.value)));
        };
        let bits =
            value.bytes().iter().rev().fold(0u64, |bits, byte| (bits << 8) | u64::from(*byte));
        let ty = bits_type(dtype);
        b.read_as("x", x, ty);
        b.write_as("y", y, ty);
        b.define("T", ty);
        b.define("AXES", axes.len().max(1));
        b.define(
            "MODE",
            match self.mode {
                PadMode::Constant => 0,
                PadMode::Reflect => 1,
                PadMode::Edge => 2,
                PadMode::Wrap => 3,
            },
        );
        b.define("VALUE", format!("{bits:#x}ull"));
        let count = to.elements();
        b.size("COUNT", &count);
        for (name, sizes) in &lists {
            b.list(name, sizes);
        }
        Ok(finish(b, "pad.cu", &count))
    }
}
