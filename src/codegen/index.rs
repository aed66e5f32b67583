//! Elements that other elements name by number.

use super::CodegenError;
use super::builder::{Builder, bits_type, blocks, c_type, line};
use super::kernel::Call;
use super::launch::Context;
use super::lines::product;
use super::strides::Walk;
use crate::lower::BufferId;
use crate::op::{Gather, GatherAt, OneHot, Op, Range, Reduction, ReverseSequence, Scatter, Trilu};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, Shape};

const THREADS: u32 = 256;

/// Entries of a line that one thread updates, and from which on many threads do.
const SHORT: i64 = 64;
const LONG: i64 = 4096;

/// The kernel of an operator that picks or places elements by number.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    match (&launch.op, launch.operands.as_slice(), launch.results.as_slice()) {
        (Some(Op::GatherAt(op)), [x, places], [y]) => gather_at(context, op, [*x, *places, *y]),
        (Some(Op::Scatter(op)), [x, places, updates], [y]) => {
            scatter(context, op, [*x, *places, *updates, *y])
        }
        (Some(Op::OneHot(op)), [numbers, values], [y]) => {
            one_hot(context, op, [*numbers, *values, *y])
        }
        (Some(Op::Range(op)), [], [y]) => Ok(range(context, op, *y)),
        (Some(Op::Constant(op)), [], [y]) => {
            let bytes = op.value.bytes();
            let width = op.value.dtype().bytes();
            let bits = bytes.chunks_exact(width.max(1)).map(|element| {
                let mut word = [0; 8];
                word.iter_mut().zip(element).for_each(|(to, from)| *to = *from);
                Dim::from(i64::from_le_bytes(word))
            });
            Ok(written(context, bits.collect(), *y))
        }
        (Some(Op::Dims(op)), [], [y]) => Ok(written(context, op.values.clone(), *y)),
        (Some(Op::Trilu(op)), [x], [y]) => trilu(context, op, *x, *y),
        (Some(Op::ReverseSequence(op)), [x, numbers], [y]) => {
            reverse_sequence(context, op, [*x, *numbers, *y])
        }
        _ => Err(context.unsupported("it picks elements in another way")),
    }
}

/// The type as which elements that lie side by side in all of these sizes are moved, and how many
/// of them it holds.
fn vector(b: &Builder<'_>, values: [BufferId; 2], sizes: &[&Dim]) -> (&'static str, i64) {
    let dtype = b.ty(values[0]).dtype;
    let many = 16 / int::<i64>(dtype.bytes());
    let fits = |size: &&Dim| size.modulo(&many.into()) == Dim::ZERO;
    if values.into_iter().all(|id| b.is_aligned(id)) && sizes.iter().all(fits) {
        ("uint4", many)
    } else {
        (bits_type(dtype), 1)
    }
}

/// `gather.cu`.
pub(super) fn gather(
    context: &Context<'_>,
    op: &Gather,
    [x, places, y]: [BufferId; 3],
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let shape = &b.ty(x).shape;
    let axis = context.axis(op.axis, shape.rank())?;
    let inner = product(&shape[axis + 1..]);
    let (ty, many) = vector(&b, [x, y], &[&inner]);
    let part = |size: Dim| size.floor_div(&many.into());
    b.read_as("x", x, ty);
    b.read("places", places);
    b.write_as("y", y, ty);
    b.report();
    b.define("T", ty);
    let count = part(b.ty(y).shape.elements());
    b.size("COUNT", &count);
    b.size("LENGTH", &shape[axis]);
    b.size("PLACES", &b.ty(places).shape.elements());
    b.size("INNER", &part(inner));
    Ok(finish(b, "gather.cu", &count))
}

/// `written.cu`.
fn written(context: &Context<'_>, bits: Vec<Dim>, y: BufferId) -> Call {
    let mut b = Builder::new(context.device);
    let ty = bits_type(b.ty(y).dtype);
    b.write_as("y", y, ty);
    b.define("ELEMENT", ty);
    b.define("COUNT", bits.len());
    b.arguments("BITS", bits);
    b.finish("written.cu", 32, String::new(), line(Dim::ONE))
}

/// `range.cu`.
fn range(context: &Context<'_>, op: &Range, y: BufferId) -> Call {
    let mut b = Builder::new(context.device);
    let ty = b.ty(y);
    b.write("y", y);
    b.define("ELEMENT", c_type(ty.dtype));
    b.define("DELTA", format!("(i64){:#x}ull", op.delta));
    match op.start.as_const() {
        Some(start) => b.define("START", format!("(i64){start:#x}ull")),
        None => b.size("START", &op.start),
    }
    let count = ty.shape.elements();
    b.size("COUNT", &count);
    finish(b, "range.cu", &count)
}

