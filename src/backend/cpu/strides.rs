//! Kernels whose operands are read at distances of their own: transposes, slices, expansions and
//! operators of two operands that broadcast.

#![allow(clippy::many_single_char_names, reason = "the letters of the formulas")]

use std::mem;

use rayon::prelude::*;
use smallvec::{SmallVec, smallvec};

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use super::matrix::{Layout, Matrix};
use super::simd::vectorised;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Images, Support, Types};
use crate::op::broadcast::Broadcast;
use crate::op::strided::{Axis, Walk, distances, merged, read_merged};
use crate::op::{Apply2, Binary, Blocks, Expand, Slice, Transpose};
use crate::types::{KernelClass, TensorType};

/// Elements for which a task is worth its cost.
const WORTH: usize = 1 << 12;

/// The elements of a result by their places in the operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StridedPlan {
    first: usize,
    axes: SmallVec<[Axis; 6]>,
    /// The same, as few as possible.
    merged: SmallVec<[Axis; 6]>,
}

/// An operator whose result is its operand, read at distances.
pub trait Strided {
    /// The first place that is read of an operand of these sizes, none 0, which the operator
    /// admits, and the axes of the result.
    fn reading(&self, dims: &[usize], result: &[usize]) -> Option<StridedPlan>;
}

impl Strided for Transpose {
    fn reading(&self, dims: &[usize], _result: &[usize]) -> Option<StridedPlan> {
        let own = distances(dims);
        let axis = |from: &usize| Some((*dims.get(*from)?, *own.get(*from)?));
        Some(StridedPlan::along(0, self.perm.iter().map(axis).collect::<Option<_>>()?))
    }
}

impl Strided for Slice {
    fn reading(&self, dims: &[usize], result: &[usize]) -> Option<StridedPlan> {
        let (own, mut first) = (distances(dims), 0usize);
        let mut axes: SmallVec<[Axis; 6]> =
            result.iter().copied().zip(own.iter().copied()).collect();
        for (i, axis) in self.axes.iter().enumerate() {
            let start = usize::try_from(self.starts.get(i)?.as_const()?).ok()?;
            let step = isize::try_from(*self.steps.get(i)?).ok()?;
            let (_, distance) = axes.get_mut(*axis)?;
            first = first.checked_add(start.checked_mul(distance.unsigned_abs())?)?;
            *distance = distance.checked_mul(step)?;
        }
        Some(StridedPlan::along(first, axes))
    }
}

impl Strided for Expand {
    fn reading(&self, dims: &[usize], result: &[usize]) -> Option<StridedPlan> {
        let own = distances(dims);
        let behind = result.len().checked_sub(dims.len())?;
        let distance = |(i, size): (usize, &usize)| {
            let at = i.checked_sub(behind);
            let kept = at.filter(|at| dims.get(*at) == Some(size));
            // An axis that is new, or was 1, gives its element again.
            (*size, kept.and_then(|at| own.get(at).copied()).unwrap_or(0))
        };
        Some(StridedPlan::along(0, result.iter().enumerate().map(distance).collect()))
    }
}

impl Strided for Blocks {
    fn reading(&self, dims: &[usize], _result: &[usize]) -> Option<StridedPlan> {
        Some(StridedPlan::along(0, Blocks::reading(self, dims)?))
    }
}

impl StridedPlan {
    fn along(first: usize, axes: SmallVec<[Axis; 6]>) -> Self {
        Self { first, merged: merged(&axes), axes }
    }

    /// The plan for an operand and a result of these sizes, none 0, which `op` admits.
    pub fn new(op: &impl Strided, dims: &[usize], result: &[usize]) -> Option<Self> {
        let Self { first, axes, .. } = op.reading(dims, result)?;
        let count = |sizes: &mut dyn Iterator<Item = usize>| sizes.product::<usize>();
        let moved = count(&mut axes.iter().map(|(size, _)| *size));
        (moved == count(&mut result.iter().copied())).then_some(())?;
        // Tasks are cut along the first axis that has more than one entry.
        let skip = axes.iter().position(|(size, _)| *size != 1).unwrap_or(axes.len());
        Some(Self::along(first, axes.into_iter().skip(skip).collect()))
    }
}

/// The elements in the order of the result.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub fn strided(plan: &StridedPlan, x: &[f32], y: &mut [f32]) {
    let Some(((_, distance), inner)) = plan.axes.split_first() else {
        y[0] = x[plan.first];
        return;
    };
    let row: usize = inner.iter().map(|(size, _)| size).product();
    // Whole rows of the first axis: a task begins where that axis has its next entry.
    let many = (WORTH / row.max(1)).max(1);
    if y.len() <= many * row {
        moved(x, y, plan.first, &plan.merged);
        return;
    }
    y.par_chunks_mut(many * row).enumerate().each(|(i, y)| {
        // A distance may be negative, as that of a slice backwards; the place itself lies in the
        // operand.
        let begin = distance.wrapping_mul((i * many).cast_signed());
        let mut axes: SmallVec<[Axis; 6]> = smallvec![(y.len() / row, *distance)];
        axes.extend_from_slice(inner);
        moved(x, y, plan.first.wrapping_add_signed(begin), &merged(&axes));
    });
}

