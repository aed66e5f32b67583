//! The macros of window geometry, shared by pools and convolutions.

use super::builder::Builder;
use crate::op::window::WindowAxis;
use crate::types::invariant::int;

/// Defines the macros of the windows.
pub(super) fn define(b: &mut Builder<'_>, windows: &[WindowAxis]) {
    b.define("AXES", windows.len());
    b.numbers("INPUT", windows.iter().map(|a| a.input));
    b.numbers("OUTPUT", windows.iter().map(|a| a.output));
    b.numbers("KERNEL", windows.iter().map(|a| a.kernel));
    b.numbers("STRIDE", windows.iter().map(|a| a.stride));
    b.numbers("DILATION", windows.iter().map(|a| a.dilation));
    b.numbers("BEFORE", windows.iter().map(|a| a.before));
    b.define("INPUTS", product(windows, |a| a.input));
    b.define("OUTPUTS", product(windows, |a| a.output));
}

/// The product of one size over all axes.
pub(super) fn product(windows: &[WindowAxis], f: impl Fn(&WindowAxis) -> usize) -> i64 {
    windows.iter().fold(1, |p: i64, a| p.saturating_mul(int::<i64>(f(a))))
}