/// The call of a kernel whose threads take so many elements in strides.
pub(super) fn finish(b: Builder<'_>, file: &'static str, count: &Dim) -> Call {
    b.finish(file, THREADS, String::new(), line(blocks(count, i64::from(THREADS))))
}

/// The last axis of indices, which hold the coordinates of a block, and the axes before it.
fn rows(shape: &Shape) -> (usize, &[Dim]) {
    let last = shape.split_last().and_then(|(d, rows)| Some((d.as_const()?, rows)));
    let (count, rows) = invariant(last, "that the number of coordinates is fixed");
    (int(count), rows)
}

/// Says to the kernel the lengths of the axes that coordinates run along, and the distances of
/// their entries.
fn coordinates(b: &mut Builder<'_>, lengths: &[Dim], strides: &[Dim]) {
    b.define("COORDINATES", lengths.len());
    b.list("LENGTHS", lengths);
    b.list("STRIDES", strides);
}

/// `gather_at.cu`.
fn gather_at(
    context: &Context<'_>,
    op: &GatherAt,
    [x, places, y]: [BufferId; 3],
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let (shape, own, steps) = (&b.ty(x).shape, &b.ty(places).shape, b.steps(x));
    let elements = b.ty(y).shape.elements();
    let (ty, count) = match *op {
        GatherAt::Elements { axis } => {
            let axis = context.axis(axis, shape.rank())?;
            let step = |a: usize| if a == axis { Dim::ZERO } else { steps[a].clone() };
            let walk = Walk::new((0..own.rank()).map(|a| (own[a].clone(), [step(a)])));
            b.flag("ND", false);
            b.list("SIZES", &walk.sizes());
            b.list("STEPS", &walk.steps(0));
            b.size("LENGTH", &shape[axis]);
            b.size("STRIDE", &steps[axis]);
            (bits_type(b.ty(x).dtype), elements)
        }
        GatherAt::Nd { batch_dims } => {
            let batch = int::<usize>(batch_dims);
            let (given, rows) = rows(own);
            let behind = batch + given;
            let block = product(&shape[behind..]);
            let (ty, many) = vector(&b, [x, y], &[&block]);
            let part = |size: &Dim| size.floor_div(&many.into());
            b.flag("ND", true);
            b.size("BLOCK", &part(&block));
            b.size("EACH", &product(&rows[batch..]));
            b.size("BATCH", &part(&product(&shape[batch..])));
            let strides: Vec<Dim> = steps[batch..behind].iter().map(part).collect();
            coordinates(&mut b, &shape[batch..behind], &strides);
            (ty, part(&elements))
        }
    };
    b.read_as("x", x, ty);
    b.read("places", places);
    b.write_as("y", y, ty);
    b.report();
    b.define("T", ty);
    b.size("COUNT", &count);
    Ok(finish(b, "gather_at.cu", &count))
}

/// What an update does, by number, and the type as which elements are read for it.
fn combined(reduction: Reduction, dtype: DType) -> (u8, &'static str) {
    match reduction {
        Reduction::None => (0, bits_type(dtype)),
        Reduction::Add => (1, c_type(dtype)),
        Reduction::Mul => (2, c_type(dtype)),
        Reduction::Max => (3, c_type(dtype)),
        Reduction::Min => (4, c_type(dtype)),
    }
}

