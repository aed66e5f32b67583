//! Numbers as small integers with a scale: `quantize_linear` and `dequantize_linear`.

use std::ops::Range;

use super::element::{Int, for_dtype, for_float, in_reals, reals};
use super::infer::{at_least, axis, count, dtype, equal, result};
use super::prelude::*;
use super::real::Real;

family! {
    /// Operands are `x`, `scale` and, where there is a third, `zero` of the type of the integers
    /// and the shape of `scale`. A scale of one element (of at most one axis) is for all of `x`; a
    /// vector has one element for each entry of `axis`; a scale with the rank of `x` has one for
    /// each `block` entries of `axis` (the last block may be shorter), and the sizes of `x`
    /// elsewhere.
    ///
    /// Integers are `u8`, `i8`, `u16` and `i16`, and `i32` for `x` of `dequantize_linear`.
    pub enum Quantize is FOLLOWS_BLOCKS with [
        /// The axis of the scales, negative from the end.
        axis: i64 = 1,
        /// Entries for each scale, 0 where the scale has no blocks.
        block: i64 = 0,
    ] {
        /// `x / scale` rounded to the nearest integer, the even one of two, plus `zero`, and the
        /// nearest element of the type `to` of that; a NaN gives `zero`. Computed in `f32`, in
        /// `f64` where `x` is `f64`.
        Quantize = "quantize_linear" {
            /// The element type of the result.
            to: DType,
        },
        /// `(x - zero) * scale`, in the type of `scale`; the difference is exact.
        Dequantize = "dequantize_linear",
    }
}

/// Layout of the scales over the elements of `x`.
#[derive(Clone, Copy)]
enum Layout {
    /// One for all.
    All,
    /// One for each entry of the axis.
    Entries(usize),
    /// One for so many entries of the axis.
    Blocks(usize, i64),
}

/// Integers of a type that is quantised to.
const fn is_small(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8 | DType::U16 | DType::I16)
}

impl Quantize {
    fn layout(&self, x: usize, scale: &[Option<i64>]) -> Result<Layout, OpError> {
        let (&listed, &block) = self.common();
        if block < 0 {
            return Err(OpError::attr("block", format!("{block} is not a number of entries")));
        }
        match scale {
            [] | [Some(1)] if block == 0 => Ok(Layout::All),
            [_] if block == 0 => Ok(Layout::Entries(axis("axis", listed, x)?)),
            _ if block > 0 && scale.len() == x => {
                Ok(Layout::Blocks(axis("axis", listed, x)?, block))
            }
            _ => Err(OpError::attr(
                "block",
                format!("{block} does not suit scales of {} axes", scale.len()),
            )),
        }
    }

    fn check(&self, x: &TensorType, scale: &TensorType) -> Result<(), OpError> {
        let sizes: Vec<Option<i64>> = scale.shape.iter().map(Dim::as_const).collect();
        match self.layout(x.rank(), &sizes)? {
            Layout::All => Ok(()),
            Layout::Entries(axis) => {
                equal("the scales and their axis", &scale.shape[0], &x.shape[axis])
            }
            Layout::Blocks(axis, block) => {
                for (at, (scales, size)) in scale.shape.iter().zip(x.shape.iter()).enumerate() {
                    let blocks = (size.clone() + (block - 1)).floor_div(&block.into());
                    let size = if at == axis { &blocks } else { size };
                    equal("the scales and the blocks of an axis", scales, size)?;
                }
                Ok(())
            }
        }
    }

    /// Calls `f` with runs of consecutive elements of `x`.
    fn runs(
        &self,
        x: &Tensor,
        scale: &Tensor,
        f: &mut dyn FnMut(ScaledRun),
    ) -> Result<(), OpError> {
        let sizes: Vec<Option<i64>> = scale.dims().iter().map(|d| i64::try_from(*d).ok()).collect();
        // Entry `a` of the axis at outer position `o` has the scale `o * per_outer + a / block *
        // per_entry`. Scales of blocks also follow the axes behind, by a step for each element.
        let (axis, block, per_outer, per_entry, step) = match self.layout(x.rank(), &sizes)? {
            Layout::All => (0, usize::MAX, 0, 0, 0),
            Layout::Entries(axis) => (axis, 1, 0, 1, 0),
            Layout::Blocks(axis, block) => {
                let inner: usize = x.dims()[axis + 1..].iter().product();
                let block = usize::try_from(block).unwrap_or(usize::MAX);
                (axis, block, scale.dims()[axis] * inner, inner, 1)
            }
        };
        let dims = x.dims();
        let outer: usize = dims.iter().take(axis).product();
        let (size, inner) =
            (dims.get(axis).copied().unwrap_or(1), dims.iter().skip(axis + 1).product::<usize>());
        for (entry, start) in (0..outer * size).map(|entry| (entry, entry * inner)) {
            let (o, a) = (entry / size, entry % size);
            let scale = o * per_outer + a / block * per_entry;
            f(ScaledRun { elements: start..start + inner, scale, step });
        }
        Ok(())
    }

