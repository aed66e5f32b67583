//! Dropout in training.

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes};
use super::elementwise::Epilogue;
use super::simd::vectorised;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::DropoutTrain;
use crate::types::invariant::invariant;
use crate::types::{DType, KernelClass};

/// Elements for which a task is worth its cost.
const WORTH: usize = 1 << 14;

/// Dropout in rows of so many elements.
#[derive(Debug)]
struct DropoutPlan {
    op: DropoutTrain,
    width: usize,
}

/// The number that two words are.
fn number(words: &[f32]) -> Option<i64> {
    words.first_chunk::<2>().map(|words| bytemuck::cast(*words))
}

impl CpuKernel for DropoutPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, rows, step], [y]) = (operands, results) else { return Err(Unsuited) };
        let step = number(step).ok_or(Unsuited)?;
        let of_rows = y.par_chunks_exact_mut(self.width).zip(x.par_chunks_exact(self.width));
        let of_rows = of_rows.zip(rows.par_chunks_exact(2));
        of_rows.with_min_len(WORTH.div_ceil(self.width)).each(|((y, x), row)| {
            let row = invariant(number(row), "that a number is two words");
            y.copy_from_slice(x);
            vectorised!(self.op.row(y, step, row));
        });
        Ok(())
    }
}

impl CpuOp for DropoutTrain {
    fn supports(&self, types: &Types<'_>) -> Support {
        let is_f32 = types.operands.first().is_some_and(|x| x.dtype == DType::F32);
        Support::by(KernelClass::Random).when(is_f32)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let width = at.operands.first()?.iter().skip(1).product();
        Some(Box::new(DropoutPlan { op: self.clone(), width }))
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuKernel, DropoutPlan, DropoutTrain, Epilogue};
    use crate::backend::cpu::testing::{assert_bits, in_pools, random, rng};
    use crate::op::OpDef;
    use crate::types::Tensor;

    #[test]
    fn elements_drop_as_in_the_reference() {
        for (case, rate) in [0.0, 0.1, 0.5, 0.75, 0.999_999_9, 1e-9].into_iter().enumerate() {
            let dims = [[5, 7], [1, 40_000], [300, 101]][case % 3];
            let op = DropoutTrain { rate, seed: 3 };
            let x = random(&mut rng(case as u64), dims[0] * dims[1]);
            let rows: Vec<i64> = (0..).map(|row| row * 5 - 7).take(dims[0]).collect();
            let rows = Tensor::new(&[dims[0]], &rows).unwrap();
            let (of, step) = (Tensor::new(&dims, &x).unwrap(), Tensor::scalar(9i64));
            let expected = op.eval(&[&of, &rows, &step]).unwrap().remove(0);
            let plan = DropoutPlan { op, width: dims[1] };
            let words = |tensor: &Tensor| bytemuck::cast_slice(tensor.bytes()).to_vec();
            let (rows, step): (Vec<f32>, Vec<f32>) = (words(&rows), words(&step));
            let found = in_pools(|| {
                let mut y = vec![f32::NAN; x.len()];
                plan.run(&[&x, &rows, &step], &mut [&mut y], &Epilogue::default()).unwrap();
                y
            });
            assert_bits(&found, expected.as_slice(), &format!("{rate} of {dims:?}"));
        }
    }
}
