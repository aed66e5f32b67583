//! Convolution of one input channel by one filter.

use super::ending::OfChannel;
use super::phases::Phases;
use super::scratch;
use super::simd::vectorised;
use crate::op::window::{WindowAxis, Windows};

/// A convolution of planes.
#[derive(Debug)]
pub(super) struct Depthwise {
    axes: Windows,
    /// The division of planes, if possible.
    phases: Option<Phases>,
}

impl Depthwise {
    pub(super) fn new(axes: &Windows) -> Self {
        Self { phases: Phases::new(axes), axes: axes.clone() }
    }

    /// Writes to `y` the sum of each window with its ending: a chain of fused multiply-adds over
    /// the taps in row-major order, a zero at its end positive.
    pub(super) fn plane(&self, x: &[f32], w: &[f32], ending: OfChannel, y: &mut [f32]) {
        // What lies outside the plane is no term: a 0 in its place changes nothing while the
        // weights are finite.
        let finite = w.iter().all(|w| w.is_finite());
        let Some(phases) = self.phases.as_ref().filter(|_| finite) else {
            scratch::own(y.len(), |sums| {
                sums.fill(0.0);
                add_taps(&self.axes, sums, x, w);
                ending.end(std::iter::once((y, &*sums)));
            });
            return;
        };
        let (apart, windows) = phases.memory();
        // Phases turn a strided convolution into one of stride 1, whose rows are contiguous.
        scratch::own(apart + windows, |memory| {
            let (apart, windows) = memory.split_at_mut(apart);
            phases.fill(x, 0.0, 0, apart);
            vectorised!(phases.slide(
                apart,
                windows,
                0.0,
                // Inlined with few optimisations as well, where it is no call for each element.
                #[inline(always)]
                |tap, sum, x: f32| x.mul_add(w[tap], sum)
            ));
            let width = y.len() / phases.rows(windows).count();
            ending.end(y.chunks_exact_mut(width).zip(phases.rows(windows)));
        });
    }
}

/// Adds to each window in `y` the products of its taps, in row-major order of the taps.
fn add_taps(axes: &[WindowAxis], y: &mut [f32], x: &[f32], w: &[f32]) {
    let Some((axis, inner)) = axes.split_first() else { return };
    if inner.is_empty() {
        vectorised!(add_row(axis, y, x, w));
        return;
    }
    let size = |f: fn(&WindowAxis) -> usize| inner.iter().map(f).product::<usize>();
    let (out, plane, taps) = (size(|a| a.output), size(|a| a.input), size(|a| a.kernel));
    for (o, y) in y.chunks_exact_mut(out).enumerate() {
        for tap in axis.taps(o) {
            let at = axis.position(o, tap);
            add_taps(inner, y, &x[at * plane..][..plane], &w[tap * taps..][..taps]);
        }
    }
}

/// As [`add_taps`], on the last axis.
/// Taps are the outer loop, so that the inner one runs over neighbouring windows and is vectorised;
/// each window still adds its taps in ascending order.
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
fn add_row(axis: &WindowAxis, y: &mut [f32], x: &[f32], w: &[f32]) {
    for (tap, w) in w.iter().enumerate() {
        let outputs = axis.outputs(tap);
        if outputs.is_empty() {
            continue;
        }
        let x = &x[axis.position(outputs.start, tap)..];
        for (y, x) in y[outputs].iter_mut().zip(x.iter().step_by(axis.stride)) {
            *y = x.mul_add(*w, *y);
        }
    }
}
