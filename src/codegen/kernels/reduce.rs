//! Reductions, in one or two passes.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, c_type};
use crate::codegen::lines::{ReductionShape, product};
use crate::codegen::strides::LoopNest;
use crate::lower::{BufferId, Images, Partials};
use crate::op::{Reduce, rows};
use crate::types::invariant::int;
use crate::types::{DType, Dim, Shape, TensorType};

/// The elements of a part of a line, which the first of two passes combines into one result. It is
/// the definition's (`op::reduce::fold`).
#[expect(clippy::cast_possible_wrap, reason = "it is small")]
pub(super) const PART: i64 = rows::SHORT as i64;

/// The elements of a line from which on it takes two passes.
const LONG: i64 = 8 * PART;

/// The most lines across the batch that take two passes; more lines fill a device in one pass.
const LINES: i64 = 4096;

/// `[parts, lines]` in `f64`; two of them of the logarithm of a sum of exponentials, and one for
/// each component of wide sums and products.
pub(super) fn parts(op: &Reduce, x: &TensorType) -> Option<Partials> {
    let reduced = op.reduced(x.rank()).ok()?;
    let product = |wanted: bool| {
        let sizes = x.shape.iter().zip(&reduced).filter(|(_, r)| **r == wanted);
        sizes.fold(Dim::ONE, |product, (size, _)| product * size.clone())
    };
    let (size, lines) = (product(true), product(false));
    // The size of a line across the batch must not decide, even if it is constant: the replicas
    // have other sizes, and the logarithm of a sum of exponentials has other bits in two passes.
    let known = size.as_const().filter(|_| reduced.first() != Some(&true));
    let long = match known {
        Some(size) => size >= LONG,
        None => lines.as_const().is_some_and(|lines| lines <= LINES),
    };
    if !long {
        return None;
    }
    let parts = (size + (PART - 1)).floor_div(&PART.into());
    // A partial log-sum-exp is a pair, the maximum and the scaled sum: a sum alone could overflow.
    let logs = matches!(op, Reduce::LogSumExp { .. }).then_some(2);
    let wide = logs.or_else(|| op.accumulator(x.dtype));
    let wide = wide.map(|components| Shape::from(&[components][..]));
    let wide = wide.iter().flat_map(|shape| shape.iter().cloned());
    let shape: Shape = wide.chain([parts, lines]).collect();
    Some(Partials { ty: TensorType::new(DType::F64, shape), reads: 1, product: false })
}

impl CudaOp for Reduce {
    fn supports(&self, types: &Types<'_>) -> Support {
        let [x] = types.operands.as_slice() else { return Support::default() };
        // Of images with the channels last, the places of each channel are lines, in one sample or
        // in all: the elements of a line come in the same order.
        let lines = self.is_over(x.rank(), 2..x.rank()) || self.is_over_all_but(x.rank(), 1);
        let one = self.components(x.dtype).is_none() && lines;
        let images = if one { Images::First } else { Images::RowMajor };
        let parts = parts(self, x);
        // Logarithms and exponentials of `f64` are CUDA's, and so are those that join sums of two
        // passes, each shifted by the largest element of a part.
        let own_bits = match self {
            Self::LogSum { .. } => true,
            Self::LogSumExp { .. } => parts.is_some() || x.dtype == DType::F64,
            Self::Sum { .. }
            | Self::Mean { .. }
            | Self::Max { .. }
            | Self::Min { .. }
            | Self::Prod { .. }
            | Self::L1 { .. }
            | Self::L2 { .. }
            | Self::SumSquare { .. }
            | Self::WideSum { .. }
            | Self::WideProd { .. } => false,
        };
        let support = Support { parts, images, ..Support::by(KernelClass::Reduce) };
        // A wide result is `f64`.
        support.with_own_bits(own_bits).when(matches!(x.dtype, DType::F32 | DType::F64))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let [y] = context.results()?;
        match context.launch.operands.as_slice() {
            [x] => lines(context, self, [*x, y], false),
            [x, parts] => last(context, self, [*x, *parts, y]),
            _ => Err(context.unsupported("it is not a reduction of one operand")),
        }
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        lines(context, self, [x, y], true)
    }
}

