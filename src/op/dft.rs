//! Discrete Fourier transforms.

use std::f64::consts::TAU;

use super::element::{Float, for_float};
use super::infer::{axis, dtype, exactly, result};
use super::prelude::*;
use super::real::Real;
use super::{Pad, PadMode};

op! {
    /// The discrete Fourier transform along an axis of a value whose last axis holds a real number,
    /// or the real and the imaginary part of one:
    /// `y[k] = sum over j < length of x[j] * e^(-2*pi*i*j*k / length)` for `k < count`.
    ///
    /// Entries of `x` from `length` on are left out, those that it lacks are 0. Sums are taken in
    /// `f64` over ascending `j`, and rounded once.
    pub struct Dft = "dft" is FOLLOWS_BLOCKS {
        /// The axis, negative from the end; not the last one.
        pub axis: i64 = -2,
        /// The period, at least 1.
        pub length: i64,
        /// Entries of the result, at most `length`.
        pub count: i64,
        /// The inverse transform: the exponents have the other sign, and the sum is divided by
        /// `length`.
        pub inverse: bool = false,
        /// The result has the real parts alone.
        pub real: bool = false,
    }
}

/// The sizes of a transform of a known value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DftSizes {
    /// Entries of the operand along the axis that are summed.
    pub terms: usize,
    /// All entries of the operand along the axis.
    pub entries: usize,
    /// Numbers that lie between two of these.
    pub inner: usize,
    /// Elements of a number of the operand, and of the result.
    pub parts: [usize; 2],
}

impl Dft {
    /// The axis in a value of `rank` axes.
    pub(crate) fn axis(&self, rank: usize) -> Result<usize, OpError> {
        let axis = axis("axis", self.axis, rank)?;
        if axis + 1 == rank {
            return Err(OpError::attr("axis", "is the axis of the parts of a number"));
        }
        Ok(axis)
    }

    /// The sizes for an operand of these, which `infer` accepts.
    pub(crate) fn sizes(&self, dims: &[usize]) -> Result<DftSizes, OpError> {
        let axis = self.axis(dims.len())?;
        let (entries, last) = (dims[axis], dims.len() - 1);
        let length = usize::try_from(self.length).unwrap_or(usize::MAX);
        Ok(DftSizes {
            terms: entries.min(length),
            entries,
            inner: dims[axis + 1..last].iter().product(),
            parts: [dims[last], if self.real { 1 } else { 2 }],
        })
    }

    /// `e^(-2*pi*i*r / length)`, of the inverse `e^(2*pi*i*r / length) / length`, for all `r`, as
    /// real and imaginary parts.
    pub(crate) fn turns(&self) -> Vec<[f64; 2]> {
        let length = self.length as f64;
        let (sign, scale) = if self.inverse { (1.0, 1.0 / length) } else { (-1.0, 1.0) };
        let turn = |r: i64| {
            let angle = sign * TAU * (r as f64 / length);
            [scale * libm::cos(angle), scale * libm::sin(angle)]
        };
        (0..self.length).map(turn).collect()
    }

    /// Entry `k` of the result of one block, which holds everything along the axis and behind it.
    pub(crate) fn row<F: Float>(
        sizes: DftSizes,
        turns: &[[f64; 2]],
        k: usize,
        block: &[F],
        row: &mut [F],
    ) {
        let [of, parts] = sizes.parts;
        for (i, y) in row.chunks_exact_mut(parts).enumerate() {
            let (mut sum, mut at) = ([0.0; 2], 0);
            for x in block.chunks_exact(of).skip(i).step_by(sizes.inner).take(sizes.terms) {
                let [cos, sin] = turns[at];
                let re = x[0].real().to_f64();
                let im = x.get(1).map_or(0.0, |x| x.real().to_f64());
                sum[0] += re * cos - im * sin;
                sum[1] += re * sin + im * cos;
                at = (at + k) % turns.len();
            }
            y.iter_mut().zip(sum).for_each(|(y, sum)| *y = F::of_f64(sum));
        }
    }
}

