//! The gradient of a convolution's kernel.

use crate::op::element::for_wide;

use crate::op::Conv;
use crate::op::infer::{dtype, equal, exactly, result, same_dtype};
use crate::op::numeric::{Wide, computed_wide};
use crate::op::prelude::*;
use crate::op::window::{Sliding, WindowAxis, Windows, sizes_with, spatial_sizes};

op! {
    /// The gradient of the kernel `[M, C/groups, kernel…]` of a convolution, from its operand
    /// `x: [N, C, spatial…]` and the gradient of its result, `[N, M, windows…]`: for each tap the
    /// sum over samples and windows of the products of the element that the tap meets and the
    /// window's gradient. Of a transposed convolution the two change places.
    ///
    /// `f16` and `bf16` are summed in `f32`: samples ascending, windows in row-major order.
    pub struct ConvWeightGrad = "conv_weight_grad" is SUMS_NARROW {
        /// The distance between windows on each spatial axis, at least 1; empty for 1 on each.
        pub strides: Vec<i64> = Vec::new(),
        /// The distance between taps on each spatial axis, at least 1; empty for 1 on each.
        pub dilations: Vec<i64> = Vec::new(),
        /// The zeros before each spatial axis, then those after each; empty for none.
        pub pads: Vec<i64> = Vec::new(),
        /// The number of groups of channels, at least 1.
        pub groups: i64 = 1,
        /// The taps on each spatial axis.
        pub kernel: Vec<i64>,
    }
}

/// Gives the kernel `w` of `conv`, operand 1, its gradient from those of [`ConvWeightGrad`].
pub(in crate::op) fn give_weights(
    at: &mut Backward<'_>,
    conv: &Conv,
    w: Term,
    operands: [Term; 2],
) -> Result<(), RuleError> {
    let Conv { strides, dilations, pads, groups } = conv.clone();
    let kernel = spatial_sizes(1, at.ty(w))?.to_vec();
    let dw = at.op(ConvWeightGrad { strides, dilations, pads, groups, kernel }, &operands)?;
    at.give(1, dw)
}

impl ConvWeightGrad {
    /// The windows over an operand of type `x`.
    pub(crate) fn windows(&self, x: &TensorType) -> Result<Windows, OpError> {
        let Self { strides, dilations, pads, .. } = self;
        let sliding = Sliding { strides, dilations, pads, ceil_mode: false };
        sliding.over("kernel", &spatial_sizes(0, x)?, &self.kernel)
    }

    /// The channels of each of two values, which the groups divide.
    fn channels(&self, x: &TensorType, dy: &TensorType) -> Result<[i64; 2], OpError> {
        let known = |operand: usize, ty: &TensorType| {
            let size = ty.shape.get(1).and_then(Dim::as_const);
            let size = size.ok_or_else(|| {
                OpError::NotConstant(format!("the size of axis 1 of operand {operand}"))
            })?;
            if self.groups < 1 || size % self.groups != 0 || size < 1 {
                let reason = format!("{} groups do not divide {size} channels", self.groups);
                return Err(OpError::attr("groups", reason));
            }
            Ok(size)
        };
        Ok([known(0, x)?, known(1, dy)?])
    }
}

