//! Interpolation of images to other sizes.

use super::{Call, CodegenError, Context, CudaOp, KernelClass, Support, Types};
use crate::codegen::builder::{Builder, finish, float};
use crate::lower::Images;
use crate::op::{AxisTaps, Resize, ResizeMode};
use crate::types::invariant::{int, invariant};
use crate::types::{DType, Dim, TensorType};

/// The most places of resized axes, counted once for each element that meets there: they are part
/// of a kernel's text.
const MAX: usize = 1 << 16;

/// True if the places of all resized axes are few enough.
fn fits(op: &Resize, x: &TensorType, y: &TensorType) -> bool {
    let known = |ty: &TensorType, axis: usize| {
        ty.shape.get(axis)?.as_const().and_then(|d| usize::try_from(d).ok()).filter(|d| *d <= MAX)
    };
    let mut all = 0usize;
    for (i, axis) in op.axes.iter().enumerate() {
        let (Some(length), Some(_)) = (known(x, *axis), known(y, *axis)) else { return false };
        all = all.saturating_add(op.axis(i, length).places.len());
    }
    all <= MAX
}

/// The places of an axis as numbers in a kernel's text; -1 of elements that are outside.
fn places_of(axis: &AxisTaps) -> impl Iterator<Item = String> {
    let each = axis.places.chunks_exact(axis.each).zip(&axis.outside);
    each.flat_map(|(places, outside)| {
        places.iter().map(|p| if *outside { "-1".to_owned() } else { p.to_string() })
    })
}

/// The weights of the places.
fn weights_of(axis: &AxisTaps) -> impl Iterator<Item = String> {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "weights are rounded as the reference rounds them"
    )]
    // Without weights elements are taken as they are.
    let weight = |k: usize| axis.weights.get(k).map_or(1.0, |w| *w as f32);
    (0..axis.places.len()).map(move |k| float(weight(k)))
}

impl CudaOp for Resize {
    fn supports(&self, types: &Types<'_>) -> Support {
        let ([x], [y]) = (types.operands.as_slice(), types.results.as_slice()) else {
            return Support::default();
        };
        let support = Support { images: Images::ChannelsLast, ..Support::by(KernelClass::Pool) };
        support.when(types.are(DType::F32) && fits(self, x, y))
    }

    fn call(&self, context: &Context<'_>) -> Result<Call, CodegenError> {
        let ([x], [y]) = (context.operands()?, context.results()?);
        let mut b = Builder::new(context.device);
        let (from, to, distances) = (&b.ty(x).shape, &b.ty(y).shape, b.strides(x));
        let (mut sizes, mut steps, mut taps, mut firsts) = (vec![], vec![], vec![], vec![]);
        let axes = b.axes(y);
        let length = |axis: usize| from[axis].as_const().map(int::<usize>);
        // The axes in memory, in the order in which the operator resizes them.
        let place = |i: usize| axes.iter().position(|axis| *axis == self.axes[i]);
        let mut order: Vec<usize> = self.order(length).into_iter().filter_map(place).collect();
        let (mut places, mut weights): (Vec<String>, Vec<String>) = (vec![], vec![]);
        for a in axes.iter().copied() {
            sizes.push(to[a].clone());
            steps.push(distances[a].clone());
            // The tables of all axes lie one behind the other: this is where those of the axis
            // begin.
            firsts.push(places.len());
            let Some(i) = self.axes.iter().position(|axis| *axis == a) else {
                taps.push(0);
                continue;
            };
            let length = invariant(length(a), "that axes which are resized have fixed sizes");
            let axis = self.axis(i, length);
            taps.push(axis.each);
            places.extend(places_of(&axis));
            weights.extend(weights_of(&axis));
        }
        // C++ has no empty arrays; where no axis is resized, nothing reads these.
        if places.is_empty() {
            (places, weights) = (vec!["0".to_owned()], vec!["1.0f".to_owned()]);
        }
        if sizes.is_empty() {
            (sizes, steps, taps, firsts) = (vec![Dim::ONE], vec![Dim::ZERO], vec![0], vec![0]);
        }
        if order.is_empty() {
            order = vec![0];
        }
        b.read("x", x);
        b.write("y", y);
        b.define("AXES", sizes.len());
        b.flag("BLEND", self.mode != ResizeMode::Nearest);
        b.define("OUTSIDE", float(self.extrapolation));
        b.define("RESIZED", order.len());
        b.numbers("ORDER", order);
        b.numbers("TAPS", taps);
        b.numbers("FIRSTS", firsts);
        b.numbers("PLACES", places);
        b.numbers("WEIGHTS", weights);
        let count = to.elements();
        b.size("COUNT", &count);
        b.list("SIZES", &sizes);
        b.list("STEPS", &steps);
        Ok(finish(b, "resize.cu", &count))
    }
}
