//! The gradients of pools: what each window gives its elements.

use crate::op::element::for_wide;
use smallvec::SmallVec;

use crate::op::Pool;
use crate::op::infer::{at_least, count, dtype, equal, result, same_dtype};
use crate::op::numeric::{Wide, computed_wide};
use crate::op::pool::{Planes, elements, greatest, taps};
use crate::op::prelude::*;
use crate::op::window::{Sliding, WindowAxis, Windows, sizes_with, spatial_sizes};

family! {
    /// The gradient of the operand of a pool, `[N, C, spatial…]`, from that of its result,
    /// `[N, C, windows…]`: the sum of what the windows give an element, in row-major order of the
    /// windows. Windows are those of the pool.
    ///
    /// `f16` and `bf16` are summed in `f32`.
    pub enum PoolGrad is NONE with [
        /// Taps of a window.
        kernel: Vec<i64>,
        /// Distance between windows.
        strides: Vec<i64> = Vec::new(),
        /// Distance between taps.
        dilations: Vec<i64> = Vec::new(),
        /// Padding before and after each axis.
        pads: Vec<i64> = Vec::new(),
        /// Whether a last, partial window counts.
        ceil_mode: bool = false,
    ] {
        /// Each window's number goes to its greatest element: the first of equal ones, the last
        /// NaN. The operands are that of the pool and the gradient of its result.
        Max = "max_pool_grad",
        /// Each window's number is shared among its elements. The operand is the gradient of the
        /// pool's result.
        Average = "average_pool_grad" {
            /// The sizes of the spatial axes of the pool's operand.
            sizes: Vec<i64>,
            /// Whether taps in the padding share, too.
            count_include_pad: bool = false,
        },
    }
}

impl PoolGrad {
    /// The gradient of `pool`, applied to an operand of type `x`.
    pub(crate) fn of(pool: &Pool, x: &TensorType) -> Result<Self, OpError> {
        let (kernel, strides, dilations, pads, ceil_mode) = pool.common();
        let (kernel, strides, dilations) = (kernel.clone(), strides.clone(), dilations.clone());
        let (pads, ceil_mode) = (pads.clone(), *ceil_mode);
        if let Pool::Max { .. } = pool {
            return Ok(Self::Max { kernel, strides, dilations, pads, ceil_mode });
        }
        // What the windows of a norm give is shared, too.
        let count_include_pad = matches!(pool, Pool::Average { count_include_pad: true, .. });
        let sizes = spatial_sizes(0, x)?.to_vec();
        Ok(Self::Average { kernel, strides, dilations, pads, ceil_mode, sizes, count_include_pad })
    }

    /// The number of elements in each window of a channel, as `[1, 1, windows…]`.
    pub(in crate::op) fn counts(windows: &[WindowAxis]) -> Result<Tensor, OpError> {
        let dims: Vec<usize> = [1, 1].into_iter().chain(windows.iter().map(|a| a.output)).collect();
        let mut counts = vec![0.0f64; dims.iter().product()];
        Planes::new(windows).each(counts.len(), |i, _, window| {
            counts[i] = taps(window, false);
        });
        Ok(Tensor::new(&dims, &counts)?)
    }

    /// The windows over the operand of the pool, whose spatial axes have these sizes.
    pub(crate) fn windows(&self, sizes: &[i64]) -> Result<Windows, OpError> {
        let (kernel, strides, dilations, pads, ceil_mode) = self.common();
        let sliding = Sliding { strides, dilations, pads, ceil_mode: *ceil_mode };
        sliding.over("kernel", sizes, kernel)
    }

    /// The sizes of the spatial axes of the pool's operand; `first` is the type of the first
    /// operand.
    pub(crate) fn sizes(&self, first: &TensorType) -> Result<SmallVec<[i64; 3]>, OpError> {
        match self {
            Self::Max { .. } => spatial_sizes(0, first),
            Self::Average { sizes, .. } => Ok(sizes.as_slice().into()),
        }
    }
}

impl OpDef for PoolGrad {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        match self {
            Self::Max { .. } => count(operands, 2, 2, "2")?,
            Self::Average { .. } => count(operands, 1, 1, "1")?,
        }
        dtype(operands, 0, DType::is_float, "a float")?;
        same_dtype(operands)?;
        let last = operands.len() - 1;
        let (first, dy) = (operands[0].ty, operands[last].ty);
        let sizes = self.sizes(first)?;
        let windows = self.windows(&sizes)?;
        if dy.rank() != windows.len() + 2 || first.rank() != dy.rank() {
            let expected = format!("it must have {} axes", windows.len() + 2);
            return Err(OpError::shape(last, dy, expected));
        }
        for axis in 0..2 {
            equal("samples and channels", &first.shape[axis], &dy.shape[axis])?;
        }
        for (axis, size) in windows.iter().zip(dy.shape.iter().skip(2)) {
            equal("windows and their gradients", &axis.windows(), size)?;
        }
        let spatial = sizes.iter().map(|size| Dim::from(*size));
        let shape = first.shape.iter().take(2).cloned().chain(spatial).collect();
        result(TensorType { dtype: first.dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        if shard.axis > 1 {
            return at.refuse(Code::WindowAxis, "slides windows along the batch");
        }
        match at.operands.iter().position(|x| x.claim != Claim::Shard(shard)) {
            Some(other) => at.refuse_at(other, Code::Misaligned, "pairs rows with those of others"),
            None => at.keep(shard),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([first], rest) = at_least(operands)?;
        let dy = rest.last().unwrap_or(&first);
        let windows = self.windows(&self.sizes(&first.tensor_type())?)?;
        let dims = sizes_with(&dy.dims()[..2], &windows, |a| a.input);
        computed_wide(&[first, dy], &dims, |dx, operands| {
            let (planes, [x, dy]) = (Planes::new(&windows), [&operands[0], &operands[1]]);
            for_wide!(dx.dtype(), T => self.give::<T>(&planes, dx, x, dy));
            Ok(())
        })
    }

    fn jumps(&self) -> bool {
        matches!(self, Self::Max { .. })
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a gradient itself")
    }
}

impl PoolGrad {
    fn give<T: Wide>(&self, planes: &Planes, dx: &mut Tensor, x: &Tensor, dy: &Tensor) {
        let (x, dx) = (x.as_slice::<T>(), dx.as_mut_slice::<T>());
        let dy = dy.as_slice::<T>();
        planes.each(dy.len(), |i, start, window| match self {
            Self::Max { .. } => {
                if let Some(at) = greatest(x, start, window).1 {
                    dx[at] = dx[at] + dy[i];
                }
            }
            Self::Average { count_include_pad, .. } => {
                let count = taps(window, *count_include_pad);
                if count > 0.0 {
                    let share = dy[i] / T::of(count);
                    elements(window, start, &mut |at| dx[at] = dx[at] + share);
                }
            }
        });
    }
}
