//! The steps of batch normalisation between which replicas exchange statistics, for `f32`: moments
//! and sums of their rows, and what follows from those of all rows.
//!
//! Each channel is computed by one task, as in one step. Statistics are `f64`: of the words of
//! `f32` that a kernel takes and gives, each of them has two.

use rayon::prelude::*;

use super::batch_norm::{ChannelSizes, differentiate, distances, normalise, sums};
use super::cpu_op::{CpuKernel, CpuOp, Sizes};
use super::elementwise::Epilogue;
use crate::backend::host::{Each, Unsuited};
use crate::lower::{Support, Types};
use crate::op::{BatchMoments, BatchNormApply, BatchNormApplyGrad, BatchNormSums, setting_in};
use crate::types::{DType, KernelClass};

/// The statistics that words hold: `K` numbers for each of some channels.
fn read<const K: usize>(words: &[f32], channels: usize) -> Result<[&[f64]; K], Unsuited> {
    let all: &[f64] = bytemuck::try_cast_slice(words).map_err(|_| Unsuited)?;
    let each: Vec<&[f64]> = all.chunks_exact(channels).collect();
    each.try_into().map_err(|_| Unsuited)
}

/// The same, to be written.
fn write<const K: usize>(words: &mut [f32], channels: usize) -> Result<[&mut [f64]; K], Unsuited> {
    let all: &mut [f64] = bytemuck::try_cast_slice_mut(words).map_err(|_| Unsuited)?;
    let each: Vec<&mut [f64]> = all.chunks_exact_mut(channels).collect();
    each.try_into().map_err(|_| Unsuited)
}

/// The numbers of moments: of elements, means, sums of squared distances from them, and what means
/// lack, which is nothing that counts beside the distances of `f32`.
const MOMENTS: usize = 4;

/// The moments of the channels of `x`.
fn moments(sizes: ChannelSizes, x: &[f32], [counts, means, squares, rests]: [&mut [f64]; MOMENTS]) {
    let count = (x.len() / sizes.channels) as f64;
    counts.fill(count);
    rests.fill(0.0);
    let channels = means.par_iter_mut().zip(squares).with_min_len(sizes.each(x.len()));
    channels.enumerate().each(|(c, (mean, squares))| {
        (*mean, *squares) = distances(&sizes.rows(x, c), count);
    });
}

/// The sums of `dy` and of its products with the distances of `x` from the means.
fn sums_of(
    sizes: ChannelSizes,
    [x, dy]: [&[f32]; 2],
    means: &[f64],
    [given, products]: [&mut [f64]; 2],
) {
    let channels = given.par_iter_mut().zip(products).with_min_len(sizes.each(x.len()));
    channels.enumerate().each(|(c, (given, products))| {
        let mean = means[c];
        let rows = sizes.rows(x, c).zip(sizes.rows(dy, c));
        (*products, *given) = sums(rows, |x, dy| dy * (f64::from(x) - mean));
    });
}

/// The moments of some elements.
#[derive(Debug)]
struct MomentsPlan(ChannelSizes);

/// A normalisation by given moments.
#[derive(Debug)]
struct ApplyPlan(ChannelSizes, f64);

/// The sums that gradients take.
#[derive(Debug)]
struct SumsPlan(ChannelSizes);

/// The gradient by given moments and sums.
#[derive(Debug)]
struct ApplyGradPlan(ChannelSizes, f64);

impl CpuKernel for MomentsPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x], [y]) = (operands, results) else { return Err(Unsuited) };
        moments(self.0, x, write(y, self.0.channels)?);
        Ok(())
    }
}

impl CpuKernel for ApplyPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let (Self(sizes, epsilon), [x, scale, bias, moments], [y]) = (self, operands, results)
        else {
            return Err(Unsuited);
        };
        let [counts, means, squares, _] = read::<MOMENTS>(moments, sizes.channels)?;
        let channels = sizes.by_channel(y).into_par_iter().with_min_len(sizes.each(x.len()));
        channels.enumerate().each(|(c, y)| {
            let deviation = (squares[c] / counts[c] + epsilon).sqrt();
            let factor = f64::from(scale[c]) / deviation;
            normalise(sizes.rows(x, c), y, means[c], [factor, f64::from(bias[c])]);
        });
        Ok(())
    }
}

impl CpuKernel for SumsPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let ([x, dy, moments], [y]) = (operands, results) else { return Err(Unsuited) };
        let [_, means, ..] = read::<MOMENTS>(moments, self.0.channels)?;
        sums_of(self.0, [x, dy], means, write(y, self.0.channels)?);
        Ok(())
    }
}