    /// `x / scale`, rounded, plus `zero`, as an integer far beyond every type at most.
    fn quantized<R: Real>(
        &self,
        x: &Tensor,
        numbers: &[R],
        scale: &Tensor,
        zero: Option<&Tensor>,
    ) -> Result<Vec<f64>, OpError> {
        let mut y = vec![0.0; numbers.len()];
        let scales: Vec<R> = scale.to_f64().into_iter().map(R::of).collect();
        let zeros = zero.map_or_else(|| vec![0.0; scales.len()], Tensor::to_f64);
        self.runs(x, scale, &mut |ScaledRun { elements, mut scale, step }| {
            for (y, x) in y[elements.clone()].iter_mut().zip(&numbers[elements]) {
                // The bounds lie far outside of every type that is quantised to, whatever the zero
                // point adds; with them an infinite ratio stays a number.
                let ratio = (*x / scales[scale]).round_ties_even().to_f64();
                *y = zeros[scale] + if ratio.is_nan() { 0.0 } else { ratio.clamp(-1e9, 1e9) };
                scale += step;
            }
        })?;
        Ok(y)
    }

    /// `(x - zero) * scale`.
    fn dequantized<R: Real>(
        &self,
        x: &Tensor,
        scale: &Tensor,
        scales: &[R],
        zero: Option<&Tensor>,
    ) -> Result<Vec<R>, OpError> {
        let mut y = vec![R::of(0.0); x.len()];
        let from = x.to_f64();
        let zeros = zero.map_or_else(|| vec![0.0; scales.len()], Tensor::to_f64);
        self.runs(x, scale, &mut |ScaledRun { elements, mut scale, step }| {
            for (y, x) in y[elements.clone()].iter_mut().zip(&from[elements]) {
                *y = R::of(x - zeros[scale]) * scales[scale];
                scale += step;
            }
        })?;
        Ok(y)
    }
}

/// Consecutive elements, the scale of the first, and how far scales advance for each.
struct ScaledRun {
    elements: Range<usize>,
    scale: usize,
    step: usize,
}

