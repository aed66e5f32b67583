//! Elements moved by position: concatenation, cuts and padding.

use rayon::prelude::*;
use smallvec::SmallVec;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Images, Support, Types};
use crate::op::{AllGather, Concat, Pad, PadMode, SplitOp};
use crate::types::KernelClass;

/// Elements for which a task is worth its cost.
const WORTH: usize = 1 << 13;

/// The number of consecutive elements of each operand in a concatenation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JoinPlan(SmallVec<[usize; 4]>);

impl JoinPlan {
    /// The plan for operands of these sizes, which are joined along an axis.
    pub(crate) fn new<'a>(
        axis: usize,
        operands: impl Iterator<Item = &'a [usize]>,
    ) -> Option<Self> {
        let run = |dims: &[usize]| Some(dims.get(axis..)?.iter().product());
        operands.map(run).collect::<Option<_>>().map(Self)
    }
}

/// The operands joined.
///
/// # Panics
/// If an operand has not the size that the plan says: a bug in the caller.
pub(crate) fn join(plan: &JoinPlan, operands: &[&[f32]], y: &mut [f32]) {
    let total: usize = plan.0.iter().sum();
    if total == 0 {
        return;
    }
    // A block of the result holds a run of each operand, one behind the other.
    let each = (WORTH / total).max(1);
    y.par_chunks_exact_mut(total).with_min_len(each).enumerate().each(|(i, y)| {
        let mut rest = y;
        for (x, run) in operands.iter().zip(&plan.0) {
            let (part, tail) = rest.split_at_mut(*run);
            part.copy_from_slice(&x[i * run..(i + 1) * run]);
            rest = tail;
        }
    });
}

/// The operand cut into the parts of a join.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
fn cut(JoinPlan(runs): &JoinPlan, x: &[f32], parts: &mut [&mut [f32]]) {
    let (total, mut first) = (runs.iter().sum::<usize>(), 0);
    for (part, run) in parts.iter_mut().zip(runs).filter(|(_, run)| **run > 0) {
        let each = (WORTH / run).max(1);
        part.par_chunks_exact_mut(*run).with_min_len(each).enumerate().each(|(i, part)| {
            part.copy_from_slice(&x[i * total + first..][..*run]);
        });
        first += run;
    }
}

/// The sizes of a cut, those of the parts joined.
#[derive(Debug)]
struct CutPlan(JoinPlan);

/// The sizes of a padding by one value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PadPlan {
    /// For each axis its size, the entries before it, and its size with those around it.
    axes: SmallVec<[(usize, usize, usize); 4]>,
    value: f32,
}

impl PadPlan {
    /// The plan for an operand of these sizes, which `op` admits. `None` if `op` does not only add
    /// entries of one value.
    #[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
    pub(crate) fn new(op: &Pad, dims: &[usize]) -> Option<Self> {
        if op.mode != PadMode::Constant || dims.is_empty() || op.pads.len() != 2 * dims.len() {
            return None;
        }
        let (before, after) = op.pads.split_at(dims.len());
        let axis = |(size, (before, after)): (&usize, (&i64, &i64))| {
            let (before, after) = (usize::try_from(*before).ok()?, usize::try_from(*after).ok()?);
            Some((*size, before, size.checked_add(before)?.checked_add(after)?))
        };
        let axes = dims.iter().zip(before.iter().zip(after)).map(axis).collect::<Option<_>>()?;
        Some(Self { axes, value: op.value as f32 })
    }
}

/// The operand with the entries around it.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn pad(plan: &PadPlan, x: &[f32], y: &mut [f32]) {
    let Some(((size, before, columns), outer)) = plan.axes.split_last() else { return };
    if *columns == 0 {
        return;
    }
    let each = (WORTH / columns).max(1);
    y.par_chunks_exact_mut(*columns).with_min_len(each).enumerate().each(|(row, y)| {
        match origin(outer, row) {
            None => y.fill(plan.value),
            Some(from) => {
                y[..*before].fill(plan.value);
                y[*before..before + size].copy_from_slice(&x[from * size..(from + 1) * size]);
                y[before + size..].fill(plan.value);
            }
        }
    });
}

/// The row of the operand that is row `row` of the result; `None` if that lies outside the operand.
fn origin(axes: &[(usize, usize, usize)], mut row: usize) -> Option<usize> {
    let (mut from, mut stride) = (0, 1);
    for (size, before, padded) in axes.iter().rev() {
        let at = (row % padded).checked_sub(*before).filter(|at| at < size)?;
        from += at * stride;
        (row, stride) = (row / padded, stride * size);
    }
    Some(from)
}

impl CpuKernel for JoinPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let [y] = results else { return Err(Unsuited) };
        join(self, operands, y);
        Ok(())
    }
}