/// The launch that reads the elements; it writes results or partial results.
pub(super) fn lines(
    context: &Context<'_>,
    op: &Reduce,
    [x, y]: [BufferId; 2],
    gives_parts: bool,
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let (shape, steps) = (&b.ty(x).shape, b.strides(x));
    let reduced = op.reduced(shape.rank()).map_err(|e| context.unsupported(e.to_string()))?;
    let memory = b.axes(x);
    let walk = |gone: bool| {
        let axes = memory.iter().filter(|a| reduced[**a] == gone);
        LoopNest::new(axes.map(|a| (shape[*a].clone(), [steps[*a].clone()])))
    };
    let innermost = memory.iter().rev().find(|a| shape[**a] != Dim::ONE);
    // Neighbouring threads follow the innermost axis of more than one element, whether it is
    // reduced or kept, so that their loads are coalesced.
    let along = innermost.is_none_or(|a| reduced[*a]);
    let (kept, gone) = (walk(false), walk(true));
    let (size, count) = (product(&gone.sizes()), product(&kept.sizes()));
    let parts =
        if gives_parts { (size.clone() + (PART - 1)).floor_div(&PART.into()) } else { Dim::ONE };
    b.define("GIVES_PARTS", u8::from(gives_parts));
    b.define("TAKES_PARTS", 0);
    b.define("PART", PART);
    b.size("PARTS", &parts);
    // The divisor of a mean: all elements of a line, of which a part has some.
    b.size("MEMBERS", &size);
    let components = op.accumulator(b.ty(x).dtype);
    values(&mut b, op, components, [x, y]);
    b.size("SIZE", &size);
    b.list("KEPT_SIZES", &kept.sizes());
    b.list("KEPT_STEPS", &kept.strides(0));
    b.list("REDUCED_SIZES", &gone.sizes());
    b.list("REDUCED_STEPS", &gone.strides(0));
    let known = size.as_const().map(|size| (size + (PART - 1)) / PART);
    // The parts of a line that one pass folds are folded side by side, unless neighbouring threads
    // are those of neighbouring lines.
    let groups = match known {
        _ if gives_parts || !along => 1,
        Some(parts) => (LONG / PART).min(int(int::<u64>(parts.max(1)).next_power_of_two())),
        None => LONG / PART,
    };
    let whole = gives_parts || known.is_some_and(|parts| parts <= 1);
    let one = if gives_parts { Dim::from(PART) } else { size };
    Ok(finish(b, &Lines { size: one, along, groups, whole }, &count, &parts))
}

/// The second pass, which combines the partial results of each line of `x`.
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
    let form = Lines { size: count.clone(), along, groups: 1, whole: true };
    Ok(finish(b, &form, lines, &Dim::ONE))
}

/// Sums `parts: [PARTS, ...]` over the first axis, in the memory order of `y`.
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
    // No wide accumulators: the partial results were rounded already.
    values(&mut b, &op, None, [parts, y]);
    b.size("SIZE", size);
    b.list("KEPT_SIZES", std::slice::from_ref(&count));
    b.list("KEPT_STEPS", &[Dim::ONE]);
    b.list("REDUCED_SIZES", std::slice::from_ref(size));
    b.list("REDUCED_STEPS", std::slice::from_ref(&count));
    let form = Lines { size: size.clone(), along: false, groups: 1, whole: true };
    Ok(finish(b, &form, &count, &Dim::ONE))
}

/// How the threads of a block fold lines.
struct Lines {
    /// The elements of a line, or of a part.
    size: Dim,
    /// Whether neighbouring threads are those of one line.
    along: bool,
    /// The parts of a line that are folded side by side.
    groups: i64,
    /// Whether a line is one part.
    whole: bool,
}

/// Defines the macros of the shape, and finishes the call for `count` lines of `parts` parts each.
fn finish(mut b: Builder<'_>, lines: &Lines, count: &Dim, parts: &Dim) -> Call {
    let (shape, sums) = ReductionShape::of_parts(&lines.size, lines.along, lines.groups);
    b.flag("WHOLE", lines.whole);
    b.define("GROUPS", lines.groups);
    b.define("SUMS", sums);
    shape.finish(b, "reduce.cu", count, parts)
}

/// Defines the operand, the result and the accumulator: wide numbers of `components` components, or
/// plain numbers.
fn values(b: &mut Builder<'_>, op: &Reduce, components: Option<usize>, [x, y]: [BufferId; 2]) {
    b.define("ELEMENT", c_type(b.ty(x).dtype));
    b.define("RESULT", c_type(b.ty(y).dtype));
    b.read("x", x);
    b.write("y", y);
    b.define("KIND", kind(op));
    // 0 stands for plain numbers.
    b.define("COMPONENTS", components.unwrap_or(0));
}

/// The number by which `reduce.cu` knows the reduction.
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
