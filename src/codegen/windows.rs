//! The macros of window geometry, shared by pools and convolutions.

use super::builder::Builder;
use crate::op::window::WindowAxis;
use crate::types::invariant::int;

/// A spatial axis as a kernel sees it: windows on what it reads.
pub(super) struct Axis {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    /// The padding; below 0 the first window begins inside.
    pub(super) before: i64,
}

impl From<&WindowAxis> for Axis {
    fn from(axis: &WindowAxis) -> Self {
        let WindowAxis { input, output, kernel, stride, dilation, before, .. } = *axis;
        Self { input, output, kernel, stride, dilation, before: int::<i64>(before) }
    }
}

/// Defines the macros of the windows.
pub(super) fn define(b: &mut Builder<'_>, axes: impl IntoIterator<Item: Into<Axis>>) {
    let axes: Vec<Axis> = axes.into_iter().map(Into::into).collect();
    b.define("AXES", axes.len());
    b.numbers("INPUT", axes.iter().map(|a| a.input));
    b.numbers("OUTPUT", axes.iter().map(|a| a.output));
    b.numbers("KERNEL", axes.iter().map(|a| a.kernel));
    b.numbers("STRIDE", axes.iter().map(|a| a.stride));
    b.numbers("DILATION", axes.iter().map(|a| a.dilation));
    b.numbers("BEFORE", axes.iter().map(|a| a.before));
    b.define("INPUTS", product(&axes, |a| a.input));
    b.define("OUTPUTS", product(&axes, |a| a.output));
}

/// The product of one size over all axes.
pub(super) fn product<A>(axes: &[A], f: impl Fn(&A) -> usize) -> i64 {
    axes.iter().fold(1, |p: i64, a| p.saturating_mul(int::<i64>(f(a))))
}
