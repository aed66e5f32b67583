//! The gradients of elements taken at positions that a grid gives.

use crate::op::element::for_wide;
use smallvec::{SmallVec, smallvec};

use crate::op::ResizeMode;
use crate::op::grid_sample::{AxisTap, GridPadding, GridSample};
use crate::op::infer::{count, exactly, results, same_dtype};
use crate::op::numeric::{Wide, narrow, widen_all};
use crate::op::prelude::*;

op! {
    /// The gradients of both operands of `grid_sample`, from these operands and the gradient of its
    /// result.
    ///
    /// A position that is moved to a border, or lies on it, has the gradient 0 along that axis; so
    /// have all of `nearest`. `f16` and `bf16` are computed in `f32`; what points give an element
    /// is summed in row-major order of the points, what channels give a position in their order.
    pub struct GridSampleGrad = "grid_sample_grad" is JUMPS {
        /// The interpolation mode.
        pub mode: ResizeMode = ResizeMode::Linear,
        /// The padding mode.
        pub padding: GridPadding = GridPadding::Zeros,
        /// Whether -1 and 1 were the middles of the first and the last element.
        pub align_corners: bool = false,
    }
}

/// An element of a plane with its weight and how that changes with the position on each axis.
struct Tap<T> {
    at: usize,
    weight: T,
    slopes: SmallVec<[T; 3]>,
}

impl GridSampleGrad {
    /// The gradients of `op`.
    pub(in crate::op) fn of(op: &GridSample) -> Self {
        let GridSample { mode, padding, align_corners } = *op;
        Self { mode, padding, align_corners }
    }

    fn forward(&self) -> GridSample {
        let Self { mode, padding, align_corners } = *self;
        GridSample { mode, padding, align_corners }
    }

    /// The elements of a plane that made the one at a position; slopes are in the order of the
    /// axes.
    fn taps<T: Wide>(&self, sizes: &[usize], position: &[T]) -> Vec<Tap<T>> {
        let forward = self.forward();
        let mut all = vec![Tap { at: 0, weight: T::of(1.0), slopes: SmallVec::new() }];
        for (size, x) in sizes.iter().zip(position.iter().rev()) {
            let own = forward.axis_taps(*size, *x);
            let with = |tap: &Tap<T>, own: &AxisTap<T>| {
                let before = tap.slopes.iter().map(|slope| *slope * own.weight);
                let slopes = before.chain([tap.weight * own.slope]).collect();
                Tap { at: tap.at * size + own.at, weight: tap.weight * own.weight, slopes }
            };
            all = all.iter().flat_map(|tap| own.iter().map(move |own| with(tap, own))).collect();
        }
        all
    }

    /// Adds the gradients of all samples to zeros.
    fn give<T: Wide>(&self, given: [&mut Tensor; 2], operands: &[Tensor]) {
        let ([dx, dgrid], [x, grid, dy]) = (given, operands) else { return };
        let (channels, sizes) = (x.dims()[1], x.dims()[2..].to_vec());
        let plane: usize = sizes.iter().product();
        let points: usize = dy.dims()[2..].iter().product();
        let width = sizes.len();
        let (x, grid, dy) = (x.as_slice::<T>(), grid.as_slice::<T>(), dy.as_slice::<T>());
        let (dx, dgrid) = (dx.as_mut_slice::<T>(), dgrid.as_mut_slice::<T>());
        for (at, (position, d_position)) in
            grid.chunks_exact(width).zip(dgrid.chunks_exact_mut(width)).enumerate()
        {
            let (sample, point) = (at / points, at % points);
            let taps = self.taps(&sizes, position);
            for channel in sample * channels..(sample + 1) * channels {
                let g = dy[channel * points + point];
                let own = channel * plane;
                for tap in &taps {
                    dx[own + tap.at] = dx[own + tap.at].add_product(tap.weight, g);
                    // A position has the last axis first.
                    for (d, slope) in d_position.iter_mut().rev().zip(&tap.slopes) {
                        *d = d.add_product(*slope * x[own + tap.at], g);
                    }
                }
            }
        }
    }
}

impl OpDef for GridSampleGrad {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 3, 3, "3")?;
        same_dtype(operands)?;
        let (own, dy) = operands.split_at(2);
        for (dy, y) in dy.iter().zip(self.forward().infer(own)?) {
            if *dy.ty != y.ty {
                let expected = format!("it is {}, as the elements taken are", y.ty);
                return Err(OpError::shape(2, dy.ty, expected));
            }
        }
        results(own.iter().map(|x| x.ty.clone()))
    }

    fn split(&self, at: &Splitting<'_>) -> Result<Claims, Refusal> {
        let [x, grid, dy] = at.operands else { return at.whole() };
        let forward =
            Splitting { operands: &at.operands[..2], results: std::slice::from_ref(dy.ty) };
        let made = self.forward().split(&forward)?;
        if made.first() != Some(&dy.claim) {
            return at.refuse_at(2, Code::Misaligned, "pairs rows with those of others");
        }
        if dy.claim.shard().is_none() {
            return at.whole();
        }
        // What is whole gets a sum over what is not.
        let claim = |x: &SplitOperand<'_>| {
            x.claim.shard().map_or(Claim::Partial(Combine::Sum), Claim::Shard)
        };
        Ok(smallvec![claim(x), claim(grid)])
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, grid, dy] = exactly(operands)?;
        let from = widen_all(operands)?;
        let mut dx = Tensor::zeros(from[0].dtype(), x.dims())?;
        let mut dgrid = Tensor::zeros(from[0].dtype(), grid.dims())?;
        if !dy.is_empty() {
            for_wide!(dx.dtype(), T => self.give::<T>([&mut dx, &mut dgrid], &from));
        }
        Ok(vec![narrow(dx, x.dtype())?, narrow(dgrid, x.dtype())?])
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a gradient itself")
    }
}
