//! Kernels that compute each row from itself alone: softmax, normalisation, reduction.
//!
//! The order of every sum is the operator's, which the sizes of a row fix.

use rayon::prelude::*;
use smallvec::SmallVec;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use super::matrix::Matrix;
use super::scratch;
use super::simd::vectorised;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Images, Support, Types};
use crate::op::rows::COLUMNS;
use crate::op::{GroupNorm, GroupSizes, LayerNorm, Reduce, Softmax};
use crate::types::KernelClass;

/// Elements for which a task is worth its cost.
const WORTH: usize = 1 << 12;

/// Of rows of fewer elements, folding each takes longer than bringing them side by side.
const FEW: usize = 48;

/// Rows of `size` elements for a task.
fn each(size: usize) -> usize {
    (WORTH / size.max(1)).max(1)
}

/// A distribution along one axis: its size, and the product of the sizes behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxPlan {
    op: Softmax,
    size: usize,
    inner: usize,
}

impl SoftmaxPlan {
    /// The plan for an operand of these sizes, none 0, which `op` admits.
    pub fn new(op: &Softmax, dims: &[usize]) -> Option<Self> {
        let (size, behind) = dims.get(op.axis(dims.len())?..)?.split_first()?;
        Some(Self { op: op.clone(), size: *size, inner: behind.iter().product() })
    }
}

/// The distributions.
///
/// # Panics
/// If a slice does not hold whole blocks of the plan's sizes: a bug in the caller.
pub fn softmax(plan: &SoftmaxPlan, x: &[f32], y: &mut [f32]) {
    let SoftmaxPlan { op, size, inner } = plan;
    if *inner == 1 && *size < FEW {
        let normalise = |columns: &mut [f32], rows: usize| vectorised!(op.columns(columns, rows));
        side_by_side(*size, x, y, normalise, |_| {});
        return;
    }
    let block = size * inner;
    let blocks = y.par_chunks_exact_mut(block).zip(x.par_chunks_exact(block));
    blocks.with_min_len(each(block)).each(|(y, x)| {
        if *inner == 1 {
            // The row's function works in place.
            y.copy_from_slice(x);
            vectorised!(op.row(y));
        } else {
            vectorised!(op.planes(x, y, *size, *inner));
        }
    });
}

/// Replaces rows of `size` elements, a few at a time, which `f` changes as columns of a matrix that
/// has so many, and `end` as rows.
fn side_by_side(
    size: usize,
    x: &[f32],
    y: &mut [f32],
    f: impl Fn(&mut [f32], usize) + Sync,
    end: impl Fn(&mut [f32]) + Sync,
) {
    let block = COLUMNS * size;
    let blocks = y.par_chunks_mut(block).zip(x.par_chunks(block));
    blocks.with_min_len(each(block)).each(|(y, x)| {
        let rows = x.len() / size;
        let mut columns = [0.0; COLUMNS * FEW];
        let columns = &mut columns[..x.len()];
        Matrix::contiguous(x, rows, size).pack_transposed(columns, rows);
        f(columns, rows);
        Matrix::contiguous(columns, size, rows).pack_transposed(y, size);
        end(y);
    });
}

/// A normalisation over last axes with a row of `size` elements.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerNormPlan {
    op: LayerNorm,
    size: usize,
}

impl LayerNormPlan {
    /// The plan for an operand of these sizes, none 0, which `op` admits.
    pub fn new(op: &LayerNorm, dims: &[usize]) -> Option<Self> {
        let size = dims.get(op.first_axis(dims.len())?..)?.iter().product();
        Some(Self { op: op.clone(), size })
    }
}

/// The normalised rows; `scale` and `shift` are empty where they are absent.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub fn layer_norm(plan: &LayerNormPlan, x: &[f32], scale: &[f32], shift: &[f32], y: &mut [f32]) {
    let LayerNormPlan { op, size } = plan;
    if *size < FEW {
        let normalise = |columns: &mut [f32], rows: usize| vectorised!(op.columns(columns, rows));
        let end = |y: &mut [f32]| {
            vectorised!(for y in y.chunks_exact_mut(*size) {
                LayerNorm::scale(y, scale, shift);
            });
        };
        side_by_side(*size, x, y, normalise, end);
        return;
    }
    let rows = y.par_chunks_exact_mut(*size).zip(x.par_chunks_exact(*size));
    rows.with_min_len(each(*size)).each(|(y, x)| vectorised!(op.row(x, y, scale, shift)));
}