impl CpuOp for Concat {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Move, types).with_images(Images::One, true)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let operands = at.operands.iter().map(|dims| at.in_memory(dims));
        let operands: SmallVec<[SmallVec<[usize; 4]>; 4]> = operands.collect();
        let axis = at.axis_in_memory(self.axis, operands.first()?.len())?;
        Some(Box::new(JoinPlan::new(axis, operands.iter().map(SmallVec::as_slice))?))
    }
}

impl CpuKernel for CutPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let [x] = operands else { return Err(Unsuited) };
        cut(&self.0, x, results);
        Ok(())
    }
}

impl CpuOp for SplitOp {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Move, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let axis = at.axis_in_memory(self.axis, at.results.first()?.len())?;
        let parts = at.results.iter().map(SmallVec::as_slice);
        Some(Box::new(CutPlan(JoinPlan::new(axis, parts)?)))
    }
}

impl CpuOp for AllGather {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Move, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        self.concat().plan(at)
    }
}

impl CpuOp for Pad {
    fn supports(&self, types: &Types<'_>) -> Support {
        let own = self.mode == PadMode::Constant && self.pads.iter().all(|pad| *pad >= 0);
        of_f32(KernelClass::Move, types).with_images(Images::First, own)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x] = at.operands.as_slice() else { return None };
        let mut plan = PadPlan::new(self, x)?;
        plan.axes = at.in_memory(&plan.axes);
        Some(Box::new(plan))
    }
}

impl CpuKernel for PadPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        pad(self, x, y);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{assert_bits, in_pools, random, rng};
    use super::{JoinPlan, PadPlan, cut, join, pad};
    use crate::op::{Concat, Op, Pad, PadMode};
    use crate::types::Tensor;

    fn reference(op: impl Into<Op>, operands: &[&Tensor]) -> Tensor {
        op.into().eval(operands).unwrap().remove(0)
    }

    #[test]
    fn joined_as_the_operator_does() {
        let mut rng = rng(1);
        for case in 0..40 {
            let mut dims: Vec<usize> =
                (0..rng.random_range(1..5)).map(|_| rng.random_range(0..6)).collect();
            let axis = rng.random_range(0..dims.len());
            let operands: Vec<Tensor> = (0..rng.random_range(1..4))
                .map(|_| {
                    dims[axis] = rng.random_range(0..5) * if case % 8 == 0 { 4000 } else { 1 };
                    Tensor::new(&dims, &random(&mut rng, dims.iter().product())).unwrap()
                })
                .collect();
            let sign = if case % 2 == 0 { 0 } else { i64::try_from(dims.len()).unwrap() };
            let op = Concat { axis: i64::try_from(axis).unwrap() - sign };
            let plan = JoinPlan::new(axis, operands.iter().map(Tensor::dims)).unwrap();
            let expected = reference(op, &operands.iter().collect::<Vec<_>>());
            let slices: Vec<&[f32]> = operands.iter().map(Tensor::as_slice).collect();
            let got = in_pools(|| {
                let mut y = vec![f32::NAN; expected.len()];
                join(&plan, &slices, &mut y);
                y
            });
            assert_bits(&got, expected.as_slice(), &format!("{operands:?} along {axis}"));
            let mut parts: Vec<Vec<f32>> =
                operands.iter().map(|part| vec![f32::NAN; part.len()]).collect();
            let mut views: Vec<&mut [f32]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
            cut(&plan, &got, &mut views);
            for (part, operand) in parts.iter().zip(&operands) {
                assert_bits(part, operand.as_slice(), &format!("cut along {axis}"));
            }
        }
    }

    #[test]
    fn padded_as_the_operator_does() {
        let mut rng = rng(2);
        for case in 0..40 {
            let wide = if case % 8 == 0 { 40 } else { 5 };
            let dims: Vec<usize> =
                (0..rng.random_range(1..5)).map(|_| rng.random_range(1..wide)).collect();
            let pads = (0..2 * dims.len()).map(|_| rng.random_range(0..3)).collect();
            let op = Pad { mode: PadMode::Constant, pads, value: 0.5 };
            let x = Tensor::new(&dims, &random(&mut rng, dims.iter().product())).unwrap();
            let plan = PadPlan::new(&op, &dims).unwrap();
            let expected = reference(op, &[&x]);
            let got = in_pools(|| {
                let mut y = vec![f32::NAN; expected.len()];
                pad(&plan, x.as_slice(), &mut y);
                y
            });
            assert_bits(&got, expected.as_slice(), &format!("{plan:?}"));
        }
        let other = |mode, before| Pad { mode, pads: vec![before, 1], value: 0.0 };
        assert_eq!(PadPlan::new(&other(PadMode::Edge, 1), &[3]), None);
        assert_eq!(PadPlan::new(&other(PadMode::Constant, -1), &[3]), None);
    }
}
