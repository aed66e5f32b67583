//! Pools and resized images.

use super::CodegenError;
use super::builder::{Builder, blocks, float, line};
use super::kernel::Call;
use super::launch::Context;
use super::matmul::by_four;
use crate::op::window::WindowAxis;
use crate::op::{Op, Pool, Resize, ResizeMode};
use crate::types::invariant::{int, invariant};
use crate::types::{Dim, Target};

const THREADS: u32 = 256;

/// Sizes of windows are `int`, sums of a few of them too.
const MOST: usize = Target::CUDA.limits.windows;

/// Places of resized axes that are part of a kernel's text.
const MOST_PLACES: usize = Target::CUDA.limits.places;

/// The kernel for a pool or a resized image.
pub(super) fn call(context: &Context<'_>) -> Result<Call, CodegenError> {
    context.only_f32()?;
    match &context.launch.op {
        Some(Op::Pool(op)) => pool(context, op),
        Some(Op::Resize(op)) => resize(context, op),
        _ => Err(context.unsupported("it is no pool")),
    }
}

/// `pool.cu`.
fn pool(context: &Context<'_>, op: &Pool) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let ([x], [y]) = (launch.operands.as_slice(), launch.results.as_slice()) else {
        return Err(context.unsupported("positions of the greatest elements"));
    };
    let mut b = Builder::new(context.device);
    let shape = &b.ty(*x).shape;
    let windows = op.windows(b.ty(*x)).map_err(|e| context.unsupported(e.to_string()))?;
    let product =
        |f: fn(&WindowAxis) -> usize| windows.iter().map(f).fold(1usize, usize::saturating_mul);
    let (inputs, outputs) = (product(|a| a.input), product(|a| a.output));
    let reach = windows.iter().flat_map(|a| {
        let last = a.output.saturating_mul(a.stride);
        let taps = a.kernel.saturating_mul(a.dilation);
        [last, taps, a.before, a.after, a.stride, a.dilation]
    });
    if reach.chain([inputs, outputs, product(|a| a.kernel)]).any(|size| size > MOST) {
        return Err(context.unsupported("windows or images of 2^28 elements or more"));
    }
    let (outer, inner) = if b.is_channels_last(*x) && b.is_channels_last(*y) {
        (shape[0].clone(), shape[1].clone())
    } else if b.is_row_major(*x) && b.is_row_major(*y) {
        (shape[0].clone() * shape[1].clone(), Dim::ONE)
    } else {
        return Err(context.unsupported("its images differ in the order of their elements"));
    };
    let width = if by_four(&inner) && b.is_aligned(*x) && b.is_aligned(*y) { 4 } else { 1 };
    b.read("x", *x);
    b.write("y", *y);
    let (kind, exponent, padding) = match op {
        Pool::Max { .. } => (0, 1, false),
        Pool::Average { count_include_pad, .. } => (1, 1, *count_include_pad),
        Pool::Lp { p, .. } => (2, *p, false),
    };
    b.define("KIND", kind);
    b.define("EXPONENT", exponent);
    b.flag("COUNT_PADDING", padding);
    b.define("AXES", windows.len());
    b.numbers("INPUT", windows.iter().map(|a| a.input));
    b.numbers("OUTPUT", windows.iter().map(|a| a.output));
    b.numbers("KERNEL", windows.iter().map(|a| a.kernel));
    b.numbers("STRIDE", windows.iter().map(|a| a.stride));
    b.numbers("DILATION", windows.iter().map(|a| a.dilation));
    b.numbers("BEFORE", windows.iter().map(|a| a.before));
    b.numbers("AFTER", windows.iter().map(|a| a.after));
    b.define("INPUTS", inputs);
    b.define("OUTPUTS", outputs);
    b.define("VECTOR", width);
    b.size("INNER", &inner);
    let places = outer * int::<i64>(outputs);
    let count = places * inner.floor_div(&width.into());
    b.size("COUNT", &count);
    Ok(b.finish("pool.cu", THREADS, String::new(), line(blocks(&count, i64::from(THREADS)))))
}

/// `resize.cu`.
fn resize(context: &Context<'_>, op: &Resize) -> Result<Call, CodegenError> {
    let launch = context.launch;
    let ([x], [y]) = (launch.operands.as_slice(), launch.results.as_slice()) else {
        return Err(context.unsupported("it has not one operand and one result"));
    };
    let mut b = Builder::new(context.device);
    let (from, to, distances) = (&b.ty(*x).shape, &b.ty(*y).shape, b.steps(*x));
    let (mut sizes, mut steps, mut taps, mut firsts) = (vec![], vec![], vec![], vec![]);
    let (mut places, mut weights): (Vec<String>, Vec<String>) = (vec![], vec![]);
    for a in b.axes(*y) {
        sizes.push(to[a].clone());
        steps.push(distances[a].clone());
        firsts.push(places.len());
        let Some(i) = op.axes.iter().position(|axis| *axis == a) else {
            taps.push(0);
            continue;
        };
        let length = from[a].as_const();
        let length = int(invariant(length, "that axes which are resized have fixed sizes"));
        let axis = op.axis(i, length);
        taps.push(axis.each);
        for (j, outside) in axis.outside.iter().enumerate() {
            let own = j * axis.each..(j + 1) * axis.each;
            places.extend(
                axis.places[own]
                    .iter()
                    .map(|p| if *outside { "-1".to_owned() } else { p.to_string() }),
            );
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "weights are rounded as the reference rounds them"
        )]
        let weight = |k: usize| axis.weights.get(k).map_or(1.0, |w| *w as f32); // none: as it is
        weights.extend((0..axis.places.len()).map(|k| float(weight(k))));
        if places.len() > MOST_PLACES {
            return Err(context.unsupported("its axes have too many places"));
        }
    }
    if places.is_empty() {
        (places, weights) = (vec!["0".to_owned()], vec!["1.0f".to_owned()]);
    }
    if sizes.is_empty() {
        (sizes, steps, taps, firsts) = (vec![Dim::ONE], vec![Dim::ZERO], vec![0], vec![0]);
    }
    b.read("x", *x);
    b.write("y", *y);
    b.define("AXES", sizes.len());
    b.flag("BLEND", op.mode != ResizeMode::Nearest);
    b.define("OUTSIDE", float(op.extrapolation));
    b.numbers("TAPS", taps);
    b.numbers("FIRSTS", firsts);
    b.numbers("PLACES", places);
    b.numbers("WEIGHTS", weights);
    let count = to.elements();
    b.size("COUNT", &count);
    b.list("SIZES", &sizes);
    b.list("STEPS", &steps);
    Ok(b.finish("resize.cu", THREADS, String::new(), line(blocks(&count, i64::from(THREADS)))))
}
