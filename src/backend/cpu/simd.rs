//! Loops compiled for the vectors that the machine has.

/// Runs an expression compiled for the vectors that kernels of this thread use.
///
/// Products and sums are not contracted and lanes are not mixed, so the bits are those of the plain
/// loop. What the expression calls takes part only where it is inlined.
macro_rules! vectorised {
    ($body:expr) => {{
        let ticket = $crate::backend::cpu::simd::Ticket;
        $crate::backend::cpu::isa::arch().dispatch({
            #[inline(always)]
            || {
                let _spent: $crate::backend::cpu::simd::Ticket = ticket;
                $body
            }
        })
    }};
}
pub(super) use vectorised;

/// Makes a closure one that is called once at most: such a closure is inlined where it is called,
/// while the call of another goes through a function of its own, which is not compiled for wider
/// vectors.
pub(super) struct Ticket;

/// The elements from which on a copy is a call.
const LONG: usize = 256;

/// Copies a short row to another. The last block reaches back over the one before: so it is a few
/// moves of a known size, without a call and without a rest.
#[inline(always)]
fn copy(x: &[f32], to: &mut [f32]) {
    macro_rules! by_blocks_of {
        ($size:literal) => {
            if let (Some(last), Some(to_last)) = (x.last_chunk::<$size>(), to.last_chunk_mut()) {
                *to_last = *last;
                let blocks = to.as_chunks_mut::<$size>().0.iter_mut().zip(x.as_chunks().0);
                for (to, x) in blocks {
                    *to = *x;
                }
                return;
            }
        };
    }
    by_blocks_of!(16);
    by_blocks_of!(4);
    for (to, x) in to.iter_mut().zip(x) {
        *to = *x;
    }
}

/// Fills `to` with elements of `x` at a distance of `step`, from the first on.
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
pub(super) fn take(x: &[f32], step: usize, to: &mut [f32]) {
    match step {
        1 if to.len() < LONG => copy(&x[..to.len()], to),
        1 => to.copy_from_slice(&x[..to.len()]),
        2 => {
            // The last element apart: `x` may end right after it, and `chunks_exact` would drop the
            // incomplete pair.
            let (last, to) = to.split_last_mut().expect("invariant: a run has elements");
            *last = x[2 * to.len()];
            for (to, x) in to.iter_mut().zip(x.chunks_exact(2)) {
                *to = x[0];
            }
        }
        _ => {
            for (to, x) in to.iter_mut().zip(x.iter().step_by(step)) {
                *to = *x;
            }
        }
    }
}
