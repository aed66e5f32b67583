//! Reductions, in one launch or two.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, c_type};
use crate::codegen::lines::{Form, product};
use crate::codegen::strides::Walk;
use crate::lower::{BufferId, Images, Parts};
use crate::op::Reduce;
use crate::types::{DType, Dim, Shape, TensorType};

/// The elements of a line that the first launch of a reduction folds to one.
pub(super) const PART: i64 = 4096;

/// The elements of a line from which on it is folded in parts.
const LONG: i64 = 8 * PART;

/// The most lines through the batch that are folded in parts; more of them fill a device.
const LINES: i64 = 4096;

/// `[parts, lines]` in `f64`; two of them of the logarithm of a sum of exponentials, and one for
/// each component of wide sums and products.
pub(super) fn parts(op: &Reduce, x: &TensorType) -> Option<Parts> {
    let reduced = op.reduced(x.rank()).ok()?;
    let product = |wanted: bool| {
        let sizes = x.shape.iter().zip(&reduced).filter(|(_, r)| **r == wanted);
        sizes.fold(Dim::ONE, |product, (size, _)| product * size.clone())
    };
    let (size, lines) = (product(true), product(false));
    // Of a line through the batch the size does not decide, even if it is known.
    let known = size.as_const().filter(|_| reduced.first() != Some(&true));
    let long = match known {
        Some(size) => size >= LONG,
        None => lines.as_const().is_some_and(|lines| lines <= LINES),
    };
    if !long {
        return None;
    }
    let parts = (size + (PART - 1)).floor_div(&PART.into());
    let logs = matches!(op, Reduce::LogSumExp { .. }).then_some(2);
    let wide = logs.or_else(|| op.accumulator(x.dtype));
    let wide = wide.map(|components| Shape::from(&[components][..]));
    let wide = wide.iter().flat_map(|shape| shape.iter().cloned());
    let shape: Shape = wide.chain([parts, lines]).collect();
    Some(Parts { ty: TensorType::new(DType::F64, shape), reads: 1 })
}

impl CudaOp for Reduce {
    fn supports(&self, types: &Types<'_>) -> Support {
        let [x] = types.operands.as_slice() else { return Support::default() };
        // Of images with the channels last, the places of each channel are lines.
        let one = self.components(x.dtype).is_none() && self.is_over(x.rank(), 2..x.rank());
        let images = if one { Images::First } else { Images::RowMajor };
        let support = Support { parts: parts(self, x), images, ..Support::by(KernelClass::Reduce) };
        // A wide result is `f64`.
        support.when(matches!(x.dtype, DType::F32 | DType::F64))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [y] = context.results()?;
        match context.launch.operands.as_slice() {
            [x] => lines(context, self, [*x, y], false),
            [x, parts] => last(context, self, [*x, *parts, y]),
            _ => Err(context.unsupported("it is no reduction of one operand")),
        }
    }

    fn first(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        lines(context, self, [x, y], true)
    }
}

/// The launch that reads the elements; it gives results or parts of them.
pub(super) fn lines(
    context: &Context<'_>,
    op: &Reduce,
    [x, y]: [BufferId; 2],
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
    [x, parts, y]: [BufferId; 3],
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
