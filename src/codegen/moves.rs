//! Elements in other places, of any type.

use super::builder::{Builder, bits_type, blocks, ceil_div, line};
use super::kernel::Call;
use super::launch::Context;
use super::matmul::by_four;
use super::strides::Walk;
use super::{CodegenError, index};
use crate::lower::BufferId;
use crate::op::{BlockOrder, Blocks, Op, PadMode, Reverse, Slice};
use crate::types::invariant::{int, invariant};
use crate::types::{Dim, Target};

const THREADS: u32 = 256;

/// Sides of a matrix from which on squares of it are exchanged through shared memory.
const LEAST_SIDE: i64 = 16;

/// Side of such a square.
const SIDE: i64 = 32;

/// Values that one kernel joins.
const MOST_PARTS: usize = Target::CUDA.limits.parts;

/// Whichever file moves the elements as the operator says.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (operands, results) = (launch.operands.as_slice(), launch.results.as_slice());
    match (&launch.op, operands, results) {
        (None, [x], [y]) => reading(context, *x, *y, &Dim::ZERO, |b, steps| {
            b.axes(*y).into_iter().map(|a| (b.ty(*y).shape[a].clone(), steps[a].clone())).collect()
        }),
        (Some(Op::Transpose(op)), [x], [y]) => reading(context, *x, *y, &Dim::ZERO, |b, steps| {
            let axis = |a: usize| (b.ty(*y).shape[a].clone(), steps[op.perm[a]].clone());
            b.axes(*y).into_iter().map(axis).collect()
        }),
        (Some(Op::Slice(op)), [x], [y]) => slice(context, op, *x, *y),
        (Some(Op::Expand(_)), [x], [y]) => reading(context, *x, *y, &Dim::ZERO, |b, steps| {
            let (own, shape) = (&b.ty(*x).shape, &b.ty(*y).shape);
            let step = |a: usize| match (a + own.rank()).checked_sub(shape.rank()) {
                Some(i) if own[i] != Dim::ONE => steps[i].clone(),
                _ => Dim::ZERO,
            };
            b.axes(*y).into_iter().map(|a| (shape[a].clone(), step(a))).collect()
        }),
        (Some(Op::Tile(op)), [x], [y]) => reading(context, *x, *y, &Dim::ZERO, |b, steps| {
            let count = |a: usize| Dim::from(int::<i64>(op.repeats[a]));
            let pair =
                |a: usize| [(count(a), Dim::ZERO), (b.ty(*x).shape[a].clone(), steps[a].clone())];
            b.axes(*y).into_iter().flat_map(pair).collect()
        }),
        (Some(Op::Reverse(op)), [x], [y]) => reverse(context, op, *x, *y),
        (Some(Op::Blocks(op)), [x], [y]) => blocks_of(context, op, *x, *y),
        (Some(Op::Concat(op)), parts, [y]) => join(context, op.axis, parts, *y, false),
        (Some(Op::AllGather(op)), parts, [y]) => join(context, op.axis, parts, *y, false),
        (Some(Op::SplitOp(op)), [x], parts) => join(context, op.axis, parts, *x, true),
        (Some(Op::Gather(op)), [x, places], [y]) => index::gather(context, op, [*x, *places, *y]),
        (Some(Op::Pad(_)), [x], [y]) => pad(context, *x, *y),
        _ => Err(context.unsupported("it moves elements in another way")),
    }
}