impl OpDef for ConvWeightGrad {
    fn of_magnitudes(&self) -> Option<Op> {
        Some(self.clone().into())
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x, dy] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        let dtype = same_dtype(operands)?;
        let windows = self.windows(x.ty)?;
        let [c, m] = self.channels(x.ty, dy.ty)?;
        if dy.ty.rank() != x.ty.rank() {
            return Err(OpError::shape(1, dy.ty, format!("it must have {} axes", x.ty.rank())));
        }
        equal("samples", &x.ty.shape[0], &dy.ty.shape[0])?;
        for (axis, size) in windows.iter().zip(dy.ty.shape.iter().skip(2)) {
            equal("windows and their gradients", &axis.windows(), size)?;
        }
        let sizes = [m, c / self.groups].into_iter().chain(self.kernel.iter().copied());
        result(TensorType { dtype, shape: sizes.map(Dim::from).collect() })
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        match (at.shard(0), at.shard(1)) {
            (Some(s @ Shard { axis: 0, .. }), Some(t)) if s == t => {
                // A sum over samples: each replica has that over its own.
                at.give(Claim::Partial(Combine::Sum))
            }
            (Some(Shard { axis: 0, .. }), _) | (None, Some(Shard { axis: 0, .. })) => {
                at.refuse_at(1, Code::Misaligned, "pairs rows with those of others")
            }
            _ => at.refuse(Code::WindowAxis, "slides windows along the batch"),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, dy] = exactly(operands)?;
        let windows = self.windows(&x.tensor_type())?;
        let size = |n: i64| usize::try_from(n).unwrap_or(1);
        let [c, m] = self.channels(&x.tensor_type(), &dy.tensor_type())?.map(size);
        let groups = size(self.groups);
        let dims = sizes_with(&[m, c / groups], &windows, |a| a.kernel);
        computed_wide(operands, &dims, |dw, operands| {
            if !dy.is_empty() {
                for_wide!(dw.dtype(), T => correlate::<T>(&windows, groups, dw, operands));
            }
            Ok(())
        })
    }

    fn gradient(&self) -> Gradient {
        Gradient::None("it is a gradient itself")
    }
}

/// The sums for all channels, sample after sample.
fn correlate<T: Wide>(windows: &[WindowAxis], groups: usize, dw: &mut Tensor, of: &[Tensor]) {
    let [x, dy] = of else { return };
    let size = |f: fn(&WindowAxis) -> usize| windows.iter().map(f).product::<usize>();
    let (plane, out, taps) = (size(|a| a.input), size(|a| a.output), size(|a| a.kernel));
    let (c, m) = (x.dims()[1], dy.dims()[1]);
    let (each, per_group) = (c / groups, m / groups);
    let (x, dy) = (x.as_slice::<T>(), dy.as_slice::<T>());
    let dw = dw.as_mut_slice::<T>();
    for (x, dy) in x.chunks_exact(c * plane).zip(dy.chunks_exact(m * out)) {
        for (channel, dy) in dy.chunks_exact(out).enumerate() {
            let x = &x[channel / per_group * each * plane..][..each * plane];
            // A channel of the result meets the channels of its group alone.
            let dw = &mut dw[channel * each * taps..][..each * taps];
            for (x, dw) in x.chunks_exact(plane).zip(dw.chunks_exact_mut(taps)) {
                products(windows, dw, x, dy);
            }
        }
    }
}

/// Adds to each tap the products of what it meets and the windows' gradients, in row-major order of
/// the windows.
fn products<T: Wide>(axes: &[WindowAxis], dw: &mut [T], x: &[T], dy: &[T]) {
    let Some((axis, inner)) = axes.split_first() else { return };
    if inner.is_empty() {
        for (tap, dw) in dw.iter_mut().enumerate() {
            let outputs = axis.outputs(tap);
            if outputs.is_empty() {
                continue;
            }
            let x = &x[axis.position(outputs.start, tap)..];
            let pairs = x.iter().step_by(axis.stride).zip(&dy[outputs]);
            *dw = pairs.fold(*dw, |sum, (x, dy)| sum.add_product(*x, *dy));
        }
        return;
    }
    let size = |f: fn(&WindowAxis) -> usize| inner.iter().map(f).product::<usize>();
    let (out, plane, taps) = (size(|a| a.output), size(|a| a.input), size(|a| a.kernel));
    for (tap, dw) in dw.chunks_exact_mut(taps).enumerate() {
        for o in axis.outputs(tap) {
            let at = axis.position(o, tap);
            products(inner, dw, &x[at * plane..][..plane], &dy[o * out..][..out]);
        }
    }
}
