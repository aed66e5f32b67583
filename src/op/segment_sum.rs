//! Sums of rows by the segment that they belong to.

use super::Narrow;
use super::element::{Float, Int, for_dtype};
use super::infer::{dtype, exactly, result};
use super::narrow::wide_type;
use super::prelude::*;
use super::real::Real;
use super::wide::{LargeSum, Wide};

op! {
    /// Segment sum: for each of `segments` segments the sum of the rows of the first operand that
    /// belong to it, by the number that the second operand, `i64`, has for each row.
    ///
    /// Rows lie on axis 0 and are taken in order; floats are summed in `f64`, sums of `f64` keep
    /// what cancels, and are rounded once; integers wrap. The sum of no rows is 0.
    pub struct SegmentSum = "segment_sum" is REDUCES {
        /// The number of segments.
        pub segments: i64,
        /// Whether sums of `f64` are not rounded: they are wide ones then, for `narrow`, with an
        /// axis before the others for their four components.
        pub wide: bool = false,
    }
}

impl OpDef for SegmentSum {
    fn of_magnitudes(&self) -> Option<Op> {
        Some(self.clone().into())
    }

    fn unrounded(&self, operands: &[&TensorType]) -> Option<(Op, Op)> {
        let wide = !self.wide && operands.first()?.dtype == DType::F64;
        let narrow = Narrow { by: Combine::WideSum, count: Dim::ONE, log: false };
        wide.then(|| (Self { wide: true, ..self.clone() }.into(), narrow.into()))
    }

    fn lookup(&self, _: &[&TensorType]) -> Option<Lookup> {
        Some(Lookup { operand: 1, count: self.segments, from_end: false })
    }

    fn infer(&self, operands: &[Operand<'_>]) -> Result<Results, OpError> {
        let [x, ids] = exactly(operands)?;
        dtype(operands, 0, |t| t != DType::Bool, "a number")?;
        dtype(operands, 1, |t| t == DType::I64, "i64")?;
        if !(0..=i64::from(u32::MAX)).contains(&self.segments) {
            let reason = format!("{} is not a number of segments", self.segments);
            return Err(OpError::attr("segments", reason));
        }
        let Some(rows) = x.ty.shape.first() else {
            return Err(OpError::shape(0, x.ty, "it has an axis of rows"));
        };
        if ids.ty.shape.as_ref() != std::slice::from_ref(rows) {
            let expected = format!("it has one number for each of {rows} rows");
            return Err(OpError::shape(1, ids.ty, expected));
        }
        let mut ty = x.ty.clone();
        ty.shape[0] = Dim::from(self.segments);
        if self.wide {
            dtype(operands, 0, |t| t == DType::F64, "f64")?;
            ty = wide_type(LargeSum::WIDTH, &ty.shape);
        }
        result(ty)
    }

    fn rows(&self, at: &Splitting<'_>, _: Shard) -> Result<Claims, Refusal> {
        match (at.shard(0), at.shard(1)) {
            // Each replica sums its own rows into all segments; the sums of the replicas are added.
            (Some(x), Some(ids)) if x.axis == 0 && x == ids => {
                at.give(Claim::Partial(if self.wide { Combine::WideSum } else { Combine::Sum }))
            }
            // Sums run over axis 0 and leave the others apart.
            (Some(x), None) if x.axis != 0 => {
                at.keep(Shard { axis: x.axis + usize::from(self.wide), ..x })
            }
            _ => at.refuse(Code::Misaligned, "sums rows by the segments of others"),
        }
    }

    fn eval(&self, operands: &[&Tensor]) -> Result<Vec<Tensor>, OpError> {
        let [x, ids] = exactly(operands)?;
        let segments = usize::try_from(self.segments).unwrap_or(0);
        let width: usize = x.dims().iter().skip(1).product();
        let mut dims = x.dims().to_vec();
        if let Some(rows) = dims.first_mut() {
            *rows = segments;
        }
        if self.wide {
            dims.insert(0, LargeSum::WIDTH);
        }
        let mut y = Tensor::zeros(x.dtype(), &dims)?;
        let place = |id: &i64| {
            let place = usize::try_from(*id).ok().filter(|id| *id < segments);
            let reason = || format!("{id} is not one of the {segments} segments");
            place.ok_or_else(|| OpError::value(1, reason()))
        };
        let places = ids.as_slice::<i64>().iter().map(place).collect::<Result<Vec<usize>, _>>()?;
        if y.is_empty() || width == 0 {
            return Ok(vec![y]);
        }
        if x.dtype() == DType::F64 {
            let sums = large_sums(&places, x.as_slice(), segments * width);
            let to = y.as_mut_slice::<f64>();
            for (i, sum) in sums.iter().enumerate() {
                if self.wide {
                    // Component-major: the components are the first axis.
                    (0..LargeSum::WIDTH).for_each(|c| to[c * sums.len() + i] = sum.component(c));
                } else {
                    to[i] = sum.value();
                }
            }
            return Ok(vec![y]);
        }
        for_dtype!(
            x.dtype(),
            float F => sums(&places, x.as_slice::<F>(), y.as_mut_slice::<F>(), width),
            int I => {
                let (x, y) = (x.as_slice::<I>(), y.as_mut_slice::<I>());
                for (row, place) in x.chunks_exact(width).zip(&places) {
                    let sums = y[place * width..][..width].iter_mut().zip(row);
                    sums.for_each(|(sum, x)| *sum = I::wrap(sum.wide() + x.wide()));
                }
            },
            bool => return Err(OpError::not_a_number()),
        );
        Ok(vec![y])
    }

    fn gradient(&self) -> Gradient {
        if self.wide {
            return Gradient::None("it is a part of a result; gradients are taken before");
        }
        Gradient::Defined
    }

    fn backward(&self, at: &mut Backward<'_>) -> Result<(), RuleError> {
        let (dy, segments) = (at.dy()?, at.operand(1)?);
        // Every row gets the gradient of its segment.
        let dx = at.gather(dy, segments, 0)?;
        at.give(0, dx)
    }
}

/// The sums of rows of `width` numbers, which go to these places in `y`; the others stay zero.
fn sums<F: Float>(places: &[usize], x: &[F], y: &mut [F], width: usize) {
    // The rows of a place follow each other, in their order; most places may have none.
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by_key(|row| places[*row]);
    let mut sums = vec![0.0f64; width];
    for rows in order.chunk_by(|a, b| places[*a] == places[*b]) {
        sums.fill(0.0);
        for row in rows {
            let row = x[row * width..][..width].iter();
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += x.real().to_f64());
        }
        let y = y[places[rows[0]] * width..][..width].iter_mut();
        y.zip(&sums).for_each(|(y, sum)| *y = F::of_f64(*sum));
    }
}

