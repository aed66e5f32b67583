//! Lines of numbers ranked, searched, scanned and summed.

use super::CodegenError;
use super::builder::{c_type, float};
use super::index;
use super::kernel::Call;
use super::launch::Context;
use super::lines::{Lines, product};
use crate::lower::BufferId;
use crate::op::{Arg, Lrn, Op, Scan, SegmentSum, Sort, TopK};
use crate::types::{Combine, DType, Dim};

/// The kernel of an operator on lines of numbers.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    match (&launch.op, launch.operands.as_slice(), launch.results.as_slice()) {
        (Some(Op::Arg(op)), [x], [y]) => arg(context, op, *x, *y),
        (Some(Op::Scan(op)), [x, start @ ..], [y]) => scan(context, op, [*x, *y], start.first()),
        (Some(Op::Lrn(op)), [x], [y]) => lrn(context, op, *x, *y),
        (Some(Op::SegmentSum(op)), [x, numbers], [y]) => {
            segment_sum(context, op, [*x, *numbers, *y])
        }
        (Some(Op::Sort(Sort { axis, descending })), [x], [y, places]) => {
            rank(context, *axis, [*descending, true], [*x, *y, *places])
        }
        (Some(Op::TopK(TopK { axis, largest, .. })), [x], [y, places]) => {
            rank(context, *axis, [*largest, false], [*x, *y, *places])
        }
        _ => index::call(context),
    }
}

/// The type as which an element is read.
fn real(dtype: DType) -> &'static str {
    if matches!(dtype, DType::F16 | DType::Bf16) { "float" } else { c_type(dtype) }
}

/// The type in which sums and products are taken.
fn wide(dtype: DType) -> &'static str {
    if dtype.is_float() { "double" } else { "u64" }
}

/// `arg.cu`.
fn arg(context: &Context<'_>, op: &Arg, x: BufferId, y: BufferId) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let (Arg::Max { axis, select_last_index, .. } | Arg::Min { axis, select_last_index, .. }) = op;
    let ty = b.ty(x);
    let axis = context.axis(*axis, ty.rank())?;
    b.read("x", x);
    b.write("y", y);
    b.define("R", real(ty.dtype));
    b.flag("LARGEST", matches!(op, Arg::Max { .. }));
    b.flag("LAST", *select_last_index);
    Ok(Lines::new(&ty.shape, axis..axis + 1).finish(b, "arg.cu"))
}

/// `scan.cu`.
fn scan(
    context: &Context<'_>,
    op: &Scan,
    [x, y]: [BufferId; 2],
    start: Option<&BufferId>,
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let (Scan::Sum { exclusive, reverse, .. } | Scan::Prod { exclusive, reverse, .. }) = op;
    let ty = b.ty(x);
    let axis = context.axis(op.axis(), ty.rank())?;
    b.read("x", x);
    if let Some(start) = start {
        b.read("start", *start);
    }
    b.write("y", y);
    b.define("T", c_type(ty.dtype));
    b.define("A", wide(ty.dtype));
    b.flag("PRODUCT", op.by() == Combine::Prod);
    b.flag("EXCLUSIVE", *exclusive);
    b.flag("REVERSE", *reverse);
    b.flag("START", start.is_some());
    b.flag("WIDE", start.is_some_and(|start| b.ty(*start).rank() > ty.rank()));
    // 0 stands for plain numbers.
    b.define("COMPONENTS", op.total(ty.dtype).accumulator(ty.dtype).unwrap_or(0));
    let inner = product(&ty.shape[axis + 1..]);
    let lines = product(&ty.shape[..axis]) * inner.clone();
    b.size("LINES", &lines);
    b.size("SIZE", &ty.shape[axis]);
    b.size("INNER", &inner);
    Ok(index::finish(b, "scan.cu", &lines))
}

/// `rank.cu`; the settings say whether the order is descending, and whether a NaN is last in either
/// order.
fn rank(
    context: &Context<'_>,
    axis: i64,
    [descending, nans_last]: [bool; 2],
    [x, y, places]: [BufferId; 3],
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let ty = b.ty(x);
    let axis = context.axis(axis, ty.rank())?;
    b.read("x", x);
    b.write("y", y);
    b.write("places", places);
    b.define("T", c_type(ty.dtype));
    b.flag("DESCENDING", descending);
    b.flag("NANS_LAST", nans_last);
    let count = ty.shape.elements();
    b.size("COUNT", &count);
    b.size("SIZE", &ty.shape[axis]);
    b.size("INNER", &product(&ty.shape[axis + 1..]));
    b.size("K", &b.ty(y).shape[axis]);
    Ok(index::finish(b, "rank.cu", &count))
}

/// `segment_sum.cu`.
fn segment_sum(
    context: &Context<'_>,
    op: &SegmentSum,
    [x, numbers, y]: [BufferId; 3],
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let ty = b.ty(x);
    let Some((rows, columns)) = ty.shape.split_first() else {
        return Err(context.unsupported("it has no rows"));
    };
    b.read("x", x);
    b.read("numbers", numbers);
    b.write("y", y);
    b.report();
    b.define("T", c_type(ty.dtype));
    b.define("A", wide(ty.dtype));
    let count = b.ty(y).shape.elements();
    b.size("COUNT", &count);
    b.size("ROWS", rows);
    b.size("WIDTH", &product(columns));
    b.define("SEGMENTS", op.segments);
    b.flag("DOUBLES", ty.dtype == DType::F64);
    b.flag("WIDE", op.wide);
    Ok(index::finish(b, "segment_sum.cu", &count))
}

/// A number as a constant of the type in which elements of a type are computed.
#[expect(clippy::cast_possible_truncation, reason = "rounded as the reference rounds it")]
fn constant(x: f64, dtype: DType) -> String {
    if dtype == DType::F64 && x.is_finite() {
        return format!("{x:?}");
    }
    let rounded = float(x as f32);
    if dtype == DType::F64 { format!("(double){rounded}") } else { rounded }
}

/// `lrn.cu`.
fn lrn(context: &Context<'_>, op: &Lrn, x: BufferId, y: BufferId) -> Result<Call, CodegenError> {
    /// More channels than there are, and far from the ends of `long long`.
    const FAR: i64 = 1 << 60;
    let mut b = context.row_major()?;
    let ty = b.ty(x);
    let Some(channels) = ty.shape.get(1) else {
        return Err(context.unsupported("it has no channels"));
    };
    let (reach, weight) = (op.size - 1, f64::from(op.alpha) / op.size as f64);
    let number = |x: f64| constant(x, ty.dtype);
    b.read("x", x);
    b.write("y", y);
    b.define("T", c_type(ty.dtype));
    b.define("R", real(ty.dtype));
    b.define("BEFORE", (reach / 2).min(FAR));
    b.define("AFTER", (reach - reach / 2).min(FAR));
    b.define("BIAS", number(f64::from(op.bias)));
    b.define("WEIGHT", number(weight));
    b.define("BETA", number(f64::from(op.beta)));
    b.flag("ROOTS", op.beta.to_bits() == 0.75f32.to_bits());
    let count: Dim = ty.shape.elements();
    b.size("COUNT", &count);
    b.size("CHANNELS", channels);
    b.size("PLANE", &product(&ty.shape[2..]));
    Ok(index::finish(b, "lrn.cu", &count))
}