/// A normalisation of channels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GroupNormPlan {
    op: GroupNorm,
    sizes: GroupSizes,
}

impl GroupNormPlan {
    /// The plan for an operand of these sizes, none 0, which `op` admits.
    pub(crate) fn new(op: &GroupNorm, dims: &[usize]) -> Option<Self> {
        Some(Self { op: op.clone(), sizes: op.sizes(dims)? })
    }
}

/// The normalised channels.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn group_norm(
    plan: &GroupNormPlan,
    x: &[f32],
    scale: &[f32],
    bias: &[f32],
    y: &mut [f32],
) {
    let GroupSizes { channels, groups, inner } = plan.sizes;
    let size = channels * inner;
    let blocks = y.par_chunks_exact_mut(size).zip(x.par_chunks_exact(size)).enumerate();
    blocks.with_min_len(each(size)).each(|(i, (y, x))| {
        let from = i % groups * channels;
        let (scale, bias) = (&scale[from..from + channels], &bias[from..from + channels]);
        vectorised!(plan.op.group(x, y, scale, bias, inner));
    });
}

/// A reduction, cut along the axes before the first one that is reduced, or into channels.
#[derive(Clone, Debug, PartialEq)]
pub struct ReducePlan {
    op: Reduce,
    /// The sizes of one part; the first is that along which parts are joined.
    dims: SmallVec<[usize; 4]>,
    /// Where all axes but the second are reduced its size, the elements behind it, and the
    /// reduction of rows.
    channels: Option<(usize, usize, Reduce)>,
}

/// The channels that are reduced side by side.
const CHANNELS: usize = 8;

impl ReducePlan {
    /// The plan for an operand of these sizes, none 0, which `op` admits.
    pub fn new(op: &Reduce, dims: &[usize]) -> Option<Self> {
        let kept = op.kept(dims.len())?;
        let gone = i64::try_from(kept).ok()?;
        let rank = i64::try_from(dims.len()).ok()?;
        // The axes before the first reduced one are taken as one.
        // Counted among the axes of a part, whose first stands for all those that were taken
        // together.
        let shift = |axis: &i64| if *axis < 0 { axis + rank } else { *axis } - gone + 1;
        let (axes, keepdims) = op.parts();
        let axes = axes.iter().map(shift).collect();
        let own = op.with_axes(axes, keepdims);
        let channels = match dims {
            [_, channels, behind @ ..] if *channels > 1 && op.is_over_all_but(dims.len(), 1) => {
                let of_rows = op.with_axes(vec![1], false);
                Some((*channels, behind.iter().product(), of_rows))
            }
            _ => None,
        };
        let dims = std::iter::once(1).chain(dims[kept..].iter().copied()).collect();
        Some(Self { op: own, dims, channels })
    }
}

/// Reduces by `op` each channel of `x: [N, channels, width]`, whose elements are first brought
/// together.
fn reduce_channels(op: &Reduce, channels: usize, width: usize, x: &[f32], y: &mut [f32]) {
    let row = x.len() / channels;
    y.par_chunks_mut(CHANNELS).enumerate().each(|(i, y)| {
        scratch::own(y.len() * row, |rows| {
            for (channel, to) in (i * CHANNELS..).zip(rows.chunks_exact_mut(row)) {
                let from = x.chunks_exact(width).skip(channel).step_by(channels);
                to.chunks_exact_mut(width).zip(from).for_each(|(to, x)| to.copy_from_slice(x));
            }
            vectorised!(op.reduce(&[y.len(), row], rows, y));
        });
    });
}

/// The reduced operand.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub fn reduce(plan: &ReducePlan, x: &[f32], y: &mut [f32]) {
    let part: usize = plan.dims.iter().product();
    let parts = x.len() / part.max(1);
    let results = y.len() / parts.max(1);
    if part == 0 || results == 0 {
        return;
    }
    // The first axis is reduced, so nothing could be cut along it; channels are the tasks instead.
    if let (Some((channels, width, op)), true) = (&plan.channels, x.len() > WORTH) {
        return reduce_channels(op, *channels, *width, x, y);
    }
    let many = each(part);
    let tasks = y.par_chunks_mut(many * results).zip(x.par_chunks(many * part));
    tasks.each(|(y, x)| {
        let mut dims = plan.dims.clone();
        dims[0] = x.len() / part;
        vectorised!(plan.op.reduce(&dims, x, y));
    });
}