impl OpDef for Quantize {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        count(operands, 2, 3, "2 or 3")?;
        let (x, scale) = (operands[0].ty, operands[1].ty);
        dtype(operands, 1, DType::is_float, "a float")?;
        let (integers, to) = match self {
            Self::Quantize { to, .. } => {
                dtype(operands, 0, |t| t.is_float() || t == DType::I32, "a float or i32")?;
                if !is_small(*to) {
                    let reason = format!("{to} is not among u8, i8, u16 and i16");
                    return Err(OpError::attr("to", reason));
                }
                (*to, *to)
            }
            Self::Dequantize { .. } => {
                let suits = |t| is_small(t) || t == DType::I32;
                dtype(operands, 0, suits, "u8, i8, u16, i16 or i32")?;
                (x.dtype, scale.dtype)
            }
        };
        dtype(operands, 2, |t| t == integers, &integers.to_string())?;
        if let Some(zero) = operands.get(2)
            && zero.ty.shape != scale.shape
        {
            let expected = format!("its shape must be {}, that of the scales", scale.shape);
            return Err(OpError::shape(2, zero.ty, expected));
        }
        self.check(x, scale)?;
        result(TensorType { dtype: to, shape: x.shape.clone() })
    }

    fn rows(&self, at: &Splitting<'_>, shard: Shard) -> Result<Claims, Refusal> {
        let [x, scales @ ..] = at.operands else { return at.whole() };
        let Some(scale) = scales.first() else { return at.whole() };
        let sizes: Vec<Option<i64>> = scale.ty.shape.iter().map(Dim::as_const).collect();
        let first = x.claim == Claim::Shard(shard);
        let all = |claim: Option<Shard>| scales.iter().all(|s| s.claim.shard() == claim);
        let passes = match self.layout(x.ty.rank(), &sizes) {
            // Rows along the axis of the scales need the scales of the same rows, other rows need
            // all of them.
            Ok(Layout::Entries(axis)) if shard.axis == axis => {
                first && all(Some(Shard { axis: 0, ..shard }))
            }
            Ok(Layout::All | Layout::Entries(_)) => first && all(None),
            // A block along the rows could reach from one replica's into the next one's.
            Ok(Layout::Blocks(axis, _)) => shard.axis != axis && first && all(Some(shard)),
            Err(_) => false,
        };
        if passes {
            return at.keep(shard);
        }
        at.refuse(Code::Misaligned, "has scales that do not follow the rows of what they scale")
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let ([x, scale], zero) = at_least(operands)?;
        let zero = zero.first().copied();
        let Self::Quantize { to, .. } = *self else {
            let mut y = Tensor::zeros(scale.dtype(), x.dims())?;
            for_float!(scale.dtype(), F => {
                let scales = reals(scale.as_slice::<F>());
                let numbers = self.dequantized(x, scale, &scales, zero)?;
                in_reals(y.as_mut_slice::<F>(), |y| y.copy_from_slice(&numbers));
            });
            return Ok(vec![y]);
        };
        // Every i32 is an f64; what a float type computes in follows from it.
        let x = if x.dtype() == DType::I32 { &Tensor::new(x.dims(), &x.to_f64())? } else { x };
        let rounded = for_float!(
            x.dtype(),
            F => self.quantized(x, &reals(x.as_slice::<F>()), scale, zero)?,
        );
        let mut y = Tensor::zeros(to, x.dims())?;
        for_dtype!(
            to,
            float _F => return Err(OpError::attr("to", "it must be an integer")),
            int I => {
                let y = y.as_mut_slice::<I>().iter_mut();
                y.zip(rounded).for_each(|(y, x)| *y = I::truncate(x));
            },
            bool => return Err(OpError::attr("to", "it must be an integer")),
        );
        Ok(vec![y])
    }

    fn jumps(&self) -> bool {
        matches!(self, Self::Quantize { .. })
    }

    fn gradient(&self) -> Gradient {
        match self {
            Self::Quantize { .. } => Gradient::None("it is constant between its steps"),
            Self::Dequantize { .. } => Gradient::Defined,
        }
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        if matches!(self, Self::Quantize { .. }) || !at.wants(1) {
            return Ok(());
        }
        // Elements and zero points are integers: only scales have a gradient, the sum of `dy * (x -
        // zero)` over the elements that share one.
        let (x, scale, dy) = (at.operand(0)?, at.operand(1)?, at.dy()?);
        let own = at.shape(scale);
        // With scales of 1 the differences of elements and zero points.
        let one = at.number(scale, 1.0)?;
        let mut operands = vec![x, at.expand(one, &own)?];
        if at.operands() > 2 {
            operands.push(at.operand(2)?);
        }
        let steps = at.op(self.clone(), &operands)?;
        let terms = at.mul(dy, steps)?;
        let shape = at.shape(terms);
        let sizes: Vec<Option<i64>> = own.iter().map(Dim::as_const).collect();
        let sums = match self.layout(shape.len(), &sizes)? {
            Layout::All => at.sum(terms, &(0..shape.len()).collect::<Vec<_>>())?,
            Layout::Entries(axis) => {
                at.sum(terms, &(0..shape.len()).filter(|a| *a != axis).collect::<Vec<_>>())?
            }
            Layout::Blocks(axis, block) => {
                let whole = own[axis].clone() * block;
                let mut apart = own.to_vec();
                apart.insert(axis + 1, block.into());
                // Zeros fill up the last block, which may be shorter.
                let whole = at.spread(terms, axis, &Dim::ZERO, 1, &whole)?;
                let apart = at.reshape(whole, &apart.into_iter().collect())?;
                at.sum(apart, &[axis + 1])?
            }
        };
        let sums = at.reshape(sums, &own)?;
        at.give(1, sums)
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{self, random, rng};
    use super::Quantize;
    use crate::types::DType;

    fn quantize(axis: i64, block: i64, to: DType) -> Op {
        Quantize::Quantize { axis, block, to }.into()
    }

    fn dequantize(axis: i64, block: i64) -> Op {
        Quantize::Dequantize { axis, block }.into()
    }

    #[test]
    fn scales_of_axes_and_blocks() {
        let mut rng = rng(3);
        for round in 0..80 {
            let dims: Vec<usize> =
                (0..rng.random_range(1..4)).map(|_| rng.random_range(1..6)).collect();
            let axis = rng.random_range(0..dims.len());
            let block = [0, rng.random_range(1..4)][round % 2];
            let scales = if block == 0 {
                vec![dims[axis]]
            } else {
                let mut scales = dims.clone();
                scales[axis] = dims[axis].div_ceil(block);
                scales
            };
            let (ints, x) =
                (random(&mut rng, DType::I8, &dims), random(&mut rng, DType::F32, &dims));
            let scale = random(&mut rng, DType::F32, &scales);
            let zero = random(&mut rng, DType::I8, &scales);
            let (factors, zeros) = (scale.to_f64(), zero.to_f64());
            let inner: usize = dims[axis + 1..].iter().product();
            let scale_of = |at: usize| {
                let (outer, entry) = (at / inner / dims[axis], at / inner % dims[axis]);
                if scales.len() == 1 && block == 0 {
                    entry
                } else {
                    (outer * scales[axis] + entry / block) * inner + at % inner
                }
            };
            let (axis, block) = (i64::try_from(axis).unwrap(), i64::try_from(block).unwrap());
            let y = &testing::eval(&dequantize(axis, block), &[&ints, &scale, &zero])[0];
            for (at, (y, x)) in y.to_f64().into_iter().zip(ints.to_f64()).enumerate() {
                let exact = (x - zeros[scale_of(at)]) * factors[scale_of(at)];
                assert!((y - exact).abs() <= 1e-6 * exact.abs(), "{dims:?} {axis} {block}");
            }
            let y = &testing::eval(&quantize(axis, block, DType::I8), &[&x, &scale, &zero])[0];
            for (at, (y, x)) in y.to_f64().into_iter().zip(x.to_f64()).enumerate() {
                let exact = (x / factors[scale_of(at)] + zeros[scale_of(at)]).clamp(-128.0, 127.0);
                assert!((y - exact).abs() <= 0.51, "{dims:?} {axis} {block}: {y} {exact}");
            }
        }
    }
}
