//! Draws that a seed decides.

use super::CodegenError;
use super::builder::{Builder, blocks, c_type, line};
use super::kernel::Call;
use super::launch::Context;
use crate::op::{Op, Random};
use crate::types::DType;

/// Threads of a block.
const THREADS: u32 = 256;

/// `random.cu`.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(Op::Random(op)), [y]) = (&launch.op, launch.results.as_slice()) else {
        return Err(context.unsupported("it draws no numbers"));
    };
    let mut b = Builder::new(context.device);
    let (dtype, count) = (b.ty(*y).dtype, b.ty(*y).shape.elements());
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(context.unsupported(format!("its result is {dtype}")));
    }
    let (kind, low, high, each) = match op {
        Random::Uniform { low, high, .. } => (0, *low, *high, 8),
        Random::Normal { mean, scale, .. } => (1, *mean, *scale, 4),
    };
    b.define("KIND", kind);
    b.define("LOW", format!("{:?}", f64::from(low)));
    b.define("HIGH", format!("{:?}", f64::from(high)));
    b.define("BITS", op.digits());
    b.define("ELEMENT", c_type(dtype));
    b.numbers("KEY", op.key().map(|word| format!("{word:#x}u")));
    b.write("y", *y);
    b.size("COUNT", &count);
    let grid = line(blocks(&count, i64::from(THREADS) * each));
    Ok(b.finish("random.cu", THREADS, String::new(), grid))
}
