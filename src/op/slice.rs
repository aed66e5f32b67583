//! A range of every axis.

use smallvec::{SmallVec, smallvec};

use super::declare::op;
use super::infer::{known, one, result_with_ints, tensors};
use super::{
    Backward, Claims, Formula, Gradient, Known, OpDef, OpError, Operand, Results, RuleError,
    SplitOperand, Traits, rules, strided,
};
use crate::types::{Claim, Code, Dim, KernelClass, Refusal, Tensor, TensorType};

op! {
    /// The elements `starts, starts + steps, …` before `ends` of each axis named.
    ///
    /// `0 <= start <= size` and `start <= end <= size` where the step is positive; where it is
    /// negative the elements run down from `start` to the one after `end`,
    /// `-1 <= end <= start < size` (or both are equal). Bounds may depend on `N`; they are in range
    /// for every `N`.
    pub struct Slice = "slice" {
        /// The axes, ascending.
        pub axes: Vec<usize>,
        /// The first element of each.
        pub starts: Vec<Dim>,
        /// One past the last element of each.
        pub ends: Vec<Dim>,
        /// The distance between elements of each, not 0.
        pub steps: Vec<i64>,
    }
}

impl Slice {
    /// The rows `from..to` of one axis.
    pub fn rows(axis: usize, from: Dim, to: Dim) -> Self {
        Self { axes: vec![axis], starts: vec![from], ends: vec![to], steps: vec![1] }
    }

    fn bounds(&self) -> impl Iterator<Item = (usize, &Dim, &Dim, i64)> {
        let ranges = self.starts.iter().zip(&self.ends).zip(&self.steps);
        self.axes.iter().zip(ranges).map(|(axis, ((start, end), step))| (*axis, start, end, *step))
    }

    fn check(&self, ty: &TensorType) -> Result<(), OpError> {
        let wrong = |reason: String| OpError::Attribute { attr: "axes", reason };
        let n = self.axes.len();
        if self.starts.len() != n || self.ends.len() != n || self.steps.len() != n {
            return Err(wrong("axes, starts, ends and steps differ in number".to_owned()));
        }
        if !self.axes.is_sorted_by(|a, b| a < b) {
            return Err(wrong("the axes are not ascending".to_owned()));
        }
        for (axis, start, end, step) in self.bounds() {
            let Some(size) = ty.shape.get(axis) else {
                return Err(wrong(format!("{axis} is no axis of {ty}")));
            };
            let ordered = |a: &Dim, b: &Dim| (b.clone() - a.clone()).is_nonnegative();
            let inside = match step {
                0 => false,
                s if s > 0 => {
                    ordered(&Dim::ZERO, start) && ordered(start, end) && ordered(end, size)
                }
                _ => {
                    start == end
                        || (ordered(&(-1).into(), end)
                            && ordered(end, start)
                            && ordered(start, &(size.clone() - 1)))
                }
            };
            if !inside {
                let reason = format!("{start}..{end} by {step} is no range of axis {axis} of {ty}");
                return Err(OpError::Attribute { attr: "starts", reason });
            }
        }
        Ok(())
    }
}

/// The number of elements from `start` to before `end` by `step`.
fn length(start: &Dim, end: &Dim, step: i64) -> Dim {
    let distance = if step > 0 { end.clone() - start.clone() } else { start.clone() - end.clone() };
    let step = step.saturating_abs();
    (distance + (step - 1)).floor_div(&step.into())
}

impl OpDef for Slice {
    fn traits(&self) -> Traits {
        Traits::MOVES | Traits::FOLLOWS_BLOCKS
    }

