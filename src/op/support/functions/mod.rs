//! The functions of `f32` that no machine has as an instruction, each written once.
//!
//! A function is generic over [`Lanes`]: of `f32` it is what the reference and the kernels of the
//! CPU compute, of expressions it is the CUDA text of the kernels. It has no branches and no
//! tables, so that a loop over it is turned into vector code, whose lanes and whose remainder give
//! the same bits. `docs/kernels.md` states the bound of each.

#![expect(clippy::many_single_char_names, reason = "as in the formulas")]
#![expect(clippy::inline_always, reason = "part of loops that are compiled for wider vectors")]

mod error;
mod exponential;
mod hyperbolic;
mod inverse;
mod lanes;
mod logarithm;
mod pair;
mod power;
#[cfg(test)]
mod tests;
mod trigonometric;

pub(crate) use error::{erf, gelu, gelu_tanh};
pub(crate) use exponential::{exp, exp_m1, mish, sigmoid, tanh, times_sigmoid};
pub(crate) use hyperbolic::{acosh, asinh, atanh, cosh, sinh};
pub(crate) use inverse::{acos, asin, atan};
pub(crate) use lanes::{Bits, Lanes, Rare};
pub(crate) use logarithm::{ln, ln_1p};
pub(crate) use power::pow;
pub(crate) use trigonometric::{cos, sin, tan};

/// `c[0] + c[1] * x + …`.
#[inline(always)]
fn polynomial<L: Lanes, const K: usize>(x: L, c: [f32; K]) -> L {
    let mut i = K - 1;
    let mut p = x.of(c[i]);
    while i > 0 {
        i -= 1;
        p = p * x + c[i];
    }
    p
}

/// `2^n` for `n` in -126..=127, anything for other `n`.
#[inline(always)]
fn power_of_two<L: Lanes>(n: L::Bits) -> L {
    n.plus(n.of(127)).up(n.of(23)).number()
}
