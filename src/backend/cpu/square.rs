//! Squares of a matrix, transposed in registers.

#![expect(clippy::inline_always, reason = "parts of loops that are compiled for wider vectors")]

use pulp::{NullaryFnOnce, Simd};

use super::isa;

/// The rows and columns of a square. A row has the 64 bytes of a cache line.
pub(super) const SIDE: usize = 16;

/// The elements of a square, row by row.
pub(super) type Square = [[f32; SIDE]; SIDE];

/// Instructions that transpose a square.
trait Transpose: Simd {
    fn transposed(self, rows: [&[f32; SIDE]; SIDE]) -> Square;
}

/// Loops over squares.
pub(super) trait Squares {
    /// Runs them; `turned` transposes a square.
    fn run(self, turned: impl Fn([&[f32; SIDE]; SIDE]) -> Square);
}

struct Vectors<S, F> {
    simd: S,
    squares: F,
}

impl<S: Transpose, F: Squares> NullaryFnOnce for Vectors<S, F> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { simd, squares } = self;
        squares.run({
            #[inline(always)]
            |rows| simd.transposed(rows)
        });
    }
}

/// Runs the loops by the instructions of kernels on this thread.
pub(super) fn dispatch(squares: impl Squares) {
    #[cfg(target_arch = "x86_64")]
    if let pulp::Arch::V4(simd) = isa::arch() {
        return simd.vectorize(Vectors { simd, squares });
    } else if let pulp::Arch::V3(simd) = isa::arch() {
        return simd.vectorize(Vectors { simd, squares });
    }
    let simd = pulp::Scalar;
    simd.vectorize(Vectors { simd, squares });
}

impl Transpose for pulp::Scalar {
    #[inline(always)]
    fn transposed(self, rows: [&[f32; SIDE]; SIDE]) -> Square {
        std::array::from_fn(|column| rows.map(|row| row[column]))
    }
}

/// The places of elements of two rows, the second behind the first, that are met in turn.
#[cfg(target_arch = "x86_64")]
const fn in_turn(first: i32) -> pulp::i32x16 {
    let a = first;
    pulp::i32x16(
        a,
        a + 16,
        a + 1,
        a + 17,
        a + 2,
        a + 18,
        a + 3,
        a + 19,
        a + 4,
        a + 20,
        a + 5,
        a + 21,
        a + 6,
        a + 22,
        a + 7,
        a + 23,
    )
}

/// The address of an element of a square is its row and its column, of as many bits. To shuffle two
/// rows, half the square apart, rotates each address by one bit: so often as a row has bits, and
/// rows have become columns.
#[cfg(target_arch = "x86_64")]
impl Transpose for pulp::x86::V4 {
    #[inline(always)]
    fn transposed(self, rows: [&[f32; SIDE]; SIDE]) -> Square {
        let [low, high] = [pulp::cast(in_turn(0)), pulp::cast(in_turn(8))];
        let mut all = [self.avx512f._mm512_setzero_ps(); SIDE];
        for (to, row) in all.iter_mut().zip(rows) {
            *to = pulp::cast(*row);
        }
        for _ in 0..SIDE.ilog2() {
            let from = all;
            for i in 0..SIDE / 2 {
                let [a, b] = [from[i], from[i + SIDE / 2]];
                all[2 * i] = self.avx512f._mm512_permutex2var_ps(a, low, b);
                all[2 * i + 1] = self.avx512f._mm512_permutex2var_ps(a, high, b);
            }
        }
        pulp::cast(all)
    }
}

/// As with wider vectors, in four squares of half the side.
#[cfg(target_arch = "x86_64")]
impl Transpose for pulp::x86::V3 {
    #[inline(always)]
    fn transposed(self, rows: [&[f32; SIDE]; SIDE]) -> Square {
        const HALF: usize = SIDE / 2;
        let mut square = [[0.0; SIDE]; SIDE];
        for (row, column) in [(0, 0), (0, HALF), (HALF, 0), (HALF, HALF)] {
            let mut all = [self.avx._mm256_setzero_ps(); HALF];
            for (to, row) in all.iter_mut().zip(&rows[row..]) {
                let own: [f32; HALF] = std::array::from_fn(|i| row[column + i]);
                *to = pulp::cast(own);
            }
            for _ in 0..HALF.ilog2() {
                let from = all;
                for i in 0..HALF / 2 {
                    let [a, b] = [from[i], from[i + HALF / 2]];
                    let low = self.avx._mm256_unpacklo_ps(a, b);
                    let high = self.avx._mm256_unpackhi_ps(a, b);
                    all[2 * i] = self.avx._mm256_permute2f128_ps::<0x20>(low, high);
                    all[2 * i + 1] = self.avx._mm256_permute2f128_ps::<0x31>(low, high);
                }
            }
            for (to, own) in square[column..].iter_mut().zip(all) {
                let own: [f32; HALF] = pulp::cast(own);
                to[row..row + HALF].copy_from_slice(&own);
            }
        }
        square
    }
}
