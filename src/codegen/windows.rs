//! What kernels know of windows.

use super::builder::Builder;
use crate::op::window::WindowAxis;
use crate::types::invariant::int;

/// Says the windows to a kernel.
pub(super) fn define(b: &mut Builder<'_>, windows: &[WindowAxis]) {
    b.define("AXES", windows.len());
    b.numbers("INPUT", windows.iter().map(|a| a.input));
    b.numbers("OUTPUT", windows.iter().map(|a| a.output));
    b.numbers("KERNEL", windows.iter().map(|a| a.kernel));
    b.numbers("STRIDE", windows.iter().map(|a| a.stride));
    b.numbers("DILATION", windows.iter().map(|a| a.dilation));
    b.numbers("BEFORE", windows.iter().map(|a| a.before));
    b.define("INPUTS", all(windows, |a| a.input));
    b.define("OUTPUTS", all(windows, |a| a.output));
}

/// The product of a size of all axes.
pub(super) fn all(windows: &[WindowAxis], f: impl Fn(&WindowAxis) -> usize) -> i64 {
    windows.iter().fold(1, |p: i64, a| p.saturating_mul(int::<i64>(f(a))))
}