/// The elements along axes that are [`merged`].
fn moved(x: &[f32], y: &mut [f32], first: usize, axes: &[Axis]) {
    match axes {
        // Columns that become rows.
        [outer @ .., (columns, 1), (rows, distance)] if *distance > 1 => {
            let (mut planes, row_stride) = (Walk::new(first, outer), distance.unsigned_abs());
            let layout = Layout { rows: *rows, columns: *columns, row_stride, column_stride: 1 };
            for y in y.chunks_exact_mut(rows * columns) {
                Matrix::new(&x[planes.next()..], layout).pack_transposed(y, *rows);
            }
        }
        axes => {
            read_merged(bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y), 4, first, axes);
        }
    }
}

/// An operator of two operands that broadcast to `out`.
#[derive(Clone, Debug, PartialEq)]
pub struct BroadcastPlan {
    op: Binary,
    loops: Broadcast<2>,
}

impl BroadcastPlan {
    /// The plan for operands of these sizes, none 0, which `op` admits.
    pub fn new(op: &Binary, a: &[usize], b: &[usize]) -> Self {
        Self { op: op.clone(), loops: Broadcast::of([a, b]).0 }
    }
}

/// Some runs of the result, from the one of this number on, with a function.
struct Runs<'a> {
    loops: &'a Broadcast<2>,
    first: usize,
    a: &'a [f32],
    b: &'a [f32],
    y: &'a mut [f32],
}

impl Apply2<f32> for Runs<'_> {
    type Output = ();

    #[inline]
    fn apply(self, f: impl Fn(f32, f32) -> f32) {
        let Self { loops, first: mut run, a, b, y: mut left } = self;
        let [outer @ .., (len, steps)] = loops.axes() else { return };
        // One axis is one run.
        let (runs, strides) = outer.last().copied().unwrap_or((1, [0, 0]));
        vectorised!(while !left.is_empty() {
            let many = (runs - run % runs).min(left.len() / len);
            let [mut i, mut j] = loops.starts(run);
            let (own, others) = mem::take(&mut left).split_at_mut(many * len);
            for y in own.chunks_exact_mut(*len) {
                // Along a run an operand moves by one element or stays.
                match steps {
                    [0, 0] => y.fill(f(a[i], b[j])),
                    [0, _] => {
                        let a = a[i];
                        y.iter_mut().zip(&b[j..j + len]).for_each(|(y, b)| *y = f(a, *b));
                    }
                    [_, 0] => {
                        let b = b[j];
                        y.iter_mut().zip(&a[i..i + len]).for_each(|(y, a)| *y = f(*a, b));
                    }
                    _ => {
                        let both = a[i..i + len].iter().zip(&b[j..j + len]);
                        y.iter_mut().zip(both).for_each(|(y, (a, b))| *y = f(*a, *b));
                    }
                }
                (i, j) = (i + strides[0], j + strides[1]);
            }
            (run, left) = (run + many, others);
        });
    }
}

/// The function of each pair of elements that meet.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub fn broadcast(plan: &BroadcastPlan, a: &[f32], b: &[f32], y: &mut [f32]) {
    let BroadcastPlan { op, loops } = plan;
    let Some((len, _)) = loops.axes().last() else { return };
    let many = (WORTH / len.max(&1)).max(1);
    y.par_chunks_mut((many * len).max(1)).enumerate().each(|(i, y)| {
        op.visit(Runs { loops, first: i * many, a, b, y });
    });
}

impl CpuKernel for StridedPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        strided(self, x, y);
        Ok(())
    }
}

impl CpuKernel for BroadcastPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([a, b], [y]) = (operands, results) else { return Err(Unsuited) };
        broadcast(self, a, b, y);
        Ok(())
    }
}

impl CpuOp for Binary {
    fn supports(&self, types: &Types<'_>) -> Support {
        let support = of_f32(KernelClass::Broadcast, types);
        let rank = |ty: &&TensorType| Some(ty.rank()) == types.results.first().map(|r| r.rank());
        let aligned = types.operands.iter().all(rank);
        Support { is_step: support.kernel.is_some(), ..support }.with_images(Images::Any, aligned)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [a, b] = at.operands.as_slice() else { return None };
        Some(Box::new(BroadcastPlan::new(self, &at.in_memory(a), &at.in_memory(b))))
    }
}

macro_rules! strided {
    ($($op:ident),*) => {
        $(impl CpuOp for $op {
            fn supports(&self, types: &Types<'_>) -> Support {
                of_f32(KernelClass::Move, types)
            }

            fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
                let ([x], [y]) = (at.operands.as_slice(), at.results.as_slice()) else {
                    return None;
                };
                Some(Box::new(StridedPlan::new(self, x, y)?))
            }
        })*
    };
}

