//! Axes resized by interpolation.

mod taps;
#[cfg(test)]
mod tests;

pub(crate) use taps::{AxisTaps, Passes};

use super::attr::names;
use super::converted;
use super::infer::{dtype, exactly, result};
use super::numeric::{narrow, widen};
use super::prelude::*;
use crate::op::element::for_wide;
use crate::types::MAX_SIZE;

names! {
    /// The interpolation mode.
    pub enum ResizeMode {
        /// The nearest one.
        Nearest = "nearest",
        /// Linear interpolation: weights fall linearly with the distance, to 0 at 1.
        Linear = "linear",
        /// Cubic convolution (Keys 1981) over four elements.
        Cubic = "cubic",
    }
}

names! {
    /// Rounding rule of `nearest`.
    pub enum Nearest {
        /// The nearest, of two equally far ones the one before.
        RoundPreferFloor = "round_prefer_floor",
        /// The nearest, of two equally far ones the one behind.
        RoundPreferCeil = "round_prefer_ceil",
        /// The one at or before the position.
        Floor = "floor",
        /// The one at or behind the position.
        Ceil = "ceil",
        /// The one behind where the axis shrinks, else the one before.
        Simple = "simple",
    }
}

names! {
    /// The position in the operand from which element `x` of the result is taken, on an axis of
    /// `length` elements that becomes one of `size`.
    pub enum Coordinates {
        /// `(x + 1/2) / scale - 1/2`.
        HalfPixel = "half_pixel",
        /// `half_pixel`, moved by `length / 2 * (1 - size / (scale * length))`, so that both
        /// centres meet.
        HalfPixelSymmetric = "half_pixel_symmetric",
        /// `half_pixel`, but 0 where `size` is 1.
        PytorchHalfPixel = "pytorch_half_pixel",
        /// `x * (length - 1) / (size - 1)`; 0 where `size` is 1.
        AlignCorners = "align_corners",
        /// `x / scale`.
        Asymmetric = "asymmetric",
        /// `(x + 1/2) / scale`.
        TfHalfPixelForNn = "tf_half_pixel_for_nn",
        /// `(start + x * (end - start) / (size - 1)) * (length - 1)` for the axis' part of `roi`;
        /// its middle where `size` is 1.
        TfCropAndResize = "tf_crop_and_resize",
    }
}

op! {
    /// Its operand with some axes resized by interpolation, one axis after the other. Positions are
    /// computed in `f32`.
    ///
    /// `linear` and `cubic` take floats; `f16` and `bf16` are computed in `f32`. What lies outside
    /// an axis has the value of its first or last element.
    pub struct Resize = "resize" is FOLLOWS_BLOCKS {
        /// The axes, ascending.
        pub axes: Vec<usize>,
        /// Their sizes in the result.
        pub sizes: Vec<i64>,
        /// Their scales: `scale * length` is the size but for its fraction.
        pub scales: Vec<f32>,
        /// The interpolation mode.
        pub mode: ResizeMode = ResizeMode::Nearest,
        /// The rounding rule of `nearest`.
        pub nearest: Nearest = Nearest::RoundPreferFloor,
        /// The mapping from output to input coordinates.
        pub coordinates: Coordinates = Coordinates::HalfPixel,
        /// The coefficient of `cubic`.
        pub cubic: f32 = -0.75,
        /// Whether `cubic` gives no weight to what lies outside the axis.
        pub exclude_outside: bool = false,
        /// Whether `linear` and `cubic` reach as far as the axis shrinks.
        pub antialias: bool = false,
        /// For `tf_crop_and_resize` the starts of all axes, then their ends, 1 for the last
        /// element.
        pub roi: Vec<f32> = Vec::new(),
        /// The value of `tf_crop_and_resize` outside the operand.
        pub extrapolation: f32 = 0.0,
    }
}

impl Resize {
    /// Fails unless the settings suit each other and an operand of type `x`.
    fn check(&self, x: &TensorType) -> Result<(), OpError> {
        let count = self.axes.len();
        let sorted = self.axes.windows(2).all(|pair| pair[0] < pair[1]);
        if !sorted || self.axes.iter().any(|a| *a >= x.rank()) {
            let reason = format!("{:?} are not ascending axes of {x}", self.axes);
            return Err(OpError::attr("axes", reason));
        }
        if self.sizes.len() != count || self.scales.len() != count {
            let reason = format!("{count} axes, but not as many sizes and scales");
            return Err(OpError::attr("sizes", reason));
        }
        if (self.antialias && self.mode == ResizeMode::Nearest)
            || (self.exclude_outside && self.mode != ResizeMode::Cubic)
        {
            let attr = if self.antialias { "antialias" } else { "exclude_outside" };
            return Err(OpError::attr(attr, format!("has no effect on {}", self.mode.name())));
        }
        let crops = self.coordinates == Coordinates::TfCropAndResize;
        if self.roi.len() != if crops { 2 * count } else { 0 } {
            return Err(OpError::attr(
                "roi",
                format!("{} numbers for {count} axes", self.roi.len()),
            ));
        }
        for ((axis, size), scale) in self.axes.iter().zip(&self.sizes).zip(&self.scales) {
            let length = x.shape[*axis].as_const().ok_or_else(|| {
                OpError::NotConstant(format!("the size {} of axis {axis}", x.shape[*axis]))
            })?;
            if length < 1 {
                return Err(OpError::shape(0, x, format!("axis {axis} must have elements")));
            }
            self.check_scale(length, *size, *scale)?;
        }
        Ok(())
    }

