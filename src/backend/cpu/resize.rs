//! Axes resized by interpolation, for `f32`, plane by plane.
//!
//! The results have the bits of the reference evaluation.

use rayon::prelude::*;

use super::cpu_op::{CpuKernel, CpuOp, Sizes, of_f32};
use super::elementwise::Epilogue;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Images, Support, Types};
use crate::op::{Passes, Resize, ResizeMode};
use crate::types::{KernelClass, Order};

/// The plan of resizing planes: it does not depend on their number.
#[derive(Debug)]
pub(crate) struct ResizePlan {
    passes: Passes,
    /// True if elements are copied (nearest).
    picks: bool,
    /// The value outside the operand.
    value: f32,
}

/// Elements for which a task is worth its cost.
const WORTH: usize = 1 << 14;

impl ResizePlan {
    /// The plan for an operand of shape `x`, which `op` admits; the sizes before the first axis
    /// that is resized are free. `None` if no axis is resized, or nothing is left of one.
    pub(crate) fn new(op: &Resize, x: &[usize]) -> Option<Self> {
        let first = *op.axes.first()?;
        if op.sizes.contains(&0) {
            return None;
        }
        let passes = Passes::new(op, first, x.get(first..)?);
        Some(Self { passes, picks: op.mode == ResizeMode::Nearest, value: op.extrapolation })
    }
}

/// The results for as many planes as `y` has.
///
/// # Panics
/// If a slice has not the size that the plan says: a bug in the caller.
pub(crate) fn resize(plan: &ResizePlan, x: &[f32], y: &mut [f32]) {
    let (input, output) = plan.passes.sizes();
    assert_eq!(x.len() / input * output, y.len(), "planes of {plan:?}");
    let planes = y.par_chunks_exact_mut(output).zip(x.par_chunks_exact(input));
    planes.with_min_len((WORTH / output).max(1)).each(|(y, x)| {
        if plan.picks {
            let value = plan.value.to_ne_bytes();
            plan.passes.pick(4, bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y), &value);
        } else {
            plan.passes.blend(x, y);
        }
    });
}

impl CpuOp for Resize {
    fn supports(&self, types: &Types<'_>) -> Support {
        let places = self.axes.iter().all(|axis| *axis > 1) && !self.sizes.contains(&0);
        of_f32(KernelClass::Pool, types).with_images(Images::First, places)
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        let [x] = at.operands.as_slice() else { return None };
        if at.images == Order::RowMajor {
            return Some(Box::new(ResizePlan::new(self, x)?));
        }
        let axes = self.axes.iter().map(|axis| axis.checked_sub(1)).collect::<Option<_>>()?;
        Some(Box::new(ResizePlan::new(&Self { axes, ..self.clone() }, &at.in_memory(x))?))
    }
}

impl CpuKernel for ResizePlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        resize(self, x, y);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{ResizePlan, resize};
    use crate::backend::cpu::testing::{assert_bits, in_pools, random, rng};
    use crate::op::{Coordinates, Nearest, OpDef, Resize, ResizeMode};
    use crate::types::Tensor;

    #[test]
    fn planes_have_the_bits_of_the_reference() {
        let mut rng = rng(1);
        for i in 0..60usize {
            let mode = [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic][i % 3];
            let crops = i % 5 == 0;
            let mut pair = |from: usize, to: usize| [0; 2].map(|_| rng.random_range(from..to));
            let (lengths, sizes) = (pair(1, 40), pair(1, 60));
            let scales = lengths.iter().zip(sizes).map(|(l, s)| s as f32 / *l as f32).collect();
            let op = Resize {
                axes: vec![2, 3],
                sizes: sizes.map(|s| i64::try_from(s).unwrap()).to_vec(),
                scales,
                mode,
                nearest: Nearest::RoundPreferFloor,
                coordinates: if crops {
                    Coordinates::TfCropAndResize
                } else {
                    Coordinates::HalfPixel
                },
                cubic: -0.75,
                exclude_outside: false,
                antialias: i % 2 == 0 && mode != ResizeMode::Nearest,
                roi: if crops { vec![-0.2, 0.1, 0.8, 1.3] } else { Vec::new() },
                extrapolation: 7.0,
            };
            let dims = [2, 3, lengths[0], lengths[1]];
            let x = Tensor::new(&dims, &random(&mut rng, dims.iter().product())).unwrap();
            let expected = op.eval(&[&x]).unwrap().remove(0);
            let plan = ResizePlan::new(&op, &dims).unwrap();
            let got = in_pools(|| {
                let mut y = vec![f32::NAN; expected.len()];
                resize(&plan, x.as_slice(), &mut y);
                y
            });
            assert_bits(&got, expected.as_slice(), &format!("{op:?} {dims:?}"));
        }
    }
}
