//! Cumulative sums and products.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{c_type, finish, wide};
use crate::codegen::lines::product;
use crate::op::Scan;
use crate::types::Combine;

impl CudaOp for Scan {
    fn supports(&self, _types: &Types<'_>) -> Support {
        Support::by(KernelClass::Line)
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x, start @ ..], [y]) = (context.launch.operands.as_slice(), context.results()?)
        else {
            return Err(context.unsupported("it has no operand"));
        };
        let (x, start) = (*x, start.first());
        let mut b = context.row_major()?;
        let (Scan::Sum { exclusive, reverse, .. } | Scan::Prod { exclusive, reverse, .. }) = self;
        let ty = b.ty(x);
        let axis = context.axis(self.axis(), ty.rank())?;
        b.read("x", x);
        if let Some(start) = start {
            b.read("start", *start);
        }
        b.write("y", y);
        b.define("T", c_type(ty.dtype));
        b.define("A", wide(ty.dtype));
        b.flag("PRODUCT", self.by() == Combine::Prod);
        b.flag("EXCLUSIVE", *exclusive);
        b.flag("REVERSE", *reverse);
        b.flag("START", start.is_some());
        b.flag("WIDE", start.is_some_and(|start| b.ty(*start).rank() > ty.rank()));
        // 0 stands for plain numbers.
        b.define("COMPONENTS", self.total(ty.dtype).accumulator(ty.dtype).unwrap_or(0));
        let inner = product(&ty.shape[axis + 1..]);
        let lines = product(&ty.shape[..axis]) * inner.clone();
        b.size("LINES", &lines);
        b.size("SIZE", &ty.shape[axis]);
        b.size("INNER", &inner);
        Ok(finish(b, "scan.cu", &lines))
    }
}