    /// Fails unless `scale` makes an axis of `size` elements of one of `length`.
    fn check_scale(&self, length: i64, size: i64, scale: f32) -> Result<(), OpError> {
        if !(0..=MAX_SIZE).contains(&size) {
            return Err(OpError::attr("sizes", format!("{size} is not a size")));
        }
        let exact = f64::from(scale) * length as f64;
        let slack = 1e-5 * size as f64;
        let near = (exact - size as f64).abs() <= 1.0 + slack && (size == 0 || exact >= 0.4);
        if !near || scale <= 0.0 || !scale.is_finite() {
            let reason = format!("{scale} does not make {size} elements of {length}");
            return Err(OpError::attr("scales", reason));
        }
        let is_whole = (exact - size as f64).abs() <= slack;
        let ends =
            matches!(self.coordinates, Coordinates::AlignCorners | Coordinates::TfCropAndResize);
        let needs_whole = ends || (self.coordinates == Coordinates::PytorchHalfPixel && size == 1);
        if needs_whole && !is_whole {
            let name = self.coordinates.name();
            let text = format!("{name} with a scale that makes {exact} elements of {length}");
            return Err(OpError::Unsupported(text));
        }
        Ok(())
    }
}

impl Resize {
    /// The resize of its axis number `i` alone, as an operator on the columns of a matrix.
    fn of_axis(&self, i: usize) -> Self {
        let ends = [i, self.axes.len() + i].map(|at| self.roi.get(at).copied());
        Self {
            axes: vec![1],
            sizes: self.sizes.get(i).copied().into_iter().collect(),
            scales: self.scales.get(i).copied().into_iter().collect(),
            roi: ends.into_iter().flatten().collect(),
            ..self.clone()
        }
    }
}

impl OpDef for Resize {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        if self.mode != ResizeMode::Nearest {
            dtype(operands, 0, DType::is_float, "a float to be interpolated")?;
        }
        self.check(x.ty)?;
        let mut shape = x.ty.shape.clone();
        for (axis, size) in self.axes.iter().zip(&self.sizes) {
            shape[*axis] = Dim::from(*size);
        }
        result(TensorType { dtype: x.ty.dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        if self.axes.contains(&shard.axis) {
            return at.refuse(Code::WindowAxis, "interpolates between the samples of the batch");
        }
        at.keep(shard)
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let mut dims = x.dims().to_vec();
        for (axis, size) in self.axes.iter().zip(&self.sizes) {
            dims[*axis] = usize::try_from(*size).unwrap_or(0);
        }
        let Some(first) = self.axes.first().copied() else { return Ok(vec![(*x).clone()]) };
        let blends = self.mode != ResizeMode::Nearest;
        let wide = if blends { widen(x)? } else { (*x).clone() };
        let mut y = Tensor::zeros(wide.dtype(), &dims)?;
        if y.is_empty() {
            return Ok(vec![if blends { narrow(y, x.dtype())? } else { y }]);
        }
        let passes = Passes::new(self, first, &x.dims()[first..]);
        let (input, output) = passes.sizes();
        if blends {
            for_wide!(y.dtype(), T => {
                let planes = wide.as_slice::<T>().chunks_exact(input);
                for (y, x) in y.as_mut_slice::<T>().chunks_exact_mut(output).zip(planes) {
                    passes.blend::<T>(x, y);
                }
            });
        } else {
            let (width, value) = (x.dtype().bytes(), self.outside(x.dtype())?);
            let planes = x.bytes().chunks_exact(input * width);
            for (y, x) in y.bytes_mut().chunks_exact_mut(output * width).zip(planes) {
                passes.pick(width, x, y, value.bytes());
            }
        }
        Ok(vec![if blends { narrow(y, x.dtype())? } else { y }])
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, dy) = (at.operand(0)?, at.dy()?);
        let shape = at.shape(x);
        let mut dx = dy;
        for (i, axis) in self.axes.iter().enumerate() {
            // What the elements of the axis become, by resizing the unit matrix.
            let size = shape[*axis].clone();
            let numbers = at.count_to(size.clone(), DType::I64)?;
            let to = at.ty(dy).dtype;
            let ends = at.zero_and_one()?;
            let ends = at.cast(ends, to)?;
            let unit = at.one_hot(numbers, ends, size)?;
            // What stands for elements that are not there does not depend on those that are.
            let one = Self { extrapolation: 0.0, ..self.of_axis(i) };
            let weights = at.op(one, &[unit])?;
            // The axis last, to be multiplied by the weights.
            let rank = shape.len();
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(*axis, rank - 1);
            let last = at.transpose(dx, perm.clone())?;
            let weights = at.transposed(weights)?;
            let product = at.matmul(last, weights)?;
            dx = at.transpose(product, perm)?;
        }
        at.give(0, dx)
    }
}

impl Resize {
    /// Returns the taps of the `i`-th resized axis, if it has `length` elements
    /// in the operand.
    ///
    /// # Panics
    /// If there are not as many axes.
    pub(crate) fn axis(&self, i: usize, length: usize) -> AxisTaps {
        AxisTaps::new(self, i, length)
    }

    /// The element that stands for what is outside.
    fn outside(&self, dtype: DType) -> Result<Tensor, OpError> {
        converted(&Tensor::scalar(self.extrapolation), dtype)
    }
}
