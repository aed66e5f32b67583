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

/// Writes what `f` makes of the elements of `x` to as many of `to`.
///
/// The last block reaches back over the one before: so a short row is a few blocks of a known size,
/// without a call and without a rest. `f` may meet an element twice.
#[inline(always)]
#[expect(clippy::inline_always, reason = "it is compiled for the vectors of its caller")]
pub(super) fn map(x: &[f32], to: &mut [f32], mut f: impl FnMut(f32) -> f32) {
    debug_assert_eq!(x.len(), to.len(), "elements of a row");
    macro_rules! by_blocks_of {
        ($size:literal) => {
            if x.len() >= $size {
                let (blocks, rest) = x.as_chunks::<$size>();
                for (to, x) in to.as_chunks_mut::<$size>().0.iter_mut().zip(blocks) {
                    *to = x.map(&mut f);
                }
                if let (false, Some(x), Some(to)) =
                    (rest.is_empty(), x.last_chunk::<$size>(), to.last_chunk_mut())
                {
                    *to = x.map(&mut f);
                }
                return;
            }
        };
    }
    by_blocks_of!(16);
    by_blocks_of!(4);
    for (to, x) in to.iter_mut().zip(x) {
        *to = f(*x);
    }
}

/// The elements from which on a copy is a call.
const LONG: usize = 256;

/// Fills `to` with elements of `x` at a distance of `step`, from the first on.
pub(super) fn take(x: &[f32], step: usize, to: &mut [f32]) {
    match step {
        1 if to.len() < LONG => map(&x[..to.len()], to, |x| x),
        1 => to.copy_from_slice(&x[..to.len()]),
        2 => {
            // The last element apart: `x` may end right after it, and `chunks_exact` would drop the
            // incomplete pair.
            let (last, to) = to.split_last_mut().expect("invariant: a run has elements");
            *last = x[2 * to.len()];
            vectorised!(for (to, x) in to.iter_mut().zip(x.chunks_exact(2)) {
                *to = x[0];
            });
        }
        _ => {
            for (to, x) in to.iter_mut().zip(x.iter().step_by(step)) {
                *to = *x;
            }
        }
    }
}
