//! Softmax and normalisations: folds of lines.

use super::builder::{Builder, blocks, float, line};
use super::kernel::Call;
use super::launch::Context;
use super::{CodegenError, reduce};
use crate::lower::{BATCH_PART, BufferId, LongLine, PART, long_line};
use crate::op::{GroupNorm, LayerNorm, Op, Softmax};
use crate::types::invariant::int;
use crate::types::{Dim, Shape};

/// Threads of a block.
const THREADS: i64 = 256;

/// Elements of a line from which on a whole block folds it.
const LONG: i64 = 1024;

/// Elements of a line from which on a block has four times as many threads for it.
const VERY_LONG: i64 = 16_384;

/// Elements of a line that one thread folds, where lines lie side by side.
const SHORT: i64 = 16;

/// The most blocks that bring one long line to a scale; each of them joins what is known of all
/// parts of it.
const SLICES: i64 = 256;

/// How a block folds.
pub(super) struct Form {
    /// Threads of a block, and lanes of a line.
    threads: i64,
    lanes: i64,
    /// Whether neighbours in memory are those of a line.
    along: bool,
}

impl Form {
    /// The form for lines of `size` elements. `whole` says that a line runs through the batch: then
    /// its size, even if it is known, does not choose the form.
    pub(super) fn new(size: &Dim, along: bool, whole: bool) -> Self {
        let size = size.as_const().filter(|_| !whole);
        let (threads, lanes) = match (along, size) {
            (true, Some(size)) if size < LONG => (THREADS, 32),
            (true, Some(size)) if size >= VERY_LONG => (4 * THREADS, 4 * THREADS),
            (true, _) => (THREADS, THREADS),
            (false, Some(size)) if size <= SHORT => (THREADS, 1),
            (false, _) => (THREADS, 8),
        };
        Self { threads, lanes, along }
    }

    /// Says the form to the kernel, and finishes its call for so many lines, each in so many parts.
    pub(super) fn finish(
        self,
        mut b: Builder<'_>,
        file: &'static str,
        lines: &Dim,
        parts: &Dim,
    ) -> Call {
        let side = self.threads / self.lanes;
        b.define("LINES", side);
        b.define("LANES", self.lanes);
        b.flag("ALONG", self.along);
        b.size("COUNT", lines);
        let threads = int::<u32>(self.threads);
        let all = lines.clone() * parts.clone();
        b.finish(file, threads, String::new(), line(blocks(&all, side)))
    }
}

pub(super) fn product<'a>(sizes: impl IntoIterator<Item = &'a Dim>) -> Dim {
    sizes.into_iter().fold(Dim::ONE, |p, d| p * d.clone())
}

/// Lines along one axis or several neighbouring ones.
pub(super) struct Lines {
    size: Dim,
    inner: Dim,
    count: Dim,
}

impl Lines {
    pub(super) fn new(shape: &Shape, axes: std::ops::Range<usize>) -> Self {
        let (size, inner) = (product(&shape[axes.clone()]), product(&shape[axes.end..]));
        let count = product(&shape[..axes.start]) * inner.clone();
        Self { size, inner, count }
    }

    /// Says the sizes to the kernel, and finishes its call.
    pub(super) fn finish(self, mut b: Builder<'_>, file: &'static str) -> Call {
        b.size("SIZE", &self.size);
        b.size("INNER", &self.inner);
        let form = Form::new(&self.size, self.inner == Dim::ONE, false);
        form.finish(b, file, &self.count, &Dim::ONE)
    }

    /// The same for a kernel that takes `parts: [.., PARTS, COUNT]`, of `part` elements each.
    fn finish_long(
        self,
        mut b: Builder<'_>,
        file: &'static str,
        parts: BufferId,
        part: i64,
    ) -> Call {
        let shape = &b.ty(parts).shape;
        // Parts of numbers alone have no axis for them.
        let count = shape.len().checked_sub(2).map_or(Dim::ONE, |at| shape[at].clone());
        let slices = count.clone().minimum(&SLICES.into());
        b.read("parts", parts);
        b.define("PART", part);
        b.size("PARTS", &count);
        b.size("SLICES", &slices);
        b.size("SIZE", &self.size);
        b.size("INNER", &self.inner);
        // A block has elements of a part, and as many parts to join.
        let along = self.inner == Dim::ONE;
        let lanes = if along { THREADS } else { 8 };
        Form { threads: THREADS, lanes, along }.finish(b, file, &self.count, &slices)
    }
}

/// The first of two launches for long lines: what is known of parts of them.
pub(super) fn parts(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(op), [x], [parts]) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
    else {
        return Err(context.unsupported("it has no parts of one operand"));
    };
    context.are_f32(&[*x])?;
    let mut b = context.row_major()?;
    match long_line(op, b.ty(*x)) {
        Some(LongLine::Reduce(op)) => reduce::parts_of(context, &op, *x, *parts),
        Some(LongLine::Statistics { size, lines }) => {
            b.read("x", *x);
            b.write("y", *parts);
            b.flag("GRADIENT", false);
            b.define("PART", BATCH_PART);
            b.size("PARTS", &b.ty(*parts).shape[1]);
            b.define("TERMS", size);
            b.define("WIDTH", size);
            b.size("CHANNELS", &lines);
            b.define("LINES", 1);
            b.define("LANES", THREADS);
            b.flag("ALONG", true);
            let tiles = lines * b.ty(*parts).shape[1].clone();
            let threads = int::<u32>(THREADS);
            let grid = line(blocks(&tiles, 1));
            Ok(b.finish("batch_statistics.cu", threads, String::new(), grid))
        }
        None => Err(context.unsupported("its lines are not taken apart")),
    }
}

