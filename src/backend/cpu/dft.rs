//! Discrete Fourier transforms.

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::{Dft, DftSizes};
use crate::types::KernelClass;

/// The sizes of a transform, and its turns.
#[derive(Debug)]
struct DftPlan {
    sizes: DftSizes,
    count: usize,
    turns: Vec<[f64; 2]>,
}

impl CpuKernel for DftPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        let DftSizes { entries, inner, parts: [from, to], .. } = self.sizes;
        let block = entries * inner * from;
        y.par_chunks_exact_mut(inner * to).enumerate().each(|(at, row)| {
            let block = &x[at / self.count * block..][..block];
            Dft::row(self.sizes, &self.turns, at % self.count, block, row);
        });
        Ok(())
    }
}

impl CpuOp for Dft {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_f32(KernelClass::Line, types)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let sizes = self.sizes(at.operands.first()?).ok()?;
        let count = usize::try_from(self.count).ok()?;
        Some(Box::new(DftPlan { sizes, count, turns: self.turns() }))
    }
}