impl CpuOp for Softmax {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Softmax, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x] = at.operands.as_slice() else { return None };
        Some(Box::new(SoftmaxPlan::new(self, x)?))
    }
}

impl CpuKernel for SoftmaxPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        softmax(self, x, y);
        Ok(())
    }
}

impl CpuOp for LayerNorm {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Norm, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        // Statistics are results of their own.
        let ([x, ..], [_]) = (at.operands.as_slice(), at.results.as_slice()) else { return None };
        Some(Box::new(LayerNormPlan::new(self, x)?))
    }
}

impl CpuKernel for LayerNormPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, factors @ ..], [y]) = (operands, results) else { return Err(Unsuited) };
        let factor = |i: usize| factors.get(i).copied();
        // No elements stand for a factor that is left out.
        layer_norm(self, x, factor(0).unwrap_or_default(), factor(1).unwrap_or_default(), y);
        Ok(())
    }
}

impl CpuOp for GroupNorm {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Norm, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(GroupNormPlan::new(self, at.operands.first()?)?))
    }
}

impl CpuKernel for GroupNormPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, scale, bias], [y]) = (operands, results) else { return Err(Unsuited) };
        group_norm(self, x, scale, bias, y);
        Ok(())
    }
}

impl CpuOp for Reduce {
    fn supports(&self, types: &Types<'_>) -> Support {
        let support = of_f32(KernelClass::Reduce, types);
        let rank = types.operands.first().map(|x| x.rank());
        let places = rank.is_some_and(|rank| self.keeps(rank, 0..2));
        support.with_images(Images::First, places)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x] = at.operands.as_slice() else { return None };
        let (axes, keepdims) = self.parts();
        let axis = |axis: &i64| i64::try_from(at.axis_in_memory(*axis, x.len())?).ok();
        let axes = axes.iter().map(axis).collect::<Option<_>>()?;
        let x = at.in_memory(x);
        Some(Box::new(ReducePlan::new(&self.with_axes(axes, keepdims), &x)?))
    }
}