strided!(Blocks, Expand, Transpose);

impl CpuOp for Slice {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Move, types).with_images(Images::First, true)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let ([x], [y]) = (at.operands.as_slice(), at.results.as_slice()) else { return None };
        let axis = |axis: &usize| at.axis_in_memory(i64::try_from(*axis).ok()?, x.len());
        let axes = self.axes.iter().map(axis).collect::<Option<_>>()?;
        let op = Self { axes, ..self.clone() };
        Some(Box::new(StridedPlan::new(&op, &at.in_memory(x), &at.in_memory(y))?))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{assert_bits, in_pools, random, rng};
    use super::{BroadcastPlan, Strided, StridedPlan, broadcast, strided};
    use crate::op::{Binary, BlockOrder, Blocks, Expand, Op, Slice, Transpose};
    use crate::types::{Dim, Tensor};

    fn check<T: Strided + Clone + Into<Op>>(op: &T, x: &Tensor) {
        let expected = op.clone().into().eval(&[x]).unwrap().remove(0);
        if expected.is_empty() {
            return;
        }
        let plan = StridedPlan::new(op, x.dims(), expected.dims()).unwrap();
        let got = in_pools(|| {
            let mut y = vec![f32::NAN; expected.len()];
            strided(&plan, x.as_slice(), &mut y);
            y
        });
        assert_bits(&got, expected.as_slice(), &format!("{plan:?} of {:?}", x.dims()));
    }

    #[test]
    fn elements_move_as_the_operators_say() {
        let mut rng = rng(1);
        for case in 0..80 {
            let wide = if case % 8 == 0 { 40 } else { 6 };
            let rank = rng.random_range(1..5usize);
            let dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..wide)).collect();
            let x = Tensor::new(&dims, &random(&mut rng, dims.iter().product())).unwrap();
            let mut perm: Vec<usize> = (0..rank).collect();
            for i in 0..rank {
                perm.swap(i, rng.random_range(0..rank));
            }
            check(&Transpose { perm }, &x);
            let int = |i: usize| Dim::from(i64::try_from(i).unwrap());
            let (axis, back) = (rng.random_range(0..rank), rng.random_bool(0.3));
            let (low, high) = (rng.random_range(0..dims[axis]), dims[axis]);
            let (starts, ends, step) = if back {
                (vec![int(high - 1)], vec![int(low) - 1], -rng.random_range(1..3i64))
            } else {
                (vec![int(low)], vec![int(high)], rng.random_range(1..3i64))
            };
            check(&Slice { axes: vec![axis], starts, ends, steps: vec![step] }, &x);
            let flat: Vec<usize> =
                dims.iter().map(|d| if rng.random_bool(0.5) { 1 } else { *d }).collect();
            let y = Tensor::new(&flat, &random(&mut rng, flat.iter().product())).unwrap();
            let mut shape: Vec<Dim> = dims.iter().map(|d| int(*d)).collect();
            shape.insert(0, int(rng.random_range(1..4)));
            check(&Expand { shape }, &y);
            let (block, mode) = (case % 3 + 1, [BlockOrder::Dcr, BlockOrder::Crd][case % 2]);
            let [n, c, h, w] = [4; 4].map(|most| rng.random_range(1..most));
            let dims = [n, c * block * block, h * block, w * block];
            let x = Tensor::new(&dims, &random(&mut rng, dims.iter().product())).unwrap();
            let block = i64::try_from(block).unwrap();
            check(&Blocks::DepthToSpace { block, mode }, &x);
            check(&Blocks::SpaceToDepth { block, mode }, &x);
        }
    }

    #[test]
    fn operands_broadcast_as_the_operator_does() {
        let mut rng = rng(2);
        for case in 0..80 {
            let wide = if case % 8 == 0 { 40 } else { 6 };
            let dims: Vec<usize> =
                (0..rng.random_range(1..5)).map(|_| rng.random_range(1..wide)).collect();
            let mut one = || {
                let own: Vec<usize> =
                    dims.iter().map(|d| if rng.random_bool(0.4) { 1 } else { *d }).collect();
                let own = own[rng.random_range(0..own.len())..].to_vec();
                Tensor::new(&own, &random(&mut rng, own.iter().product())).unwrap()
            };
            let (a, b) = (one(), one());
            let op = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div][case % 4].clone();
            let plan = BroadcastPlan::new(&op, a.dims(), b.dims());
            let expected = Op::from(op).eval(&[&a, &b]).unwrap().remove(0);
            let got = in_pools(|| {
                let mut y = vec![f32::NAN; expected.len()];
                broadcast(&plan, a.as_slice(), b.as_slice(), &mut y);
                y
            });
            assert_bits(&got, expected.as_slice(), &format!("{plan:?}"));
        }
    }
}
