//! Reductions, softmax and normalisations: folds of lines.

use super::CodegenError;
use super::builder::{Builder, blocks, float, line};
use super::kernel::Call;
use super::launch::Context;
use super::strides::Walk;
use crate::op::{GroupNorm, LayerNorm, Op, Reduce, Softmax};
use crate::types::{Dim, Shape};

/// Threads of a block.
const THREADS: i64 = 256;

/// Elements of a line from which on a whole block folds it.
const LONG: i64 = 1024;

/// Elements of a line that one thread folds, where lines lie side by side.
const SHORT: i64 = 16;

/// How a block folds.
struct Form {
    /// Lanes of a line.
    lanes: i64,
    /// Whether neighbours in memory are those of a line.
    along: bool,
}

impl Form {
    /// The form for lines of `size` elements. `whole` says that a line runs through the batch: then its size, even if it
    /// is known, does not choose the form.
    fn new(size: &Dim, along: bool, whole: bool) -> Self {
        let size = size.as_const().filter(|_| !whole);
        let lanes = match (along, size) {
            (true, Some(size)) if size < LONG => 32,
            (true, _) => THREADS,
            (false, Some(size)) if size <= SHORT => 1,
            (false, _) => 8,
        };
        Self { lanes, along }
    }

    /// Says the form to the kernel, and finishes its call.
    fn finish(self, mut b: Builder<'_>, file: &'static str, lines: &Dim) -> Call {
        let side = THREADS / self.lanes;
        b.define("LINES", side);
        b.define("LANES", self.lanes);
        b.flag("ALONG", self.along);
        b.size("COUNT", lines);
        let threads = u32::try_from(THREADS).unwrap_or(0);
        b.finish(file, threads, String::new(), line(blocks(lines, side)))
    }
}

pub(super) fn product<'a>(sizes: impl IntoIterator<Item = &'a Dim>) -> Dim {
    sizes.into_iter().fold(Dim::ONE, |p, d| p * d.clone())
}

/// `reduce.cu`.
pub(super) fn reduce(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(Op::Reduce(op)), [x], [y]) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
    else {
        return Err(context.unsupported("it is no reduction of one operand"));
    };
    context.only_f32()?;
    let mut b = Builder::new(context.device);
    let (shape, steps) = (&b.ty(*x).shape, b.steps(*x));
    let reduced = op.reduced(shape.rank()).map_err(|e| context.unsupported(e.to_string()))?;
    // The operand's axis that each axis of the result is, in the order of the result's memory.
    let keepdims = op.parts().1;
    let own: Vec<usize> = (0..shape.rank()).filter(|a| keepdims || !reduced[*a]).collect();
    let kept: Vec<usize> =
        b.axes(*y).into_iter().map(|a| own[a]).filter(|a| !reduced[*a]).collect();
    let walk =
        |axes: &[usize]| Walk::new(axes.iter().map(|a| (shape[*a].clone(), [steps[*a].clone()])));
    let memory = b.axes(*x);
    let gone: Vec<usize> = memory.iter().copied().filter(|a| reduced[*a]).collect();
    let innermost = memory.iter().rev().find(|a| shape[**a] != Dim::ONE);
    let along = innermost.is_none_or(|a| reduced[*a]);
    let (kept, gone) = (walk(&kept), walk(&gone));
    let size = product(&gone.sizes());
    b.read("x", *x);
    b.write("y", *y);
    b.define("KIND", kind(op));
    b.size("SIZE", &size);
    b.list("KEPT_SIZES", &kept.sizes());
    b.list("KEPT_STEPS", &kept.steps(0));
    b.list("REDUCED_SIZES", &gone.sizes());
    b.list("REDUCED_STEPS", &gone.steps(0));
    let whole = reduced.first() == Some(&true);
    let lines = b.ty(*y).shape.elements();
    Ok(Form::new(&size, along, whole).finish(b, "reduce.cu", &lines))
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
    }
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
        form.finish(b, file, &self.count)
    }
}

/// The axis that a number names, negative from the end.
pub(super) fn position(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()
}

/// `softmax.cu`.
pub(super) fn softmax(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let (Some(Op::Softmax(op)), [x], [y]) =
        (&launch.op, launch.operands.as_slice(), launch.results.as_slice())
    else {
        return Err(context.unsupported("it is no softmax of one operand"));
    };
    context.only_f32()?;
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
    Ok(Lines::new(shape, axis..axis + 1).finish(b, "softmax.cu"))
}

/// What `norm.cu` does with a line.
struct Norm {
    kind: u8,
    epsilon: f32,
    axes: std::ops::Range<usize>,
    /// Lines that follow each other with vectors of their own in scale and shift, the elements of these for each, and
    /// the elements of a line for each of these.
    groups: Dim,
    each: Dim,
    width: Dim,
}

/// `norm.cu`.
pub(super) fn norm(context: &Context<'_>) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let ([x, factors @ ..], [y, statistics @ ..]) =
        (launch.operands.as_slice(), launch.results.as_slice())
    else {
        return Err(context.unsupported("it has no operand"));
    };
    context.only_f32()?;
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
    Ok(lines.finish(b, "norm.cu"))
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