/// `move.cu` or `exchange.cu`: the result has the elements along some axes of the operand, from
/// `first` on.
#[expect(
    clippy::unnecessary_wraps,
    reason = "one of several ways to move, the others of which can fail"
)]
fn reading(
    context: &Context<'_>,
    x: BufferId,
    y: BufferId,
    first: &Dim,
    axes: impl FnOnce(&Builder<'_>, &[Dim]) -> Vec<(Dim, Dim)>,
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let axes = axes(&b, &b.steps(x));
    let walk = Walk::new(axes.into_iter().map(|(size, step)| (size, [step])));
    let ty = bits_type(b.ty(y).dtype);
    if *first == Dim::ZERO
        && let Some((matrices, columns, rows)) = exchange(&walk)
    {
        b.read_as("x", x, ty);
        b.write_as("y", y, ty);
        b.define("T", ty);
        b.size("ROWS", &rows);
        b.size("COLUMNS", &columns);
        let squares = ceil_div(&columns, SIDE) * ceil_div(&rows, SIDE) * matrices;
        return Ok(b.finish("exchange.cu", THREADS, String::new(), line(squares)));
    }
    let (mut sizes, mut steps, mut first) = (walk.sizes(), walk.steps(0), first.clone());
    let mut count = b.ty(y).shape.elements();
    let last = sizes.len() - 1;
    let wide = b.ty(y).dtype.bytes() == 4
        && b.is_aligned(x)
        && b.is_aligned(y)
        && steps[last] == Dim::ONE
        && by_four(&sizes[last])
        && by_four(&first)
        && steps[..last].iter().all(by_four);
    if wide {
        let quarter = |size: &Dim| size.floor_div(&4.into());
        sizes[last] = quarter(&sizes[last]);
        steps[..last].iter_mut().for_each(|step| *step = quarter(step));
        (first, count) = (quarter(&first), quarter(&count));
    }
    let ty = if wide { "uint4" } else { ty };
    b.read_as("x", x, ty);
    b.write_as("y", y, ty);
    b.size("FIRST", &first);
    b.size("COUNT", &count);
    b.list("SIZES", &sizes);
    b.list("STEPS", &steps);
    Ok(b.finish("move.cu", THREADS, String::new(), line(blocks(&count, i64::from(THREADS)))))
}

/// The matrices, columns and rows, if all a reading does is to transpose matrices.
fn exchange(walk: &Walk<1>) -> Option<(Dim, Dim, Dim)> {
    let (matrices, columns, rows, step) = match walk.axes() {
        [(columns, [one]), (rows, [step])] if *one == Dim::ONE => (Dim::ONE, columns, rows, step),
        [(matrices, [matrix]), (columns, [one]), (rows, [step])]
            if *one == Dim::ONE && *matrix == rows.clone() * columns.clone() =>
        {
            (matrices.clone(), columns, rows, step)
        }
        _ => return None,
    };
    let large = |size: &Dim| size.as_const().is_none_or(|size| size >= LEAST_SIDE);
    (step == columns && large(rows) && large(columns))
        .then(|| (matrices, columns.clone(), rows.clone()))
}

fn slice(
    context: &Context<'_>,
    op: &Slice,
    x: BufferId,
    y: BufferId,
) -> Result<Call, CodegenError> {
    let bounds = Builder::new(context.device).steps(x);
    let mut first = Dim::ZERO;
    for (axis, start) in op.axes.iter().zip(&op.starts) {
        first = first + start.clone() * bounds[*axis].clone();
    }
    reading(context, x, y, &first, |b, steps| {
        let step = |a: usize| match op.axes.iter().position(|axis| *axis == a) {
            Some(i) => steps[a].clone() * op.steps[i],
            None => steps[a].clone(),
        };
        b.axes(y).into_iter().map(|a| (b.ty(y).shape[a].clone(), step(a))).collect()
    })
}

/// The axes that are reversed begin at their last entry.
fn reverse(
    context: &Context<'_>,
    op: &Reverse,
    x: BufferId,
    y: BufferId,
) -> Result<Call, CodegenError> {
    let own = Builder::new(context.device);
    let (shape, steps) = (&own.ty(x).shape, own.steps(x));
    let axes = op.axes.iter().map(|axis| context.axis(*axis, shape.rank()));
    let axes = axes.collect::<Result<Vec<usize>, _>>()?;
    let first = axes
        .iter()
        .fold(Dim::ZERO, |first, a| first + (shape[*a].clone() - Dim::ONE) * steps[*a].clone());
    reading(context, x, y, &first, |b, steps| {
        let step = |a: usize| if axes.contains(&a) { -steps[a].clone() } else { steps[a].clone() };
        b.axes(y).into_iter().map(|a| (shape[a].clone(), step(a))).collect()
    })
}

#[expect(clippy::many_single_char_names, reason = "the sizes' usual letters")]
fn blocks_of(
    context: &Context<'_>,
    op: &Blocks,
    x: BufferId,
    y: BufferId,
) -> Result<Call, CodegenError> {
    let (block, mode, deepens) = match op {
        Blocks::DepthToSpace { block, mode } => (*block, *mode, false),
        Blocks::SpaceToDepth { block, mode } => (*block, *mode, true),
    };
    let b = Builder::new(context.device);
    if !b.is_row_major(x) || !b.is_row_major(y) {
        return Err(context.unsupported("its images have the channels last"));
    }
    reading(context, x, y, &Dim::ZERO, |b, own| {
        let (shape, by) = (&b.ty(x).shape, Dim::from(block));
        let [n, c, h, w] = [0, 1, 2, 3].map(|a| shape[a].clone());
        let [of_n, of_c, of_h, of_w] = [0, 1, 2, 3].map(|a| own[a].clone());
        if deepens {
            let parts = [(by.clone(), of_h.clone()), (by.clone(), of_w.clone()), (c, of_c)];
            let [row, column, channel] = parts;
            let [first, second, third] = match mode {
                BlockOrder::Dcr => [row, column, channel],
                BlockOrder::Crd => [channel, row, column],
            };
            let (rows, columns) =
                ((h.floor_div(&by), of_h * by.clone()), (w.floor_div(&by), of_w * by));
            return vec![(n, of_n), first, second, third, rows, columns];
        }
        let deep = c.floor_div(&(by.clone() * by.clone()));
        let (channel, row, column) = match mode {
            BlockOrder::Dcr => {
                (of_c.clone(), of_c.clone() * by.clone() * deep.clone(), of_c * deep.clone())
            }
            BlockOrder::Crd => {
                (of_c.clone() * by.clone() * by.clone(), of_c.clone() * by.clone(), of_c)
            }
        };
        vec![(n, of_n), (deep, channel), (h, of_h), (by.clone(), row), (w, of_w), (by, column)]
    })
}

/// A joined value as rows, each with the row of every part behind the other.
struct Rows {
    count: Dim,
    /// Elements of a row.
    row: Dim,
    /// Elements of each part's row, and where it begins.
    sizes: Vec<Dim>,
    starts: Vec<Dim>,
}

impl Rows {
    fn new(b: &Builder<'_>, axis: usize, parts: &[BufferId], whole: BufferId) -> Self {
        let (order, shape) = (b.axes(whole), &b.ty(whole).shape);
        let at = order.iter().position(|a| *a == axis);
        let at = invariant(at, "that rows are joined along an axis of the result");
        let product = |axes: &[usize]| axes.iter().fold(Dim::ONE, |p, a| p * shape[*a].clone());
        let (rows, inner) = (product(&order[..at]), product(&order[at + 1..]));
        let size = |id: &BufferId| b.ty(*id).shape[axis].clone() * inner.clone();
        let sizes: Vec<Dim> = parts.iter().map(size).collect();
        let next = |start: &mut Dim, size: &Dim| {
            let own = start.clone();
            *start = own.clone() + size.clone();
            Some(own)
        };
        let starts = sizes.iter().scan(Dim::ZERO, next).collect();
        Self { count: rows, row: shape[axis].clone() * inner.clone(), sizes, starts }
    }
}

/// `join.cu`: the parts of `whole` along an axis, negative from the end.
fn join(
    context: &Context<'_>,
    axis: i64,
    parts: &[BufferId],
    whole: BufferId,
    cut: bool,
) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let rank = int::<i64>(b.ty(whole).rank());
    let axis = int::<usize>(if axis < 0 { axis + rank } else { axis });
    let lies = |id: &BufferId| {
        (b.is_row_major(whole) && b.is_row_major(*id))
            || (b.is_channels_last(whole) && b.is_channels_last(*id))
    };
    if !parts.iter().all(lies) {
        return Err(context.unsupported("its values differ in the order of their elements"));
    }
    if parts.is_empty() || parts.len() > MOST_PARTS {
        return Err(context.unsupported(format!("{} values", parts.len())));
    }
    let Rows { count: rows, mut row, mut sizes, mut starts } = Rows::new(&b, axis, parts, whole);
    let aligned = parts.iter().chain([&whole]).all(|id| b.is_aligned(*id));
    let wide =
        aligned && b.ty(whole).dtype.bytes() == 4 && by_four(&row) && sizes.iter().all(by_four);
    if wide {
        let all = sizes.iter_mut().chain(&mut starts).chain([&mut row]);
        all.for_each(|size| *size = size.floor_div(&4.into()));
    }
    let ty = if wide { "uint4" } else { bits_type(b.ty(whole).dtype) };
    let names: Vec<String> = (0..parts.len()).map(|i| format!("part{i}")).collect();
    for (name, id) in names.iter().zip(parts) {
        if cut {
            b.write_as(name, *id, ty);
        } else {
            b.read_as(name, *id, ty);
        }
    }
    if cut {
        b.read_as("x", whole, ty);
    } else {
        b.write_as("y", whole, ty);
    }
    b.define("T", ty);
    b.flag("CUT", cut);
    b.define("PARTS", parts.len());
    b.numbers("POINTERS", names.iter().map(|name| format!("p.{name}")));
    b.size("ROWS", &rows);
    b.size("ROW", &row);
    b.list("SIZES", &sizes);
    b.list("STARTS", &starts);
    let most = sizes.iter().fold(Dim::ZERO, |most, size| most.maximum(size)) * rows;
    let count = int::<i64>(parts.len());
    let grid = [blocks(&most, i64::from(THREADS)), count.into(), Dim::ONE];
    Ok(b.finish("join.cu", THREADS, String::new(), grid))
}

