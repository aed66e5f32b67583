//! Gradients of pooling.

use super::pool::reaches;
use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, finish};
use crate::codegen::windows::{define, product};
use crate::lower::Images;
use crate::op::{OpError, PoolGrad};
use crate::types::{DType, Dim};

impl CudaOp for PoolGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        let [first, ..] = types.operands.as_slice() else { return Support::default() };
        let windows = self.sizes(first).and_then(|sizes| self.windows(&sizes));
        let fits = windows.is_ok_and(|windows| reaches(&windows));
        let support =
            Support { images: Images::ChannelsLast, ..Support::by(KernelClass::Training) };
        support.when(fits && types.are(DType::F32))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([.., dy], [dx]) = (context.launch.operands.as_slice(), context.results()?) else {
            return Err(context.unsupported("it has no operand"));
        };
        let (first, dy) = (context.launch.operands[0], *dy);
        let mut b = Builder::new(context.device);
        let wrong = |e: OpError| context.unsupported(e.to_string());
        let windows = self.windows(&self.sizes(b.ty(first)).map_err(wrong)?).map_err(wrong)?;
        let shape = &b.ty(dx).shape;
        let (outer, inner) = if [first, dy, dx].into_iter().all(|id| b.is_channels_last(id)) {
            (shape[0].clone(), shape[1].clone())
        } else if [first, dy, dx].into_iter().all(|id| b.is_row_major(id)) {
            (shape[0].clone() * shape[1].clone(), Dim::ONE)
        } else {
            return Err(context.unsupported("its images differ in the order of their elements"));
        };
        let (kind, padding) = match self {
            Self::Max { .. } => (0, false),
            Self::Average { count_include_pad, .. } => (1, *count_include_pad),
        };
        if kind == 0 {
            b.read("x", first);
        }
        b.read("dy", dy);
        b.write("dx", dx);
        b.define("KIND", kind);
        b.flag("COUNT_PADDING", padding);
        define(&mut b, &windows);
        b.numbers("AFTER", windows.iter().map(|a| a.after));
        b.size("INNER", &inner);
        let count = outer * inner * product(&windows, |a| a.input);
        b.size("COUNT", &count);
        Ok(finish(b, "pool_grad.cu", &count))
    }
}
