//! What a convolution reads.

use super::super::elementwise::Steps;

/// The operands of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvOperands<'a> {
    /// The input, `[N, channels, spatial…]`; the channels may be last in memory.
    pub x: &'a [f32],
    /// The weights as they lie, `[filters, taps, channels / groups]`, or in panels of filters where
    /// the channels of the input are last.
    pub w: &'a [f32],
    /// The bias, `[filters]`, if there is one.
    pub bias: Option<&'a [f32]>,
    /// What the result ends with.
    pub epilogue: Steps<'a>,
}
