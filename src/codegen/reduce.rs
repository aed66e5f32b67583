//! Reductions, in one launch or two.

use super::CodegenError;
use super::builder::{Builder, c_type};
use super::index;
use super::kernel::Call;
use super::launch::Context;
use super::lines::{Form, product};
use super::strides::Walk;
use crate::lower::{BufferId, PART};
use crate::op::{Narrow, Op, Reduce};
use crate::types::{Combine, DType, Dim, KernelClass};

/// `reduce.cu`.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    if let (Some(Op::Narrow(op)), [x], [y]) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
    {
        return narrow(context, op, *x, *y);
    }
    let (Some(Op::Reduce(op)), [x, parts @ ..], [y]) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
    else {
        return Err(context.unsupported("it is no reduction of one operand"));
    };
    let dtype = context.device.buffer(*x).ty.dtype;
    if !matches!(dtype, DType::F32 | DType::F64) {
        return Err(context.unsupported(format!("its operand is {dtype}")));
    }
    match (parts, launch.class) {
        ([parts], _) => last(context, op, *x, *parts, *y),
        ([], KernelClass::Partial) => parts_of(context, op, *x, *y),
        _ => lines(context, op, *x, *y, false),
    }
}

/// `narrow.cu`.
fn narrow(
    context: &Context<'_>,
    op: &Narrow,
    x: BufferId,
    y: BufferId,
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let components = b.ty(x).shape.first().and_then(Dim::as_const);
    let count = b.ty(y).shape.elements();
    b.read("x", x);
    b.write("y", y);
    let by = match (op.by, components) {
        (Combine::WideProd, Some(2)) => 2,
        (Combine::WideSum, Some(4)) => 1,
        (Combine::WideSum, Some(2)) => 0,
        _ => return Err(context.unsupported("its operand has no components")),
    };
    b.define("BY", by);
    b.size("DIVISOR", &op.count);
    b.flag("LOG", op.log);
    b.size("COUNT", &count);
    Ok(index::finish(b, "narrow.cu", &count))
}

/// The launch that reads the elements and gives a part of each result for `PART` of them.
pub(super) fn parts_of(
    context: &Context<'_>,
    op: &Reduce,
    x: BufferId,
    parts: BufferId,
) -> Result<Call, CodegenError> {
    lines(context, op, x, parts, true)
}

/// The launch that reads the elements; it gives results or parts of them.
fn lines(
    context: &Context<'_>,
    op: &Reduce,
    x: BufferId,
    y: BufferId,
    gives_parts: bool,
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let (shape, steps) = (&b.ty(x).shape, b.steps(x));
    let reduced = op.reduced(shape.rank()).map_err(|e| context.unsupported(e.to_string()))?;
    let memory = b.axes(x);
    let walk = |gone: bool| {
        let axes = memory.iter().filter(|a| reduced[**a] == gone);
        Walk::new(axes.map(|a| (shape[*a].clone(), [steps[*a].clone()])))
    };
    let innermost = memory.iter().rev().find(|a| shape[**a] != Dim::ONE);
    let along = innermost.is_none_or(|a| reduced[*a]);
    let (kept, gone) = (walk(false), walk(true));
    let (size, count) = (product(&gone.sizes()), product(&kept.sizes()));
    let parts =
        if gives_parts { (size.clone() + (PART - 1)).floor_div(&PART.into()) } else { Dim::ONE };
    b.define("GIVES_PARTS", u8::from(gives_parts));
    b.define("TAKES_PARTS", 0);
    b.define("PART", PART);
    b.size("PARTS", &parts);
    b.size("MEMBERS", &size);
    let components = op.accumulator(b.ty(x).dtype);
    values(&mut b, op, components, [x, y]);
    b.size("SIZE", &size);
    b.list("KEPT_SIZES", &kept.sizes());
    b.list("KEPT_STEPS", &kept.steps(0));
    b.list("REDUCED_SIZES", &gone.sizes());
    b.list("REDUCED_STEPS", &gone.steps(0));
    let whole = gives_parts || reduced.first() == Some(&true);
    Ok(Form::new(&size, along, whole).finish(b, "reduce.cu", &count, &parts))
}

