//! Entries of a table of `f32`, picked by numbers of `i64`.

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes};
use super::elementwise::Epilogue;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::{Gather, Op};
use crate::types::invariant::invariant;
use crate::types::{DType, KernelClass};

/// Elements for which a task is worth its cost.
const WORTH: usize = 1 << 13;

/// The sizes of a gather.
#[derive(Debug)]
struct GatherPlan {
    op: Op,
    /// The entries of the table along the axis.
    entries: usize,
    /// The elements of an entry.
    width: usize,
}

impl GatherPlan {
    /// The place of an entry; `None` if the table has none of this number.
    fn place(&self, number: i64) -> Option<usize> {
        let distance = usize::try_from(number.unsigned_abs()).ok()?;
        let place = if number < 0 { self.entries.checked_sub(distance)? } else { distance };
        (place < self.entries).then_some(place)
    }
}

impl CpuKernel for GatherPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([table, numbers], [y]) = (operands, results) else { return Err(Unsuited) };
        let numbers: &[i64] = bytemuck::try_cast_slice(numbers).map_err(|_| Unsuited)?;
        if numbers.iter().any(|number| self.place(*number).is_none()) {
            return Err(Unsuited);
        }
        let Self { entries, width, .. } = *self;
        let many = (WORTH / width).max(1);
        y.par_chunks_mut(many * width).enumerate().each(|(task, y)| {
            let first = task * many;
            let (mut block, mut i) = (first / numbers.len(), first % numbers.len());
            for y in y.chunks_exact_mut(width) {
                let place = invariant(self.place(numbers[i]), "that every number has a place");
                let from = (block * entries + place) * width;
                match y {
                    [y] => *y = table[from],
                    y => y.copy_from_slice(&table[from..from + width]),
                }
                i += 1;
                if i == numbers.len() {
                    (block, i) = (block + 1, 0);
                }
            }
        });
        Ok(())
    }

    /// A number without an entry: the reference says which.
    fn reference(&self) -> Option<&Op> {
        Some(&self.op)
    }
}

impl CpuOp for Gather {
    fn supports(&self, types: &Types<'_>) -> Support {
        let dtypes: Vec<DType> =
            types.operands.iter().chain(&types.results).map(|ty| ty.dtype).collect();
        Support::by(KernelClass::Move).when(dtypes == [DType::F32, DType::I64, DType::F32])
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let table = at.operands.first()?;
        let rank = i64::try_from(table.len()).ok()?;
        let axis = if self.axis < 0 { self.axis + rank } else { self.axis };
        let [size, entry @ ..] = table.get(usize::try_from(axis).ok()?..)? else { return None };
        let (op, width) = (Op::from(self.clone()), entry.iter().product());
        Some(Box::new(GatherPlan { op, entries: *size, width }))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;
    use smallvec::SmallVec;

    use super::super::cpu_op::{CpuOp, Sizes};
    use super::super::elementwise::Epilogue;
    use super::super::testing::{assert_bits, in_pools, random, rng};
    use crate::op::{Gather, OpDef};
    use crate::types::{Order, Tensor};

    #[test]
    fn picks_what_the_operator_does() {
        let mut rng = rng(1);
        for case in 0..120 {
            let rank: i64 = rng.random_range(1..4);
            let dims: SmallVec<[usize; 4]> = (0..rank).map(|_| rng.random_range(1..7)).collect();
            let axis = rng.random_range(0..rank);
            let named = if case % 2 == 0 { axis } else { axis - rank };
            let op = Gather { axis: named };
            let sizes = if case % 3 == 0 { vec![] } else { vec![2, rng.random_range(1..900)] };
            let size = i64::try_from(dims[usize::try_from(axis).unwrap()]).unwrap();
            let count = sizes.iter().product::<usize>();
            let mut numbers: Vec<i64> = (0..count).map(|_| rng.random_range(-size..size)).collect();
            let data = random(&mut rng, dims.iter().product());
            let table = Tensor::new(&dims, &data).unwrap();
            let at = Sizes {
                operands: [dims.clone(), sizes.iter().copied().collect()].into_iter().collect(),
                orders: [Order::RowMajor; 2].into_iter().collect(),
                images: Order::RowMajor,
                results: SmallVec::new(),
                written: Order::RowMajor,
            };
            let plan = op.plan(&at).unwrap();
            let run = |numbers: &[i64], y: &mut [f32]| {
                let numbers = bytemuck::cast_slice(numbers);
                plan.run(&[&data, numbers], &mut [y], &Epilogue::default())
            };
            let expected = op.eval(&[&table, &Tensor::new(&sizes, &numbers).unwrap()]).unwrap();
            let expected = expected[0].as_slice::<f32>();
            let y = in_pools(|| {
                let mut y = vec![f32::NAN; expected.len()];
                run(&numbers, &mut y).unwrap();
                y
            });
            assert_bits(&y, expected, &format!("{dims:?} along {axis} by {sizes:?}"));
            for wrong in [size, -size - 1, i64::MIN, i64::MAX] {
                numbers[count / 2] = wrong;
                let mut y = vec![0.0; expected.len()];
                assert!(run(&numbers, &mut y).is_err() && y.iter().all(|y| *y == 0.0));
                assert!(op.eval(&[&table, &Tensor::new(&sizes, &numbers).unwrap()]).is_err());
            }
            assert!(plan.reference().is_some());
        }
    }
}