/// `scatter.cu`.
fn scatter(
    context: &Context<'_>,
    op: &Scatter,
    [x, places, updates, y]: [BufferId; 4],
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let (shape, own) = (&b.ty(x).shape, &b.ty(places).shape);
    let (lines, length, inner, reduction) = match *op {
        Scatter::Elements { axis, reduction } => {
            let axis = context.axis(axis, shape.rank())?;
            let steps = b.steps(places);
            let others: Vec<usize> = (0..shape.rank()).filter(|a| *a != axis).collect();
            let list = |f: &dyn Fn(usize) -> Dim, none: Dim| -> Vec<Dim> {
                // A vector has no other axis; a kernel has one at least.
                if others.is_empty() { vec![none] } else { others.iter().map(|a| f(*a)).collect() }
            };
            b.flag("ND", false);
            b.define("AXES", others.len().max(1));
            b.list("SIZES", &list(&|a| shape[a].clone(), Dim::ONE));
            b.list("PLACES", &list(&|a| own[a].clone(), Dim::ONE));
            b.list("STEPS", &list(&|a| steps[a].clone(), Dim::ZERO));
            b.size("STRIDE", &steps[axis]);
            b.size("UPDATES", &own[axis]);
            let lines = others.iter().fold(Dim::ONE, |p, a| p * shape[*a].clone());
            (lines, shape[axis].clone(), product(&shape[axis + 1..]), reduction)
        }
        Scatter::Nd { reduction } => {
            let (given, rows) = rows(own);
            let entries = &shape[..given];
            let strides: Vec<Dim> = (0..given).map(|a| product(&entries[a + 1..])).collect();
            b.flag("ND", true);
            coordinates(&mut b, entries, &strides);
            b.size("UPDATES", &product(rows));
            let run = product(&shape[given..]);
            (run.clone(), product(entries), run, reduction)
        }
    };
    let (kind, ty) = combined(reduction, b.ty(x).dtype);
    let lanes: i64 = match length.as_const() {
        Some(..SHORT) => 1,
        Some(LONG..) => 256,
        _ => 32,
    };
    b.read_as("x", x, ty);
    b.read("places", places);
    b.read_as("updates", updates, ty);
    b.write_as("y", y, ty);
    b.report();
    b.define("T", ty);
    b.define("KIND", kind);
    b.define("LANES", lanes);
    b.flag("ALONG", inner == Dim::ONE);
    b.size("LINES", &lines);
    b.size("LENGTH", &length);
    b.size("INNER", &inner);
    Ok(finish(b, "scatter.cu", &(lines * lanes)))
}

/// `one_hot.cu`.
fn one_hot(
    context: &Context<'_>,
    op: &OneHot,
    [numbers, values, y]: [BufferId; 3],
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let shape = &b.ty(y).shape;
    let axis = context.axis(op.axis, shape.rank())?;
    let ty = bits_type(b.ty(y).dtype);
    b.read("numbers", numbers);
    b.read_as("values", values, ty);
    b.write_as("y", y, ty);
    b.flag("UNSIGNED", b.ty(numbers).dtype == DType::U64);
    let count = shape.elements();
    b.size("COUNT", &count);
    b.size("DEPTH", &shape[axis]);
    b.size("INNER", &product(&shape[axis + 1..]));
    Ok(finish(b, "one_hot.cu", &count))
}

/// `trilu.cu`.
fn trilu(
    context: &Context<'_>,
    op: &Trilu,
    x: BufferId,
    y: BufferId,
) -> Result<Call, CodegenError> {
    /// Beyond the diagonals of all matrices, and far from the ends of `long long`.
    const FAR: i64 = 1 << 60;
    let mut b = context.row_major()?;
    let shape = &b.ty(y).shape;
    let [.., rows, columns] = shape.as_ref() else {
        return Err(context.unsupported("it has no matrices"));
    };
    let ty = bits_type(b.ty(y).dtype);
    b.read_as("x", x, ty);
    b.write_as("y", y, ty);
    b.define("T", ty);
    b.flag("UPPER", op.upper);
    b.define("DIAGONAL", format!("({}ll)", op.k.clamp(-FAR, FAR)));
    let count = shape.elements();
    b.size("COUNT", &count);
    b.size("ROWS", rows);
    b.size("COLUMNS", columns);
    Ok(finish(b, "trilu.cu", &count))
}

/// `reverse_sequence.cu`.
fn reverse_sequence(
    context: &Context<'_>,
    op: &ReverseSequence,
    [x, numbers, y]: [BufferId; 3],
) -> Result<Call, CodegenError> {
    let mut b = context.row_major()?;
    let (shape, steps) = (&b.ty(x).shape, b.steps(x));
    let batch = context.axis(op.batch_axis, shape.rank())?;
    let time = context.axis(op.time_axis, shape.rank())?;
    let ty = bits_type(b.ty(x).dtype);
    b.read_as("x", x, ty);
    b.read("numbers", numbers);
    b.write_as("y", y, ty);
    b.report();
    let count = shape.elements();
    b.size("COUNT", &count);
    b.size("SEQUENCES", &shape[batch]);
    b.size("BESIDE", &steps[batch]);
    b.size("STEPS", &shape[time]);
    b.size("STRIDE", &steps[time]);
    Ok(finish(b, "reverse_sequence.cu", &count))
}