/// The launch that folds the parts of each line of `x`.
fn last(
    context: &Context<'_>,
    op: &Reduce,
    x: BufferId,
    parts: BufferId,
    y: BufferId,
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let shape = &b.ty(x).shape;
    let reduced = op.reduced(shape.rank()).map_err(|e| context.unsupported(e.to_string()))?;
    let members = product(shape.iter().zip(&reduced).filter(|(_, r)| **r).map(|(size, _)| size));
    let [.., count, lines] = &b.ty(parts).shape[..] else {
        return Err(context.unsupported("its parts have no lines"));
    };
    b.define("GIVES_PARTS", 0);
    b.define("TAKES_PARTS", 1);
    b.define("PART", PART);
    b.define("PARTS", 1);
    b.size("MEMBERS", &members);
    let components = op.accumulator(b.ty(x).dtype);
    values(&mut b, op, components, [parts, y]);
    b.size("SIZE", count);
    b.list("KEPT_SIZES", std::slice::from_ref(lines));
    b.list("KEPT_STEPS", &[Dim::ONE]);
    b.list("REDUCED_SIZES", std::slice::from_ref(count));
    b.list("REDUCED_STEPS", std::slice::from_ref(lines));
    let along = *lines == Dim::ONE;
    Ok(Form::new(count, along, true).finish(b, "reduce.cu", lines, &Dim::ONE))
}

/// The sums of `parts: [PARTS, ...]` over the first axis, in the order in which `y` lies in memory.
pub(super) fn sum(
    context: &Context<'_>,
    parts: BufferId,
    y: BufferId,
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let [size, kept @ ..] = &b.ty(parts).shape[..] else {
        return Err(context.unsupported("its parts have no axis"));
    };
    let (op, count) = (Reduce::Sum { axes: Vec::new(), keepdims: false }, product(kept));
    b.define("GIVES_PARTS", 0);
    b.define("TAKES_PARTS", 1);
    b.define("PART", PART);
    b.define("PARTS", 1);
    b.size("MEMBERS", size);
    // Each part was rounded already.
    values(&mut b, &op, None, [parts, y]);
    b.size("SIZE", size);
    b.list("KEPT_SIZES", std::slice::from_ref(&count));
    b.list("KEPT_STEPS", &[Dim::ONE]);
    b.list("REDUCED_SIZES", std::slice::from_ref(size));
    b.list("REDUCED_STEPS", std::slice::from_ref(&count));
    Ok(Form::new(size, false, true).finish(b, "reduce.cu", &count, &Dim::ONE))
}

/// What is read and written, and how it is folded: in wide numbers of so many components, or in
/// plain ones.
fn values(b: &mut Builder<'_>, op: &Reduce, components: Option<usize>, [x, y]: [BufferId; 2]) {
    b.define("ELEMENT", c_type(b.ty(x).dtype));
    b.define("RESULT", c_type(b.ty(y).dtype));
    b.read("x", x);
    b.write("y", y);
    b.define("KIND", kind(op));
    // 0 stands for plain numbers.
    b.define("COMPONENTS", components.unwrap_or(0));
}

fn kind(op: &Reduce) -> u8 {
    match op {
        Reduce::Sum { .. } => 0,
        Reduce::Mean { .. } => 1,
        Reduce::Max { .. } => 2,
        Reduce::Min { .. } => 3,
        Reduce::Prod { .. } => 4,
        Reduce::L1 { .. } => 5,
        Reduce::L2 { .. } => 6,
        Reduce::LogSum { .. } => 7,
        Reduce::LogSumExp { .. } => 8,
        Reduce::SumSquare { .. } => 9,
        Reduce::WideSum { .. } => 10,
        Reduce::WideProd { .. } => 11,
    }
}