impl CpuKernel for ReducePlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        reduce(self, x, y);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use rand_chacha::ChaCha8Rng;

    use super::super::testing::{assert_bits, in_pools, misaligned, random, rng, spoil};
    use super::{
        GroupNormPlan, LayerNormPlan, ReducePlan, SoftmaxPlan, group_norm, layer_norm, reduce,
        softmax,
    };
    use crate::op::{GroupNorm, LayerNorm, Op, Reduce, Softmax};
    use crate::types::Tensor;

    fn reference(op: impl Into<Op>, operands: &[&Tensor]) -> Tensor {
        op.into().eval(operands).unwrap().remove(0)
    }

    fn sizes(rng: &mut impl Rng, case: usize) -> Vec<usize> {
        let wide = if case.is_multiple_of(5) { 60 } else { 9 };
        (0..rng.random_range(1..5)).map(|_| rng.random_range(1..wide)).collect()
    }

    /// A tensor of these sizes, one of whose elements may be no finite number.
    fn tensor(rng: &mut ChaCha8Rng, dims: &[usize], case: usize) -> Tensor {
        let mut data = random(rng, dims.iter().product());
        if case.is_multiple_of(4) {
            spoil(rng, &mut data);
        }
        Tensor::new(dims, &data).unwrap()
    }

    /// The bits of `f` on operands that are not aligned, with several numbers of threads.
    fn check(expected: &Tensor, x: &Tensor, what: &str, f: impl Fn(&[f32], &mut [f32]) + Sync) {
        let shifted = misaligned(x.as_slice());
        let got = in_pools(|| {
            let mut y = vec![f32::NAN; expected.len()];
            f(&shifted[1..], &mut y);
            y
        });
        assert_bits(&got, expected.as_slice(), what);
    }

    #[test]
    fn distributions_are_the_operators() {
        let mut rng = rng(1);
        for case in 0..60 {
            let dims = sizes(&mut rng, case);
            let axis = i64::try_from(rng.random_range(0..dims.len())).unwrap();
            let op = [
                Softmax::Softmax { axis },
                Softmax::LogSoftmax { axis },
                Softmax::Hardmax { axis },
            ][case % 3]
                .clone();
            let x = tensor(&mut rng, &dims, case);
            let plan = SoftmaxPlan::new(&op, &dims).unwrap();
            check(&reference(op, &[&x]), &x, &format!("{plan:?} {dims:?}"), |x, y| {
                softmax(&plan, x, y);
            });
        }
    }

    #[test]
    fn normalised_as_the_operators_do() {
        let mut rng = rng(2);
        for case in 0..60 {
            let dims = sizes(&mut rng, case);
            let first = rng.random_range(0..dims.len());
            let axis = i64::try_from(first).unwrap();
            let x = tensor(&mut rng, &dims, case);
            let row = &dims[first..];
            let mut vector = || Tensor::new(row, &random(&mut rng, row.iter().product())).unwrap();
            let others = [vector(), vector()];
            let op = if case % 2 == 0 {
                LayerNorm::Layer { axis, epsilon: 0.1, statistics: false }
            } else {
                LayerNorm::Rms { axis, epsilon: 0.1 }
            };
            let operands: Vec<&Tensor> = std::iter::once(&x)
                .chain(others.iter().take((case / 2) % (3 - case % 2)))
                .collect();
            let slice = |i: usize| operands.get(i).map_or(&[][..], |t| t.as_slice::<f32>());
            let plan = LayerNormPlan::new(&op, &dims).unwrap();
            let expected = reference(op, &operands);
            check(&expected, &x, &format!("{plan:?} {dims:?}"), |x, y| {
                layer_norm(&plan, x, slice(1), slice(2), y);
            });
        }
    }

    #[test]
    fn channels_are_normalised_as_the_operators_do() {
        let mut rng = rng(3);
        for case in 0..40 {
            let (groups, own) = (rng.random_range(1..4), rng.random_range(1..4));
            let mut dims = sizes(&mut rng, case);
            dims.insert(1, groups * own);
            let x = Tensor::new(&dims, &random(&mut rng, dims.iter().product())).unwrap();
            let mut vector =
                || Tensor::new(&[groups * own], &random(&mut rng, groups * own)).unwrap();
            let (scale, bias) = (vector(), vector());
            let op = if case % 2 == 0 {
                GroupNorm::Instance { epsilon: 0.1 }
            } else {
                GroupNorm::Group { epsilon: 0.1, groups: i64::try_from(groups).unwrap() }
            };
            let plan = GroupNormPlan::new(&op, &dims).unwrap();
            let expected = reference(op, &[&x, &scale, &bias]);
            check(&expected, &x, &format!("{plan:?}"), |x, y| {
                group_norm(&plan, x, scale.as_slice(), bias.as_slice(), y);
            });
        }
    }

    #[test]
    fn reduced_as_the_operator_does() {
        let mut rng = rng(4);
        for case in 0..120 {
            let dims = sizes(&mut rng, case);
            let rank = i64::try_from(dims.len()).unwrap();
            let axes: Vec<i64> = (0..rank).filter(|_| rng.random_bool(0.5)).collect();
            let axes: Vec<i64> =
                axes.iter().map(|a| if case % 3 == 0 { a - rank } else { *a }).collect();
            let keepdims = case % 2 == 0;
            let op = match case % 5 {
                0 => Reduce::Mean { axes, keepdims },
                1 => Reduce::Max { axes, keepdims },
                2 => Reduce::LogSumExp { axes, keepdims },
                3 => Reduce::L2 { axes, keepdims },
                _ => Reduce::Sum { axes, keepdims },
            };
            let x = Tensor::new(&dims, &random(&mut rng, dims.iter().product())).unwrap();
            let plan = ReducePlan::new(&op, &dims).unwrap();
            let expected = reference(op, &[&x]);
            check(&expected, &x, &format!("{plan:?} {dims:?}"), |x, y| reduce(&plan, x, y));
        }
    }

    #[test]
    fn channels_are_reduced_as_the_operator_does() {
        let mut rng = rng(5);
        for (dims, keepdims) in [([9, 21, 10, 10], false), ([70, 3, 1, 120], true)] {
            let axes = vec![0, 2, 3];
            for op in [
                Reduce::Sum { axes: axes.clone(), keepdims },
                Reduce::Max { axes: axes.clone(), keepdims },
            ] {
                let x = Tensor::new(&dims, &random(&mut rng, dims.iter().product())).unwrap();
                let plan = ReducePlan::new(&op, &dims).unwrap();
                let of_rows = op.with_axes(vec![1], false);
                assert_eq!(plan.channels, Some((dims[1], dims[2] * dims[3], of_rows)));
                let expected = reference(op, &[&x]);
                check(&expected, &x, &format!("{plan:?}"), |x, y| reduce(&plan, x, y));
            }
        }
    }
}