/// The parts that a launch takes, its last operand, and the operands before it.
fn without_parts<'a>(context: &Context<'a>) -> (&'a [BufferId], Option<(BufferId, i64)>) {
    let operands = &context.launch.operands;
    let taken =
        context.launch.op.as_ref().zip(operands.first()).and_then(|(op, x)| {
            match long_line(op, &context.device.buffer(*x).ty)? {
                LongLine::Reduce(_) => Some(PART),
                LongLine::Statistics { .. } => Some(BATCH_PART),
            }
        });
    match (operands.split_last(), taken) {
        (Some((parts, rest)), Some(part)) if !rest.is_empty() => (rest, Some((*parts, part))),
        _ => (operands, None),
    }
}

/// The axis that a number names, negative from the end.
pub(super) fn position(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()
}

/// `softmax.cu`, of long lines `long_softmax.cu`.
pub(super) fn softmax(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (operands, parts) = without_parts(context);
    let (Some(Op::Softmax(op)), [x], [y]) = (&launch.op, operands, launch.results.as_slice())
    else {
        return Err(context.unsupported("it is no softmax of one operand"));
    };
    context.are_f32(&[*x, *y])?;
    let mut b = context.row_major()?;
    let shape = &b.ty(*x).shape;
    let Some(axis) = op.axis(shape.rank()) else {
        return Err(context.unsupported("it has no such axis"));
    };
    b.read("x", *x);
    b.write("y", *y);
    b.define(
        "KIND",
        match op {
            Softmax::Softmax { .. } => 0,
            Softmax::LogSoftmax { .. } => 1,
            Softmax::Hardmax { .. } => 2,
        },
    );
    let lines = Lines::new(shape, axis..axis + 1);
    Ok(match parts {
        Some((parts, part)) => lines.finish_long(b, "long_softmax.cu", parts, part),
        None => lines.finish(b, "softmax.cu"),
    })
}

/// What is done with a line.
struct Norm {
    kind: u8,
    epsilon: f32,
    axes: std::ops::Range<usize>,
    /// Lines that follow each other with vectors of their own in scale and shift, the elements of
    /// these for each, and the elements of a line for each of these.
    groups: Dim,
    each: Dim,
    width: Dim,
}

/// `norm.cu`, of long lines `long_norm.cu`.
pub(super) fn norm(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (operands, parts) = without_parts(context);
    let ([x, factors @ ..], [y, statistics @ ..]) = (operands, launch.results.as_slice()) else {
        return Err(context.unsupported("it has no operand"));
    };
    context.are_f32(operands)?;
    context.are_f32(&launch.results)?;
    let mut b = context.row_major()?;
    let shape = &b.ty(*x).shape;
    let Some(norm) = norm_of(launch.op.as_ref(), shape) else {
        return Err(context.unsupported("it is no normalisation of lines"));
    };
    b.read("x", *x);
    b.write("y", *y);
    for (name, id) in ["scale", "shift"].into_iter().zip(factors) {
        b.read(name, *id);
    }
    for (name, id) in ["mean", "factor"].into_iter().zip(statistics) {
        b.write(name, *id);
    }
    b.flag("SCALE", !factors.is_empty());
    b.flag("SHIFT", factors.len() > 1);
    b.flag("STATISTICS", statistics.len() > 1);
    b.define("KIND", norm.kind);
    b.define("EPSILON", float(norm.epsilon));
    b.size("GROUPS", &norm.groups);
    b.size("EACH", &norm.each);
    b.size("WIDTH", &norm.width);
    let lines = lines_of(&norm, shape, launch.op.as_ref());
    Ok(match parts {
        Some((parts, part)) => lines.finish_long(b, "long_norm.cu", parts, part),
        None => lines.finish(b, "norm.cu"),
    })
}

fn norm_of(op: Option<&Op>, shape: &Shape) -> Option<Norm> {
    let rank = shape.rank();
    let one = || Dim::ONE;
    #[expect(clippy::wildcard_enum_match_arm, reason = "the class has no other operators")]
    match op? {
        Op::LayerNorm(op) => {
            let (kind, epsilon) = match op {
                LayerNorm::Layer { epsilon, .. } => (0, *epsilon),
                LayerNorm::Rms { epsilon, .. } => (1, *epsilon),
            };
            let axes = op.first_axis(rank)?..rank;
            Some(Norm { kind, epsilon, axes, groups: one(), each: one(), width: one() })
        }
        Op::GroupNorm(op) => {
            let (epsilon, groups) = match op {
                GroupNorm::Group { epsilon, groups } => (*epsilon, Dim::from(*groups)),
                GroupNorm::Instance { epsilon } => (*epsilon, shape.get(1)?.clone()),
            };
            let each = shape.get(1)?.floor_div(&groups);
            let width = product(&shape[2..]);
            Some(Norm { kind: 0, epsilon, axes: 1..rank, groups, each, width })
        }
        Op::LpNorm(op) => {
            let axis = position(op.axis, rank)?;
            let kind = if op.p == 1 { 2 } else { 3 };
            let axes = axis..axis + 1;
            Some(Norm { kind, epsilon: 0.0, axes, groups: one(), each: one(), width: one() })
        }
        _ => None,
    }
}

/// The lines of a normalisation: of groups of channels, so many for each sample.
fn lines_of(norm: &Norm, shape: &Shape, op: Option<&Op>) -> Lines {
    if matches!(op, Some(Op::GroupNorm(_))) {
        let size = norm.each.clone() * norm.width.clone();
        return Lines { size, inner: Dim::ONE, count: shape[0].clone() * norm.groups.clone() };
    }
    Lines::new(shape, norm.axes.clone())
}
