//! Draws that a seed decides, and elements that they drop.

use super::CodegenError;
use super::builder::{Builder, blocks, c_type, float, line};
use super::kernel::Call;
use super::launch::Context;
use super::lines::product;
use crate::op::{DropoutTrain, Op, Random};
use crate::types::DType;

/// Threads of a block.
const THREADS: u32 = 256;

/// `random.cu`.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    if let Some(Op::DropoutTrain(op)) = &launch.op {
        return dropout(context, op);
    }
    let (Some(Op::Random(op)), [y]) = (&launch.op, launch.results.as_slice()) else {
        return Err(context.unsupported("it draws no numbers"));
    };
    let mut b = Builder::new(context.device);
    let dtype = b.ty(*y).dtype;
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(context.unsupported(format!("its result is {dtype}")));
    }
    let (kind, low, high, each) = match op {
        Random::Uniform { low, high, .. } => (0, *low, *high, 8i64),
        Random::Normal { mean, scale, .. } => (1, *mean, *scale, 4),
    };
    b.define("KIND", kind);
    b.define("LOW", format!("{:?}", f64::from(low)));
    b.define("HIGH", format!("{:?}", f64::from(high)));
    b.define("BITS", op.digits());
    b.define("ELEMENT", c_type(dtype));
    b.numbers("KEY", op.key().map(|word| format!("{word:#x}u")));
    b.write("y", *y);
    let runs = op.runs();
    let run = runs.rows * runs.inner.clone();
    b.size("OUTER", &runs.outer);
    b.size("RUN", &run);
    b.size("FIRST", &(runs.first * runs.inner.clone()));
    b.size("WHOLE", &(runs.whole * runs.inner));
    let groups = runs.outer * ((run + (each - 1)).floor_div(&each.into()) + 1);
    let grid = line(blocks(&groups, i64::from(THREADS)));
    Ok(b.finish("random.cu", THREADS, String::new(), grid))
}

/// `dropout.cu`.
fn dropout(context: &Context<'_>, op: &DropoutTrain) -> Result<Call, CodegenError> {
    let ([x, rows, step], [y]) =
        (context.launch.operands.as_slice(), context.launch.results.as_slice())
    else {
        return Err(context.unsupported("it has not three operands and one result"));
    };
    let mut b = context.row_major()?;
    let shape = &b.ty(*x).shape;
    let count = shape.elements();
    b.read("x", *x);
    b.read("rows", *rows);
    b.read("step", *step);
    b.write("y", *y);
    b.define("ELEMENT", c_type(b.ty(*x).dtype));
    b.define("RATE", float(op.rate));
    b.define("FACTOR", format!("{:?}", 1.0 / (1.0 - f64::from(op.rate))));
    b.define("SEED", format!("{:#x}ull", op.seed));
    b.size("WIDTH", &product(&shape[1..]));
    b.size("COUNT", &count);
    let grid = line(blocks(&count, i64::from(THREADS)));
    Ok(b.finish("dropout.cu", THREADS, String::new(), grid))
}