impl OpDef for Dft {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x] = exactly(operands)?;
        dtype(operands, 0, DType::is_float, "a float")?;
        let mut shape = x.ty.shape.clone();
        let axis = self.axis(shape.rank())?;
        if !(1..=i64::from(i32::MAX)).contains(&self.length) {
            let reason = format!("{} is out of range; it must be 1 to 2^31 - 1", self.length);
            return Err(OpError::attr("length", reason));
        }
        if !(0..=self.length).contains(&self.count) {
            let reason = format!("{} is out of range; it must be 0 to the length", self.count);
            return Err(OpError::attr("count", reason));
        }
        let last = shape.rank() - 1;
        if !matches!(shape[last].as_const(), Some(1 | 2)) {
            let expected = "its last axis must hold a real number or two parts of one";
            return Err(OpError::shape(0, x.ty, expected));
        }
        shape[axis] = self.count.into();
        shape[last] = if self.real { Dim::ONE } else { 2.into() };
        result(TensorType { dtype: x.ty.dtype, shape })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        at.keep_beside(self.axis, shard, Code::AcrossSamples, "sums over the samples of the batch")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x] = exactly(operands)?;
        let (sizes, mut dims) = (self.sizes(x.dims())?, x.dims().to_vec());
        let (axis, last) = (self.axis(x.rank())?, x.rank() - 1);
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        (dims[axis], dims[last]) = (count, sizes.parts[1]);
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        let (block, row) =
            (sizes.entries * sizes.inner * sizes.parts[0], sizes.inner * sizes.parts[1]);
        if y.is_empty() || block == 0 {
            return Ok(vec![y]);
        }
        let turns = self.turns();
        for_float!(x.dtype(), F => {
            for (at, row) in y.as_mut_slice::<F>().chunks_exact_mut(row).enumerate() {
                let block = &x.as_slice::<F>()[at / count * block..][..block];
                Self::row(sizes, &turns, at % count, block, row);
            }
        });
        Ok(vec![y])
    }

    /// The transform is linear: its transpose has the exponents with the other sign.
    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (x, dy) = (at.operand(0)?, at.dy()?);
        let shape = at.shape(x);
        let axis = self.axis(shape.rank())?;
        let (Some(entries), Some(parts)) =
            (shape[axis].as_const(), shape.last().and_then(Dim::as_const))
        else {
            return Err(RuleError::Undefined("the entries of the axis are not known"));
        };
        let back = Self {
            count: entries.min(self.length),
            inverse: !self.inverse,
            real: parts == 1,
            ..self.clone()
        };
        let dx = at.op(back, &[dy])?;
        let factor = self.length as f64;
        let mut dx = at.scale(dx, if self.inverse { 1.0 / factor } else { factor })?;
        if entries > self.length {
            let mut pads = vec![0; 2 * shape.rank()];
            pads[shape.rank() + axis] = entries - self.length;
            dx = at.op(Pad { mode: PadMode::Constant, pads, value: 0.0 }, &[dx])?;
        }
        at.give(0, dx)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{self, check_split, random, refusal, rng};
    use super::super::{OpDef, Operand};
    use super::Dft;
    use crate::types::{Claim, DType, Tensor};

    fn dft(length: i64, count: i64) -> Dft {
        Dft { axis: -2, length, count, inverse: false, real: false }
    }

    #[test]
    fn a_wave_is_one_entry() {
        let wave: Vec<f32> =
            (0..4).flat_map(|j| [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]][j]).collect();
        let x = Tensor::new(&[4, 2], &wave).unwrap();
        let y = testing::eval(&dft(4, 4).into(), &[&x]);
        let expected = [0.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let near = |(y, expected): (&f32, f32)| (y - expected).abs() < 1e-6;
        assert!(y[0].as_slice::<f32>().iter().zip(expected).all(near), "{:?}", y[0]);
    }

    #[test]
    fn the_inverse_gives_what_was_transformed() {
        let mut rng = rng(1);
        for (n, inner) in [(1, 1), (5, 3), (8, 2), (12, 1)] {
            let x = random(&mut rng, DType::F64, &[2, n, inner, 2]);
            let length = i64::try_from(n).unwrap();
            let there = Dft { axis: 1, ..dft(length, length) };
            let back = Dft { inverse: true, ..there.clone() };
            let y = testing::eval(&there.into(), &[&x]);
            let again = testing::eval(&back.into(), &[&y[0]]);
            let (x, again) = (x.to_f64(), again[0].to_f64());
            assert!(x.iter().zip(again).all(|(x, y)| (x - y).abs() < 1e-12 * (1.0 + x.abs())));
        }
    }

    #[test]
    fn sizes_that_make_no_transform_are_refused() {
        let types = [&[4usize, 2][..], &[4, 1], &[4, 3], &[4]]
            .map(|dims| Tensor::zeros(DType::F32, dims).unwrap().tensor_type());
        let accepts =
            |op: &Dft, i: usize| op.infer(&[Operand { ty: &types[i], ints: None }]).is_ok();
        assert!(accepts(&dft(4, 4), 0) && accepts(&dft(9, 5), 1));
        assert!(!accepts(&dft(4, 4), 2) && !accepts(&dft(4, 4), 3));
        for (length, count) in [(0, 0), (-1, 0), (4, 5), (4, -1), (i64::MAX, 1)] {
            assert!(!accepts(&dft(length, count), 0), "{length} {count}");
        }
        for axis in [-1, 1, 2, -3, i64::MIN] {
            assert!(!accepts(&Dft { axis, ..dft(4, 4) }, 0), "{axis}");
        }
    }

    #[test]
    fn rows_pass_but_along_the_axis() {
        let mut rng = rng(2);
        let x = random(&mut rng, DType::F32, &[4, 4, 2]);
        for n in 1..6 {
            let rows = random(&mut rng, DType::F32, &[n, 4, 2]);
            let passed = check_split(&dft(4, 3).into(), &[(&rows, Claim::rows(0))], n);
            assert_eq!(passed, Ok(vec![Claim::rows(0)]));
        }
        assert_eq!(refusal(&dft(4, 3).into(), &[(&x, Claim::rows(1))]), "R0105");
    }
}
