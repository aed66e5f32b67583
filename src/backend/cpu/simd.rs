//! Loops compiled for the vectors that the machine has.

/// Runs an expression compiled for the widest vectors of the machine.
///
/// Products and sums are not contracted and lanes are not mixed, so the bits are those of the plain loop. What
/// the expression calls takes part only where it is inlined.
macro_rules! vectorised {
    ($body:expr) => {
        gemm_common::pulp::Arch::new().dispatch({
            #[inline(always)]
            || $body
        })
    };
}
pub(super) use vectorised;