impl CpuKernel for ApplyGradPlan {
    fn run(
        &self,
        operands: &[&[f32]],
        results: &mut [&mut [f32]],
        _chain: &Epilogue<'_>,
    ) -> Result<(), Unsuited> {
        let (Self(sizes, epsilon), [x, scale, dy, moments, sums], [dx]) = (self, operands, results)
        else {
            return Err(Unsuited);
        };
        let [counts, means, squares, _] = read::<MOMENTS>(moments, sizes.channels)?;
        let [given, products] = read::<2>(sums, sizes.channels)?;
        let channels = sizes.by_channel(dx).into_par_iter().with_min_len(sizes.each(x.len()));
        channels.enumerate().each(|(c, dx)| {
            let (count, mean) = (counts[c], means[c]);
            let inverse = 1.0 / (squares[c] / count + epsilon).sqrt();
            let normal = |x: f32| (f64::from(x) - mean) * inverse;
            let (slope, shift) = (products[c] * inverse / count, given[c] / count);
            let rows = sizes.rows(x, c).zip(sizes.rows(dy, c));
            differentiate(rows, dx, normal, [f64::from(scale[c]) * inverse, shift, slope]);
        });
        Ok(())
    }
}

/// Support where the elements and the vectors of the channels, which are these operands, are `f32`.
fn of_singles(types: &Types<'_>, singles: &[usize]) -> Support {
    let single = |i: &usize| types.operands.get(*i).is_some_and(|x| x.dtype == DType::F32);
    Support::by(KernelClass::Training).when(singles.iter().all(single))
}

/// The sizes of the channels of the first operand.
fn channels(at: &Sizes) -> Option<ChannelSizes> {
    ChannelSizes::new(at.operands.first()?)
}

impl CpuOp for BatchMoments {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_singles(types, &[0])
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(MomentsPlan(channels(at)?)))
    }
}

impl CpuOp for BatchNormApply {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_singles(types, &[0, 1, 2])
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(ApplyPlan(channels(at)?, setting_in(self.epsilon, DType::F32))))
    }
}

impl CpuOp for BatchNormSums {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_singles(types, &[0, 1])
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(SumsPlan(channels(at)?)))
    }
}

impl CpuOp for BatchNormApplyGrad {
    fn supports(&self, types: &Types<'_>) -> Support {
        of_singles(types, &[0, 1, 2])
    }

    fn plan(&self, at: &Sizes) -> Option<Box<dyn CpuKernel>> {
        Some(Box::new(ApplyGradPlan(channels(at)?, setting_in(self.epsilon, DType::F32))))
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::{CpuOp, Sizes};
    use crate::backend::cpu::elementwise::Epilogue;
    use crate::backend::cpu::testing::{assert_close, in_pools, random, rng};
    use crate::lower::Chain;
    use crate::op::{BatchMoments, BatchNormApply, BatchNormApplyGrad, BatchNormSums, OpDef};
    use crate::types::{Order, Tensor};

    /// What the kernel of an operator computes; fails unless its own evaluation nearly does.
    fn by_kernel<T: CpuOp + OpDef>(op: &T, operands: &[&Tensor]) -> Tensor {
        let expected = op.eval(operands).unwrap().remove(0);
        let sizes = Sizes {
            operands: operands.iter().map(|x| x.dims().into()).collect(),
            orders: operands.iter().map(|_| Order::RowMajor).collect(),
            images: Order::RowMajor,
            results: std::iter::once(expected.dims().into()).collect(),
            written: Order::RowMajor,
        };
        let plan = op.plan(&sizes).unwrap();
        let mut y = Tensor::zeros(expected.dtype(), expected.dims()).unwrap();
        let read: Vec<&[f32]> = operands.iter().map(|x| words(x)).collect();
        let result = bytemuck::cast_slice_mut(y.bytes_mut());
        let chain = Chain::default();
        plan.run(&read, &mut [result], &Epilogue::new(&chain, &[]).unwrap()).unwrap();
        assert_close(&singles(&y), &singles(&expected), op.name());
        y
    }

    fn words(x: &Tensor) -> &[f32] {
        bytemuck::cast_slice(x.bytes())
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest f32 is meant")]
    fn singles(x: &Tensor) -> Vec<f32> {
        x.to_f64().into_iter().map(|x| x as f32).collect()
    }

    #[test]
    fn steps_give_what_their_operators_do() {
        let mut rng = rng(2);
        for case in 0..40 {
            let channels = rng.random_range(1..7usize);
            let mut dims = vec![rng.random_range(1..9usize), channels];
            dims.extend((0..case % 3).map(|_| rng.random_range(1..40)));
            let shift = if case % 5 == 0 { 1000.0 } else { 0.0 };
            let mut tensor = |dims: &[usize], shift: f32| {
                let data = random(&mut rng, dims.iter().product());
                Tensor::new(dims, &data.into_iter().map(|x| x + shift).collect::<Vec<_>>()).unwrap()
            };
            let (x, dy) = (tensor(&dims, shift), tensor(&dims, 0.0));
            let [scale, bias] = [(); 2].map(|()| tensor(&[channels], 0.0));
            in_pools(|| {
                let moments = by_kernel(&BatchMoments {}, &[&x]);
                let apply = BatchNormApply { epsilon: 1e-3 };
                let y = by_kernel(&apply, &[&x, &scale, &bias, &moments]);
                let sums = by_kernel(&BatchNormSums {}, &[&x, &dy, &moments]);
                let apply = BatchNormApplyGrad { epsilon: 1e-3 };
                let dx = by_kernel(&apply, &[&x, &scale, &dy, &moments, &sums]);
                [moments, y, sums, dx].iter().flat_map(|t| words(t).to_vec()).collect()
            });
        }
    }
}