/// `pad.cu`.
fn pad(context: &Context<'_>, x: BufferId, y: BufferId) -> Result<Call, CodegenError> {
    let mut b = Builder::new(context.device);
    let Some(Op::Pad(op)) = &context.launch.op else {
        return Err(context.unsupported("it is no padding"));
    };
    let (from, to, steps) = (&b.ty(x).shape, &b.ty(y).shape, b.steps(x));
    // A scalar has no axis, and no elements before it.
    let before = |a: usize| Dim::from(op.pads.get(a).copied().unwrap_or(0));
    let axes = b.axes(y);
    let list = |f: &dyn Fn(usize) -> Dim| -> Vec<Dim> {
        // A scalar has no axis; a kernel has one at least.
        if axes.is_empty() { vec![Dim::ONE] } else { axes.iter().map(|a| f(*a)).collect() }
    };
    let lists = [
        ("SIZES", list(&|a| to[a].clone())),
        ("LENGTHS", list(&|a| from[a].clone())),
        ("STEPS", list(&|a| steps[a].clone())),
        ("BEFORE", if axes.is_empty() { vec![Dim::ZERO] } else { list(&before) }),
    ];
    let dtype = b.ty(y).dtype;
    let Some(value) = op.entry(dtype) else {
        return Err(context.unsupported(format!("{} is no {dtype}", op.value)));
    };
    let bits = value.bytes().iter().rev().fold(0u64, |bits, byte| (bits << 8) | u64::from(*byte));
    let ty = bits_type(dtype);
    b.read_as("x", x, ty);
    b.write_as("y", y, ty);
    b.define("T", ty);
    b.define("AXES", axes.len().max(1));
    b.define(
        "MODE",
        match op.mode {
            PadMode::Constant => 0,
            PadMode::Reflect => 1,
            PadMode::Edge => 2,
            PadMode::Wrap => 3,
        },
    );
    b.define("VALUE", format!("{bits:#x}ull"));
    let count = to.elements();
    b.size("COUNT", &count);
    for (name, sizes) in &lists {
        b.list(name, sizes);
    }
    Ok(b.finish("pad.cu", THREADS, String::new(), line(blocks(&count, i64::from(THREADS)))))
}
