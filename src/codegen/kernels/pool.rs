//! Pooling.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, divisible_by_four, finish};
use crate::lower::Images;
use crate::op::Pool;
use crate::op::window::{WindowAxis, Windows};
use crate::types::invariant::int;
use crate::types::{DType, Dim};

/// The most elements of a channel, and positions along its axes: sizes of windows are `int`, sums
/// of a few of them too.
const MAX: usize = (i32::MAX / 8) as usize;

/// True if the elements of a pool's channels and the positions that its windows reach are few
/// enough.
pub(super) fn reaches(windows: &Windows) -> bool {
    let product =
        |f: fn(&WindowAxis) -> usize| windows.iter().map(f).fold(1usize, usize::saturating_mul);
    let reach = windows.iter().flat_map(|a| {
        let taps = a.kernel.saturating_mul(a.dilation);
        [a.output.saturating_mul(a.stride), taps, a.before, a.after, a.stride, a.dilation]
    });
    let all = [product(|a| a.input), product(|a| a.output), product(|a| a.kernel)];
    reach.chain(all).all(|size| size <= MAX)
}

impl CudaOp for Pool {
    fn supports(&self, types: &Types<'_>) -> Support {
        let [x] = types.operands.as_slice() else { return Support::default() };
        let fits = self.windows(x).is_ok_and(|windows| reaches(&windows));
        let support = Support {
            images: Images::ChannelsLast,
            writes_strips: true,
            ..Support::by(KernelClass::Pool)
        };
        support.when(fits && types.are(DType::F32))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        let mut b = Builder::new(context.device);
        let shape = &b.ty(x).shape;
        let windows = self.windows(b.ty(x)).map_err(|e| context.unsupported(e.to_string()))?;
        let size = |f: fn(&WindowAxis) -> usize| windows.iter().map(f).product::<usize>();
        let (inputs, outputs) = (size(|a| a.input), size(|a| a.output));
        // With the channels last a window's elements lie `inner` channels apart, and threads take
        // neighbouring channels. In row-major order every channel of every sample is an image of
        // its own.
        let channels_last = b.is_channels_last(x) && b.is_channels_last(y);
        let (outer, inner) = if channels_last {
            (shape[0].clone(), shape[1].clone())
        } else if b.is_row_major(x) && b.is_row_major(y) {
            (shape[0].clone() * shape[1].clone(), Dim::ONE)
        } else {
            return Err(context.unsupported("its images differ in the order of their elements"));
        };
        let width =
            if divisible_by_four(&inner) && b.is_aligned(x) && b.is_aligned(y) { 4 } else { 1 };
        b.read("x", x);
        if channels_last {
            b.write_image("y", y);
        } else {
            b.write("y", y);
            b.define("PITCH", 1);
        }
        // The numbers are those of `pool.cu`.
        let (kind, exponent, padding) = match self {
            Self::Max { .. } => (0, 1, false),
            Self::Average { count_include_pad, .. } => (1, 1, *count_include_pad),
            Self::Lp { p, .. } => (2, *p, false),
        };
        b.define("KIND", kind);
        b.define("EXPONENT", exponent);
        b.flag("COUNT_PADDING", padding);
        b.define("AXES", windows.len());
        b.numbers("INPUT", windows.iter().map(|a| a.input));
        b.numbers("OUTPUT", windows.iter().map(|a| a.output));
        b.numbers("KERNEL", windows.iter().map(|a| a.kernel));
        b.numbers("STRIDE", windows.iter().map(|a| a.stride));
        b.numbers("DILATION", windows.iter().map(|a| a.dilation));
        b.numbers("BEFORE", windows.iter().map(|a| a.before));
        b.numbers("AFTER", windows.iter().map(|a| a.after));
        b.define("INPUTS", inputs);
        b.define("OUTPUTS", outputs);
        b.define("VECTOR", width);
        b.size("INNER", &inner);
        let places = outer * int::<i64>(outputs);
        let count = places * inner.floor_div(&width.into());
        b.size("COUNT", &count);
        Ok(finish(b, "pool.cu", &count))
    }
}