/// The sums of rows of `f64` by their places; all segments have `len` elements.
fn large_sums(places: &[usize], x: &[f64], len: usize) -> Vec<LargeSum> {
    let mut sums = vec![LargeSum::EMPTY; len];
    let width = x.len() / places.len().max(1);
    for (place, row) in places.iter().zip(x.chunks_exact(width.max(1))) {
        let sums = &mut sums[place * width..(place + 1) * width];
        sums.iter_mut().zip(row).for_each(|(sum, x)| *sum = sum.with(*x));
    }
    sums
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::Op;
    use super::super::testing::{assert_close, eval, random, rng, tensor, tolerance};
    use super::SegmentSum;
    use crate::types::{DType, Tensor};

    fn op(segments: i64) -> Op {
        SegmentSum { segments, wide: false }.into()
    }

    #[test]
    fn rows_are_added_to_their_segment() {
        let mut rng = rng(1);
        for case in 0..60 {
            let dtype = [DType::F32, DType::I64, DType::F16, DType::F64][case % 4];
            let (rows, segments) = (rng.random_range(0..9usize), rng.random_range(1..5usize));
            let x = random(&mut rng, dtype, &[rows, 2, 3]);
            let ids: Vec<usize> = (0..rows).map(|_| rng.random_range(0..segments)).collect();
            let values = x.to_f64();
            let mut expected = vec![0.0; segments * 6];
            for (i, x) in values.iter().enumerate() {
                expected[ids[i / 6] * 6 + i % 6] += x;
            }
            let ids: Vec<i64> = ids.iter().map(|i| i64::try_from(*i).unwrap()).collect();
            let ids = Tensor::new(&[rows], &ids).unwrap();
            let y = eval(&op(i64::try_from(segments).unwrap()), &[&x, &ids]);
            assert_eq!(y[0].dims(), [segments, 2, 3]);
            assert_close(&y[0], &expected, tolerance(dtype));
        }
        let bytes = tensor(DType::I8, &[2], &[100.0, 100.0]);
        let ids = Tensor::new(&[2], &[0i64, 0]).unwrap();
        assert_eq!(eval(&op(1), &[&bytes, &ids])[0].to_i64(), Some(vec![-56]));
        for id in [-1i64, 1] {
            let ids = Tensor::new(&[2], &[0, id]).unwrap();
            assert!(op(1).eval(&[&bytes, &ids]).is_err());
        }
    }
}