    fn same_as(&self, _: &[Known<'_>], _: &TensorType) -> Option<usize> {
        self.steps.iter().all(|step| *step > 0).then_some(0)
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let x = one(operands)?;
        self.check(x.ty)?;
        let mut ty = x.ty.clone();
        for (axis, start, end, step) in self.bounds() {
            ty.shape[axis] = length(start, end, step);
        }
        let ints = match (x.ints, self.bounds().next()) {
            (Some(ints), None) => Some(ints.iter().cloned().collect()),
            (Some(ints), Some((_, start, _, step))) if x.ty.rank() == 1 => {
                let (start, count) = (start.as_const(), ty.shape[0].as_const());
                start.zip(count).and_then(|(start, count)| {
                    (0..count)
                        .map(|i| ints.get(usize::try_from(start + i * step).ok()?).cloned())
                        .collect::<Option<SmallVec<[Dim; 8]>>>()
                })
            }
            _ => None,
        };
        result_with_ints(ty, ints)
    }

    fn split(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        let Some((i, shard)) = rules::first_shard(operands) else {
            return rules::whole_results(results);
        };
        let mut kept = shard;
        for (on, start, end, step) in self.bounds() {
            if on != shard.axis && (start.depends_on_batch() || end.depends_on_batch()) {
                let reason =
                    format!("takes {start}..{end} of axis {on}, which depends on the batch size");
                return Err(rules::refuse(Code::BakedBatch, i, reason));
            }
            if on == shard.axis {
                let blocks = (shard.blocks(start), shard.blocks(end));
                kept.outer = match blocks {
                    (Some(from), Some(to)) if from < to && step == 1 => to - from,
                    _ => {
                        return Err(rules::refuse(
                            Code::Reorders,
                            i,
                            "selects samples of the batch",
                        ));
                    }
                };
            }
        }
        Ok(smallvec![Claim::Shard(kept)])
    }

    fn partial(
        &self,
        operands: &[SplitOperand<'_>],
        results: &[TensorType],
    ) -> Result<Claims, Refusal> {
        rules::moved(operands, results)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = tensors(operands)?;
        let distances = strided::distances(x.dims());
        let mut axes: Vec<strided::Axis> =
            x.dims().iter().copied().zip(distances.iter().copied()).collect();
        let mut first = 0usize;
        for (axis, start, end, step) in self.bounds() {
            let count =
                usize::try_from(known("the bound", &length(start, end, step))?).unwrap_or(0);
            let start = isize::try_from(known("the bound", start)?).unwrap_or(0);
            let step = isize::try_from(step).unwrap_or(isize::MAX);
            first = first.wrapping_add_signed(start.wrapping_mul(distances[axis]));
            axes[axis] = (count, step.wrapping_mul(distances[axis]));
        }
        let dims: Vec<usize> = axes.iter().map(|axis| axis.0).collect();
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        strided::read(x.bytes(), y.bytes_mut(), x.dtype().bytes(), first, &axes);
        Ok(vec![y])
    }

    fn kernel(&self) -> KernelClass {
        KernelClass::Move
    }

    fn gradient(&self) -> Gradient {
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, whole) = (at.dy()?, at.shape(at.operand(0)?));
        let mut dx = dy;
        for (i, axis) in self.axes.iter().enumerate() {
            dx = at.spread(dx, *axis, &self.starts[i], self.steps[i], &whole[*axis])?;
        }
        at.give(0, dx);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::testing::{self, check_split, random, rng};
    use super::Slice;
    use crate::types::{Claim, DType, Dim, Shard, Tensor};

    #[test]
    fn values() {
        let x = Tensor::new(&[2, 4], &[0i64, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        let slice = Slice {
            axes: vec![0, 1],
            starts: vec![1.into(), 3.into()],
            ends: vec![2.into(), (-1).into()],
            steps: vec![1, -2],
        };
        assert_eq!(testing::eval(&slice.into(), &[&x])[0].as_slice::<i64>(), [7, 5]);
        let row = Tensor::new(&[4], &[9i64, 8, 7, 6]).unwrap();
        assert_eq!(
            testing::eval(&Slice::rows(0, 1.into(), 3.into()).into(), &[&row])[0].as_slice::<i64>(),
            [8, 7]
        );
    }

    #[test]
    fn the_batch_passes_unless_samples_are_selected() {
        let x = random(&mut rng(1), DType::F32, &[6, 4]);
        let rows = Claim::rows(0);
        let columns = Slice::rows(1, 1.into(), 3.into());
        assert_eq!(check_split(&columns.into(), &[(&x, rows)], 6), Ok(vec![rows]));
        let all = Slice::rows(0, Dim::ZERO, Dim::n());
        assert_eq!(check_split(&all.into(), &[(&x, rows)], 6), Ok(vec![rows]));
        let half = Slice::rows(0, Dim::ZERO, Dim::n().floor_div(&2.into()));
        assert_eq!(check_split(&half.into(), &[(&x, rows)], 6), Err("R0108".to_owned()));
        let block = |from: i64, to: i64| Slice::rows(0, Dim::n() * from, Dim::n() * to).into();
        let blocks = |outer, inner| Claim::Shard(Shard { axis: 0, outer, inner });
        for (from, to) in [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (0, 3)] {
            let outer = u64::try_from(to - from).unwrap();
            assert_eq!(
                check_split(&block(from, to), &[(&x, blocks(3, 1))], 2),
                Ok(vec![blocks(outer, 1)])
            );
        }
        assert_eq!(check_split(&block(0, 1), &[(&x, blocks(1, 3))], 2), Err("R0108".to_owned()));
        assert_eq!(check_split(&block(1, 1), &[(&x, blocks(3, 1))], 2), Err("R0108".to_owned()));
        let by_size = Dim::n().minimum(&3.into());
        let other = Slice::rows(1, by_size.clone(), by_size + 1);
        assert_eq!(check_split(&other.into(), &[(&x, rows)], 6), Err("R0110".to_owned()));
        let (nothing, back) = (
            random(&mut rng(2), DType::F32, &[0, 4]),
            Slice {
                axes: vec![0],
                starts: vec![(-1).into()],
                ends: vec![(-1).into()],
                steps: vec![-1],
            },
        );
        assert_eq!(testing::eval(&back.into(), &[&nothing])[0].dims(), [0, 4]);
    }

    #[test]
    fn ranges_of_other_axes_keep_the_batch() {
        let mut rng = rng(3);
        for _ in 0..200 {
            let (rank, n) = (rng.random_range(1..4), rng.random_range(0..7));
            let (batch, inner) = (rng.random_range(0..rank), rng.random_range(1..3));
            let mut dims: Vec<usize> = (0..rank).map(|_| rng.random_range(1..7)).collect();
            dims[batch] = n * inner;
            let mut op = Slice { axes: vec![], starts: vec![], ends: vec![], steps: vec![] };
            for (axis, size) in dims.iter().enumerate() {
                let size = i64::try_from(*size).unwrap();
                let (start, end, step) = if axis == batch {
                    (Dim::ZERO, Dim::n() * i64::try_from(inner).unwrap(), 1)
                } else if rng.random_bool(0.5) {
                    let (start, step) = (rng.random_range(0..=size), rng.random_range(1..4));
                    (start.into(), rng.random_range(start..=size).into(), step)
                } else {
                    let (start, step) = (rng.random_range(0..size), rng.random_range(-3..0));
                    (start.into(), rng.random_range(-1..=start).into(), step)
                };
                if rng.random_bool(0.7) {
                    op.axes.push(axis);
                    op.starts.push(start);
                    op.ends.push(end);
                    op.steps.push(step);
                }
            }
            let x = random(&mut rng, DType::F32, &dims);
            let claim = Claim::Shard(Shard { axis: batch, outer: 1, inner: inner as u64 });
            assert_eq!(check_split(&op.into(), &[(&x, claim)], n), Ok(vec![claim]));
        }
    }
}
