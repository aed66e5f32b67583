//! Normalisation of lines by their own statistics: layer, RMS, group, instance and Lp norm.

use std::ops::Range;

use super::two_pass::{self, TwoPass};
use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::number;
use crate::codegen::function::wide;
use crate::codegen::lines::{Lines, normalize_axis, product};
use crate::op::{GroupNorm, LayerNorm, LpNorm, Reduce};
use crate::types::{Dim, Shape, TensorType};

/// The normalisation of a line.
struct Norm {
    kind: u8,
    epsilon: f64,
    axes: Range<usize>,
    /// The groups of channels of a sample, if each of them is a line.
    groups: Option<Groups>,
    /// The first pass over long lines; `None` for a single launch.
    long: Option<TwoPass>,
}

/// Lines of a group norm: scale and shift are vectors over the channels, so each group has its own
/// part of them.
struct Groups {
    /// Lines of a sample.
    count: Dim,
    /// The channels of a line, and the elements of each channel.
    each: Dim,
    width: Dim,
}

/// An operator that normalises lines.
trait Lined {
    /// The normalisation of the lines of an operand.
    fn norm(&self, x: &TensorType) -> Option<Norm>;
}

fn squares(axes: Vec<i64>) -> Reduce {
    Reduce::SumSquare { axes, keepdims: false }
}

impl Lined for LayerNorm {
    fn norm(&self, x: &TensorType) -> Option<Norm> {
        let axes = self.first_axis(x.rank())?..x.rank();
        let (size, lines) = (product(&x.shape[axes.clone()]), product(&x.shape[..axes.start]));
        // The kinds are those of `norm.cu`: 0 by mean and variance, 1 by the mean of squares, 2 and
        // 3 by the norms of p = 1 and p = 2.
        let (kind, epsilon, long) = match self {
            Self::Layer { epsilon, .. } => {
                (0, *epsilon, TwoPass::statistics(axes.start, &size, lines))
            }
            Self::Rms { epsilon, .. } => {
                (1, *epsilon, TwoPass::along(&x.shape, axes.clone(), squares))
            }
        };
        Some(Norm { kind, epsilon, axes, groups: None, long })
    }
}

impl Lined for GroupNorm {
    fn norm(&self, x: &TensorType) -> Option<Norm> {
        let channels = x.shape.get(1)?;
        let (epsilon, count) = match self {
            Self::Group { epsilon, groups } => (*epsilon, Dim::from(*groups)),
            Self::Instance { epsilon } => (*epsilon, channels.clone()),
        };
        // A group of channels of a sample is contiguous in row-major order, and so is a line.
        let (each, width) = (channels.floor_div(&count), product(&x.shape[2..]));
        let lines = x.shape[0].clone() * count.clone();
        let long = TwoPass::statistics(1, &(each.clone() * width.clone()), lines);
        let groups = Some(Groups { count, each, width });
        Some(Norm { kind: 0, epsilon, axes: 1..x.rank(), groups, long })
    }
}

impl Lined for LpNorm {
    fn norm(&self, x: &TensorType) -> Option<Norm> {
        let axis = normalize_axis(self.axis, x.rank()).filter(|axis| *axis < x.rank())?;
        let magnitudes = |axes| Reduce::L1 { axes, keepdims: false };
        let (kind, reduce) =
            if self.p == 1 { (2, magnitudes as fn(_) -> _) } else { (3, squares as fn(_) -> _) };
        let axes = axis..axis + 1;
        let long = TwoPass::along(&x.shape, axes.clone(), reduce);
        Some(Norm { kind, epsilon: 0.0, axes, groups: None, long })
    }
}

impl<T: Lined> CudaOp for T {
    fn supports(&self, types: &Types<'_>) -> Support {
        let long = types.operands.first().and_then(|x| self.norm(x)?.long);
        two_pass::supported(KernelClass::Norm, types, long.as_ref())
    }

    /// `norm.cu`, of long lines `long_norm.cu`.
    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let mut b = context.row_major()?;
        let x = context.first_operand()?;
        let norm = self.norm(b.ty(x));
        let norm = norm.ok_or_else(|| context.unsupported("it is not a normalisation of lines"))?;
        let operands = two_pass::without_partials(context, norm.long.as_ref());
        let ([_, factors @ ..], [y, statistics @ ..]) = (operands, &context.launch.results[..])
        else {
            return Err(context.unsupported("it has no operand"));
        };
        b.read("x", x);
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
        b.define("EPSILON", number(norm.epsilon, wide(b.ty(x).dtype)));
        let shape: &Shape = &b.ty(x).shape;
        let (sizes, lines) = match norm.groups {
            Some(Groups { count, each, width }) => {
                let (size, all) = (each.clone() * width.clone(), shape[0].clone() * count.clone());
                ([count, each, width], Lines { size, inner: Dim::ONE, count: all })
            }
            None => ([Dim::ONE, Dim::ONE, Dim::ONE], Lines::new(shape, norm.axes)),
        };
        for (name, size) in ["GROUPS", "EACH", "WIDTH"].into_iter().zip(&sizes) {
            b.size(name, size);
        }
        two_pass::finish(context, b, lines, ["norm.cu", "long_norm.cu"], norm.long.as_ref())
    }

    fn first_pass(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let x = context.first_operand()?;
        let long = self.norm(&context.device.buffer(x).ty).and_then(|norm| norm.long);
        long.ok_or_else(|| context.unsupported("its lines are not taken apart"))?
            .first_pass(context)
    }
}
